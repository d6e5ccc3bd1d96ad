"""Which labels does each client hold? The server counts votes, or reads off the last bias.

A client votes for what it was trained on, so the class totals of its votes are an estimate of
its label histogram. Under masks only the totals over all clients remain, and the best guess is
the same for every client. A client that sends parameters raises the last bias of the classes that
it trained on: the gradient is the sum of p - y over its records, with predictions p and one-hot
labels y. Classes that a client declares in public are known without any attack.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attacks.base import Attack, AttackResult, FloatArray
from attacks.scoring import distribution, share_error, total_variation, true_shares
from attacks.updates import CLIENT_UPDATES, Recipe, classes_pulled, client_updates
from attacks.view import Capability, ObservedRound, Public, View
from attacks.votes import Debias, read_unmasked
from secure_fd.knowledge import UnitArray

UNREADABLE = "no client's votes were readable: every client gets the same guess, from the totals"

DECLARED = "declared, not attacked: the protection makes {} clients name their classes in public"
_UNIFORM = "the uniform guess for every client"


@dataclass(frozen=True, slots=True, eq=False)
class LabelDistributionEstimate:
    """shares: [K, C], a distribution a client. guess: [C] from the totals. read: [K] bool.

    Where `read` is False the client's row is the guess, within the classes that it declares.
    declared: clients that declare theirs. from_updates: read off parameters, and the guess is
    uniform.
    """

    shares: FloatArray = field(repr=False)
    guess: FloatArray = field(repr=False)
    read: NDArray[np.bool_] = field(repr=False)
    declared: int = 0
    from_updates: bool = False


@dataclass(frozen=True, slots=True)
class LabelDistribution(Attack[LabelDistributionEstimate]):
    """Class totals of each client's votes over all rounds, or its newest update's last bias.

    Payloads are tried too: one that unpacks to possible votes everywhere was not masked, whatever
    the transcript says of it. debias: undoes a noise whose parameters are public; negative totals
    then count as zero.
    """

    name: ClassVar[str] = "label-distribution"
    title: ClassVar[str] = "Label distribution of each client"
    figure_name: ClassVar[str] = "TV error (0: known)"
    control_name: ClassVar[str] = "the same guess for every client, from the totals"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.READ_SUMS}),
        *CLIENT_UPDATES,
    )

    debias: Debias | None = None

    def run(self, view: View, seed: int) -> LabelDistributionEstimate:  # noqa: ARG002 - counting needs no chance
        """A distribution for every client of the view."""
        view.require_any(*self.needs)
        if Capability.READ_SUMS not in view.capabilities:
            return _from_updates(view)
        public = view.public
        votes = np.zeros((public.n_clients, public.n_classes))
        total = np.zeros(public.n_classes)
        for seen in view.rounds:
            asked = len(seen.ensemble.indices)
            for client, words in _readable(seen, public).items():
                votes[client] += self._class_totals(words, seen, asked)
            if seen.total is not None:
                total += self._class_totals(seen.total, seen, asked * len(seen.survivors))
        guess = distribution(total, np.full(public.n_classes, 1.0 / public.n_classes))
        return _estimate(votes, guess, public)

    def score(
        self, estimate: LabelDistributionEstimate, histograms: ArrayLike, seed: int
    ) -> AttackResult:
        """Mean total-variation error over clients; histograms: [K, C] true label counts."""
        truth = true_shares(histograms, estimate.shares, estimate.guess)
        return share_error(
            (self.name, self.title),
            estimate.shares,
            estimate.guess,
            truth,
            caveats=_caveats(estimate),
            details={
                **({"declared_clients": float(estimate.declared)} if estimate.declared else {}),
                "readable_clients": float(estimate.read.sum()),
                "worst_client_error": float(total_variation(estimate.shares, truth).max()),
            },
            seed=seed,
            **({"control_name": _UNIFORM} if estimate.from_updates else {}),
        )

    def _class_totals(self, words: UnitArray, seen: ObservedRound, asked: int) -> FloatArray:
        """[C] votes a class in integers [m * C], free of the bias of known noise."""
        units = words.reshape(len(seen.ensemble.indices), -1).astype(np.float64).sum(axis=0)
        votes = np.asarray(units / seen.levels)
        return votes if self.debias is None else self.debias(votes, asked)


def _estimate(
    counts: FloatArray, guess: FloatArray, public: Public, *, from_updates: bool = False
) -> LabelDistributionEstimate:
    """From class totals [K, C] and a guess [C]; nobody holds a class that it did not declare."""
    declared = public.declared_classes
    counts = np.clip(counts, 0.0, None)
    guesses = np.tile(guess, (len(counts), 1))
    for client, classes in declared.items():
        own = np.isin(np.arange(public.n_classes), classes).astype(np.float64)
        counts[client] *= own
        guesses[client] = distribution(guess * own, own / own.sum())
    shares = [distribution(row, known) for row, known in zip(counts, guesses, strict=True)]
    read = counts.sum(axis=1) > 0
    return LabelDistributionEstimate(np.stack(shares), guess, read, len(declared), from_updates)


def _from_updates(view: View) -> LabelDistributionEstimate:
    """From the last bias of every readable update of the newest round."""
    public = view.public
    updates = client_updates(view, Recipe(batch=1))  # shares do not hang on rate or batch
    pulled = np.zeros((public.n_clients, public.n_classes))
    pulled[[client for (client,) in updates.clients]] = classes_pulled(public, updates)
    uniform = np.full(public.n_classes, 1.0 / public.n_classes)
    return _estimate(pulled, uniform, public, from_updates=True)


def _readable(seen: ObservedRound, public: Public) -> Mapping[int, UnitArray]:
    """Every client's integers [m * C] that this attacker can read in one round."""
    if seen.uploads is not None:
        return seen.uploads
    tried = {
        client: read_unmasked(
            words, public.n_clients, seen.levels, len(seen.ensemble.indices) * public.n_classes
        )
        for client, words in (seen.payloads or {}).items()
    }
    return {client: values for client, values in tried.items() if values is not None}


def _caveats(estimate: LabelDistributionEstimate) -> tuple[str, ...]:
    if estimate.declared and not estimate.read.any():
        return (DECLARED.format(estimate.declared),)
    if estimate.from_updates:
        return ("read off the last bias, which classes that the model already knows move less",)
    if not estimate.read.any():
        return (UNREADABLE,)
    silent = int((~estimate.read).sum())
    partly = (f"{silent} clients showed no readable vote and got the guess",) if silent else ()
    known = (DECLARED.format(estimate.declared),) if estimate.declared else ()
    return (*known, *partly, "votes measure what a client predicts, not how many records it holds")
