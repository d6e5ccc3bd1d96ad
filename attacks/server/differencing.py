"""Several sums together: differences of two."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

import numpy as np

from attacks.core.base import (
    ABSTAIN,
    NEVER,
    AttackResult,
    BoolArray,
    Distributions,
    FloatArray,
    substream,
)
from attacks.core.run import Attack, Run
from attacks.core.scoring import right_by_group, score_distributions
from attacks.core.view import Capability, View
from attacks.server.votes import (
    WHOLE,
    ByClient,
    Said,
    allot,
    named,
    newest,
    require_same_rounds,
    said_in_clear,
    summed,
)
from secure_fd.errors import MissingCapabilityError
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.votes.codec import IntArray


@dataclass(frozen=True, slots=True)
class Differencing(Attack[Distributions, Sequence[Said]]):
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
            MissingCapabilityError: if masks hide the uploads. Only a run that records them
                (`attacks.server.votes.Recorder`) can be scored then.
        """
        rounds = [seen for seen in run.transcript.distillation if seen.total is not None]
        if any(seen.uploads is None for seen in rounds):
            raise MissingCapabilityError("missing each client's votes, which score this attack")
        return cls(truth=[said_in_clear(seen) for seen in rounds])

    def estimate(self, view: View, seed: int) -> Distributions:
        """The votes that differences show."""
        view.require_any(*self.needs)
        shape = (view.public.n_clients, len(view.public.proxies))
        rng = np.random.default_rng(substream(seed, "ties"))
        rounds = summed(view.rounds)
        tally = np.zeros((*shape, view.public.n_classes + 1), dtype=np.int64)
        pairs, differences, dropped = 0, 0, 0
        for (one, first), (other, second) in combinations(rounds, 2):
            alone = set(one.survivors) ^ set(other.survivors)
            if len(alone) != 1:
                continue
            (client,) = alone
            proxies, at_one, at_other = np.intersect1d(
                one.result.indices,
                other.result.indices,
                assume_unique=True,
                return_indices=True,
            )
            sign = 1.0 if client in one.survivors else -1.0
            gap = sign * (first[at_one] - second[at_other])
            fits = (gap.min(axis=1, initial=0.0) >= 0) & (gap.sum(axis=1) <= WHOLE)
            classes = named(np.clip(gap[fits], 0.0, None))
            tally[client, proxies[fits], classes] += 1  # ABSTAIN, -1, is the last column
            pairs += 1
            differences += len(fits)
            dropped += int((~fits).sum())
        shown = _most_frequent(tally, rng)
        stream = substream(seed, "allotment")
        guess = _completed(rounds, np.full(shape, NEVER), stream)
        return Distributions(
            _completed(rounds, shown, stream),
            guess,
            others={_SHOWN: Distributions(shown, guess)},
            details={
                "shown_votes": float((shown >= 0).sum()),
                "pairs_of_rounds": float(pairs),
                "differences": float(differences),
                "dropped": dropped / max(1, differences),
                "sums": float(len(rounds)),
            },
            caveats=_caveats(
                differences, readable=any(seen.uploads is not None for seen, _ in rounds)
            ),
        )

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Share of the (client, proxy) votes, before any noise, that are recovered.

        A client's last vote about a proxy is the truth of the pair.
        """
        truth = self.truth
        require_same_rounds(truth, int(estimate.details["sums"]))
        claims, guess = (rows.astype(np.int64) for rows in (estimate.rows, estimate.guess))
        shown = estimate.others[_SHOWN].rows.astype(np.int64)
        shape = (claims.shape[0], claims.shape[1])
        meant = newest(((heard.indices, heard.meant) for heard in truth), shape)
        sent = newest(((heard.indices, heard.sent) for heard in truth), shape)
        return score_distributions(
            self,
            estimate,
            meant,
            seed,
            details={
                "shown_precision": _precision(shown, meant),
                "shown_recall": float(right_by_group(shown, meant).mean()),
                "shown_precision_against_uploads": _precision(shown, sent),
                "shown_recall_against_uploads": float(right_by_group(shown, sent).mean()),
                "shown_abstentions": _share(shown == ABSTAIN, meant == ABSTAIN),
                "precision": _precision(claims, meant),
                "precision_of_control": _precision(guess, meant),
            },
        )


_SHOWN = "shown"
"""What differences alone show: claims [K, P] before the rest of each sum is allotted."""


def _completed(
    rounds: Sequence[tuple[ObservedVotes, FloatArray]], shown: IntArray, seed: int
) -> IntArray:
    """[K, P] what is shown, and where nothing is, a random share of the newest sum's votes."""
    rng = np.random.default_rng(seed)
    allotted: list[tuple[IntArray, ByClient]] = []
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


def _precision(claims: IntArray, truth: IntArray) -> float:
    return _share(claims == truth, claims >= 0)


def _share(hits: BoolArray, among: BoolArray) -> float:
    return float((hits & among).sum() / max(1, int(among.sum())))


def _caveats(differences: int, *, readable: bool) -> tuple[str, ...]:
    nothing = "no proxy came up in two sums that differ by one client: nothing to subtract"
    needless = "uploads are readable here, so that nobody needs differences"
    return (
        *((nothing,) if not differences else ()),
        *((needless,) if readable else ()),
        "pairs of sums alone were tried: combinations of more sums may find more",
        "the interval covers clients, not runs",
    )
