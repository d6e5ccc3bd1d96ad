"""Messages that every party must refuse: one altered delivery each, and the check that finds it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from tests.vectors import independent as plain
from tests.vectors.flow import Flow, RefusedError, instead_of
from tests.vectors.independent import HEADER, SERVER
from tests.vectors.records import Delivery, Json

REASONS: Final = {
    "length": r"shorter than a header|bytes, not \d|bytes is not of",
    "version": "is not spoken here",
    "type": "does not exist in version",
    "session": "belongs to another session",
    "round": "belongs to (round|the set-up)",
    "sender": "names party",
    "state": "is not allowed in sta(t|g)e",
    "stranger": "not on the pinned roster|was not asked",
    "repeat": "second message in one stage|prepared the round twice",
    "own line": "leaves out or alters client",
    "few members": "members are fewer than",
    "signature": "does not verify",
    "commitment": "did not commit to",
    "keys": "are not those that it signed",
    "bad key": "low order|high-order point",
    "set": "names a member that does not exist|not in the cohort",
    "own place": r"leaves out client|leave out \d|went on without it",
    "quorum": "below the (quorum|threshold)",
    "channel": "left during the set-up",
    "signatures": "are needed|although some of it is missing",
    "tag": "seal on its input does not open",
    "secret": "restore another one",
    "too few": r"opened at fewer than|are too few|clients (joined|revealed)|\d open it",
    "lanes": "outside the lanes",
    "limit": "exceeds",
}
"""This package's sentence for each reason."""

Change = Callable[[bytes], bytes]
At = tuple[str, int, str, int, int]


@dataclass(frozen=True)
class Case:
    """A delivery (flow, step, type, sender, receiver), what becomes of it, why it is refused.

    claimed: as whose message it is delivered, where not the sender's.
    """

    name: str
    at: At
    change: Change
    reason: str
    claimed: int | None = None


def flip(at: int, bits: int = 1) -> Change:
    return lambda data: data[:at] + bytes([data[at] ^ bits]) + data[at:][1:]


def cut(size: int) -> Change:
    return lambda data: data[:-size]


def longer(size: int) -> Change:
    return lambda data: data + bytes(size)


def zeros(start: int, size: int) -> Change:
    return lambda data: data[:start] + bytes(size) + data[start + size :]


def both(*changes: Change) -> Change:
    def change(data: bytes) -> bytes:
        for one in changes:
            data = one(data)
        return data

    return change


def lines(size: int, choose: Callable[[list[bytes]], list[bytes]], head: int = 0) -> Change:
    """Another choice of the lines that follow the first `head` bytes of the body."""

    def change(data: bytes) -> bytes:
        start = HEADER + head
        found = [data[at : at + size] for at in range(start, len(data), size)]
        return data[:start] + b"".join(choose(found))

    return change


@cache
def honest(name: str) -> Flow:
    """The flow of that name with nothing altered; capsules are those on file."""
    return Flow(scene_of(name))


def scene_of(name: str) -> Json:
    return next(scene for scene in _SCENES if scene["name"] == name)


def steps(name: str) -> list[Json]:
    return scene_of(name)["steps"]


_SCENES: list[Json] = []


def use(scenes: Sequence[Json]) -> None:
    """Take these scenes, with their capsules, for the honest flows."""
    _SCENES[:] = scenes
    honest.cache_clear()


def sent(at: At) -> bytes:
    """A message of the honest flow."""
    flow = honest(at[0])
    return next(d.data for d in flow.deliveries if (d.step, d.kind, d.sender, d.receiver) == at[1:])


def retagged(client: int, change: Change, flow: str = "complete") -> Change:
    """A client alters its own input, and tags it again."""

    def made(data: bytes) -> bytes:
        setup, altered = steps(flow)[0], change(data[:-16])
        key = bytes.fromhex(setup["tag_keys"][setup["present"].index(client)])
        index = int.from_bytes(data[8:16], "big")
        return altered + plain.seal(key, index, b"", altered)

    return made


def add_to_word(amount: Callable[[], int]) -> Change:
    """A client adds to the first word of its masked input what no packed value can be."""

    def change(data: bytes) -> bytes:
        word = int.from_bytes(data[HEADER : HEADER + 8], "little")
        added = (word + amount()) % 2**64
        return data[:HEADER] + added.to_bytes(8, "little") + data[HEADER + 8 :]

    return change


def up_to(total: int) -> Callable[[], int]:
    """Return what takes the first value of the honest sum of round 5 to this total."""
    return lambda: total - steps("complete")[1]["sum"][0]


def other_nonce(data: bytes) -> bytes:
    """Client 6 reveals a nonce that it did not commit to, and signs it."""
    flow, nonce = honest("complete"), bytes(32)
    view = bytes.fromhex(steps("complete")[0]["list_view"])
    text = plain.reveal_text(session_of(data), 6, view, nonce)
    return data[:HEADER] + nonce + flow.identities[6].sign(text)


def session_of(data: bytes) -> plain.Session:
    """The session of a message, as far as signed texts need it."""
    return plain.Session(data[16:HEADER], {}, b"", 0, 1024)


def other_survivors(data: bytes) -> bytes:
    """Signatures of unsent sets: the survivors of round 6, of a cohort without client 4."""
    flow, step = honest("complete"), steps("complete")[2]
    view = bytes.fromhex(steps("complete")[0]["view"])
    subject, left = bytes.fromhex(step["subject"]), step["survivors"]
    numbers = (step[name] for name in ("index", "length", "bound", "room", "least"))
    terms, there, signed = plain.Terms(*numbers, subject), plain.set_of(left, SEVEN), {}
    for k in left:
        given = "survivor signature", k, view, there, there
        text = plain.round_text(session_of(data), terms, *given)
        signed[k] = flow.identities[k].sign(text)
    return data[:HEADER] + plain.signature_list(signed, SEVEN)


def wrong_share_of(owner: int) -> tuple[At, Change]:
    """In the sparse flow, where no share of a dropped client's root is to spare."""
    step = steps("sparse")[0]
    near = dict(zip(step["members"], step["neighbours"], strict=True))
    holder = near[owner][0]
    place = sorted([holder, *near[holder]]).index(owner)
    return ("sparse", 2, "UNMASK", holder, SERVER), flip(HEADER + 32 * place + 31)


SEVEN: Final = [1, 4, 6, 9, 12, 15, 20]
JOIN: Final = ("complete", 0, "JOIN", 6, SERVER)
REVEAL: Final = ("complete", 0, "REVEAL", 6, SERVER)
MEMBERS: Final = ("complete", 0, "MEMBERS", SERVER, 4)
AGREED: Final = ("complete", 0, "AGREED", SERVER, 4)
PREPARE: Final = ("complete", 1, "PREPARE", 6, SERVER)
COHORT: Final = ("complete", 1, "COHORT", SERVER, 4)
MASKED: Final = ("complete", 1, "MASKED", 6, SERVER)
SURVIVORS: Final = ("complete", 1, "SURVIVORS", SERVER, 4)
UNMASK: Final = ("complete", 1, "UNMASK", 6, SERVER)
LESS: Final = ("complete", 2, "SURVIVORS", SERVER, 6)
CONSISTENT: Final = ("complete", 2, "CONSISTENT", 6, SERVER)
SIGNATURES: Final = ("complete", 2, "SIGNATURES", SERVER, 6)
AGAIN: Final = ("complete", 3, "PREPARE", 4, SERVER)
FEW_HOLDERS: Final = ("sparse", 1, "COHORT", SERVER, 2)
FEW_SIGNERS: Final = ("sparse", 1, "SURVIVORS", SERVER, 2)
HYBRID_JOIN: Final = ("hybrid", 0, "JOIN", 5, SERVER)
CAPSULES: Final = ("hybrid", 0, "CAPSULES", 3, SERVER)
RELAYED: Final = ("hybrid", 0, "CAPSULES", SERVER, 5)
HYBRID_COHORT: Final = ("hybrid", 1, "COHORT", SERVER, 5)
HYBRID_MASKED: Final = ("hybrid", 1, "MASKED", 5, SERVER)
MEMBER, PEER, SIGNED, LINE, WORDS = 64, 112, 64, 96, 5 * 8
REVEALS: Final = HEADER + 1
KEYS: Final = REVEALS + 7 * LINE


def agreed_of(bits: int, places: Sequence[int], keys: Sequence[int]) -> Change:
    """AGREED with these reveals and these keys, by their places."""

    def change(data: bytes) -> bytes:
        reveals = b"".join(data[REVEALS + LINE * at :][:LINE] for at in places)
        return (
            data[:HEADER]
            + bytes([bits])
            + reveals
            + b"".join(data[KEYS + 32 * at :][:32] for at in keys)
        )

    return change


def cases() -> list[Case]:
    """All of them."""
    wrong, altered_share = wrong_share_of(11)
    return [*_of_frames(), *_of_setups(), *_of_rounds(), *_of_dropouts(), *_of_others(),
            Case("a wrong share of a secret that has none to spare", wrong, altered_share,
                 "secret")]  # fmt: skip


def _of_frames() -> list[Case]:
    return [
        Case("shorter than a header", JOIN, cut(130), "length"),
        Case("another version", JOIN, flip(1, 1), "version"),
        Case("a type that does not exist", JOIN, flip(3, 12), "type"),
        Case("another session", JOIN, flip(16), "session"),
        Case("a round where the set-up is due", JOIN, flip(15), "round"),
        Case("another sender in the header", JOIN, flip(7), "sender"),
        Case("another sender on the line", JOIN, lambda data: data, "sender", claimed=9),
        Case("from nobody of the roster", JOIN, lambda data: data, "stranger", claimed=5),
        Case("a type of another stage", JOIN, lambda _: sent(REVEAL), "state"),
    ]


def _of_setups() -> list[Case]:
    return [
        Case("a join too short", JOIN, cut(1), "length"),
        Case("a join whose key was exchanged", JOIN, flip(HEADER), "signature"),
        Case("a join with a key of low order", JOIN, zeros(HEADER, 32), "bad key"),
        Case("a join whose signature was altered", JOIN, flip(HEADER + 64), "signature"),
        Case("a second join", JOIN, lambda _: flip(-1)(sent((*JOIN[:3], 4, SERVER))), "repeat",
             claimed=4),
        Case("half a line of a member list", MEMBERS, cut(32), "length"),
        Case("a member list with a line too many", MEMBERS, longer(MEMBER), "length"),
        Case("a member list out of order", MEMBERS,
             lines(MEMBER, lambda m: m[::-1], head=1), "own line"),
        Case("a member of no roster", MEMBERS, flip(HEADER, 0x80), "set"),
        Case("a member list without the receiver", MEMBERS,
             both(flip(HEADER, 0x02), lines(MEMBER, lambda m: [m[0], *m[2:]], head=1)),
             "own line"),
        Case("the receiver's own keys exchanged", MEMBERS, flip(HEADER + 1 + MEMBER), "own line"),
        Case("the receiver's own commitment exchanged", MEMBERS, flip(HEADER + 1 + MEMBER + 36),
             "own line"),
        Case("four members of a roster of seven", MEMBERS,
             both(flip(HEADER, 0x70), cut(3 * MEMBER)), "few members"),
        Case("another's keys exchanged", MEMBERS, flip(HEADER + 1), "signature"),
        Case("a reveal too long", REVEAL, longer(1), "length"),
        Case("a reveal with another nonce", REVEAL, flip(HEADER), "signature"),
        Case("a signed reveal of another nonce", REVEAL, other_nonce, "commitment"),
        Case("another's reveal altered on the way", AGREED, flip(REVEALS + 2 * LINE), "signature"),
        Case("a set of those that revealed with a bit that is nobody's", AGREED,
             flip(HEADER, 0x80), "set"),
        Case("those that revealed, without the receiver", AGREED,
             agreed_of(0x7D, [0, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4]), "own place"),
        Case("four that revealed", AGREED, agreed_of(0x0F, [0, 1, 2, 3], [0, 1, 2]),
             "few members"),
        Case("another's channel key exchanged", AGREED, flip(KEYS), "keys"),
        Case("two channel keys in each other's place", AGREED,
             lines(32, lambda k: [k[1], k[0], *k[2:]], head=1 + 7 * LINE), "keys"),
        Case("one channel key too few", AGREED, cut(32), "length"),
    ]  # fmt: skip


def _of_rounds() -> list[Case]:
    return [
        Case("a vault too short", PREPARE, cut(1), "length"),
        Case("a round key of low order", PREPARE, zeros(HEADER, 32), "bad key"),
        Case("a message of the set-up in a round", PREPARE, lambda _: sent(JOIN), "round"),
        Case("a cohort with a bit that is nobody's", COHORT, flip(HEADER, 0x80), "set"),
        Case("a cohort without the receiver", COHORT, flip(HEADER, 0x02), "own place"),
        Case("a cohort of four", COHORT, both(flip(HEADER, 0x70), cut(3 * PEER)), "quorum"),
        Case("a cohort of five where the noise asks for six", COHORT,
             both(flip(HEADER, 0x60), cut(2 * PEER)), "quorum"),
        Case("a cohort that names one less than it relays", COHORT, flip(HEADER, 0x08), "length"),
        Case("a neighbour's round key of low order", COHORT, zeros(HEADER + 1, 32), "bad key"),
        Case("a round of another number", COHORT, flip(15, 3), "round"),
        Case("survivors before the cohort", COHORT, lambda _: sent(SURVIVORS), "state"),
        Case("a word too many", MASKED, longer(8), "length"),
        Case("an input altered on the way", MASKED, flip(HEADER), "tag"),
        Case("an input whose set of closed seals was altered", MASKED, flip(HEADER + WORDS),
             "tag"),
        Case("an input with a cut tag", MASKED, flip(-1 + len_of(MASKED)), "tag"),
        Case("an input that closes the seals of nobody", MASKED,
             retagged(6, flip(HEADER + WORDS, 0x80)), "set"),
        Case("an input with a next round key of low order", MASKED,
             retagged(6, zeros(HEADER + WORDS + 129, 32)), "bad key"),
        Case("a second input", MASKED, lambda _: flip(-1)(sent((*MASKED[:3], 4, SERVER))),
             "repeat", claimed=4),
        Case("a bit beyond the lanes", MASKED, retagged(6, add_to_word(lambda: 1 << 62)), "lanes"),
        Case("a sum above survivors times bound", MASKED, retagged(6, add_to_word(up_to(7001))),
             "limit"),
        Case("survivors without the receiver", SURVIVORS, flip(HEADER, 0x02), "own place"),
        Case("four survivors", SURVIVORS, flip(HEADER, 0x70), "quorum"),
        Case("five survivors where the noise asks for six", SURVIVORS,
             lambda data: flip(HEADER, 0x60)(data[: HEADER + 1]) + b"\0", "quorum"),
        Case("four cohort signatures", SURVIVORS, both(flip(HEADER + 1, 0x70), cut(3 * SIGNED)),
             "signatures"),
        Case("three cohort signatures altered", SURVIVORS,
             both(*(flip(HEADER + 2 + SIGNED * at) for at in (0, 2, 5))), "signatures"),
        Case("cohort signatures out of order", SURVIVORS,
             lines(SIGNED, lambda s: s[::-1], head=2), "signatures"),
        Case("a cohort signature more than the set names", SURVIVORS, longer(SIGNED), "length"),
        Case("a signature of a stranger", SURVIVORS, flip(HEADER + 1, 0x80), "set"),
        Case("half a signature", SURVIVORS, cut(32), "length"),
        Case("one share too few", UNMASK, cut(32), "length"),
    ]  # fmt: skip


def _of_dropouts() -> list[Case]:
    return [
        Case("cohort signatures as if nobody were missing", LESS,
             lambda data: data[:HEADER] + b"\x7f" + sent(SURVIVORS)[HEADER + 1 :], "signatures"),
        Case("cohort signatures though somebody is missing", LESS,
             lambda data: data[:-1] + sent(SURVIVORS)[HEADER + 1 :], "signatures"),
        Case("a survivor signature too long", CONSISTENT, longer(1), "length"),
        Case("an input that comes late", CONSISTENT, lambda _: honest("complete").lost[0].data,
             "stranger", claimed=4),
        Case("two survivor signatures altered", SIGNATURES,
             both(flip(HEADER + 1), flip(HEADER + 1 + SIGNED)), "signatures"),
        Case("four survivor signatures", SIGNATURES,
             both(flip(HEADER, 0x60), cut(2 * SIGNED)), "signatures"),
        Case("signatures of other sets", SIGNATURES, other_survivors, "signatures"),
        Case("a round that an input had prepared, prepared otherwise", AGAIN,
             lambda data: data[:4] + plain.u32(6) + data[8:], "repeat", claimed=6),
    ]  # fmt: skip


def _of_others() -> list[Case]:
    return [
        Case("a signature from outside the committee", FEW_SIGNERS, flip(HEADER + 2, 0x40),
             "set"),
        Case("a capsule key with coefficients beyond the modulus", HYBRID_JOIN,
             lambda data: data[: HEADER + 32] + b"\xff" * 3 + data[HEADER + 35 :], "bad key"),
        Case("a cohort with four of the receiver's six holders", FEW_HOLDERS,
             both(flip(HEADER, 0x40), flip(HEADER + 1), cut(2 * PEER)), "quorum"),
        Case("a capsule key whose curve part is of low order", HYBRID_JOIN,
             zeros(HEADER + 32 + 1184, 32), "bad key"),
        Case("one capsule too few", CAPSULES, cut(1168), "length"),
        Case("capsules of nobody", RELAYED, flip(HEADER, 0x10), "set"),
        Case("capsules of two members only", RELAYED, flip(HEADER, 0x04), "few members"),
        Case("shares of which one holder cannot open, and none to spare", HYBRID_COHORT,
             flip(HEADER + 1 + 32), "too few"),
        Case("a cohort that names a client which left during the set-up", HYBRID_COHORT,
             both(flip(HEADER, 0x08), longer(PEER)), "channel"),
        Case("an input that closes the seals of a member outside the cohort", HYBRID_MASKED,
             retagged(5, flip(HEADER + 8, 0x04), "hybrid"), "set"),
    ]  # fmt: skip


def len_of(at: At) -> int:
    return len(sent(at))


def refused(scenes: Sequence[Json]) -> list[Json]:
    """Every case as the file has it; ValueError for one that is not refused for its reason."""
    use(scenes)
    return [entry(case) for case in cases()]


def entry(case: Case) -> Json:
    """Run the case and say who refused it, when and why."""
    flow, step, kind, sender, receiver = case.at
    claimed = sender if case.claimed is None else case.claimed
    before = sent(case.at)
    message = case.change(before)
    refusal = refusal_of(case.at, claimed, message)
    found = reason_of(refusal.error)
    if found != case.reason:
        raise ValueError(f"{case.name}: {found}, not {case.reason}: {refusal.error}")
    return {
        "name": case.name,
        "flow": flow,
        "step": step,
        "type": kind,
        "from": sender,
        "to": receiver,
        "sender": claimed,
        **difference(before, message),
        "party": refusal.party,
        "when": refusal.when,
        "reason": found,
    }


def difference(before: bytes, after: bytes) -> Json:
    """after = the first `head` bytes of before, middle, the last `tail` bytes of before."""
    most = min(len(before), len(after))
    head = next((at for at in range(most) if before[at] != after[at]), most)
    rest = most - head
    tail = next((at for at in range(rest) if before[-1 - at] != after[-1 - at]), rest)
    return {"head": head, "middle": after[head : len(after) - tail].hex(), "tail": tail}


def refusal_of(at: At, claimed: int, message: bytes) -> RefusedError:
    """Return the outcome of a flow in which one delivery is replaced."""

    def bad(delivery: Delivery) -> Delivery:
        return replace(delivery, sender=claimed, data=message)

    try:
        Flow(scene_of(at[0]), instead_of(at[1:], bad), upto=at[1] + 1)
    except RefusedError as refusal:
        return refusal
    raise ValueError(f"{at}: the altered message was accepted")


def reason_of(error: Exception) -> str:
    """The one reason that the sentence gives."""
    found = [reason for reason, pattern in REASONS.items() if re.search(pattern, str(error))]
    if len(found) != 1:
        raise ValueError(f"{found}: {error}")
    return found[0]
