"""The three parties of a proven sum: client, leader, helper. Bytes in, bytes out.

The client sends one message and is done: there is no set-up, and nothing to recover for a client
that drops out. The aggregators agree on the verify key only when uploads are closed: a client that
knew it could make a proof that passes. Each commits to its part before it sees the other's.

A report whose proof does not hold is left out, and its sender named. A wrong answer of an
aggregator ends the round without a sum, as far as the other can detect it: a changed verifier share
makes proofs fail, and a changed sum share shows unless it stays within the range of honest sums.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from secure_fd.crypto import keys as crypto
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError, PeerError
from secure_fd.prio3 import messages as wire
from secure_fd.prio3.field import FieldArray, add, decode, encode, total
from secure_fd.prio3.session import HELPER_SHARE, LEADER_SHARE, VoteRound, VoteSession
from secure_fd.prio3.vdaf import NONCE_BYTES, VerifyState
from secure_fd.secagg.session import RoundCounter, RoundTerms
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Sum


class ReportingClient(crypto.SecretHolder):
    """A client of the session: it sends its votes in one report a round.

    identity: signs its reports. random: of shares and proofs. gave: whether it sent one.
    """

    __slots__ = ("_identity", "_random", "_rounds", "_session", "gave", "number")

    def __init__(
        self,
        number: int,
        identity: crypto.IdentityKey,
        session: VoteSession,
        random: crypto.RandomBytes = os.urandom,
    ) -> None:
        self.number, self._identity, self._session = number, identity, session
        self._random, self._rounds, self.gave = random, RoundCounter(), False

    def report(self, terms: RoundTerms, values: UnitArray) -> bytes:
        """Return the report of these votes [m], once a round; LocalError beyond the terms.

        From then on the aggregators can read the sum without this client.
        """
        opened, random = VoteRound(self._session, terms), self._random
        if values.shape != (terms.length,):
            raise LocalError(f"the round sums {terms.length} values, not {values.shape}")
        self._rounds.spend(terms.index)
        nonce, rand = crypto.draw(random, NONCE_BYTES), crypto.draw(random, opened.prio3.rand_bytes)
        label = opened.votes_of(self.number)
        public, (own, helped) = opened.prio3.shard(label, values, nonce, rand)
        sealed = wire.seal(opened, self.number, helped, random)
        report = wire.Report(nonce, public, sealed, b"", own)
        report.signature = self._identity.sign(report.signed(opened, self.number))
        self.gave = True
        return wire.write(opened, self.number, report)


class Helper(crypto.SecretHolder):
    """The elected party: it answers a leader's two messages a round, and gives one sum.

    key: clients seal its shares to it. random: of its part of verify keys.
    """

    __slots__ = ("_due", "_key", "_random", "_rounds", "_session")

    def __init__(
        self,
        session: VoteSession,
        key: crypto.AgreementKey,
        random: crypto.RandomBytes = os.urandom,
    ) -> None:
        self._session, self._key, self._random = session, key, random
        self._rounds = RoundCounter()
        self._due: tuple[VoteRound, wire.Reports, bytes] | None = None

    def receive(self, data: bytes) -> bytes:
        """Answer REPORTS by KEY, then OPENED by VERIFIED; PeerError for anything else.

        A round that is asked about a second time is refused: its answer would be a second sum.
        """
        if self._due is not None:
            due, self._due = self._due, None  # a bad message ends the round
            return self._verify(*due, data)
        opened, asked = wire.read_reports(self._session, data)
        if opened.terms.index <= self._rounds.last:
            raise PeerError(f"the leader asks for round {opened.terms.index} again")
        self._rounds.spend(opened.terms.index)
        taken = {}
        for sender, report in asked.reports.items():
            with suppress(PeerError):  # KEY leaves the client out
                report.check(opened, sender)
                share = wire.unseal(opened, sender, report.sealed, self._key)
                opened.prio3.check(HELPER_SHARE, report.public, share)
                taken[sender] = msgspec.structs.replace(report, share=share)
        if len(taken) < self._session.quorum:
            raise PeerError(f"the leader shows {len(taken)} reports, too few for a sum")
        part = crypto.draw(self._random, wire.PART_BYTES)
        self._due = (opened, msgspec.structs.replace(asked, reports=taken), part)
        return wire.write(opened, crypto.HELPER, wire.Key(part, tuple(taken)))

    def _verify(self, opened: VoteRound, asked: wire.Reports, part: bytes, data: bytes) -> bytes:
        """VERIFIED. Nothing is verified before the helper's part of the key has left."""
        theirs = wire.read(opened.place, crypto.SERVER, data, wire.Opened)
        if opened.commitment(theirs.part) != asked.commitment:
            raise PeerError("the leader opens another part of the verify key than it fixed")
        if list(theirs.verifiers) != list(asked.reports):
            raise PeerError("the leader opens other reports than the helper took")
        key = opened.verify_key(theirs.part, part)
        states, own = _begin(opened, key, HELPER_SHARE, asked.reports)
        outs, _ = _outputs(opened, states, (theirs.verifiers, own))
        summed = encode(_added(outs.values())) if len(outs) >= self._session.quorum else b""
        verified = wire.Verified(own, tuple(outs), summed)
        return wire.write(opened, crypto.HELPER, verified)


class Leader(crypto.SecretHolder):
    """The server: it takes reports, closes uploads, and verifies with the helper.

    helper: takes a message and returns the helper's answer. random: of its part of verify keys.
    accused: by client, the reason why its report of this round is not in the sum.
    """

    __slots__ = (
        *("_helper", "_open", "_random", "_reports", "_session"),
        *("accused", "busy", "opened", "result"),
    )

    def __init__(
        self,
        session: VoteSession,
        helper: Callable[[bytes], bytes],
        random: crypto.RandomBytes = os.urandom,
    ) -> None:
        self._session, self._helper, self._random = session, helper, random
        self._open: VoteRound | None = None
        self._reports: dict[int, wire.Report] = {}
        self.accused: dict[int, str] = {}
        self.busy = self.opened = False
        self.result: Sum | None = None

    @property
    def waiting(self) -> set[int]:
        """The clients without a report."""
        return set(self._session.roster) - set(self._reports)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for the reports of a round. They alone give the sum: the round counts as opened."""
        self._open, self.result = VoteRound(self._session, terms), None
        self._reports, self.accused = {}, {}
        self.busy = self.opened = True
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take one report of each client; PeerError, naming the sender, for anything else.

        The leader's share is read on arrival: an unreadable one costs its sender alone.
        """
        if sender not in self.waiting:
            raise PeerError(f"client {sender} is no voter, or has reported already")
        if self._open is None or not self.busy:
            raise PeerError(f"the report of client {sender} came after uploads were closed")
        report = wire.read(self._open.place, sender, data, wire.Report)
        report.check(self._open, sender)
        try:
            self._open.prio3.check(LEADER_SHARE, report.public, report.share)
        except PeerError as error:
            raise PeerError(f"the share of client {sender} cannot be read: {error}") from None
        self._reports[sender] = report

    def advance(self) -> Mapping[int, bytes]:
        """End uploads, and verify and add up with the helper; `result` is the sum.

        MissingClientError where too few reports came, or hold; GarbledSumError for a sum that no
        honest parties can have made; PeerError for a helper that sends anything else.
        """
        self.busy, opened = False, self._open
        if opened is None:
            raise LocalError("no uploads are open")
        reports = dict(sorted(self._reports.items()))
        self._check_quorum(len(reports), "reports arrived")
        part, replace = crypto.draw(self._random, wire.PART_BYTES), msgspec.structs.replace
        shown = {k: replace(report, share=b"") for k, report in reports.items()}
        asked = wire.Reports(opened.terms, opened.commitment(part), shown)
        answer = self._helper(wire.write(opened, crypto.SERVER, asked))
        key = wire.read(opened.place, crypto.HELPER, answer, wire.Key)
        taken = {k: reports[k] for k in reports if k in key.taken}
        if tuple(taken) != key.taken:
            raise PeerError("the helper takes reports that it was not shown")
        for k in reports.keys() - taken.keys():
            self.accused[k] = f"the helper cannot open its share of client {k}"
        states, own = _begin(opened, opened.verify_key(part, key.part), LEADER_SHARE, taken)
        answer = self._helper(wire.write(opened, crypto.SERVER, wire.Opened(part, own)))
        theirs = wire.read(opened.place, crypto.HELPER, answer, wire.Verified)
        if list(theirs.verifiers) != list(states):
            raise PeerError("the helper verifies other reports than it took")
        outs, refused = _outputs(opened, states, (own, theirs.verifiers))
        self.accused |= refused
        if tuple(outs) != theirs.valid:
            raise GarbledSumError("the aggregators do not agree on whose proofs hold")
        self._check_quorum(len(outs), "proofs hold")
        summed = add(_added(outs.values()), decode(theirs.total, opened.terms.length))
        _check_sum(opened, summed, len(outs))
        self.result = Sum(summed, tuple(outs))
        return {}

    def _check_quorum(self, count: int, what: str) -> None:
        if count < self._session.quorum:
            raise MissingClientError(f"{count} {what} and {self._session.quorum} are needed")


def _begin(
    opened: VoteRound, key: bytes, aggregator: int, reports: Mapping[int, wire.Report]
) -> tuple[dict[int, VerifyState], dict[int, bytes]]:
    """(states, verifier shares) of an aggregator by client; PeerError for unreadable shares."""
    states, verifiers, begin = {}, {}, opened.prio3.verify_init
    for k, report in reports.items():
        shares = (report.nonce, report.public, report.share)
        states[k], verifiers[k] = begin(key, opened.votes_of(k), aggregator, *shares)
    return states, verifiers


def _outputs(
    opened: VoteRound, states: Mapping[int, VerifyState], both: Sequence[Mapping[int, bytes]]
) -> tuple[dict[int, FieldArray], dict[int, str]]:
    """(shares [m] of the votes that hold, reasons why others are refused), by client.

    both: verifier shares of the leader and of the helper.
    """
    outs, refused = {}, {}
    for k, state in states.items():
        shares = [verifiers[k] for verifiers in both]
        try:
            message = opened.prio3.verifier_message(opened.votes_of(k), shares)
            outs[k] = opened.prio3.verify_next(state, message)
        except PeerError as error:
            refused[k] = f"the votes of client {k} are refused: {error}"
    return outs, refused


def _added(outs: Iterable[FieldArray]) -> FieldArray:
    """[m] the sum of output shares."""
    return total(np.stack(list(outs)), axis=0)


def _check_sum(opened: VoteRound, summed: FieldArray, votes: int) -> None:
    """Raise GarbledSumError for a sum that this number of valid votes cannot have."""
    most = votes * opened.terms.bound
    if int(summed.max()) <= most:
        rows = summed.reshape(-1, opened.terms.limits.row).sum(axis=1)
        if int(rows.max()) <= most and int(rows.sum()) <= votes * opened.budget:
            return
    raise GarbledSumError("an aggregator changed its share of the sum")
