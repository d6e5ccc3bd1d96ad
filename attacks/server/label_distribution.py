"""Which labels does each client hold? The server counts votes, or reads off the last bias.

A client votes for what it was trained on, so the class totals of its votes are an estimate of
its label histogram. Under masks only the totals over all clients remain, and the best guess is
the same for every client. A client that sends parameters raises the last bias of the classes that
it trained on: the gradient is the sum of p - y over its records, with predictions p and one-hot
labels y. Class sums of public features say it outright.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls
from torch import nn

from attacks.core.base import (
    AttackResult,
    BoolArray,
    Distributions,
    Effort,
    FloatArray,
    seeded,
)
from attacks.core.run import Attack, Run, attack_view, histograms, public_of
from attacks.core.scoring import score_distributions, shares_of
from attacks.core.statistics import distribution, distributions, total_variation
from attacks.core.view import Capability, Public, View, read_unmasked, server_view
from attacks.inversion.updates import MEAN_UPDATE, Recipe, classes_pulled, readable_updates
from attacks.server.votes import Debias, summed, undoing
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule
from secure_fd.votes.codec import UnitArray

UNREADABLE = "no client's share was readable: every client gets the same guess, from the totals"
_OF_VOTES = "votes measure what a client predicts, not how many records it holds"
_UNIFORM = "the uniform guess for every client"


@dataclass(frozen=True, slots=True)
class LabelDistribution(Attack[Distributions, ArrayLike]):
    """Class totals of each client's votes over all rounds, or the last bias of its updates.

    Payloads are tried too: one that unpacks to possible votes everywhere was not masked, whatever
    the transcript says of it. debias: undoes a noise whose parameters are public; negative totals
    then count as zero.
    """

    name = "label-distribution"
    title = "Label distribution of each client"
    figure_name = "TV error (0: known)"
    control_name = "the same guess for every client, from the totals"
    needs = (
        frozenset({Capability.READ_SUMS}),
        frozenset({Capability.READ_GENERATED}),
        frozenset({Capability.HOLD_HEAD}),
        MEAN_UPDATE,
    )
    default = True

    debias: Debias | None = None

    @classmethod
    def for_data(
        cls,
        data: FederatedData,
        seed: int,
        effort: Effort = "full",  # noqa: ARG003 - it takes a second
    ) -> float:
        """Return the error on two rounds of one plain step of a linear model, all in clear."""
        architecture = partial(_linear, data.proxies.pixels[0].numel(), data.n_classes)
        public = replace(public_of(data), architecture=architecture)
        networks = [architecture(seed) for _ in data.clients]
        steps = Schedule(local_steps=1, proxy_steps=0)
        run = Federation(networks, data.clients, None, FedAvg(), schedule=steps, seed=seed)
        run.fit(2)
        view = server_view(run.transcript, public)
        return attack_view(cls(truth=histograms(data)), view, seed).figure

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read the whole run; the truth is each client's class counts."""
        return cls(debias_of(run), truth=run.histograms, positive=run.shared(cls))

    def estimate(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - counting needs no chance
        """A distribution for every client of the view."""
        view.require_any(*self.needs)
        rounds = (*view.rounds, *view.generated)
        if not rounds:
            return _from_heads(view) if view.heads else _from_updates(view)
        public = view.public
        votes = np.zeros((public.n_clients, public.n_classes))
        total = np.zeros(public.n_classes)
        for seen in rounds:
            asked = len(seen.result.indices)
            for client, words in _readable(seen, public).items():
                votes[client] += self._class_totals(words, seen, asked)
            if seen.total is not None:
                total += self._class_totals(seen.total, seen, asked * len(seen.survivors))
        guess = distribution(total, np.full(public.n_classes, 1.0 / public.n_classes))
        return _estimate(votes, guess)

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Mean total-variation error over clients; truth: [K, C] label counts."""
        errors = total_variation(estimate.rows, shares_of(self.truth, estimate))
        worst = {"worst_client_error": float(errors.max())}
        return score_distributions(self, estimate, self.truth, seed, details=worst)

    def _class_totals(self, words: UnitArray, seen: ObservedVotes, asked: int) -> FloatArray:
        """[C] votes a class in integers [m * C], free of the bias of known noise."""
        units = words.reshape(len(seen.result.indices), -1).astype(np.float64).sum(axis=0)
        votes = np.asarray(units / seen.levels)
        return votes if self.debias is None else self.debias(votes, asked)


def debias_of(run: Run) -> Debias | None:
    """Return what undoes the label unit's noise in totals of a run; None without noise."""
    return undoing(run.response) if run.response else None


def _linear(inputs: int, n_classes: int, seed: int) -> nn.Module:
    """For records of any form."""
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, n_classes)), seed)


def _estimate(
    counts: FloatArray, guess: FloatArray, *, from_updates: bool = False
) -> Distributions:
    """From class totals [K, C] and a guess [C]."""
    counts = np.clip(counts, 0.0, None)
    shares = [distribution(row, guess) for row in counts]
    read = counts.sum(axis=1) > 0
    return Distributions(
        np.stack(shares),
        guess,
        read=read,
        details={"readable_clients": float(read.sum())},
        caveats=_caveats(read, from_updates=from_updates),
        control_name=_UNIFORM if from_updates else "",
    )


def _from_updates(view: View) -> Distributions:
    """From the last bias of every readable update: summed over rounds, noise cancels.

    Under masks what the cohort's mean update raised is the guess for every client.
    """
    if len(view.models) < 2:
        raise MissingCapabilityError(f"missing two rounds of global parameters ({view.attacker})")
    public = view.public
    pulled = np.zeros((public.n_clients, public.n_classes))
    of_all = np.zeros(public.n_classes)
    for newest in range(2, len(view.models) + 1):
        seen = replace(view, models=view.models[:newest])
        updates = readable_updates(seen, Recipe(batch=1))  # shares do not hang on rate or batch
        for clients, moved in zip(updates.clients, classes_pulled(public, updates), strict=True):
            if len(clients) == 1:
                pulled[clients] += moved
            else:
                of_all += moved
    hidden = not pulled.any()
    uniform = np.full(public.n_classes, 1.0 / public.n_classes)
    guess = distribution(np.clip(of_all, 0.0, None), uniform) if hidden else uniform
    return _estimate(pulled, guess, from_updates=not hidden)


def _from_heads(view: View) -> Distributions:
    """From the first sum of statistics: (H + beta I)^-1 of a client's class sums is its ratios.

    Their means over the proxies are its shares of classes (`class_shares`). Where no upload was
    readable, the head that all parties hold gives one guess for all.
    """
    from attacks.server.class_sums import public_map

    public, first = view.public, view.heads[0]
    reference = public_map(view)
    form = (reference.proxy_features.shape[1], public.n_classes)
    mean = reference.proxy_features.mean(axis=0)
    uploads = {} if first.uploads is None else first.uploads
    shares = np.zeros((public.n_clients, public.n_classes))
    for client, sums in uploads.items():
        shares[client] = mean @ reference.solver.solve(sums.astype(np.float64).reshape(form))
    all_of_them = np.clip(mean @ first.result.astype(np.float64).reshape(form), 0.0, None)
    guess = distribution(all_of_them, np.full(public.n_classes, 1.0 / public.n_classes))
    return _estimate(shares, guess)


def _readable(seen: ObservedVotes, public: Public) -> Mapping[int, UnitArray]:
    """Every client's integers [m * C] that this attacker can read in one round."""
    if seen.uploads is not None:
        return seen.uploads
    tried = {
        client: read_unmasked(
            words, public.n_clients, seen.levels, len(seen.result.indices) * public.n_classes
        )
        for client, words in (seen.payloads or {}).items()
    }
    return {client: values for client, values in tried.items() if values is not None}


def _caveats(read: BoolArray, *, from_updates: bool) -> tuple[str, ...]:
    if from_updates:
        return ("read off the last bias, which classes that the model already knows move less",)
    if not read.any():
        return (UNREADABLE,)
    silent = int((~read).sum())
    partly = (f"{silent} clients showed no readable vote and got the guess",) if silent else ()
    return (*partly, _OF_VOTES)


LOOKS = (5, 10, 20, 30)
"""After so many sums the estimate is looked at on the way."""


@dataclass(frozen=True, slots=True)
class Participation(Attack[Distributions, ArrayLike]):
    """Class totals of many sums, regressed on who was in them: who took part explains what came.

    The sums of R rounds are T = A D, but for chance, where A [R, K] says who was in which sum and
    D [K, C] is what each client votes a round. Where clients drop out A has rank, and non-negative
    least squares, class by class and drawn to the mean of all clients, give D, masks or not (Lam
    et al., "Gradient Disaggregation", ICML 2021; there A is unknown as well, here the server knows
    it). Where nobody ever drops out every client gets the same guess.

    ridge: the weight of that mean, in rounds. debias: undoes a noise whose parameters are public.
    """

    name = "participation"
    title = "Label distribution from who took part"
    figure_name = "TV error (0: known)"
    control_name = "the same guess for every client, from the totals"
    needs = (frozenset({Capability.READ_SUMS}),)

    debias: Debias | None = None
    ridge: float = 0.5

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read all sums of the run; the truth is each client's class counts."""
        return cls(debias_of(run), truth=run.histograms)

    def estimate(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - least squares need no chance
        """A distribution for every client."""
        view.require_any(*self.needs)
        rounds = [(seen, self._totals(seen, votes)) for seen, votes in summed(view.rounds)]
        if not rounds:
            raise LocalError("participation: not one sum was seen")
        there = np.zeros((len(rounds), view.public.n_clients))
        for row, (seen, _) in zip(there, rounds, strict=True):
            row[list(seen.survivors)] = 1.0
        totals = _at_par(np.stack([t for _, t in rounds]), [s for s, _ in rounds], view.public)
        looks = sorted({*(n for n in LOOKS if n < len(rounds)), len(rounds)})
        guess = distribution(totals.sum(axis=0), np.ones(view.public.n_classes))
        shares = {n: distributions(self._solve(there[:n], totals[:n]), guess) for n in looks}
        apart = int(_identified(there).sum())
        return Distributions(
            shares[len(rounds)],
            guess,
            others={f"after_{n}_sums": Distributions(rows, guess) for n, rows in shares.items()},
            details={
                "clients_told_apart": float(apart),
                "rank": float(np.linalg.matrix_rank(there)),
                "sums": float(len(rounds)),
            },
            caveats=(
                f"{apart} of {len(there.T)} clients are told apart by who took part",
                "votes measure what a client predicts, not how many records it holds",
            ),
        )

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Mean total-variation error over clients; truth: [K, C] label counts."""
        known = shares_of(self.truth, estimate)
        looks = {
            f"error_{when}": float(total_variation(shares.rows, known).mean())
            for when, shares in estimate.others.items()
        }
        return score_distributions(self, estimate, self.truth, seed, details=looks)

    def _totals(self, seen: ObservedVotes, votes: FloatArray) -> FloatArray:
        """[C] votes a class in one sum, free of the bias of known noise."""
        asked = len(votes) * len(seen.survivors)
        totals = np.asarray(votes.sum(axis=0))
        return totals if self.debias is None else self.debias(totals, asked)

    def _solve(self, there: FloatArray, totals: FloatArray) -> FloatArray:
        """[K, C] non-negative votes a round: min |A d - t|^2 + ridge |d - mean|^2 by class."""
        clients = there.shape[1]
        average = np.clip(totals.sum(axis=0), 0.0, None) / max(1.0, there.sum())
        matrix = np.vstack([there, np.sqrt(self.ridge) * np.eye(clients)])
        drawn_to = np.sqrt(self.ridge) * np.tile(average, (clients, 1))
        return np.stack([nnls(matrix, t)[0] for t in np.vstack([totals, drawn_to]).T], axis=1)


def _at_par(totals: FloatArray, rounds: Sequence[ObservedVotes], public: Public) -> FloatArray:
    """[R, C] totals as if every round had asked about equally many proxies of each class.

    Without labels, about equally many proxies.
    """
    asked = np.ones_like(totals) * np.array([[len(seen.result.indices)] for seen in rounds])
    if public.labels is not None:
        labels = public.labels.numpy()
        drawn = [labels[seen.result.indices] for seen in rounds]
        asked = np.stack([np.bincount(d, minlength=totals.shape[1]) for d in drawn]).astype(float)
    return np.asarray(totals * asked.mean(axis=0) / np.maximum(1.0, asked))


def _identified(there: FloatArray) -> BoolArray:
    """[K] whether the client's own part follows from the sums: e_k is in the row space of A."""
    projector = np.linalg.pinv(there) @ there
    return np.asarray(np.isclose(np.diag(projector), 1.0))
