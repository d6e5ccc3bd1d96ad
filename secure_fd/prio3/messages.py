"""The messages of a proven sum; what is not exactly one of them is a PeerError.

    client -> leader   REPORT    subject, nonce, public share, sealed helper share, signature,
                                 leader share
    leader -> helper   REPORTS   terms, commitment to its part of the verify key, set of senders,
                                 then each sender's part of the report that concerns the helper
    helper -> leader   KEY       its part of the verify key, set of those whose report it takes
    leader -> helper   OPENED    its part of the key, then a verifier share a report that both take
    helper -> leader   VERIFIED  set of those whose proof holds, a verifier share a report, and,
                                 where they are a quorum, the sum of its output shares

Every message has the header of the masked sum (`secagg.session`). All sizes follow from the terms
of the round, so that no message carries a length that could be wrong, but the terms' own subject.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from secure_fd.crypto.keys import (
    PUBLIC_BYTES,
    SERVER,
    SIGNATURE_BYTES,
    TAG_BYTES,
    AgreementKey,
    RandomBytes,
    Sealer,
    derive_key,
)
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.prio3.field import ELEMENT_BYTES, FieldArray, decode, encode
from secure_fd.prio3.session import (
    HELPER_SHARE,
    LEADER_SHARE,
    VotePurpose,
    VoteRound,
    VoteSession,
)
from secure_fd.prio3.vdaf import NONCE_BYTES
from secure_fd.secagg.session import Place, RoundTerms, decode_set, encode_set, frame, set_bytes
from secure_fd.votes.codec import Limits
from secure_fd.wire import Kind, read_header

PART_BYTES: Final = 32
"""Of an aggregator's part of the verify key, and of a commitment to one."""
_TERMS: Final = struct.Struct(">QQQQB")


class Between(IntEnum):
    """Types of messages between the aggregators; no client sends or reads them."""

    REPORTS = 64
    KEY = 65
    OPENED = 66
    VERIFIED = 67


@dataclass(frozen=True, slots=True, eq=False)
class HelperReport:
    """What the helper is handed of a client's report. sealed: its input share."""

    nonce: bytes
    public: bytes
    sealed: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def encode(self) -> bytes:
        """The parts, one after the other."""
        return self.nonce + self.public + self.sealed + self.signature

    def signed(self, opened: VoteRound, sender: int) -> bytes:
        """What the client signs of it."""
        label = opened.context(VotePurpose.SIGNATURE, sender)
        return label + self.nonce + self.public + self.sealed

    def check(self, opened: VoteRound, sender: int) -> None:
        """PeerError unless the sender signed it for this round."""
        signer, what = opened.session.roster[sender], f"the report of client {sender}"
        signer.verify(self.signature, self.signed(opened, sender), what)


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """A client's votes in shares. share: the leader's input share."""

    about: HelperReport
    share: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Reports:
    """What the leader asks the helper to verify, by client."""

    commitment: bytes
    reports: Mapping[int, HelperReport] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The helper's half. valid: whose proof holds. total: its share of their sum, or None."""

    valid: tuple[int, ...]
    verifiers: Mapping[int, bytes] = field(repr=False)
    total: FieldArray | None = field(repr=False)


def helper_report_bytes(opened: VoteRound) -> int:
    """Of a client's report as the helper is handed it."""
    prio3 = opened.prio3
    sealed = PUBLIC_BYTES + prio3.input_bytes(HELPER_SHARE) + TAG_BYTES
    return NONCE_BYTES + prio3.public_bytes + sealed + SIGNATURE_BYTES


def _helper_report(opened: VoteRound, data: bytes) -> HelperReport:
    """The parts of exactly as many bytes."""
    first = NONCE_BYTES + opened.prio3.public_bytes
    last = len(data) - SIGNATURE_BYTES
    return HelperReport(data[:NONCE_BYTES], data[NONCE_BYTES:first], data[first:last], data[last:])


def encode_report(opened: VoteRound, sender: int, report: Report) -> bytes:
    """The REPORT of a client."""
    place = Place(opened.session.id, opened.terms.index)
    body = (opened.terms.subject, report.about.encode(), report.share)
    return frame(Kind.REPORT, place, sender, *body)


def decode_report(opened: VoteRound, sender: int, data: bytes) -> Report:
    """A client's report, its signature checked; PeerError, naming the client, for anything else.

    Its share is read here, where one that is none costs its sender alone.
    """
    told, about = len(opened.terms.subject), helper_report_bytes(opened)
    size = told + about + opened.prio3.input_bytes(LEADER_SHARE)
    body = _body(opened, sender, Kind.REPORT, data, size)
    if body[:told] != opened.terms.subject:
        raise PeerError(f"client {sender} was told something else")
    report = Report(_helper_report(opened, body[told : told + about]), body[told + about :])
    report.about.check(opened, sender)
    try:
        opened.prio3.check_input(report.share)
    except PeerError as error:
        raise PeerError(f"the share of client {sender} cannot be read: {error}") from None
    return report


def encode_reports(opened: VoteRound, asked: Reports) -> bytes:
    """The REPORTS of a leader."""
    terms, roster = opened.terms, tuple(opened.session.roster)
    numbers = (terms.length, terms.bound, terms.limits.row, opened.budget)
    return frame(
        Between.REPORTS,
        Place(opened.session.id, terms.index),
        SERVER,
        _TERMS.pack(*numbers, len(terms.subject)) + terms.subject,
        asked.commitment,
        encode_set(asked.reports, roster),
        *(asked.reports[k].encode() for k in sorted(asked.reports)),
    )


def decode_reports(session: VoteSession, data: bytes) -> tuple[VoteRound, Reports]:
    """The round that a leader asks about, and the reports; PeerError for anything else.

    Nothing is believed of the terms but that clients signed their reports under them.
    """
    kind, index, body = read_header(data, session.id, SERVER)
    if kind != Between.REPORTS or len(body) < _TERMS.size:
        raise PeerError("the leader sent something else than reports")
    length, bound, row, budget, told = _TERMS.unpack_from(body)
    rest = body[_TERMS.size + told :]
    subject = body[_TERMS.size : _TERMS.size + told]
    try:
        terms = RoundTerms(index, length, bound, subject, limits=Limits(row, budget))
        opened = VoteRound(session, terms)
    except ConfigurationError as error:
        raise PeerError(f"the leader asks for a round that cannot be: {error}") from None
    if opened.prio3.circuit.size.output != length or opened.budget != budget:
        raise PeerError("the leader asks for a round that cannot be")
    roster = tuple(session.roster)
    commitment, rest = rest[:PART_BYTES], rest[PART_BYTES:]
    senders = decode_set(rest[: set_bytes(roster)], roster)
    entries = _split(rest[set_bytes(roster) :], len(senders), helper_report_bytes(opened))
    found = {k: _helper_report(opened, part) for k, part in zip(senders, entries, strict=True)}
    return opened, Reports(commitment, found)


def encode_key(opened: VoteRound, part: bytes, taken: Sequence[int], asked: Sequence[int]) -> bytes:
    """The KEY of a helper. taken: of those asked about, whose report it can verify."""
    place = Place(opened.session.id, opened.terms.index)
    return frame(Between.KEY, place, opened.session.helper, part, encode_set(taken, asked))


def decode_key(
    opened: VoteRound, asked: Sequence[int], data: bytes
) -> tuple[bytes, tuple[int, ...]]:
    """(the helper's part, those it takes); PeerError for anything else."""
    size = PART_BYTES + set_bytes(asked)
    body = _body(opened, opened.session.helper, Between.KEY, data, size)
    return body[:PART_BYTES], decode_set(body[PART_BYTES:], asked)


def encode_opened(opened: VoteRound, part: bytes, verifiers: Mapping[int, bytes]) -> bytes:
    """The OPENED of a leader: its part, and verifier shares by client."""
    shares = (verifiers[k] for k in sorted(verifiers))
    place = Place(opened.session.id, opened.terms.index)
    return frame(Between.OPENED, place, SERVER, part, *shares)


def decode_opened(
    opened: VoteRound, taken: Sequence[int], data: bytes
) -> tuple[bytes, dict[int, bytes]]:
    """(the leader's part, verifier shares by client); PeerError for anything else."""
    each = opened.prio3.verifier_bytes
    body = _body(opened, SERVER, Between.OPENED, data, PART_BYTES + each * len(taken))
    shares = _split(body[PART_BYTES:], len(taken), each)
    return body[:PART_BYTES], dict(zip(taken, shares, strict=True))


def encode_verified(opened: VoteRound, taken: Sequence[int], verified: Verified) -> bytes:
    """The VERIFIED of a helper."""
    return frame(
        Between.VERIFIED,
        Place(opened.session.id, opened.terms.index),
        opened.session.helper,
        encode_set(verified.valid, taken),
        *(verified.verifiers[k] for k in taken),
        b"" if verified.total is None else encode(verified.total),
    )


def decode_verified(opened: VoteRound, taken: Sequence[int], data: bytes) -> Verified:
    """PeerError for anything else than a helper's answer about those that it takes."""
    kept, each = set_bytes(taken), opened.prio3.verifier_bytes
    head, lanes = kept + each * len(taken), opened.prio3.circuit.size.output
    sizes = (head, head + ELEMENT_BYTES * lanes)
    body = _body(opened, opened.session.helper, Between.VERIFIED, data, *sizes)
    valid = decode_set(body[:kept], taken)
    if (len(body) > head) != (len(valid) >= opened.session.quorum):
        raise PeerError("the helper gives a sum without a quorum, or none with one")
    shares = _split(body[kept:head], len(taken), each)
    total = decode(body[head:], lanes) if len(body) > head else None
    return Verified(valid, dict(zip(taken, shares, strict=True)), total)


def seal(opened: VoteRound, sender: int, share: bytes, random: RandomBytes) -> bytes:
    """A helper's share under a key that is made for it alone; the sender forgets its half."""
    once, public = AgreementKey.generate(random), opened.session.helper_key
    cipher = _sealer(opened, sender, once.public, lambda: once.exchange(public))
    return once.public + cipher.seal(0, share, _label(opened, sender))


def unseal(opened: VoteRound, sender: int, sealed: bytes, key: AgreementKey) -> bytes:
    """The share; PeerError, naming the sender, for one that was not sealed to this key."""
    public, box = sealed[:PUBLIC_BYTES], sealed[PUBLIC_BYTES:]
    cipher = _sealer(opened, sender, public, lambda: key.exchange(public))
    what = f"the helper's share of client {sender}"
    return cipher.open(0, box, _label(opened, sender), what)


def _label(opened: VoteRound, sender: int) -> bytes:
    return opened.context(VotePurpose.SEAL, sender, opened.session.helper)


def _sealer(opened: VoteRound, sender: int, public: bytes, exchange: Callable[[], bytes]) -> Sealer:
    info = _label(opened, sender) + public + opened.session.helper_key
    return Sealer(derive_key(exchange(), salt=opened.session.id, info=info))


def _body(opened: VoteRound, sender: int, kind: IntEnum, data: bytes, *sizes: int) -> bytes:
    """The body of the one message that is due; PeerError, naming the sender, for another."""
    found, index, body = read_header(data, opened.session.id, sender)
    if (found, index) != (kind, opened.terms.index):
        raise PeerError(f"party {sender} sent something else than the {kind.name} of this round")
    if len(body) not in sizes:
        raise PeerError(f"the {kind.name} of party {sender} has {len(body)} bytes")
    return body


def _split(data: bytes, count: int, each: int) -> list[bytes]:
    if len(data) != count * each:
        raise PeerError(f"{count} parts of {each} bytes have {len(data)} bytes")
    return [data[at * each : (at + 1) * each] for at in range(count)]
