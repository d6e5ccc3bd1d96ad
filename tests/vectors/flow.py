"""The package's own machines over the flows of secagg.json.

A delivery can be replaced, to see what the receiver makes of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from secure_fd.crypto.keys import SERVER, AgreementKey, IdentityKey, insecure_bytes, seal_capsule
from secure_fd.errors import SecureFDError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import NoiseTerms, PinnedRoster, RoundTerms, Session
from secure_fd.votes.codec import IntArray, WordArray
from tests.drivers.cohort import Round, SetUp, SparseSession, Stages
from tests.vectors.records import Delivery, Json, described, listed


@dataclass
class RefusedError(Exception):
    """Refusal of a delivery by a party: when it received it, or when it closed the stage."""

    party: int
    when: str
    error: SecureFDError


Tamper = Callable[[Delivery], Delivery]


@dataclass
class Flow:
    """Runs at once. steps: of each step of the scene, every value that the package shows.

    upto: how many steps are taken. sealed: capsules in the order of their making, those of the
    scene where it has any.
    """

    scene: Json
    tamper: Tamper = lambda delivery: delivery
    upto: int | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    sealed: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = {one["client"]: insecure_bytes(one["seed"]) for one in self.scene["clients"]}
        self.identities = {k: IdentityKey.generate(source) for k, source in random.items()}
        key = AgreementKey.derive(bytes.fromhex(self.scene["session"]["server_private"]))
        roster = PinnedRoster({k: identity.public.raw for k, identity in self.identities.items()})
        self.session = session_of(self.scene["session"], roster, key.public)
        self.server = MaskingServer(self.session, key)
        self.clients = {
            k: MaskingClient(k, identity, self.session, random[k], seal=self._seal)
            for k, identity in self.identities.items()
        }
        self.steps = [
            self._take(at, step) for at, step in enumerate(self.scene["steps"][: self.upto])
        ]

    def _seal(self, public: bytes, secret: bytes, info: bytes) -> bytes:
        """The next capsule on file, since sealing is random; a new one where there is none."""
        given = self.scene["capsules"][len(self.sealed) :][:1]
        made = bytes.fromhex(given[0]["capsule"]) if given else seal_capsule(public, secret, info)
        self.sealed.append(made)
        return made

    def _take(self, at: int, step: Json) -> Json:
        first, lost = len(self.deliveries), len(self.lost)
        made = self._set_up(at, step) if step["kind"] == "setup" else self._round(at, step)
        return {
            **made,
            "messages": described(self.deliveries[first:], compact=step["compact"]),
            "not_arrived": described(self.lost[lost:], compact=step["compact"]),
        }

    def _set_up(self, at: int, step: Json) -> Json:
        machines = {k: client.open_setup() for k, client in self.clients.items()}
        opened = SetUp(self.server.open_setup(), machines)
        self._run(opened, at, step)
        self.server.enrol(opened.server)
        for k, machine in machines.items():
            if machine.state is ClientState.DONE:
                self.clients[k].enrol(machine)
        group, self.members = opened.server.group, opened.server.present
        names = ("members", "degree", "threshold", "quorum", "committee")
        return {
            "seed": group.seed.hex(),
            "view": group.view.hex(),
            "present": list(self.members),
            "neighbours": [list(group.neighbours(k)) for k in group.members],
            **{name: plain(getattr(group, name)) for name in names},
        }

    def _round(self, at: int, step: Json) -> Json:
        terms = terms_of(step)
        values = {
            k: values_of(given, terms)
            for k, given in zip(self.members, step["values"], strict=True)
        }
        machines = {k: self.clients[k].open_round(terms, values[k]) for k in values}
        opened = Round(self.server.open_round(terms), machines, values)
        self._run(opened, at, step)
        return {
            "survivors": list(opened.server.survivors),
            "barred": sorted(self.server.barred),
            "sum": opened.server.total.tolist(),
        }

    def _run(self, opened: Stages, at: int, step: Json) -> None:
        try:
            opened.run(partial(self._carry, at, step))
        except SecureFDError as error:
            raise RefusedError(*opened.at, error) from error

    def _carry(
        self, at: int, step: Json, batch: Mapping[int, bytes], up: bool
    ) -> Iterable[tuple[int, bytes]]:
        for k, message in batch.items():
            sent = Delivery(at, *((k, SERVER) if up else (SERVER, k)), message)
            if up and [sent.kind, k] in step["lost"]:
                self.lost.append(sent)
                continue
            came = self.tamper(listed(sent, step["altered"]))
            self.deliveries.append(came)
            yield came.sender if up else k, came.data


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def session_of(case: Json, roster: PinnedRoster, server: bytes) -> Session:
    """The session of a scene, of its degree where that is not 0."""
    agreed = (bytes.fromhex(case[name]) for name in ("configuration", "proxies", "nonce"))
    given = roster, *agreed, server, bool(case["hybrid"]), case["epoch"]
    return SparseSession(*given, case["degree"]) if case["degree"] else Session(*given)


def terms_of(step: Json) -> RoundTerms:
    """The terms of a round."""
    noise = NoiseTerms(step["room"], step["least"])
    subject = bytes.fromhex(step["subject"])
    return RoundTerms(step["index"], step["length"], step["bound"], subject, noise)


def values_of(given: Sequence[int], terms: RoundTerms) -> WordArray | IntArray:
    """As a client takes them."""
    return np.array(given, np.int64) if terms.noise.room else np.array(given, np.uint64)


def instead_of(at: tuple[int, str, int, int], bad: Callable[[Delivery], Delivery]) -> Tamper:
    """Replace one delivery (step, type, sender, receiver), leave all others."""

    def tamper(delivery: Delivery) -> Delivery:
        there = (delivery.step, delivery.kind, delivery.sender, delivery.receiver)
        return bad(delivery) if there == at else delivery

    return tamper
