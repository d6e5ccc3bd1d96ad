"""Membership without shadow runs: read votes, updates, or their sums, as the view allows.

A client's peers did not train on its records, so their messages show what a record looks like to a
network without it. Each client's message is compared with its peers' messages. Under masks there is
no peer, and the same signal is read from the sum of all clients. Classes differ by more than
members do, so a candidate is compared with the candidates of its own class.

Votes: the share for a candidate's label at its nearest proxies, after the co-op attack of Shi,
Ouyang and Wang, "Unveiling Client Privacy Leakage from Public Dataset Usage in Federated
Distillation" (PoPETs 2025, arXiv 2502.08001). Updates: the cosine with a candidate's gradient,
after Zhu et al., "Evaluating Membership Inference Attacks and Defenses in Federated Learning"
(arXiv 2402.06289); they average tail probabilities over rounds, deviations are averaged here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import normalize

from attacks.core.base import Challenge, FloatArray, Labelled, Scores, joined
from attacks.core.fit import network, on_device
from attacks.core.run import Attack, Run
from attacks.core.scoring import MembershipAttack
from attacks.core.view import Capability, Public, View
from attacks.inversion.updates import step_gradient
from attacks.membership import overfitted
from attacks.membership.label_only import challenges_of, less_class_mean
from attacks.membership.shadows import mean_votes, neighbours
from attacks.membership.tracing import Tracing
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.base import Method
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.protocol.transcript import Float32Array
from secure_fd.votes.codec import IntArray

UPDATES, VOTES = "each client's updates", "each client's votes"
SUMMED_UPDATES, SUMMED_VOTES = "mean updates of all clients", "sums of all clients' votes"
IN_CLEAR: Mapping[str, str] = {SUMMED_UPDATES: UPDATES, SUMMED_VOTES: VOTES}
"""The reading without masks, for each reading of sums."""
NEIGHBOURS = 10
ROUNDS = 4
"""Rounds of updates that are kept and read, at most."""
_LEAST_CLIENTS = 3
"""The client and two peers."""
_NO_PEER = "of a sum: there is no peer to compare with, and a record is one of all clients'"
_LEAST = 1e-12
"""Least variance: below it lies rounding alone."""
_HELD = 20_000_000
"""Gradient values in memory at the same time: each gradient is as large as the network."""

ByClient = Mapping[int, FloatArray]
_Reader = Callable[["ServerMembers", View], ByClient]


@freed_with_owner
def overfitted_area(data: FederatedData, seed: int, read: str) -> float:
    """Return the AUC of the same attack on overfitted clients, all in clear."""
    method: Method = FedAvg() if read == UPDATES else FedMD("soft")

    def prepare(public: Public, challenges: Mapping[int, Challenge], _: object) -> ServerMembers:
        return ServerMembers.prepare(public, challenges, read)

    return overfitted.area(data, method, prepare, seed)


@dataclass(frozen=True, slots=True, eq=False)
class ServerMembers(MembershipAttack):
    """Score candidates of every client by what the view shows of that client, or of all.

    candidates: by client; of each class about half are its own, the rest belong to no client.
    neighbours: by client, [N, k] each candidate's nearest proxies. Scores come client by client, in
    the order of `candidates`. A client without a message leaves its candidates at 0.

    >>> ServerMembers.title
    'Membership, without shadow runs'
    """

    name = "server-members"
    title = "Membership, without shadow runs"
    shown_in = "members, server: this run"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.GLOBAL_PARAMETERS}),
        frozenset({Capability.READ_UPLOADS, Capability.PUBLIC_PROXIES}),
        frozenset({Capability.READ_SUMS, Capability.PUBLIC_PROXIES}),
    )

    candidates: Mapping[int, Labelled]
    neighbours: Mapping[int, IntArray] = field(repr=False)

    @classmethod
    def prepare(
        cls, public: Public, challenges: Mapping[int, Challenge], read: str = VOTES
    ) -> Self:
        """Find the nearest proxies of each candidate where votes are read: see `read_as`."""
        candidates = {k: each.candidates for k, each in challenges.items()}
        truth = overfitted.truth_of(challenges)
        if read in (UPDATES, SUMMED_UPDATES):
            return cls(candidates, {}, truth=truth)
        found = neighbours(public, joined(candidates.values()), NEIGHBOURS)  # maps proxies once
        each = np.split(found, np.cumsum([len(own) for own in candidates.values()])[:-1])
        return cls(candidates, dict(zip(candidates, each, strict=True)), truth=truth)

    @classmethod
    def for_run(cls, run: Run) -> Attack[Any, Any]:  # type: ignore[override]  # class sums are traced
        """Each client's own records among held-out ones; class sums are traced instead."""
        view = run.view
        if Tracing.needs[0] <= view.capabilities:
            return Tracing.for_run(run)
        view.require_any(*cls.needs)
        read = read_as(view)
        made = cls.prepare(run.public, challenges_of(run.data, run.seed), read)
        positive = overfitted_area(run.data, run.seed, IN_CLEAR.get(read, read))
        return replace(made, positive=positive)

    def estimate(self, view: View, seed: int) -> Scores:  # noqa: ARG002 - nothing is drawn
        """Score each candidate; MissingCapabilityError where the server reads nothing."""
        view.require_any(*self.needs)
        read = read_as(view)
        scores = _READERS[read](self, view)
        each = [
            less_class_mean(scores[k], own.labels.numpy()) for k, own in self.candidates.items()
        ]
        caveats = (_NO_PEER,) if read in IN_CLEAR else ()
        return Scores(np.concatenate(each), target=read, caveats=caveats)


def read_as(view: View) -> str:
    """Return the reading that a view allows, the sharpest first: a key of `_READERS`.

    Two clients are no peers of each other: then the sum is read.
    """
    peers = view.public.n_clients >= _LEAST_CLIENTS
    if view.models:
        in_clear = Capability.CLIENT_PARAMETERS in view.capabilities
        return UPDATES if in_clear and peers else SUMMED_UPDATES
    in_clear = Capability.READ_UPLOADS in view.capabilities
    return VOTES if in_clear and peers else SUMMED_VOTES


def deviations(signals: FloatArray, client: int) -> FloatArray:
    """[N] deviations of one client's signal from the mean of its peers' in [K, N].

    A candidate's own variance among few peers is too rough: one variance serves all candidates, as
    in LiRA with few shadows. LocalError where there are fewer than two peers.

    >>> deviations(np.array([[0.0, 0.0], [3.0, 1.0], [2.0, 2.0]]), 1).round(2).tolist()
    [1.41, 0.0]
    """
    own, others = signals[client], np.delete(signals, client, axis=0)
    if len(others) < 2:
        raise LocalError(f"{len(others)} others have no spread; use two or more")
    spread = max(float(others.var(axis=0, ddof=1).mean()), _LEAST)
    return np.asarray((own - others.mean(axis=0)) / np.sqrt(spread))


def _share(attack: ServerMembers, view: View, client: int, sender: int) -> FloatArray:
    """[N] mean share of the sender's votes for a candidate's label at its nearest proxies."""
    at = attack.neighbours[client], attack.candidates[client].labels.numpy()[:, None]
    return np.asarray(mean_votes(view, sender)[at].mean(axis=1))


def _votes(attack: ServerMembers, view: View) -> ByClient:
    senders = range(view.public.n_clients)
    return {
        k: deviations(np.stack([_share(attack, view, k, sender) for sender in senders]), k)
        for k in attack.candidates
    }


def _summed_votes(attack: ServerMembers, view: View) -> ByClient:
    return {k: _share(attack, view, k, k) for k in attack.candidates}


def _updates(attack: ServerMembers, view: View) -> ByClient:
    """Mean deviations of cosines over rounds; zeros where a client was away in every round."""
    shared = [
        (before.result, seen.uploads)
        for before, seen in zip(view.models[:-1], view.models[1:], strict=True)
        if seen.uploads and len(seen.uploads) >= _LEAST_CLIENTS
    ]
    if not any(k in uploads for k in attack.candidates for _, uploads in shared):
        raise MissingCapabilityError(f"missing a round that three clients share ({view.attacker})")
    scores = {}
    for k, own in attack.candidates.items():
        present = [(start, uploads) for start, uploads in shared if k in uploads]
        found = [np.zeros(len(own))] if not present else []
        for start, uploads in (present[i] for i in evenly(len(present))):
            clients = sorted(uploads)
            moved = np.stack([start - uploads[client] for client in clients])
            found.append(deviations(_cosines(view, start, own, moved), clients.index(k)))
        scores[k] = np.mean(found, axis=0)
    return scores


def _summed_updates(attack: ServerMembers, view: View) -> ByClient:
    """Mean cosines with the mean update of all clients, over rounds."""
    view.require(Capability.GLOBAL_PARAMETERS)
    pairs = list(zip(view.models[:-1], view.models[1:], strict=True))
    if not pairs:
        raise MissingCapabilityError(f"missing two rounds of global parameters ({view.attacker})")
    chosen = [(pairs[i][0].result, pairs[i][1].result) for i in evenly(len(pairs))]
    return {
        k: np.mean([_cosines(view, old, own, (old - new)[None])[0] for old, new in chosen], axis=0)
        for k, own in attack.candidates.items()
    }


_READERS: Mapping[str, _Reader] = {
    UPDATES: _updates,
    VOTES: _votes,
    SUMMED_UPDATES: _summed_updates,
    SUMMED_VOTES: _summed_votes,
}


def evenly(rounds: int) -> list[int]:
    """Return at most `ROUNDS` of the rounds 0 to `rounds` - 1, evenly spaced, with the newest.

    >>> evenly(10), evenly(2)
    ([0, 3, 6, 9], [0, 1])
    """
    chosen = np.linspace(rounds - 1, 0, min(ROUNDS, rounds))
    return [int(i) for i in chosen.round()[::-1]]


def _cosines(view: View, start: Float32Array, own: Labelled, moved: Float32Array) -> FloatArray:
    """[K, N] cosines of each candidate's gradient at `start` with directions [K, m]."""
    model = network(view.public, torch.from_numpy(start.copy()))
    directions = normalize(torch.from_numpy(moved), dim=1)
    with on_device(model) as on:
        return _along(model, own, directions.to(on), max(1, _HELD // len(start)))


def _along(model: nn.Module, candidates: Labelled, directions: Tensor, at_once: int) -> FloatArray:
    """[K, N] cosines on the device of model and directions, `at_once` candidates at a time."""
    by_record = vmap(partial(step_gradient, model))
    parts = []
    for chunk in torch.split(torch.arange(len(candidates)), at_once):
        some = candidates.take(chunk)
        images, labels = (side.to(directions.device) for side in (some.images, some.labels))
        found = by_record(images[:, None], labels[:, None])
        parts.append(directions @ normalize(found, dim=1).T)
    return np.asarray(torch.cat(parts, dim=1).double().cpu().numpy())
