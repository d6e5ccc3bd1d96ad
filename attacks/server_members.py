"""Who took part, by whatever a server reads: of each view the sharpest attack without shadow runs.

Clients' own messages are compared with their peers' (`attacks.peers`, `attacks.fedmia`). Under
masks there is no peer, and the same signal is read off the sum of all clients. Classes differ by
more than members do, so a candidate is compared with the candidates of its own class.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from attacks.base import Attack, AttackResult, BoolArray, FloatArray, Labelled, Scores
from attacks.fedmia import FedMIA, along_means
from attacks.membership import mean_votes, neighbours
from attacks.peers import CoopVotes, PeerAttack
from attacks.scoring import score_scores
from attacks.view import Capability, Public, View
from secure_fd.errors import MissingCapabilityError
from secure_fd.knowledge import IntArray

UPDATES, VOTES = "each client's updates", "each client's votes"
SUMMED_UPDATES, SUMMED_VOTES = "mean updates of all clients", "sums of all clients' votes"
CLASS_SUMS = "class sums"
"""Read by `attacks.tracing` instead."""
TWIN: Mapping[str, str] = {SUMMED_UPDATES: UPDATES, SUMMED_VOTES: VOTES}
"""What is read in clear where masks hide all but the sum."""
ROUNDS = 4
"""Of a run of updates, evenly spaced: what is kept of it, and asked."""
_LEAST_CLIENTS = 3
"""The client, and two peers."""
_NO_PEER = "of a sum: there is no peer to compare with, and a record is one of all clients'"

ByClient = Mapping[int, FloatArray]
_Reader = Callable[["ServerMembers", View, int], ByClient]


@dataclass(frozen=True, slots=True, eq=False)
class ServerMembers(Attack[Scores, BoolArray]):
    """Candidates of every client, scored by what the view shows of that client, or of all.

    posed: by client, candidates; class by class about half of them its own, the rest of nobody.
    near: by client, [N, k] each candidate's nearest proxies. Scores come client by client, in the
    order of `posed`. A client of which nothing is read leaves its candidates at 0.

    >>> ServerMembers.title
    'Membership, without shadow runs'
    """

    name = "server-members"
    title = "Membership, without shadow runs"
    figure_name = "AUC"
    control_name = "AUC of a coin"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.GLOBAL_PARAMETERS}),
        frozenset({Capability.READ_UPLOADS, Capability.PUBLIC_PROXIES}),
        frozenset({Capability.READ_SUMS, Capability.PUBLIC_PROXIES}),
    )

    posed: Mapping[int, Labelled]
    near: Mapping[int, IntArray] = field(repr=False)

    @classmethod
    def prepare(cls, public: Public, posed: Mapping[int, Labelled], k: int = 10) -> Self:
        """Find the k nearest proxies of each candidate."""
        return cls(posed, {client: neighbours(public, own, k) for client, own in posed.items()})

    def run(self, view: View, seed: int) -> Scores:
        """One number a candidate; MissingCapabilityError where the server reads nothing."""
        view.require_any(*self.needs)
        read = read_as(view)
        scores = _READERS[read](self, view, seed)
        each = [_within_class(scores[k], own.labels.numpy()) for k, own in self.posed.items()]
        caveats = (_NO_PEER,) if read in TWIN else ()
        return Scores(np.concatenate(each), target=read, caveats=caveats)

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC with its interval. truth: [N] who was a member, half of them, as `posed` has them."""
        return score_scores(self, estimate, truth, seed)


def read_as(view: View) -> str:
    """Which of the four readings a view allows, the sharpest first: a key of `TWIN` or its value.

    Two clients are no peers of each other: of them the sum is read.
    """
    peers = view.public.n_clients >= _LEAST_CLIENTS
    if view.models:
        in_clear = Capability.CLIENT_PARAMETERS in view.capabilities
        return UPDATES if in_clear and peers else SUMMED_UPDATES
    in_clear = Capability.READ_UPLOADS in view.capabilities
    return VOTES if in_clear and peers else SUMMED_VOTES


def _beside_peers(made: Mapping[int, PeerAttack], view: View, seed: int) -> ByClient:
    """By client, zeros where it was away whenever something was read; somebody was not."""
    found: dict[int, FloatArray] = {}
    for k, each in made.items():
        with suppress(MissingCapabilityError):
            found[k] = each.run(view, seed).values
    if not found:
        raise MissingCapabilityError(f"missing a round that three clients share ({view.attacker})")
    return {k: found.get(k, np.zeros(len(each.candidates))) for k, each in made.items()}


def _updates(attack: ServerMembers, view: View, seed: int) -> ByClient:
    made = {k: FedMIA(own, k, most_rounds=ROUNDS) for k, own in attack.posed.items()}
    return _beside_peers(made, view, seed)


def _votes(attack: ServerMembers, view: View, seed: int) -> ByClient:
    made = {k: CoopVotes(own, k, neighbours=attack.near[k]) for k, own in attack.posed.items()}
    return _beside_peers(made, view, seed)


def _summed_updates(attack: ServerMembers, view: View, seed: int) -> ByClient:  # noqa: ARG001 - nothing is drawn
    return {k: along_means(view, own, ROUNDS) for k, own in attack.posed.items()}


def _summed_votes(attack: ServerMembers, view: View, seed: int) -> ByClient:  # noqa: ARG001 - nothing is drawn
    said = {}
    for k, own in attack.posed.items():
        at = attack.near[k], own.labels.numpy()[:, None]
        said[k] = mean_votes(view, k)[at].mean(axis=1)
    return said


_READERS: Mapping[str, _Reader] = {
    UPDATES: _updates,
    VOTES: _votes,
    SUMMED_UPDATES: _summed_updates,
    SUMMED_VOTES: _summed_votes,
}


def _within_class(scores: FloatArray, labels: IntArray) -> FloatArray:
    """[N] less the mean over the candidates of the same label.

    >>> _within_class(np.array([1.0, 3.0, 9.0]), np.array([0, 0, 1])).tolist()
    [-1.0, 1.0, 0.0]
    """
    sums, counts = np.bincount(labels, weights=scores), np.bincount(labels)
    return np.asarray(scores - (sums / np.maximum(counts, 1))[labels])
