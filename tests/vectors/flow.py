"""The package's own machines over the flows of secagg.json, every message on record.

A delivery can be replaced, to see what the receiver makes of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import (
    EVERYONE,
    SERVER,
    AgreementKey,
    IdentityKey,
    Keystream,
    Purpose,
    RandomBytes,
    derive_key,
    insecure_bytes,
    seal_capsule,
)
from secure_fd.errors import SecureFDError
from secure_fd.secagg import channel, masks, setup
from secure_fd.secagg.client import ClientRound, MaskingClient
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.masks import RoundSecrets, commit_seed, self_stream
from secure_fd.secagg.server import MaskingServer, ServerRound
from secure_fd.secagg.session import NoiseTerms, PinnedRoster, RoundScope, RoundTerms, Session
from secure_fd.secagg.setup import ClientSetup, ServerSetup
from secure_fd.votes.codec import IntArray, WordArray
from secure_fd.wire import Place
from tests.drivers.cohort import SparseSession
from tests.vectors.records import Delivery, Json, described, listed

Keys = dict[bytes, tuple[bytes, bytes]]
"""By info, the secret that a key was derived from, and the key."""


@dataclass
class RefusedError(Exception):
    """What a party said to a delivery. when: at the delivery itself, or as the stage was closed."""

    party: int
    when: str
    error: SecureFDError


Tamper = Callable[[Delivery], Delivery]


@contextmanager
def recorded() -> Iterator[Keys]:
    """Every key that is derived meanwhile."""
    keys: Keys = {}

    def derived(secret: bytes, *, salt: bytes, info: bytes, length: int = 32) -> bytes:
        keys[info] = (secret, derive_key(secret, salt=salt, info=info, length=length))
        return keys[info][1]

    with ExitStack() as stack:
        for module in (channel, masks, setup):
            stack.enter_context(patch.object(module, "derive_key", derived))
        yield keys


@dataclass
class Flow:
    """Runs at once. made: the scene with all that follows from it.

    upto: how many steps are taken. sealed: capsules in the order of their making, those of the
    scene where it has any.
    """

    scene: Json
    tamper: Tamper = lambda delivery: delivery
    upto: int | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    sealed: list[bytes] = field(default_factory=list)
    step: int = -1

    def __post_init__(self) -> None:
        case = self.scene["session"]
        seeds = {one["client"]: one["seed"] for one in self.scene["clients"]}
        random: dict[int, RandomBytes] = {k: insecure_bytes(seed) for k, seed in seeds.items()}
        self.identities = {k: IdentityKey.generate(source) for k, source in random.items()}
        key = AgreementKey.derive(bytes.fromhex(case["server_private"]))
        self.session = session_of(
            case["degree"],
            PinnedRoster({k: identity.public.raw for k, identity in self.identities.items()}),
            configuration=bytes.fromhex(case["configuration"]),
            proxies=bytes.fromhex(case["proxies"]),
            nonce=bytes.fromhex(case["nonce"]),
            server=key.public,
            hybrid=bool(case["hybrid"]),
            epoch=case["epoch"],
        )
        self.server = MaskingServer(self.session, key)
        self.clients = {
            k: MaskingClient(k, identity, self.session, random[k], seal=self._seal)
            for k, identity in self.identities.items()
        }
        self.members: tuple[int, ...] = ()
        with recorded() as self.keys:
            steps = [
                self._take(at, step) for at, step in enumerate(self.scene["steps"][: self.upto])
            ]
        self.made: Json = {
            **self.scene,
            "id": self.session.id.hex(),
            "server_public": key.public.hex(),
            "identities": [self.session.roster[k].raw.hex() for k in seeds],
            "steps": steps,
        }

    def _seal(self, public: bytes, secret: bytes, info: bytes) -> bytes:
        """The next capsule on file, since sealing is random; a new one where there is none."""
        given = self.scene["capsules"][len(self.sealed) :][:1]
        made = bytes.fromhex(given[0]["capsule"]) if given else seal_capsule(public, secret, info)
        self.sealed.append(made)
        return made

    def _take(self, at: int, step: Json) -> Json:
        self.step, first, lost = at, len(self.deliveries), len(self.lost)
        made = self._set_up(step) if step["kind"] == "setup" else self._round(step)
        return {
            **step,
            **made,
            "messages": described(self.deliveries[first:], compact=step["compact"]),
            "not_arrived": described(self.lost[lost:], compact=step["compact"]),
        }

    def _set_up(self, step: Json) -> Json:
        server = self.server.open_setup()
        machines = {k: client.open_setup() for k, client in self.clients.items()}
        up: dict[int, bytes | None] = {k: machine.start() for k, machine in machines.items()}
        while server.running:
            up = self._stage(server, machines, up, step)
        self.server.enrol(server)
        for k, machine in machines.items():
            if machine.state is ClientState.DONE:
                self.clients[k].enrol(machine)
        group, self.members = server.group, server.present
        self.group = group
        return {
            "list_view": server._view.hex(),
            "seed": group.seed.hex(),
            "view": group.view.hex(),
            "members": list(group.members),
            "present": list(server.present),
            "degree": group.degree,
            "threshold": group.threshold,
            "quorum": group.quorum,
            "committee": list(group.committee),
            "neighbours": [list(group.neighbours(k)) for k in group.members],
            "tag_keys": [self._tag_key(k) for k in server.present],
            "chains": [
                [low, high, self._chain(low, high)] for low, high in self._pairs(group.members)
            ],
        }

    def _pairs(self, clients: Sequence[int]) -> list[tuple[int, int]]:
        """All of a lower and a higher neighbour that went on to the end."""
        there = [k for k in clients if k in self.members]
        return [
            (k, peer)
            for k in there
            for peer in self.group.neighbours(k)
            if k < peer and peer in there
        ]

    def _tag_key(self, client: int) -> str:
        info = self.session.place.context(Purpose.INPUT_MAC, client, SERVER) + self.group.view
        return self.keys[info][1].hex()

    def _chain(self, low: int, high: int) -> str:
        info = self.session.place.context(Purpose.CHANNEL, low, high) + self.group.view
        return self.keys[info][1].hex()

    def _round(self, step: Json) -> Json:
        terms = terms_of(step)
        server = self.server.open_round(terms)
        machines = {
            k: self.clients[k].open_round(terms, values_of(given, terms))
            for k, given in zip(self.members, step["values"], strict=True)
        }
        up = {k: machine.start() for k, machine in machines.items()}
        secrets = {k: _secrets(machine) for k, machine in machines.items()}
        dealt: dict[int, Mapping[int, masks.Shares]] = {}
        closed: dict[str, list[int]] = {}
        while not server.finished:
            up = self._stage(server, machines, up, step)
            closed = {str(k): list(peers) for k, peers in sorted(server._closed.items()) if peers}
            dealt |= {k: machine._held.shares for k, machine in machines.items() if machine._held}
        ended = {
            "channels": [
                self._channel(terms.index, *pair, step["detail"])
                for pair in self._pairs(self.members)
            ],
            "closed": closed,
            "survivors": list(server.survivors),
            "barred": sorted(self.server.barred),
            "sum": server.total.tolist(),
        }
        detail = self._detail(server.scope, step, secrets, dealt) if step["detail"] else {}
        return {**detail, **ended}

    def _channel(self, index: int, low: int, high: int, detail: bool) -> list[Any]:
        """low, high, state after the ratchet, and the keys of the round."""
        info = Place(self.session.id, index).context(Purpose.ROUND_CHANNEL, low, high)
        state, keys = self.keys[info]
        return [low, high, state.hex(), *([keys.hex()] if detail else [])]

    def _detail(
        self,
        scope: RoundScope,
        step: Json,
        secrets: Mapping[int, RoundSecrets],
        dealt: Mapping[int, Mapping[int, masks.Shares]],
    ) -> Json:
        given = (values_of(values, scope.terms) for values in step["values"])
        return {
            "packed": [scope.layout.pack(values).astype("<u8").tobytes().hex() for values in given],
            "prepared": [self._prepared(scope.place, k, secrets[k], dealt) for k in self.members],
            "self_masks": [self._self_mask(scope, k, secrets[k].seed) for k in self.members],
            "pairs": [
                self._pair(scope, low, high, secrets) for low, high in self._pairs(self.members)
            ],
        }

    def _prepared(
        self,
        place: Place,
        client: int,
        drawn: RoundSecrets,
        dealt: Mapping[int, Mapping[int, masks.Shares]],
    ) -> Json:
        shares = [dealt[holder][client] for holder in self.group.holders(client)]
        return {
            "root": shamir.encode(drawn.root).hex(),
            "seed": shamir.encode(drawn.seed).hex(),
            "round_private": self._key(place.context(Purpose.ROUND_KEY, client, EVERYONE)),
            "round_public": drawn.key.public.hex(),
            "commitment": commit_seed(place, client, drawn.seed).hex(),
            "vault_key": self._key(place.context(Purpose.VAULT, client, EVERYONE)),
            "root_shares": [share.root.hex() for share in shares],
            "seed_shares": [share.seed.hex() for share in shares],
        }

    def _key(self, info: bytes) -> str:
        return self.keys[info][1].hex()

    def _self_mask(self, scope: RoundScope, client: int, seed: int) -> list[str]:
        """Key, words."""
        mask = self_stream(scope, client, seed).read(8 * scope.words)
        return [self._key(scope.context(Purpose.SELF_MASK, client, EVERYONE)), mask.hex()]

    def _pair(
        self, scope: RoundScope, low: int, high: int, secrets: Mapping[int, RoundSecrets]
    ) -> list[Any]:
        """low, high, agreement of the round keys, key, words that low adds."""
        mine, peer = secrets[low].key, secrets[high].key
        key = self.keys[scope.context(Purpose.PAIR_MASK, low, high)][1]
        mask = Keystream(key).read(8 * scope.words)
        return [low, high, mine.exchange(peer.public).hex(), key.hex(), mask.hex()]

    def _stage(
        self,
        server: ServerSetup | ServerRound,
        machines: Mapping[int, ClientSetup | ClientRound],
        up: Mapping[int, bytes | None],
        step: Json,
    ) -> dict[int, bytes | None]:
        """Deliver a stage's messages, close it, deliver what the server sends; the answers."""
        for k, message in up.items():
            if not message:
                continue
            sent = Delivery(self.step, k, SERVER, message)
            if [sent.kind, k] in step["lost"]:
                self.lost.append(sent)
                continue
            came = self._arrived(sent, step)
            with refusals(SERVER, "receive"):
                server.receive(came.sender, came.data)
        with refusals(SERVER, "close"):
            down = server.advance()
        replies: dict[int, bytes | None] = {}
        for k, message in down.items():
            came = self._arrived(Delivery(self.step, SERVER, k, message), step)
            with refusals(k, "receive"):
                replies[k] = machines[k].receive(came.data)
        return replies

    def _arrived(self, sent: Delivery, step: Json) -> Delivery:
        came = self.tamper(listed(sent, step["altered"]))
        self.deliveries.append(came)
        return came


def session_of(degree: int, *agreed: Any, **further: Any) -> Session:
    """A session, of this degree where it is not 0."""
    return (
        SparseSession(*agreed, **further, degree=degree) if degree else Session(*agreed, **further)
    )


@contextmanager
def refusals(party: int, when: str) -> Iterator[None]:
    """What the package refuses, as a RefusedError."""
    try:
        yield
    except SecureFDError as error:
        raise RefusedError(party, when, error) from error


def _secrets(machine: ClientRound) -> RoundSecrets:
    assert machine._held is not None
    assert machine._held.prepared is not None
    return machine._held.prepared.secrets


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
