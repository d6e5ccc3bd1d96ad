"""The server's rounds over any transport: push a stage, read the answers, close it, go on.

In steady state a round is two pushes, since the result of the last sum goes out with the next
announcement. A site that does not answer in time, or refuses, is silent for the rest of the round.
Before the next round the server greets it: the site proves who it is and how many broadcasts it
has read, and is sent the others. A site trains alone before it answers its first greeting.

The transport keeps the time as well, so that a simulated one runs the rounds in one process.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from secure_fd.crypto.keys import SIGNATURE_BYTES
from secure_fd.deployment import keys, screen
from secure_fd.deployment.envelope import (
    CHALLENGE_BYTES,
    Answer,
    Push,
    PushKind,
    hello_text,
    other_roster,
    roster_hint,
    set_up_name,
)
from secure_fd.deployment.members import binding, move
from secure_fd.deployment.parties import CPU, agreed_proxies, kept_seed, parts_of
from secure_fd.deployment.recovery import Recovery, StoredSums, digest_of
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.deployment.shared_accuracy import AccuracyServer
from secure_fd.errors import MissingClientError, PeerError, SecureFDError
from secure_fd.methods.fedavg import fill, model_bytes, parameters_of, read_model
from secure_fd.protocol.messages import ServerRole
from secure_fd.protocol.server import Outbound, Server
from secure_fd.simulation.build import RunParts
from secure_fd.storage import Store

log = logging.getLogger(__name__)
_SETUPS = 3
"""Set-ups that have to reach all sites that joined them; a later one may miss some."""
_GREETING = 5.0
"""Seconds to wait for the answer to a greeting, so that a dead site does not block the others."""
_GREETED = 0.05
"""Seconds beyond that for each site that is greeted, so that a thousand are not asked again."""
_ASKED_AGAIN = 60.0
"""Seconds before a node that has another roster is greeted again."""
_PAUSE = 0.1
"""Seconds between two looks for sites."""


class Transport:
    """Carries pushes to nodes, and keeps the time. A node is one process of a site."""

    def nodes(self) -> Sequence[int]:
        """Return the nodes that can be reached now."""
        raise NotImplementedError

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[tuple[int, bytes]]:
        """Send one message a node; yield nodes and answers within `deadline` seconds.

        A second answer of a node, and one of a node that was not asked, are dropped.
        """
        raise NotImplementedError

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait for a number of seconds on this clock."""
        time.sleep(seconds)


@dataclass(slots=True)
class RoundOutcome:
    """One round as the server records it; of a sum it has a hash only.

    aborted: whether it was, and why. kept: share of the round's proxies used for
    distillation; None where the server cannot compute it. accuracy: mean over sites on their
    validation images, where they share it. survivors: sites by sum. sums: SHA-256
    by sum. refused: by site, what was wrong with its message. silent: sites that missed a stage.
    bytes_up, bytes_down: of all sites. seconds: of the round. computing: seconds of the slowest
    site of each stage, added up. stages: pushes.
    """

    index: int
    aborted: bool = False
    why: str = ""
    kept: float | None = 0.0
    accuracy: float | None = None
    survivors: tuple[tuple[int, ...], ...] = ()
    sums: tuple[str, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    computing: float = 0.0
    stages: int = 0


class Rounds:
    """The server of a roster over a transport, from the set-up to the end.

    file: the server's state file. on_sites: called with the names of the sites that are there,
    whenever they change, and with the reason for which a site refused a greeting. on_state: called
    with the name of a site and what it does from now on. min_sites: sites that must be there before
    the set-up, where these are more than a sum needs.
    """

    party: Server
    """Set by `open`."""

    def __init__(
        self,
        roster: RosterFile,
        parts: RunParts,
        transport: Transport,
        file: Store,
        on_sites: Callable[..., object] = lambda **_: None,
        on_state: Callable[[str, str], object] = lambda *_: None,
        min_sites: int = 0,
    ) -> None:
        self._roster, self._parts, self._on_sites = roster, parts, on_sites
        self._on_state, self._min_sites = on_state, min_sites
        self._transport, self._file = transport, file
        self._sums = StoredSums(roster.session, keys.agreement_in(file), file)
        self._deadline = roster.terms.deadline
        self._nodes: dict[int, int] = {}  # by site that was greeted and has answered since
        self._challenges: dict[int, bytes] = {}  # by site, of its newest greeting
        self._read: dict[int, int] = {}  # by member of the set-up, broadcasts that it has read
        self._owed: Outbound = {}
        self._refused: dict[int, float] = {}  # by node with another roster, until when it waits
        self._name = b""  # of the set-up, once it is accepted
        self._outcome = RoundOutcome(0)
        self._rounds = 0

    # Set-up

    def open(self) -> int:
        """Make the set-up, or come back to where an earlier process stood.

        Returns the rounds that have begun. It waits for sites as long as it takes.
        """
        # A process that ended before the last message was out is enrolled, and no site may be.
        members = self._file.get("set up") if self._sums.enrolled else None
        if members is None:
            members = self._set_up()
        parts, network = self._parts, self._first_network()
        seed = kept_seed(self._file, self._sums)
        setting = parts.setting(seed, CPU)
        parts.method.check(setting, [network])
        role: ServerRole = parts.method.server(setting, network)
        self.party = Server(
            tuple(range(len(self._roster.sites))),
            self._roster.session.id,
            keys.identity_in(self._file),
            AccuracyServer(role) if self._roster.terms.share_accuracy else role,
            self._sums,
            parts.protection.noise_terms,
        )
        self._recovery = Recovery(self.party, self._file)
        begun = self._recovery.come_back()
        self._read = dict.fromkeys(np.frombuffer(members, "<u4").tolist(), self.party.dropped)
        # Sites train alone before they answer again.
        self._name, self._nodes = set_up_name(seed), {}
        self._state(self._read, screen.TRAINING)
        self._wait(len(self._read), self._deadline)
        return begun

    def _first_network(self) -> torch.nn.Module:
        """Return a fresh network, or the global model that sites had before members changed."""
        network, start = self._parts.network(0), self._file.get("start")
        if start is not None and self._parts.method.shares_parameters:
            fill(network, read_model(start, len(parameters_of(network))))
        return network

    def _set_up(self) -> bytes:
        """Make the set-up, again for a site that joined and missed a message; its members."""
        least = max(self._sums.session.least_members, self._min_sites)
        attempt = 0
        while True:
            attempt += 1
            self._wait(len(self._roster.sites), self._deadline)
            self._wait(least)  # hours, where need be
            joined = set(self._nodes)
            try:
                self._one_set_up(attempt)
            except MissingClientError as error:
                log.warning(f"set-up failed: {error}")
                self._nodes = {}
                continue
            # With fewer sites no sum would ever come about, and none could join afterwards.
            if len(self._nodes) >= (least if attempt >= _SETUPS else len(joined)):
                members = np.asarray(self._sums.group.members, "<u4").tobytes()
                self._file.put({"set up": members, **binding(self._roster)})
                return members

    def _one_set_up(self, attempt: int) -> None:
        self._sums.open_setup()
        given = self._challenges
        pushes = {k: Push(PushKind.JOIN, (given[k],), attempt) for k in self._nodes}
        while self._sums.busy:
            for k, answer in self._push(pushes).items():
                for part in answer.parts:
                    try:
                        self._sums.receive(k, part)
                    except PeerError as error:
                        log.warning(f"set-up, site {k}: {error}")
            relayed = self._sums.advance()
            pushes = {k: Push(PushKind.CARRY, (data,)) for k, data in relayed.items()}
        self._push(pushes)

    def _wait(self, enough: int, seconds: float = math.inf) -> bool:
        """Greet sites until `enough` are there; return whether they came in time."""
        until = self._transport.now() + seconds
        while True:
            self._greet()
            if len(self._nodes) >= enough or self._transport.now() > until:
                return len(self._nodes) >= enough
            self._transport.pause(_PAUSE)

    # Rounds

    def run(self, rounds: int) -> Iterable[RoundOutcome]:
        """Continue to a total of `rounds`; then notify all sites that the run is over."""
        self._rounds = rounds
        for index in range(self.open(), rounds):
            yield self._round(index)
        self._outcome = RoundOutcome(rounds)
        self._end()

    def _end(self) -> None:
        """Send all sites what is still due, and that the run is over.

        A site that did not answer may have missed it and would wait for an hour, so it is sent
        again, for a stage's deadline after the first answers.
        """
        reached, until = set[int](), math.inf
        while not reached >= self._read.keys() and self._transport.now() < until:
            self._greet()
            left = self._nodes.keys() - reached
            due = {k: self._owed[k] if k in self._owed else self.party.owed(k) for k in left}
            ends = {k: Push(PushKind.END, tuple(parts)) for k, parts in due.items()}
            reached |= self._push(ends).keys()
            until = min(until, self._transport.now() + self._deadline)
            self._transport.pause(_PAUSE)

    def _round(self, index: int) -> RoundOutcome:
        begun, party = self._transport.now(), self.party
        made = self._outcome = RoundOutcome(index)
        self._wait(self._sums.group.quorum)  # with fewer the round would be aborted
        self._recovery.note_begun(index + 1)
        out = party.begin()
        if not out:  # no announcement carries the last result this time
            self._stage({k: self._owed.get(k, []) for k in self._nodes}, PushKind.ALONE)
            self._owed = {}
        out = {k: self._owed.get(k, []) + parts for k, parts in out.items()}
        while party.busy:
            self._stage(out)
            out = party.advance()
        self._owed = out
        self._recovery.note_ended(min(self._read.values()))
        if (newest := party.role.parameters()) is not None:
            self._file.put({"network": model_bytes(newest)})
        made.aborted, made.why, made.refused = party.aborted, party.why, dict(party.refused)
        made.kept = 0.0 if party.aborted else party.role.kept
        if isinstance(party.role, AccuracyServer):
            made.accuracy = party.role.accuracy
        made.survivors = tuple(result.survivors for result in party.results)
        made.sums = tuple(map(digest_of, party.results))
        made.computing = round(made.computing, 3)
        made.seconds = round(self._transport.now() - begun, 3)
        return made

    def _stage(self, out: Outbound, kind: PushKind = PushKind.CARRY) -> None:
        silent = self._outcome.silent
        there = {k: parts for k, parts in out.items() if k in self._nodes and k not in silent}
        count = self.party.count
        shown = self._outcome.index + 1, self._rounds
        pushes = {k: Push(kind, tuple(parts), count, *shown) for k, parts in there.items()}
        for k, answer in self._push(pushes).items():
            for part in answer.parts:
                self.party.receive(k, part)

    # Sites

    def _greet(self) -> None:
        """Ask nodes that are new, or whose site was silent, who they are."""
        before, reachable = set(self._nodes), set(self._transport.nodes())
        self._nodes = {k: node for k, node in self._nodes.items() if node in reachable}
        waiting = {node for node, until in self._refused.items() if until > self._transport.now()}
        fresh = reachable.difference(self._nodes.values(), waiting)
        challenges = {node: os.urandom(CHALLENGE_BYTES) for node in fresh}
        same = (roster_hint(self._roster.digest), *([self._name] if self._name else []))
        pushes = {n: Push(PushKind.HELLO, (each, *same)).encode() for n, each in challenges.items()}
        for node, data in self._transport.push(pushes, _GREETING + _GREETED * len(pushes)):
            try:
                answer = Answer.decode(data)
                if answer.refused and len(answer.parts) == 2:  # it checks, or has another roster
                    self._refused[node] = self._transport.now() + _ASKED_AGAIN
                    self._on_sites(refused=self._why_refused(answer.parts))
                k = self._site_of(answer, challenges[node])
                self._nodes[k], self._challenges[k] = node, challenges[node]
            except PeerError as error:
                log.warning(f"not greeted: {error}")
        if set(self._nodes) != before:
            self._on_sites(here=[self._roster.sites[k].name for k in sorted(self._nodes)])
            self._state(self._nodes.keys() - before, screen.HERE)
            self._state(before - self._nodes.keys(), screen.MISSING)

    def _state(self, sites: Iterable[int], state: str) -> None:
        for k in sites:
            self._on_state(self._roster.sites[k].name, state)

    def _site_of(self, answer: Answer, challenge: bytes) -> int:
        """Return the site that answers a greeting; PeerError unless it proves who it is."""
        roster = self._roster
        if answer.refused or len(answer.parts) != 3:
            raise PeerError(self._why_refused(answer.parts))
        number, enrolled, signature = answer.parts
        k = int.from_bytes(number, "big")
        if k not in range(len(roster.sites)) or len(signature) != SIGNATURE_BYTES:
            raise PeerError(f"a greeting names site {k}, which the roster has not")
        text = hello_text(roster.session.id, challenge)
        roster.session.roster[k].verify(signature, text, f"the greeting of site {k}")
        if self._name:
            if enrolled != b"\1":
                what = f"site {k} has lost its state, or was late for the set-up"
                raise PeerError(f"{what}: enrol it anew, in a new roster")
            if answer.position < self.party.dropped:
                raise PeerError(f"site {k} has an older copy of its state: make a new roster")
            if k in self._read:
                self._read[k] = answer.position
            self.party.returned(k, answer.position)
            self._owed.pop(k, None)
        return k

    def _why_refused(self, parts: Sequence[bytes]) -> str:
        """Return why a node refused a greeting, by its own unsigned description."""
        own = roster_hint(self._roster.digest)
        if len(parts) != 2:
            return "a greeting was refused"
        names = {site.identity: site.name for site in self._roster.sites}
        name = names.get(parts[0], "a site that is not on this roster")
        if parts[1] == own:
            return f"{name} checks its connection"
        return other_roster(name, parts[1], own)

    def _push(self, pushes: Mapping[int, Push]) -> dict[int, Answer]:
        """Run one stage: answers by site. A site without one, or that refuses, is greeted anew."""
        made, sites = self._outcome, {self._nodes[k]: k for k in pushes if k in self._nodes}
        sent = {node: pushes[k].encode() for node, k in sites.items()}
        made.bytes_down += sum(map(len, sent.values()))
        answers: dict[int, Answer] = {}
        self._state(sites.values(), screen.TRAINING)
        for node, data in self._transport.push(sent, self._deadline):
            made.bytes_up += len(data)
            self._state([sites[node]], screen.SENT)
            with suppress(PeerError):
                answers[sites[node]] = answer = Answer.decode(data)
                if sites[node] in self._read:
                    self._read[sites[node]] = answer.position
        absent = pushes.keys() - {k for k, answer in answers.items() if not answer.refused}
        self._nodes = {k: node for k, node in self._nodes.items() if k not in absent}
        self._state(absent, screen.MISSING)
        made.silent = tuple(sorted(absent.union(made.silent)))
        made.computing += max((answer.computing for answer in answers.values()), default=0.0)
        made.stages += 1
        return answers


def serve_rounds(
    home: Path, roster: Path, proxies: Path, transport: Transport, min_sites: int = 0
) -> None:
    """Run the remaining rounds of a roster, with a line in the home's journal for each.

    The journal is for operators: it has hashes of sums, and no sum, key or message. Raises
    ConfigurationError, before anything is written, for a roster of another server, and for proxy
    samples that were not agreed on.
    """
    agreed = read(roster)
    keys.check_home(home, agreed)

    def note(event: str, **line: object) -> None:
        with (home / keys.JOURNAL).open("a") as journal:
            journal.write(json.dumps({"event": event, **line}) + "\n")

    note("begun", pid=os.getpid())
    try:
        parts = parts_of(agreed, agreed_proxies(proxies, agreed))
        with closing(keys.open_state(home)) as file:
            move(file, agreed)
            count = agreed.terms.rounds or parts.recipe.rounds
            board = screen.Board(home, screen.Status.of([s.name for s in agreed.sites], count))
            board.write()
            noted = partial(note, "sites"), board.note
            rounds = Rounds(agreed, parts, transport, file, *noted, min_sites)
            for outcome in rounds.run(count):
                board.status.round = outcome.index
                board.ended(outcome.seconds)
                note("round", **asdict(outcome))
    except BaseException as error:
        why = str(error) if isinstance(error, SecureFDError) else type(error).__name__
        note("failed", reason=why)
        raise
    note("ended", digest=rounds.party.digest.hex()[:16])
