"""Several sums together: differences of two."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from attacks.core.base import ABSTAIN, NEVER, AttackResult, Distributions, FloatArray, substream
from attacks.core.run import Attack, Run
from attacks.core.scoring import score_distributions
from attacks.core.view import Capability, View
from attacks.server.votes import WHOLE, SumVotes, allot, named, newest, summed, votes_in_clear
from secure_fd.errors import MissingCapabilityError
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.votes.codec import IntArray

NOTHING = "no proxy came up in two sums that differ by one client: nothing to subtract"
SHOWN = "shown"
"""Claims [K, P] from differences alone, before the rest of each sum is allotted."""


@dataclass(frozen=True, slots=True)
class Differencing(Attack[Distributions, Sequence[SumVotes]]):
    """All pairs of rounds whose clients differ by one: the difference is that client's vote.

    Up to what the others changed their minds about: a difference that no single vote can make is
    dropped, and of several for one client and proxy the most frequent counts.
    """

    name = "differencing"
    title = "Votes from two sums that differ by one client"
    figure_name = "votes recovered, with their author"
    control_name = "votes of each sum given to its clients at random"
    needs = (frozenset({Capability.READ_SUMS}),)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read all sums of the run; the truth is in the uploads, where they are in clear.

        Raises:
            MissingCapabilityError: if masks hide the uploads. Only a run whose votes were kept
                (`attacks.server.votes.record`) can be scored then.
        """
        rounds = [seen for seen in run.transcript.distillation if seen.total is not None]
        if any(seen.uploads is None for seen in rounds):
            raise MissingCapabilityError("missing each client's votes, which score this attack")
        return cls(truth=[votes_in_clear(seen) for seen in rounds])

    def estimate(self, view: View, seed: int) -> Distributions:
        """The votes that differences show."""
        view.require_any(*self.needs)
        shape = (view.public.n_clients, len(view.public.proxies))
        rounds = summed(view.rounds)
        tally = np.zeros((*shape, view.public.n_classes + 1), dtype=np.int64)
        pairs, differences, dropped = 0, 0, 0
        for (one, first), (other, second) in combinations(rounds, 2):
            alone = set(one.survivors) ^ set(other.survivors)
            if len(alone) != 1:
                continue
            (client,) = alone
            proxies, at_one, at_other = np.intersect1d(
                one.result.indices, other.result.indices, assume_unique=True, return_indices=True
            )
            sign = 1.0 if client in one.survivors else -1.0
            gap = sign * (first[at_one] - second[at_other])
            fits = (gap.min(axis=1, initial=0.0) >= 0) & (gap.sum(axis=1) <= WHOLE)
            classes = named(np.clip(gap[fits], 0.0, None))
            tally[client, proxies[fits], classes] += 1  # ABSTAIN, -1, is the last column
            pairs += 1
            differences += len(fits)
            dropped += int((~fits).sum())
        shown = _most_frequent(tally, np.random.default_rng(substream(seed, "ties")))
        stream = substream(seed, "allotment")
        guess = _completed(rounds, np.full(shape, NEVER), stream)
        return Distributions(
            _completed(rounds, shown, stream),
            guess,
            others={SHOWN: Distributions(shown, guess)},
            details={
                "shown_votes": float((shown >= 0).sum()),
                "pairs_of_rounds": float(pairs),
                "differences": float(differences),
                "dropped": dropped / max(1, differences),
            },
            caveats=(
                *(() if differences else (NOTHING,)),
                "pairs of sums alone were tried: combinations of more sums may find more",
                "the interval covers clients, not runs",
            ),
        )

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Share of the (client, proxy) votes, before any noise, that are recovered.

        A client's last vote about a proxy is the truth of the pair.
        """
        shown = estimate.others[SHOWN].rows
        shape = (shown.shape[0], shown.shape[1])
        meant = newest(((each.indices, each.meant) for each in self.truth), shape)
        sent = newest(((each.indices, each.sent) for each in self.truth), shape)
        named_class = shown >= 0
        claims = max(1, int(named_class.sum()))
        details = {
            "shown_precision": float((named_class & (shown == meant)).sum()) / claims,
            "shown_precision_against_uploads": float((named_class & (shown == sent)).sum())
            / claims,
        }
        return score_distributions(self, estimate, meant, seed, details=details)


def _completed(
    rounds: Sequence[tuple[ObservedVotes, FloatArray]], shown: IntArray, seed: int
) -> IntArray:
    """[K, P] what is shown, and where nothing is, a random share of the newest sum's votes."""
    rng, allotted = np.random.default_rng(seed), []
    for seen, votes in rounds:
        known = {k: shown[k, seen.result.indices] for k in seen.survivors}
        allotted.append((seen.result.indices, allot(votes, seen.survivors, rng, known)))
    return newest(allotted, (shown.shape[0], shown.shape[1]))


def _most_frequent(tally: IntArray, rng: np.random.Generator) -> IntArray:
    """[K, P] of tallies [K, P, C + 1] the largest, ties at random; NEVER where all are zero."""
    some = tally.any(axis=2)
    found = np.full(some.shape, NEVER, dtype=np.int64)
    rows = tally[some]
    best = (rows + rng.random(rows.shape)).argmax(axis=1)
    found[some] = np.where(best == tally.shape[2] - 1, ABSTAIN, best)
    return found
