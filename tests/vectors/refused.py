"""What every party must refuse: one altered delivery each, and the check that has to notice it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from tests.vectors import independent as plain
from tests.vectors.flow import Delivery, Flow, RefusedError, instead_of
from tests.vectors.independent import HEADER, SERVER

REASONS: Final = {
    "length": r"shorter than a header|bytes, not \d|does not fit|bytes is not of",
    "version": "is not spoken here",
    "type": "does not exist in version",
    "session": "belongs to another session",
    "round": "belongs to (round|the set-up)",
    "sender": "names party",
    "state": "is not allowed in sta(t|g)e",
    "stranger": "not on the pinned roster|was not asked",
    "repeat": "second message in one stage",
    "order": "not an ascending part",
    "own line": "leaves out or alters client",
    "few members": "members are fewer than",
    "signature": "does not verify",
    "commitment": "did not commit to",
    "keys": "are not those that it signed",
    "set": "names a member that does not exist",
    "own place": r"leaves out client|leave out \d",
    "quorum": "below the quorum",
    "seal": "does not open",
    "signatures": "are needed",
    "field": "not below the (field's )?prime",
    "secret": "restore another secret",
    "lanes": "outside the lanes",
    "limit": "exceeds",
}
"""By reason, how this package's sentence for it reads."""

Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Case:
    """A delivery (round, type, sender, receiver), what becomes of it, and why it is refused.

    claimed: as whose message it is delivered, where not the sender's.
    """

    name: str
    at: tuple[int | None, str, int, int]
    change: Change
    reason: str
    claimed: int | None = None


def flip(at: int, bits: int = 1) -> Change:
    return lambda data: data[:at] + bytes([data[at] ^ bits]) + data[at:][1:]


def cut(size: int) -> Change:
    return lambda data: data[:-size]


def longer(size: int) -> Change:
    return lambda data: data + bytes(size)


def with_body(change: Change) -> Change:
    return lambda data: data[:HEADER] + change(data[HEADER:])


def lines(size: int, choose: Callable[[list[bytes]], list[bytes]], head: int = 0) -> Change:
    """Another choice of the lines that follow the first `head` bytes of the body."""

    def change(body: bytes) -> bytes:
        found = [body[at : at + size] for at in range(head, len(body), size)]
        return body[:head] + b"".join(choose(found))

    return with_body(change)


@cache
def honest() -> Flow:
    """The flow with nothing altered."""
    return Flow()


def sent(index: int | None, kind: str, sender: int, receiver: int) -> bytes:
    """A message of the honest flow."""
    at = (index, kind, sender, receiver)
    return next(
        d.data for d in honest().deliveries if (d.index, d.kind, d.sender, d.receiver) == at
    )


def other_nonce(data: bytes) -> bytes:
    """Client 6 reveals a nonce that it did not commit to, and signs it."""
    session, nonce = data[16:HEADER], bytes(32)
    text = plain.context("reveal signature", session, b"", 6) + honest().group.view + nonce
    return data[:HEADER] + nonce + honest().identities[6].sign(text)


def other_survivors(data: bytes) -> bytes:
    """Signatures of what nobody saw: survivors 1, 6 and 9 of a cohort without 4."""
    session, terms = data[16:HEADER], plain.terms_of(6, 40, 1000, b"subject of round 6", 500, 3)
    there = plain.member_set([1, 6, 9], [1, 4, 6, 9])
    view = honest().group.view
    return data[:HEADER] + plain.signature_list(
        {
            k: honest()
            .identities[k]
            .sign(plain.survivor_text(session, terms, k, view, there, there))
            for k in (1, 6, 9)
        }
    )


def add_to_word(at: int, amount: int) -> Change:
    """A client adds to a word of its masked input what no packed value can be."""

    def change(data: bytes) -> bytes:
        word = int.from_bytes(data[at : at + 8], "little")
        return data[:at] + ((word + amount) % 2**64).to_bytes(8, "little") + data[at + 8 :]

    return change


JOIN, REVEAL = (None, "JOIN", 6, SERVER), (None, "REVEAL", 6, SERVER)
MEMBERS, AGREED = (None, "MEMBERS", SERVER, 4), (None, "AGREED", SERVER, 4)
PREPARE, COHORT = (5, "PREPARE", 6, SERVER), (5, "COHORT", SERVER, 4)
MASKED, SURVIVORS = (5, "MASKED", 6, SERVER), (5, "SURVIVORS", SERVER, 4)
UNMASK, LESS = (5, "UNMASK", 6, SERVER), (6, "SURVIVORS", SERVER, 6)
CONSISTENT, SIGNATURES = (6, "CONSISTENT", 6, SERVER), (6, "SIGNATURES", SERVER, 6)
MEMBER, PEER, SIGNED = 68, 112, 68

CASES: Final = [
    # The frame.
    Case("shorter than a header", JOIN, cut(200), "length"),
    Case("another version", JOIN, flip(1, 3), "version"),
    Case("a type that does not exist", JOIN, flip(3, 12), "type"),
    Case("another session", JOIN, flip(16), "session"),
    Case("a round where the set-up is due", JOIN, flip(15), "round"),
    Case("another sender in the header", JOIN, flip(7), "sender"),
    Case("another sender on the line", JOIN, lambda data: data, "sender", claimed=9),
    Case("from nobody of the roster", JOIN, lambda data: data, "stranger", claimed=5),
    Case("a type of another stage", JOIN, lambda _: sent(*REVEAL), "state"),
    # The set-up.
    Case("a join too short", JOIN, cut(1), "length"),
    Case("a join whose key was exchanged", JOIN, flip(HEADER), "signature"),
    Case("a join whose signature was altered", JOIN, flip(HEADER + 64), "signature"),
    Case("a second join", JOIN, lambda _: sent(None, "JOIN", 4, SERVER), "repeat", claimed=4),
    Case("half a line of a member list", MEMBERS, cut(34), "length"),
    Case("a member list out of order", MEMBERS, lines(MEMBER, lambda m: m[::-1]), "order"),
    Case("a member twice", MEMBERS, lines(MEMBER, lambda m: [m[0], m[0], *m[2:]]), "order"),
    Case("a member of no roster", MEMBERS, flip(HEADER + 3 * MEMBER + 3, 2), "order"),
    Case("a member list without the receiver", MEMBERS, lines(MEMBER, lambda m: [m[0], *m[2:]]),
         "own line"),
    Case("the receiver's own keys exchanged", MEMBERS, flip(HEADER + MEMBER + 4), "own line"),
    Case("the receiver's own commitment exchanged", MEMBERS, flip(HEADER + MEMBER + 40),
         "own line"),
    Case("two members", MEMBERS, lines(MEMBER, lambda m: m[:2]), "few members"),
    Case("another's keys exchanged", MEMBERS, flip(HEADER + 4), "signature"),
    Case("a reveal with another nonce", REVEAL, flip(HEADER), "signature"),
    Case("a signed reveal of another nonce", REVEAL, other_nonce, "commitment"),
    Case("another's reveal altered on the way", AGREED, flip(HEADER + 2 * 96), "signature"),
    Case("another's channel key exchanged", AGREED, flip(HEADER + 4 * 96), "keys"),
    Case("two channel keys in each other's place", AGREED,
         lines(32, lambda k: [k[1], k[0], k[2]], head=4 * 96), "keys"),
    Case("one channel key too few", AGREED, cut(32), "length"),
    # A round without dropouts.
    Case("a vault too short", PREPARE, cut(1), "length"),
    Case("a message of the set-up in a round", PREPARE, lambda _: sent(*JOIN), "round"),
    Case("a cohort with a bit that is nobody's", COHORT, flip(HEADER, 0x10), "set"),
    Case("a cohort without the receiver", COHORT, flip(HEADER, 0x02), "own place"),
    Case("a cohort of two", COHORT, lambda data: cut(2 * PEER)(flip(HEADER, 0x0C)(data)), "quorum"),
    Case("a cohort that names one less than it relays", COHORT, flip(HEADER, 0x08), "length"),
    Case("a neighbour's round key exchanged", COHORT, flip(HEADER + 1), "seal"),
    Case("a neighbour's shares altered", COHORT, flip(HEADER + 1 + 32), "seal"),
    Case("two neighbours in each other's place", COHORT,
         lines(PEER, lambda p: [p[1], p[0], p[2]], head=1), "seal"),
    Case("another client's cohort message", COHORT, lambda _: sent(5, "COHORT", SERVER, 1), "seal"),
    Case("a round of another number", COHORT, flip(15, 3), "round"),
    Case("survivors before the cohort", COHORT, lambda _: sent(*SURVIVORS), "state"),
    Case("a word too many", MASKED, longer(8), "length"),
    Case("a second input", MASKED, lambda _: sent(5, "MASKED", 4, SERVER), "repeat", claimed=4),
    Case("a value beyond the lanes", MASKED, add_to_word(HEADER, 1 << 62), "lanes"),
    Case("a value above the bound", MASKED, add_to_word(HEADER, 4001), "limit"),
    Case("survivors without the receiver", SURVIVORS, flip(HEADER, 0x02), "own place"),
    Case("two survivors", SURVIVORS, flip(HEADER, 0x0C), "quorum"),
    Case("three survivors where the noise asks for four", SURVIVORS,
         lambda data: flip(HEADER, 0x08)(data[: HEADER + 1]), "quorum"),
    Case("a cohort of three where the noise asks for four", COHORT,
         lambda data: cut(PEER)(flip(HEADER, 0x08)(data)), "quorum"),
    Case("two cohort signatures", SURVIVORS, lines(SIGNED, lambda s: s[:2], head=1), "signatures"),
    Case("two cohort signatures altered", SURVIVORS,
         lambda data: flip(len(data) - 1)(flip(HEADER + 1 + 4)(data)), "signatures"),
    Case("cohort signatures out of order", SURVIVORS, lines(SIGNED, lambda s: s[::-1], head=1),
         "order"),
    Case("one cohort signature three times", SURVIVORS, lines(SIGNED, lambda s: s[:1] * 3, head=1),
         "order"),
    Case("a signature of a stranger", SURVIVORS, flip(HEADER + 1 + 3 * SIGNED + 3, 2), "order"),
    Case("one share too few", UNMASK, cut(32), "length"),
    Case("a share that was altered", UNMASK, flip(HEADER + 31), "secret"),
    Case("a share that is no field element", UNMASK, flip(HEADER, 0x80), "field"),
    # A round with a dropout, and room for noise.
    Case("a value above the bound and the room", (6, "MASKED", 6, SERVER),
         add_to_word(HEADER, 4001), "limit"),
    Case("cohort signatures asked for as if nobody were missing", LESS,
         lambda data: data[:HEADER] + b"\x0f" + sent(*SURVIVORS)[HEADER + 1 :], "signatures"),
    Case("a survivor signature too long", CONSISTENT, longer(1), "length"),
    Case("an input that comes late", CONSISTENT, lambda _: honest().lost[0].data, "stranger",
         claimed=4),
    Case("one survivor signature altered", SIGNATURES, flip(HEADER + 4), "signatures"),
    Case("two survivor signatures", SIGNATURES, cut(SIGNED), "signatures"),
    Case("signatures of other sets", SIGNATURES, other_survivors, "signatures"),
    Case("a share of a root that was altered", (6, "UNMASK", 6, SERVER), flip(HEADER + 32 + 31),
         "secret"),
]  # fmt: skip


def refused() -> list[dict[str, Any]]:
    """Every case as the file has it; ValueError for one that is not refused for its reason."""
    return [entry(case) for case in CASES]


def entry(case: Case) -> dict[str, Any]:
    """Run the case and say who refused it, when and why."""
    index, kind, sender, receiver = case.at
    claimed = sender if case.claimed is None else case.claimed
    message = case.change(sent(*case.at))
    refusal = refusal_of(case.at, claimed, message)
    found = reason_of(refusal.error)
    if found != case.reason:
        raise ValueError(f"{case.name}: {found}, not {case.reason}: {refusal.error}")
    return {
        "name": case.name,
        "round": index,
        "type": kind,
        "from": sender,
        "to": receiver,
        "sender": claimed,
        "message": message.hex(),
        "party": refusal.party,
        "when": refusal.when,
        "error": type(refusal.error).__name__,
        "reason": found,
    }


def refusal_of(at: tuple[int | None, str, int, int], claimed: int, message: bytes) -> RefusedError:
    """What comes of a flow in which one delivery is replaced."""

    def bad(delivery: Delivery) -> Delivery:
        return replace(delivery, sender=claimed, data=message)

    try:
        Flow(instead_of(*at, bad))
    except RefusedError as refusal:
        return refusal
    raise ValueError(f"{at}: the altered message was accepted")


def reason_of(error: Exception) -> str:
    """The one reason that the sentence gives."""
    found = [reason for reason, pattern in REASONS.items() if re.search(pattern, str(error))]
    if len(found) != 1:
        raise ValueError(f"{found}: {error}")
    return found[0]
