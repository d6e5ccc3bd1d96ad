"""Label histogram of each client, estimated by the server from votes or from the last bias.

A client votes for what it was trained on, so the class totals of its votes are an estimate of
its label histogram. Under masks only the totals over all clients remain, and the best guess is
the same for every client. A client that sends parameters raises the last bias of the classes that
it trained on: the gradient is the sum of p - y over its records, with predictions p and one-hot
labels y. Class sums of public features give it outright.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls
from torch import nn

from attacks.core.base import AttackResult, Distributions, Effort, FloatArray, seeded
from attacks.core.run import Attack, Run, attack_view, histograms, public_of
from attacks.core.scoring import score_distributions
from attacks.core.statistics import distribution, distributions
from attacks.core.view import Capability, Public, View, read_unmasked, server_view
from attacks.inversion.updates import EVERYONE, MEAN_UPDATE, classes_pulled, readable_updates
from attacks.server.class_sums import public_map
from attacks.server.votes import in_votes
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule
from secure_fd.votes.codec import UnitArray

UNREADABLE: Final = (
    "no client's share was readable: every client gets the same guess, from the totals"
)
OF_VOTES: Final = "votes measure what a client predicts, not how many records it holds"
OF_HEADS: Final = "read off class sums of records, which count them by class"
OF_BIAS: Final = "read off the last bias, which moves less for classes that the model predicts well"

Totals = tuple[Mapping[int, FloatArray], FloatArray]
"""Class totals [C] of one sum: by client, as far as they are readable, and of all clients."""


@dataclass(frozen=True, slots=True)
class LabelDistribution(Attack[Distributions, ArrayLike]):
    """Class totals of each client's votes over all rounds, or the last bias of its updates.

    Payloads are tried too: one that unpacks to possible votes everywhere was not masked, whatever
    the transcript records. response: of the label unit, whose public noise is undone; negative
    totals then count as zero.
    """

    name = "label-distribution"
    title = "Label distribution of each client"
    figure_name = "TV error (0: known)"
    control_name = "the same guess for every client, from the totals"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.READ_SUMS}),
        frozenset({Capability.READ_GENERATED}),
        frozenset({Capability.HOLD_HEAD}),
        MEAN_UPDATE,
    )
    shown_in = "labels: error"

    response: RandomizedResponse | None = None

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> float:  # noqa: ARG003 - a second
        """Return the error on two rounds of one plain step of a linear model, all in clear."""
        architecture = partial(_linear, data.proxies.pixels[0].numel(), data.n_classes)
        public = replace(public_of(data), architecture=architecture)
        networks = [architecture(seed) for _ in data.clients]
        steps = Schedule(local_steps=1, proxy_steps=0)
        run = Federation(networks, data.clients, None, FedAvg(), schedule=steps, seed=seed)
        run.fit(2)
        view = server_view(run.transcript, public)
        return attack_view(LabelDistribution(truth=histograms(data)), view, seed).figure

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read the whole run; the truth is each client's class counts."""
        return cls(run.response, truth=run.histograms, positive=run.shared(cls))

    def estimate(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - nothing is drawn
        """A distribution for every client of the view."""
        view.require_any(*self.needs)
        classes = view.public.n_classes
        if view.rounds or view.generated:
            rounds = (*view.rounds, *view.generated)
            totals, caveat = _of_votes(rounds, view.public, self.response), OF_VOTES
        elif view.heads:
            totals, caveat = _of_heads(view), OF_HEADS
        else:
            totals, caveat = _of_updates(view), OF_BIAS
        own, everyone = np.zeros((view.public.n_clients, classes)), np.zeros(classes)
        for by_client, of_all in totals:
            everyone += of_all
            for client, counts in by_client.items():
                own[client] += counts
        read = np.asarray((own > 0).any(axis=1))
        guess = distribution(everyone, np.full(classes, 1.0 / classes))
        silent = int((~read).sum())
        partly = f"{silent} clients showed nothing readable and got the guess"
        return Distributions(
            distributions(own, guess),
            guess,
            read=read,
            details={"readable_clients": float(read.sum())},
            caveats=(*((partly,) if silent else ()), caveat) if read.any() else (UNREADABLE,),
        )

    def score(self, estimate: Distributions, seed: int) -> AttackResult:
        """Mean total-variation error over clients; truth: [K, C] label counts."""
        return score_distributions(self, estimate, self.truth, seed)


def _linear(inputs: int, n_classes: int, seed: int) -> nn.Module:
    """For records of any form."""
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, n_classes)), seed)


def _undone(
    units: UnitArray, seen: ObservedVotes, clients: int, response: RandomizedResponse | None
) -> FloatArray:
    """[C] class totals of the clients' integers, without the bias of the public noise."""
    totals = np.asarray(in_votes(units, seen).sum(axis=0))
    if response is None:
        return totals
    answers = clients * len(seen.result.indices)
    return np.asarray((totals - answers * response.q) / (response.p - response.q))


def _of_votes(
    rounds: Iterable[ObservedVotes], public: Public, response: RandomizedResponse | None
) -> Iterator[Totals]:
    for seen in rounds:
        readable = _readable(seen, public).items()
        own = {client: _undone(units, seen, 1, response) for client, units in readable}
        everyone = np.zeros(public.n_classes)
        if seen.total is not None:
            everyone = _undone(seen.total, seen, len(seen.survivors), response)
        yield own, everyone


def _readable(seen: ObservedVotes, public: Public) -> Mapping[int, UnitArray]:
    """Every client's integers [m * C] that this attacker can read in one round."""
    if seen.uploads is not None:
        return seen.uploads
    length = len(seen.result.indices) * public.n_classes
    return read_unmasked(seen.payloads or {}, public.n_clients, seen.levels, length)


def _of_heads(view: View) -> Iterator[Totals]:
    """From the first sum of statistics: (H + beta I)^-1 of a client's class sums is its ratios.

    Their means over the proxies are its shares of classes (`class_shares`). The head that all
    parties hold gives those of all clients.
    """
    first, reference = view.heads[0], public_map(view)
    mean = reference.proxy_features.mean(axis=0)
    form = (len(mean), view.public.n_classes)
    solved = {
        client: mean @ reference.solver.solve(sums.astype(np.float64).reshape(form))
        for client, sums in (first.uploads or {}).items()
    }
    yield solved, np.clip(mean @ first.result.astype(np.float64).reshape(form), 0.0, None)


def _of_updates(view: View) -> Iterator[Totals]:
    """From the last bias of every readable update: summed over rounds, noise cancels.

    Under masks, from that of the clients' mean update.
    """
    if len(view.models) < 2:
        raise MissingCapabilityError(f"missing two rounds of global parameters ({view.attacker})")
    for newest in range(2, len(view.models) + 1):
        seen = replace(view, models=view.models[:newest])
        updates = readable_updates(seen, 1)  # shares depend on no rate or batch
        pulled = classes_pulled(view.public, updates)
        sides = zip(updates.owners, pulled, strict=True)
        yield {k: moved for k, moved in sides if k != EVERYONE}, pulled.sum(axis=0)


_RIDGE = 0.5
"""Weight of the mean of all clients in `Participation`, in rounds."""


@dataclass(frozen=True, slots=True)
class Participation(LabelDistribution):
    """Class totals of many sums, regressed on the clients that were in them.

    The sums of R rounds are T = A D, but for chance, where A [R, K] holds who was in which sum and
    D [K, C] is what each client votes a round. Where clients drop out A has rank, and non-negative
    least squares, class by class and drawn to the mean of all clients, give D, masks or not (Lam
    et al., "Gradient Disaggregation", ICML 2021; there A is unknown as well, here the server knows
    it). Where no client ever drops out every client gets the same guess.
    """

    name = "participation"
    title = "Label distribution from who took part"
    needs = (frozenset({Capability.READ_SUMS}),)
    shown_in = ""

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Read the whole run, without the positive control, which is of uploads in clear."""
        return cls(run.response, truth=run.histograms)

    def estimate(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - nothing is drawn
        """A distribution for every client."""
        view.require_any(*self.needs)
        rounds = [seen for seen in view.rounds if seen.total is not None]
        if not rounds:
            raise LocalError("participation: not one sum was seen")
        there = np.zeros((len(rounds), view.public.n_clients))
        for row, seen in zip(there, rounds, strict=True):
            row[list(seen.survivors)] = 1.0
        sums = [everyone for _, everyone in _of_votes(rounds, view.public, self.response)]
        totals = _at_par(np.stack(sums), rounds, view.public)
        guess = distribution(totals.sum(axis=0), np.ones(view.public.n_classes))
        # A client's own part follows from the sums if its unit vector is in the row space of A.
        projector = np.linalg.pinv(there) @ there
        apart = int(np.isclose(np.diag(projector), 1.0).sum())
        return Distributions(
            distributions(_solved(there, totals), guess),
            guess,
            details={"clients_told_apart": float(apart)},
            caveats=(
                f"{apart} of {len(there.T)} clients are distinguished by who took part",
                OF_VOTES,
            ),
        )


def _solved(there: FloatArray, totals: FloatArray) -> FloatArray:
    """[K, C] non-negative votes a round: min |A d - t|^2 + ridge |d - mean|^2 by class."""
    clients = there.shape[1]
    average = np.clip(totals.sum(axis=0), 0.0, None) / max(1.0, there.sum())
    matrix = np.vstack([there, np.sqrt(_RIDGE) * np.eye(clients)])
    drawn_to = np.sqrt(_RIDGE) * np.tile(average, (clients, 1))
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
