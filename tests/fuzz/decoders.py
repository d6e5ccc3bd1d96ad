"""A target for every decoder: a value that encodes to the same bytes, or a PeerError."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from secure_fd.crypto.keys import (
    CAPSULE_BYTES,
    SERVER,
    SIGNATURE_BYTES,
    TAG_BYTES,
    WORD,
    AgreementKey,
    CapsuleKey,
    Sealer,
    capsule_public,
    insecure_bytes,
    low_order,
    seal_capsule,
)
from secure_fd.errors import PeerError
from secure_fd.secagg import messages as rounds
from secure_fd.secagg import messages as setups
from secure_fd.secagg.session import MessageType, decode_set, encode_set
from secure_fd.votes.codec import IntArray, WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import HEADER_BYTES as HEADER
from secure_fd.wire import Place, frame
from tests.drivers.cohort import verify_input
from tests.fuzz.honest import PLAIN, Honest

Value = TypeVar("Value")
LENGTH = 9


class BrokenPropertyError(Exception):
    """A target's property does not hold."""


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise BrokenPropertyError(otherwise)


@dataclass(frozen=True)
class Target:
    """run: bytes -> a word for what came of them; any exception is a finding. seeds: honest."""

    name: str
    run: Callable[[bytes], str] = field(repr=False)
    seeds: tuple[bytes, ...] = field(repr=False)


def outcome_of(error: PeerError) -> str:
    """The sentence without its numbers and names: one outcome for each check."""
    return re.sub(r"[0-9]+|\[.*?\]|\(.*?\)|\b[A-Z_]{4,}\b", "#", str(error))


def decoder(
    name: str,
    decode: Callable[[bytes], Value],
    encode: Callable[[Value], bytes],
    *seeds: bytes,
) -> Target:
    """decode, then encode."""

    def run(data: bytes) -> str:
        try:
            value = decode(data)
        except PeerError as error:
            return outcome_of(error)
        expect(encode(value) == data, f"{name} accepts what it would write otherwise")
        return "accepted"

    return Target(name, run, seeds)


def up(kind: MessageType, place: Place, *parts: bytes) -> bytes:
    return frame(kind, place, 1, *parts)


def relayed(peers: Mapping[int, rounds.Relayed]) -> bytes:
    return b"".join(peer.key + peer.sealed for peer in peers.values())


def setup_decoders(at: Honest, name: str) -> list[Target]:
    """Decoders of one session; client 1 sends or receives."""
    session = at.session
    capsules = partial(frame, MessageType.CAPSULES, session.place, SERVER)
    return [
        decoder(
            f"{name} decode_join",
            lambda data: setups.decode_join(data, session, 1),
            lambda join: up(
                MessageType.JOIN, session.place, join.keys, join.commitment, join.signature
            ),
            at.sent("JOIN", 1),
        ),
        decoder(
            f"{name} decode_members",
            lambda data: setups.decode_members(data, session),
            lambda members: setups.encode_members(members, session),
            at.sent("MEMBERS", SERVER),
        ),
        decoder(
            f"{name} decode_reveal",
            lambda data: setups.decode_reveal(data, session, 1),
            lambda reveal: up(MessageType.REVEAL, session.place, reveal.nonce, reveal.signature),
            at.sent("REVEAL", 1),
        ),
        decoder(
            f"{name} decode_agreed",
            lambda data: setups.decode_agreed(data, session, at.members),
            lambda agreed: setups.encode_agreed(agreed[0], at.members, agreed[1], session),
            at.sent("AGREED", SERVER),
            setups.encode_agreed({}, at.members, [], session),
        ),
        decoder(
            f"{name} decode_capsules",
            lambda data: setups.decode_capsules(data, session, 1, 2),
            lambda capsules: up(MessageType.CAPSULES, session.place, *capsules),
            up(MessageType.CAPSULES, session.place, bytes(2 * CAPSULE_BYTES)),
        ),
        decoder(
            f"{name} decode_relayed",
            lambda data: setups.decode_relayed(data, at.group, 2),
            lambda found: capsules(encode_set(found[0], at.members), *found[1].values()),
            capsules(encode_set(at.members, at.members), bytes(2 * 1168)),
            capsules(encode_set([1, 2, 3], at.members), bytes(1168)),
            capsules(b"\0"),
        ),
    ]


def capsules() -> list[Target]:
    """A capsule opens to what was sealed, or not at all; a public key has one encoding."""
    key, context = CapsuleKey.generate(insecure_bytes(5)), b"a context"
    sealed = seal_capsule(key.public, bytes(range(32)), context)

    def opened(data: bytes) -> str:
        try:
            secret = key.open(data, context, "a capsule")
        except PeerError as error:
            return outcome_of(error)
        honest = data == sealed and secret == bytes(range(32))
        expect(honest, "a capsule opens that no client sealed")
        return "accepted"

    def read(data: bytes) -> bytes:
        capsule_public(data)
        return data

    return [
        Target("capsule", opened, (sealed,)),
        decoder("capsule_public", read, lambda data: data, key.public),
    ]


def agreement_key(data: bytes) -> bytes:
    """A key that no one refuses gives a secret with ours."""
    if len(data) != len(OURS.public):
        raise PeerError("another length")
    if low_order(data):
        raise PeerError("low order")
    OURS.exchange(data)
    return data


OURS = AgreementKey.generate(insecure_bytes(6))


def retagged(data: bytes, at: Honest) -> bytes:
    """Tag any bytes, as a corrupt client would."""
    return data + tags_of(at).seal(at.scope.terms.index, b"", data)


def tags_of(at: Honest) -> Sealer:
    """Sealer of client 1, as new: a client itself tags one message a round."""
    return Sealer(at.machines.clients[1]._enrolment.authenticator.key)


def verified(data: bytes, at: Honest) -> bytes:
    """A message that an arbiter finds its sender to have signed."""
    full = encode_set(at.members, at.members)
    verify_input(data, at.scope, 1, at.group, full)
    words = data[: HEADER + 8 * at.scope.words]
    whole = at.sent("MASKED", 1)
    expect(whole.startswith(words), "a signature convicts of words that were altered")
    return data


def round_decoders(at: Honest) -> list[Target]:
    """Decoders of one round in which no client is missing; client 1 sends or receives."""
    group, scope, place, k = at.group, at.scope, at.scope.place, len(at.members) - 1
    marks = at.sent("SURVIVORS", SERVER)[HEADER + 1 :]

    def here(chosen: Sequence[int]) -> bytes:
        return encode_set(chosen, group.members)

    return [
        decoder(
            "decode_prepare",
            lambda data: rounds.decode_prepare(data, place, 1, k),
            lambda prepare: up(MessageType.PREPARE, place, prepare.encode()),
            at.sent("PREPARE", 1),
        ),
        decoder(
            "decode_cohort",
            lambda data: rounds.decode_cohort(data, group, place, 1),
            lambda found: frame(
                MessageType.COHORT, place, SERVER, here(found[0]), relayed(found[1])
            ),
            at.sent("COHORT", SERVER),
        ),
        decoder(
            "decode_masked",
            lambda data: rounds.decode_masked(data, scope, 1, group, tags_of(at)),
            lambda found: rounds.encode_masked(found, scope, 1, group, tags_of(at)),
            at.sent("MASKED", 1),
        ),
        decoder(
            "decode_masked, tagged by its sender",
            lambda data: rounds.decode_masked(retagged(data, at), scope, 1, group, tags_of(at)),
            lambda found: rounds.encode_masked(found, scope, 1, group, tags_of(at))[:-TAG_BYTES],
            at.sent("MASKED", 1)[:-TAG_BYTES],
        ),
        decoder(
            "verify_input",
            lambda data: verified(data, at),
            lambda data: data,
            at.sent("MASKED", 1),
        ),
        decoder(
            "decode_survivors",
            lambda data: rounds.decode_survivors(data, group, place),
            lambda found: rounds.encode_survivors(*found, group, place),
            at.sent("SURVIVORS", SERVER),
            rounds.encode_survivors([0, 1, 3], {}, group, place),
        ),
        decoder(
            "decode_consistent",
            lambda data: rounds.read(data, place, 1, MessageType.CONSISTENT, SIGNATURE_BYTES),
            lambda marks: up(MessageType.CONSISTENT, place, *marks),
            up(MessageType.CONSISTENT, place, marks[1:65]),
        ),
        decoder(
            "decode_signatures",
            lambda data: rounds.decode_signatures(data, group, place),
            lambda found: rounds.encode_signatures(found, group, place),
            frame(MessageType.SIGNATURES, place, SERVER, marks),
        ),
        decoder(
            "decode_unmask",
            lambda data: rounds.read(data, place, 1, MessageType.UNMASK, *[32] * (k + 1)),
            lambda shares: up(MessageType.UNMASK, place, *shares),
            at.sent("UNMASK", 1),
        ),
    ]


def unpacker(layout: LaneLayout) -> Target:
    """Bytes as words, and these as values; what is no whole word is not a sum."""
    whole = LaneLayout(1, layout.limit, layout.room)
    values = np.arange(LENGTH) * 4000 - layout.room
    honest = values if layout.room else values.astype(np.uint64)

    def unpacked(data: bytes) -> WordArray | IntArray:
        if len(data) % WORD.itemsize:
            raise PeerError("no whole number of words")
        return layout.unpack(np.frombuffer(data, WORD).astype(np.uint64), LENGTH)

    return decoder(
        f"LaneLayout.unpack, room {layout.room}",
        unpacked,
        lambda found: whole.pack(found).astype(WORD).tobytes(),
        whole.pack(honest).astype(WORD).tobytes(),
    )


def plain_decoders() -> list[Target]:
    """Those that know of no session."""
    members = [*range(0, 22, 2)]
    return [
        decoder(
            "decode_set",
            lambda data: decode_set(data, members),
            lambda chosen: encode_set(chosen, members),
            encode_set(members[::3], members),
        ),
        decoder("low_order", agreement_key, lambda data: data, OURS.public),
        unpacker(LaneLayout(10, 4095)),
        unpacker(LaneLayout(10, 4095, room=5000)),
    ]


def decoders() -> list[Target]:
    """All of them."""
    return [
        *setup_decoders(PLAIN, "plain"),
        *setup_decoders(Honest(hybrid=True), "hybrid"),
        *capsules(),
        *round_decoders(PLAIN),
        *plain_decoders(),
    ]
