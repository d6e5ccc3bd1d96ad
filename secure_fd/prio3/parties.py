"""The three machines of a proven sum: client, leader, helper. Bytes in, bytes out.

The client sends one message and is done: no set-up, and nobody has to recover what a silent client
left behind. The aggregators agree on the verify key only when uploads are closed: a client that
knew it could make a proof that passes. Each has committed to its part before it knows the other's.

A report whose proof does not hold is left out, and its sender named. What an aggregator does wrong
ends the round without a sum, as far as the other can tell: a changed verifier share makes proofs
fail, and a changed sum share shows unless it stays within what honest clients could have said.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np

from secure_fd.crypto.keys import AgreementKey, IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import (
    GarbledSumError,
    LocalError,
    MissingClientError,
    PeerError,
)
from secure_fd.prio3 import messages as wire
from secure_fd.prio3.field import FieldArray, add
from secure_fd.prio3.session import HELPER_SHARE, LEADER_SHARE, VoteRound, VoteSession
from secure_fd.prio3.vdaf import NONCE_BYTES, VerifyState
from secure_fd.secagg.session import RoundCounter, RoundTerms
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Sum


class VoteClient(SecretHolder):
    """A client of the session: its votes leave in one report a round.

    identity: signs its reports. random: of shares and proofs.
    """

    __slots__ = ("_identity", "_random", "_rounds", "_session", "number")

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: VoteSession,
        random: RandomBytes = os.urandom,
    ) -> None:
        self.number, self._identity, self._session = number, identity, session
        self._random, self._rounds = random, RoundCounter()

    def report(self, terms: RoundTerms, values: UnitArray) -> bytes:
        """The report of these votes [m], once a round; LocalError for votes beyond the terms."""
        opened = VoteRound(self._session, terms)
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        encoded = opened.prio3.circuit.encode(values)
        self._rounds.spend(terms.index)
        return self.report_encoded(opened, encoded)

    def report_encoded(self, opened: VoteRound, encoded: FieldArray) -> bytes:
        """The same of field elements that nobody has checked."""
        prio3, random = opened.prio3, self._random
        nonce, rand = draw(random, NONCE_BYTES), draw(random, prio3.rand_bytes)
        label = opened.votes_of(self.number)
        public, (leader, helper) = prio3.shard_encoded(label, encoded, nonce, rand)
        sealed = wire.seal(opened, self.number, helper, random)
        unsigned = wire.HelperReport(nonce, public, sealed, b"")
        signature = self._identity.sign(unsigned.signed(opened, self.number))
        about = wire.HelperReport(nonce, public, sealed, signature)
        return wire.encode_report(opened, self.number, wire.Report(about, leader))


class Helper(SecretHolder):
    """The elected party: it answers a leader's two messages a round, and gives one sum.

    key: clients seal its shares to it. random: of its part of verify keys.
    """

    __slots__ = ("_key", "_open", "_random", "_rounds", "_session")

    def __init__(
        self, session: VoteSession, key: AgreementKey, random: RandomBytes = os.urandom
    ) -> None:
        if key.public != session.helper_key:
            raise LocalError("this key is not the one that the session names for its helper")
        self._session, self._key, self._random = session, key, random
        self._rounds = RoundCounter()
        self._open: _HelperRound | None = None

    def receive(self, data: bytes) -> bytes:
        """The answer to REPORTS, then to OPENED; PeerError for anything else.

        A round that is asked about a second time is refused: its answer would be a second sum.
        """
        if self._open is not None:
            due, self._open = self._open, None  # it is over, whatever comes
            return due.verify(data)
        opened, asked = wire.decode_reports(self._session, data)
        if opened.terms.index <= self._rounds.last:
            raise PeerError(f"the leader asks for round {opened.terms.index} again")
        self._rounds.spend(opened.terms.index)
        self._open = _HelperRound(opened, asked, draw(self._random, wire.PART_BYTES), self._key)
        return self._open.answer()


class _HelperRound(SecretHolder):
    """One round at the helper. Nothing is verified before its part of the key has left."""

    __slots__ = ("_asked", "_commitment", "_opened", "_part", "_reports", "_shares")

    def __init__(
        self, opened: VoteRound, asked: wire.Reports, part: bytes, key: AgreementKey
    ) -> None:
        self._opened, self._asked, self._part = opened, tuple(asked.reports), part
        self._commitment, self._reports = asked.commitment, asked.reports
        self._shares = {}
        for sender, report in asked.reports.items():
            try:
                report.check(opened, sender)
                self._shares[sender] = wire.unseal(opened, sender, report.sealed, key)
            except PeerError:
                continue  # the set in KEY says so
        if len(self._shares) < opened.session.quorum:
            raise PeerError(f"the leader shows {len(self._shares)} reports, too few for a sum")

    def answer(self) -> bytes:
        """KEY."""
        return wire.encode_key(self._opened, self._part, tuple(self._shares), self._asked)

    def verify(self, data: bytes) -> bytes:
        """VERIFIED, in answer to OPENED."""
        opened, taken = self._opened, tuple(self._shares)
        part, theirs = wire.decode_opened(opened, taken, data)
        if opened.commitment(part) != self._commitment:
            raise PeerError("the leader opens another part of the verify key than it fixed")
        key = opened.verify_key(part, self._part)
        checks = {
            k: _Check.of(opened, key, k, HELPER_SHARE, self._reports[k], self._shares[k])
            for k in taken
        }
        outs = {}
        for k in taken:
            with suppress(PeerError):  # its proof does not hold
                outs[k] = checks[k].out((theirs[k], checks[k].verifier))
        total = _added(opened, outs) if len(outs) >= opened.session.quorum else None
        mine = {k: checks[k].verifier for k in taken}
        return wire.encode_verified(opened, taken, wire.Verified(tuple(outs), mine, total))


class _Check(SecretHolder):
    """What an aggregator computes of one report by itself."""

    __slots__ = ("opened", "sender", "state", "verifier")

    def __init__(self, opened: VoteRound, sender: int, state: VerifyState, verifier: bytes) -> None:
        self.opened, self.sender, self.state, self.verifier = opened, sender, state, verifier

    @classmethod
    def of(
        cls,
        opened: VoteRound,
        key: bytes,
        sender: int,
        aggregator: int,
        report: wire.HelperReport,
        share: bytes,
    ) -> "_Check":
        """PeerError for shares of another form."""
        label = opened.votes_of(sender)
        state, verifier = opened.prio3.verify_init(
            key, label, aggregator, report.nonce, report.public, share
        )
        return cls(opened, sender, state, verifier)

    def out(self, verifiers: tuple[bytes, bytes]) -> FieldArray:
        """[m] share of votes that hold; PeerError, naming the client, for others."""
        prio3 = self.opened.prio3
        try:
            message = prio3.verifier_message(self.opened.votes_of(self.sender), verifiers)
            return prio3.verify_next(self.state, message)
        except PeerError as error:
            raise PeerError(f"the votes of client {self.sender} are refused: {error}") from None


def _added(opened: VoteRound, outs: Mapping[int, FieldArray]) -> FieldArray:
    """[m] the sum of output shares."""
    summed = np.zeros(opened.prio3.circuit.size.output, dtype=np.uint64)
    for out in outs.values():
        summed = add(summed, out)
    return summed


class Leader(SecretHolder):
    """The server's machine: it takes reports, closes uploads, and verifies with the helper.

    random: of its part of verify keys. refused: by client, why its report of this round is none.
    result: of this round, once it is there.
    """

    __slots__ = (
        "_helped",
        "_open",
        "_random",
        "_reports",
        "_session",
        "refused",
        "result",
    )

    def __init__(self, session: VoteSession, random: RandomBytes = os.urandom) -> None:
        self._session, self._random = session, random
        self._open: VoteRound | None = None
        self._reports: dict[int, wire.Report] = {}
        self._helped: _LeaderRound | None = None
        self.refused: dict[int, str] = {}
        self.result: Sum | None = None

    @property
    def reported(self) -> tuple[int, ...]:
        """The clients whose report came, ascending."""
        return tuple(sorted(self._reports))

    def open(self, terms: RoundTerms) -> None:
        """Wait for the reports of a round."""
        self._open, self._helped, self.result = VoteRound(self._session, terms), None, None
        self._reports, self.refused = {}, {}

    def take(self, sender: int, data: bytes) -> None:
        """Take one report of each client; PeerError, naming the sender, for anything else."""
        if sender not in self._session.roster or sender in self._reports:
            raise PeerError(f"client {sender} is no voter, or has reported already")
        if self._open is None or self._helped is not None:
            raise PeerError(f"the report of client {sender} came where uploads are closed")
        self._reports[sender] = wire.decode_report(self._open, sender, data)

    def close(self) -> bytes:
        """End uploads and give REPORTS; MissingClientError where too few came."""
        if self._open is None or self._helped is not None:
            raise LocalError("no uploads are open")
        if len(self._reports) < self._session.quorum:
            came, needed = len(self._reports), self._session.quorum
            raise MissingClientError(f"{came} reports arrived and {needed} are needed")
        part = draw(self._random, wire.PART_BYTES)
        ordered = {k: self._reports[k] for k in self.reported}
        self._helped = _LeaderRound(self._open, ordered, part, self.refused)
        return self._helped.ask()

    def receive(self, data: bytes) -> bytes | None:
        """OPENED in answer to KEY, None to VERIFIED: then `result` is there.

        PeerError for anything else, MissingClientError where the proofs of too few hold,
        GarbledSumError for a sum that no honest parties can have made.
        """
        if self._helped is None or self.result is not None:
            raise PeerError("the helper answers where nothing is asked")
        if not self._helped.keyed:
            return self._helped.open(data)
        self.result = self._helped.total(data)
        return None


class _LeaderRound(SecretHolder):
    """One round at the leader, from the end of uploads on."""

    __slots__ = ("_checks", "_opened", "_part", "_refused", "_reports", "keyed")

    def __init__(
        self,
        opened: VoteRound,
        reports: Mapping[int, wire.Report],
        part: bytes,
        refused: dict[int, str],
    ) -> None:
        self._opened, self._reports, self._part = opened, reports, part
        self._refused, self.keyed = refused, False
        self._checks: dict[int, _Check] = {}

    def ask(self) -> bytes:
        """REPORTS."""
        asked = {k: report.about for k, report in self._reports.items()}
        return wire.encode_reports(
            self._opened, wire.Reports(self._opened.commitment(self._part), asked)
        )

    def open(self, data: bytes) -> bytes:
        """OPENED, in answer to KEY."""
        theirs, taken = wire.decode_key(self._opened, tuple(self._reports), data)
        key, self.keyed = self._opened.verify_key(self._part, theirs), True
        for k in set(self._reports) - set(taken):
            self._refused[k] = f"the helper cannot open its share of client {k}"
        for k in taken:
            report = self._reports[k]
            shown = (report.about, report.share)
            self._checks[k] = _Check.of(self._opened, key, k, LEADER_SHARE, *shown)
        verifiers = {k: check.verifier for k, check in self._checks.items()}
        return wire.encode_opened(self._opened, self._part, verifiers)

    def total(self, data: bytes) -> Sum:
        """The sum, in answer to VERIFIED."""
        opened, taken = self._opened, tuple(self._checks)
        theirs = wire.decode_verified(opened, taken, data)
        outs = {}
        for k, check in self._checks.items():
            try:
                outs[k] = check.out((check.verifier, theirs.verifiers[k]))
            except PeerError as error:
                self._refused[k] = str(error)
        if tuple(outs) != theirs.valid:
            raise GarbledSumError("the aggregators do not agree on whose proofs hold")
        if theirs.total is None:
            needed = opened.session.quorum
            raise MissingClientError(f"the proofs of {len(outs)} hold and {needed} are needed")
        summed = add(_added(opened, outs), theirs.total)
        _check_sum(opened, summed, len(outs))
        return Sum(summed, tuple(outs))


def _check_sum(opened: VoteRound, summed: FieldArray, votes: int) -> None:
    """GarbledSumError where so many valid votes cannot add up to it."""
    most = votes * opened.terms.bound
    if int(summed.max()) <= most:
        rows = summed.reshape(-1, opened.terms.limits.row).sum(axis=1)
        if int(rows.max()) <= most and int(rows.sum()) <= votes * opened.budget:
            return
    raise GarbledSumError("an aggregator changed its share of the sum")


def joint_sum(leader: Leader, helper: Callable[[bytes], bytes]) -> Sum:
    """One round between the aggregators, once the leader has the reports.

    helper: hands it a message and gives its answer. Raises what `Leader` raises; the leader says
    whose votes were refused.
    """
    message: bytes | None = leader.close()  # from here on no report is taken
    while message is not None:
        message = leader.receive(helper(message))
    if leader.result is None:
        raise LocalError("a round ended without a sum")
    return leader.result
