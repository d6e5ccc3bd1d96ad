"""The server's rounds over any courier: push a stage, read answers, close it, go on.

In steady state a round is two pushes: what became of the last sum goes out with the next subject. A
site that does not answer in time, or refuses, is silent for the rest of the round. Before the next
one it is greeted: it proves who it is and says what it has read, and is owed the rest.
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from secure_fd.crypto.keys import SIGNATURE_BYTES, IdentityKey
from secure_fd.deployment.checkpoints import Checkpoints
from secure_fd.deployment.envelope import Answer, AnswerState, Push, PushKind
from secure_fd.deployment.health import Clock, Doing, Health
from secure_fd.deployment.journal import JournaledSum, digest_of, note_begun, replay
from secure_fd.deployment.parties import Agreement, kept_seed
from secure_fd.deployment.site import CHALLENGE_BYTES, hello_text
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.protocol.server import Outbound
from secure_fd.secagg.server import Server as SumServerMember
from secure_fd.secagg.session import Floors
from secure_fd.secure_sum.masked import MaskedServer
from secure_fd.storage import Store

log = logging.getLogger(__name__)
_MOST_SETUPS = 8
_REPAIRS = 2
"""Set-ups that are made again because a site that joined did not come to the end."""
_PATIENCE = 10
"""Stages' deadlines that a round waits for enough sites to come back."""
_GREETING = 5.0
"""Seconds to wait for a site that was away, so that one that is gone holds nobody up."""
_GREETED = 0.05
"""Seconds beyond that for each that is greeted, so that a thousand are not asked over and over."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An answer as bytes, and when it came, in seconds after its push."""

    node: int
    data: bytes = field(repr=False)
    after: float


class Courier(Protocol):
    """Hands pushes to nodes. A node is whatever the transport calls a site's process."""

    def nodes(self) -> Sequence[int]:
        """Those that can be reached now."""

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[Arrived]:
        """Hand over one message a node; the answers that came by the deadline, as they come.

        An answer twice, or from a node that was not asked, is not given.
        """


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """One round as the server knows it; nothing of any sum is in it but a hash and `kept`.

    void: whether it gave no sum, and why. kept: share of the round's proxies that teach, which all
    were told; None where the method's server does not know. survivors: by sum. sums: their SHA-256,
    by sum. refused: by site, what was wrong with what it sent. silent: sites that did not answer
    some stage. bytes_up, bytes_down: of all sites, messages and envelopes. clock: see `Clock`.
    """

    index: int
    void: bool
    why: str
    kept: float | None
    survivors: tuple[tuple[int, ...], ...]
    sums: tuple[str, ...]
    refused: Mapping[int, str]
    silent: tuple[int, ...]
    bytes_up: int
    bytes_down: int
    clock: Mapping[str, float]


class Rounds:
    """The server of a roster over a courier, from the set-up to the end.

    file: what must outlive this process. key: the server's identity. member: its half of the masked
    sum, which keeps its own memory in `file`.
    """

    def __init__(
        self,
        agreement: Agreement,
        courier: Courier,
        key: IdentityKey,
        member: SumServerMember,
        file: Store,
    ) -> None:
        self._agreement, self._courier, self._key = agreement, courier, key
        self._member, self._file = member, file
        self._numbers: dict[int, int] = {}  # by node
        self._processes: dict[int, bytes] = {}  # by site that was greeted and began
        self._lost: set[int] = set()
        self._life = 1 + int.from_bytes(file.get("life") or b"", "big")
        file.put({"life": self._life.to_bytes(8, "big")})
        self._pushes = 0
        self._owed: Outbound = {}
        self._is_set_up = False  # and `party` is there
        self._clock, self._up, self._down = Clock(), 0, 0
        self._silent: set[int] = set()
        names = tuple(site.name for site in agreement.roster.sites)
        self.health = Health(names, agreement.rounds)

    # Set-up

    def open(self) -> int:
        """Make the set-up where there is none, and come back to where an earlier life stood.

        Returns the rounds that have begun. MissingClientError where no set-up comes about.
        """
        # A process that ended before the last message was out is enrolled, and no site may be.
        came = any(self._file.get(name) is not None for name in ("set up", "begun"))
        back = self._is_set_up = self._member.enrolled and came
        if not back:
            self._set_up()
        seed = kept_seed(self._file, self._member)
        sums = JournaledSum(self._member, self._file)
        self._half = self._agreement.server_half(seed)
        self.party = self._agreement.server(self._half, sums, self._key)
        self._checkpoints = Checkpoints(self.party, self.health, self._file)
        sites = self._checkpoints.restore()
        # By site of a set-up, the broadcasts that it said it has read.
        self._read = dict.fromkeys(sites, self.party.dropped)
        done = replay(self.party, self._file, self._over)
        if back:
            self._gather()
            return done
        self._push({k: self._next(PushKind.BEGIN) for k in self._here})
        return done

    def _set_up(self) -> None:
        """Make the set-up, and make it again for a site that joined and lost a message of it.

        Before enough sites are there no set-up begins: sites may come in any order, hours apart.
        """
        repairs = _REPAIRS
        for _ in range(_MOST_SETUPS):
            try:
                whole = self._one_set_up()
            except MissingClientError as error:
                log.warning("set-up failed", extra={"reason": str(error)})
                self._lost |= set(self._processes)
                continue
            if whole or not repairs:
                self._file.put({"set up": b"\1"})
                self._is_set_up = True
                return
            repairs -= 1
        raise MissingClientError(f"no set-up came about in {_MOST_SETUPS} tries")

    def _one_set_up(self) -> bool:
        """All sites of the roster that are there; whether all of them came to the end."""
        self._gather(Floors().members(self._agreement.roster.session))
        sums, joined = MaskedServer(self._member, anew=True), self._here
        pushes = {k: self._next(PushKind.JOIN) for k in joined}
        while pushes:
            for k, answer in self._push(pushes).items():
                for part in answer.parts:
                    _take(sums, k, part)
            relayed = sums.advance()
            pushes = {k: self._next(PushKind.CARRY, [data]) for k, data in relayed.items()}
            if not sums.busy:
                self._push(pushes)
                break
        return joined <= self._here

    def _gather(self, least: int = 0) -> None:
        """Wait for the whole roster, up to a stage's deadline; then go on with who is there.

        least: sites without which it goes on waiting.
        """
        deadline = time.monotonic() + self._agreement.roster.terms.deadline
        self._now(Doing.GATHERING)
        while len(self._here) < len(self._agreement.roster.sites):
            self._greet()
            if time.monotonic() > deadline and len(self._here) >= least:
                return
            time.sleep(0.1)

    # Rounds

    def run(self, rounds: int) -> Iterable[RoundOutcome]:
        """Go on up to so many rounds in all; then tell everybody what is still due."""
        done = self.open()
        for index in range(done, rounds):
            yield self._round(index)
        self._clock = Clock()
        told = self._end()
        self.health.now(Doing.ENDED, told)  # they leave

    def _end(self) -> set[int]:
        """Tell everybody that the run is over, and what is still due; who answered that.

        A site that does not answer may not have heard it, and would wait for an hour: it is told
        again. Nobody is waited for beyond a stage's deadline, or two where one did not answer.
        """
        told, again = set[int](), True
        until = time.monotonic() + self._agreement.roster.terms.deadline
        while True:
            self._greet()
            untold = self._here - told
            due = {k: self._owed[k] if k in self._owed else self.party.owed(k) for k in untold}
            ends = {k: self._next(PushKind.END, parts) for k, parts in due.items()}
            answered = self._push(ends).keys()
            told |= answered
            if again and answered != due.keys():
                until, again = time.monotonic() + self._agreement.roster.terms.deadline, False
            if len(told) == len(self.health.sites) or time.monotonic() > until:
                return told
            self._now(Doing.GATHERING)
            time.sleep(0.1)

    def _round(self, index: int) -> RoundOutcome:
        self._clock, self._up, self._down, self._silent = Clock(), 0, 0, set()
        self._greet()
        self._wait_for_enough()
        note_begun(self._file, index + 1)
        begun = time.monotonic()
        out = self.party.begin()
        self._clock.server += time.monotonic() - begun
        if not out:
            self._stage(self._owed)  # the last result, which no announcement carries this time
            self._owed = {}
            self._push({k: self._next(PushKind.ALONE) for k in self._here})
        out = {k: self._owed.get(k, []) + parts for k, parts in out.items()}
        while self.party.busy:
            self._stage(out)
            self._now(Doing.COMPUTING)
            begun = time.monotonic()
            out = self.party.advance()
            self._clock.server += time.monotonic() - begun
        self._owed = out
        self._over()
        self.health.clock.add(self._clock)
        return self._outcome(index)

    def _over(self) -> None:
        """A round is over, in this life or an earlier one."""
        self.health.over(void=self.party.void)
        for k in self._member.group.members:
            self._read.setdefault(k, self.party.dropped)
        self._checkpoints.over(self._read)

    def _now(self, doing: Doing) -> None:
        self.health.now(doing, self._here)

    def _wait_for_enough(self) -> None:
        """Begin no round that must be void: MissingClientError where too few sites are back."""
        self._now(Doing.GATHERING)
        least, deadline = self._member.group.quorum, self._agreement.roster.terms.deadline
        until = time.monotonic() + _PATIENCE * deadline
        while len(self._here) < least:
            if time.monotonic() > until:
                raise MissingClientError(
                    f"{len(self._here)} sites are there and a sum needs {least}: begin again later"
                )
            time.sleep(0.2)
            self._greet()

    def _stage(self, out: Outbound) -> None:
        there = {k: parts for k, parts in out.items() if k in self._here and k not in self._silent}
        pushes = {k: self._next(PushKind.CARRY, parts) for k, parts in there.items()}
        for k, answer in self._push(pushes).items():
            for part in answer.parts:
                self.party.receive(k, part)

    def _outcome(self, index: int) -> RoundOutcome:
        party = self.party
        results = party.results
        return RoundOutcome(
            index=index,
            void=party.void,
            why=party.why,
            kept=0.0 if party.void else self._half.report().kept,
            survivors=tuple(result.survivors for result in results),
            sums=tuple(map(digest_of, results)),
            refused=dict(party.refused),
            silent=tuple(sorted(self._silent)),
            bytes_up=self._up,
            bytes_down=self._down,
            clock=self._clock.rounded(),
        )

    # Sites

    @property
    def _here(self) -> set[int]:
        """Sites that were greeted and have answered since."""
        return set(self._processes) - self._lost

    def _next(self, kind: PushKind, parts: Sequence[bytes] = ()) -> Push:
        """A push with the next number of this life."""
        self._pushes += 1
        return Push(kind, self._life << 32 | self._pushes, tuple(parts))

    def _greet(self) -> None:
        """Ask nodes that are new, or whose site was lost, who they are; begin with those."""
        reachable = set(self._courier.nodes())
        for node, k in list(self._numbers.items()):
            if node not in reachable:
                self._lost.add(k)
        fresh = [n for n in reachable if self._numbers.get(n, -1) not in self._here]
        challenges = {node: os.urandom(CHALLENGE_BYTES) for node in fresh}
        pushes = {n: self._next(PushKind.HELLO, [each]).encode() for n, each in challenges.items()}
        new: list[int] = []
        for arrived in self._courier.push(pushes, _GREETING + _GREETED * len(pushes)):
            try:
                new += self._welcome(arrived, challenges[arrived.node])
            except PeerError as error:
                log.warning("not greeted", extra={"reason": str(error)})
        if self._is_set_up and new:
            self._push({k: self._next(PushKind.BEGIN) for k in new})

    def _welcome(self, arrived: Arrived, challenge: bytes) -> list[int]:
        """The site at a node, once it has proved who it is. PeerError where it has not.

        Returned where it has to begin: its process is another one than before.
        """
        answer, roster = Answer.decode(arrived.data), self._agreement.roster
        if answer.state is not AnswerState.DONE or len(answer.parts) != 3:
            raise PeerError("a greeting was refused")
        number, enrolled, signature = answer.parts
        k = int.from_bytes(number, "big")
        if k not in range(len(roster.sites)) or len(signature) != SIGNATURE_BYTES:
            raise PeerError(f"a greeting names site {k}, which the roster has not")
        text = hello_text(roster.session.id, challenge, answer.process)
        roster.session.roster[k].verify(signature, text, f"the greeting of site {k}")
        if self._is_set_up and enrolled != b"\1":
            raise PeerError(f"site {k} has lost its state: enrol it anew, in a new roster")
        if self._is_set_up and answer.position < self.party.dropped:
            raise PeerError(f"site {k} has an older copy of its state: make a new roster")
        again = self._processes.get(k) != answer.process
        self._numbers = {n: j for n, j in self._numbers.items() if j != k} | {arrived.node: k}
        self._processes[k] = answer.process
        self._lost.discard(k)
        if self._is_set_up:
            self._read[k] = answer.position
            self.party.returned(k, answer.position)
            self._owed.pop(k, None)
        return [k] if again else []

    def _push(self, pushes: Mapping[int, Push]) -> dict[int, Answer]:
        """One stage: the answers by site. Who gives none, or refuses, is lost until greeted."""
        self._now(Doing.COLLECTING)
        nodes = {k: node for node, k in self._numbers.items()}
        sent = {nodes[k]: push.encode() for k, push in pushes.items() if k in nodes}
        self._down += sum(map(len, sent.values()))
        begun, answers, last = time.monotonic(), {}, (0.0, 0.0)
        for arrived in self._courier.push(sent, self._agreement.roster.terms.deadline):
            k = self._numbers[arrived.node]
            self._up += len(arrived.data)
            try:
                answer = Answer.decode(arrived.data)
            except PeerError:
                continue
            if answer.at != pushes[k].at or answer.state is AnswerState.STALE:
                continue
            answers[k] = answer
            if self._is_set_up:
                self._read[k] = answer.position
            last = max(last, (arrived.after, answer.computing))
        refused = {k for k, answer in answers.items() if answer.state is AnswerState.REFUSED}
        absent = (set(pushes) - set(answers)) | refused
        self._lost |= absent
        self._silent |= absent
        self._clock.stage(time.monotonic() - begun, last[1], last[0])
        return answers


def _take(sums: MaskedServer, sender: int, data: bytes) -> None:
    """A set-up's message; a bad one costs its sender the set-up."""
    try:
        sums.receive(sender, data)
    except PeerError as error:
        log.warning("set-up", extra={"site": sender, "reason": str(error)})
