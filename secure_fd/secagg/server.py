"""The server in the rounds of a session. Nothing here does input or output: bytes in, bytes out.

Rules:
 1. A stage takes one message from every client it asked, from nobody else and from nobody twice;
    the transport vouches for who sent it. An exact copy of a message that was accepted in this
    round has no effect: a network may deliver it twice. A client that sends something else is out
    of the round, and the round goes on.
 2. A stage that is closed goes on with whoever answered, down to the quorum and, until the inputs
    are in, the floor of their noise; below, the round ends, nothing is unmasked, and
    MissingClientError says who was missing.
 3. Inputs are added as they come: the memory is one vector, however many clients there are.
 4. Every restored secret is checked against what its owner published. A decoded sum must lie in
    -room .. survivors * bound + room in every lane; otherwise the round is void.
 5. A client whose shares do not open at more of its holders than may be corrupt, or than there
    are to spare, has sealed garbage, and is in no later cohort of the set-up. So is whoever gave
    wrong shares of more secrets than there may be corrupt dealers, sealed a vault that does not
    open, or masked for another cohort or other terms.
 6. A round's number only grows. A round that ended is over; what clients have prepared for the
    next one stays.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import numpy as np

from secure_fd.crypto.keys import AgreementKey, Authenticator, SecretHolder
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.memory import Keep, Memory
from secure_fd.secagg.routes import OpenedShares, Routes
from secure_fd.secagg.session import (
    Accepted,
    Group,
    MessageType,
    RoundCounter,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    message_type,
)
from secure_fd.secagg.setup import ServerSetup, input_authenticator
from secure_fd.secagg.unmasking import Unmasking
from secure_fd.votes.codec import UnitArray


class ServerState(Enum):
    """Which stage of a round the server is collecting."""

    PREPARE = auto()
    INPUT = auto()
    CONSISTENCY = auto()
    UNMASK = auto()
    DONE = auto()
    ABORTED = auto()


class Enrolled(SecretHolder):
    """What a set-up gave the server. inputs: tags, by client that went on to the end.

    barred: by client that is in no later cohort, what it did.
    """

    __slots__ = ("barred", "inputs", "routes")

    def __init__(self, group: Group, inputs: Mapping[int, Authenticator]) -> None:
        self.routes, self.inputs = Routes(group), inputs
        self.barred: dict[int, str] = {}

    @classmethod
    def of(cls, setup: ServerSetup, key: AgreementKey) -> "Enrolled":
        """key: the server's, that clients authenticate their inputs to."""
        return cls(
            setup.group,
            {
                client: input_authenticator(
                    setup.group, client, key.exchange(setup.authenticator_key(client))
                )
                for client in setup.present
            },
        )


class Server(SecretHolder):
    """A server for a whole session. key: the X25519 key that inputs are authenticated to."""

    __slots__ = ("_enrolled", "_epoch", "_keep", "_key", "_prepared", "_rounds", "session")

    def __init__(
        self,
        session: Session,
        key: AgreementKey,
        keep: Keep | None = None,
        memory: bytes | None = None,
    ) -> None:
        """keep: writes what must outlive this process. memory: what an earlier one kept last."""
        if key.public != session.server:
            raise LocalError("the server's key is not the one that the session pins")
        self.session = session
        self._key = key
        self._rounds = RoundCounter()
        self._enrolled: Enrolled | None = None
        self._epoch: int | None = None
        self._prepared: tuple[int, dict[int, messages.Prepare]] = (0, {})
        self._keep = keep
        if memory is not None:
            self._recall(Memory.decode(memory, session))

    def _recall(self, known: Memory) -> None:
        """Go on where an earlier process stood; clients prepare their next round anew."""
        self._rounds = RoundCounter(known.last)
        if known.group is None:
            return
        inputs = {client: Authenticator(key) for client, key in known.inputs.items()}
        self._enrolled = Enrolled(known.group, inputs)
        self._enrolled.barred = dict.fromkeys(known.barred, "it was barred before a restart")
        self._epoch = known.last // self.session.epoch if known.used else None

    def memory(self) -> bytes:
        """What must outlive this process, for a file that nobody else reads: it holds keys."""
        enrolled = self._enrolled
        known = Memory(
            last=self._rounds.last,
            setups=0,
            used=self._epoch is not None,
            group=None if enrolled is None else enrolled.routes.group,
            inputs={} if enrolled is None else {k: t.key for k, t in enrolled.inputs.items()},
            barred=tuple(self.barred),
        )
        return known.encode(self.session)

    def _write(self) -> None:
        if self._keep is not None:
            self._keep(self.memory())

    def open_setup(self) -> ServerSetup:
        """Begin a set-up."""
        return ServerSetup(self.session)

    @property
    def enrolled(self) -> bool:
        """Whether a set-up is in use."""
        return self._enrolled is not None

    @property
    def group(self) -> Group:
        """Of the set-up in use; LocalError before one."""
        if self._enrolled is None:
            raise LocalError("there is no set-up")
        return self._enrolled.routes.group

    def serves(self, index: int) -> bool:
        """Whether the set-up in use is that of the round's epoch."""
        epoch = index // self.session.epoch
        return self._enrolled is not None and self._epoch in (None, epoch)

    @property
    def barred(self) -> Mapping[int, str]:
        """By client that is in no later cohort of this set-up, what it did."""
        return {} if self._enrolled is None else self._enrolled.barred

    def enrol(self, setup: ServerSetup, barred: Mapping[int, str] | None = None) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped.

        barred: clients that stay barred, where the set-up replaces one within its epoch.
        """
        self._enrolled, self._prepared = Enrolled.of(setup, self._key), (0, {})
        self._enrolled.barred.update(barred or {})
        self._epoch = None
        self._write()

    def open_round(self, terms: RoundTerms) -> "ServerRound":
        """Begin a round; LocalError unless its number is above that of every earlier one.

        LocalError, too, for a round of another epoch than the set-up has served.
        """
        if self._enrolled is None or not self.serves(terms.index):
            raise LocalError(f"there is no set-up to open round {terms.index} in")
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        self._epoch = terms.index // self.session.epoch
        self._write()
        index, came = self._prepared
        prepared = came if index == terms.index else {}
        for client in self._enrolled.barred:
            prepared.pop(client, None)
        following: dict[int, messages.Prepare] = {}
        self._prepared = (terms.index + 1, following)
        return ServerRound(scope, self._enrolled, prepared, following)


class ServerRound:
    """One round of the server: receive a stage's messages, then advance to the next stage.

    prepared: what came with the last round's inputs. following: where to put what comes with
    this round's.
    """

    __slots__ = (
        "_accepted",
        "_answered",
        "_asked",
        "_closed",
        "_cohort_signatures",
        "_ended",
        "_enrolled",
        "_following",
        "_form",
        "_group",
        "_prepared",
        "_routes",
        "_shares",
        "_signatures",
        "_spoke",
        "_sum",
        "_total",
        "missing",
        "refused",
        "scope",
        "stage",
        "survivors",
    )

    def __init__(
        self,
        scope: RoundScope,
        enrolled: Enrolled,
        prepared: dict[int, messages.Prepare],
        following: dict[int, messages.Prepare],
    ) -> None:
        self.scope = scope
        self.survivors: tuple[int, ...] = ()
        self.refused: dict[int, str] = {}
        """By client that is out of the round, what it did."""
        self.stage = ServerState.PREPARE
        """The stage that is open; in a round that ended, the last one that was."""
        self.missing: dict[int, ServerState] = {}
        """By client, the first stage that was closed without an answer of it."""
        self._ended: ServerState | None = None
        self._enrolled = enrolled
        self._routes = enrolled.routes
        self._group = enrolled.routes.group
        asked = (client for client in enrolled.inputs if client not in enrolled.barred)
        self._asked = dict.fromkeys(asked)
        self._accepted = Accepted()
        self._answered: set[int] = set(prepared)
        self._spoke: set[int] = set()
        self._closed: dict[int, tuple[int, ...]] = {}
        self._prepared = prepared
        self._following = following
        self._form = messages.InputForm(scope, self._group.degree)
        self._sum = np.zeros(scope.words, dtype=np.uint64)
        self._cohort_signatures: dict[int, bytes] = {}
        self._signatures: dict[int, bytes] = {}
        self._shares: OpenedShares | None = None
        self._total: UnitArray | None = None

    @property
    def state(self) -> ServerState:
        """Where the round stands; ABORTED never changes again."""
        return self._ended or self.stage

    @property
    def finished(self) -> bool:
        """Whether the sum is there."""
        return self._ended is ServerState.DONE

    @property
    def running(self) -> bool:
        """Whether a stage is open."""
        return self._ended is None

    @property
    def opened(self) -> bool:
        """Whether shares were asked for: clients may have given what opens the sum."""
        return self._shares is not None

    @property
    def waiting(self) -> tuple[int, ...]:
        """The clients that this stage has asked and that have not answered, ascending."""
        return tuple(
            client
            for client in self._asked
            if client not in self._answered and client not in self.refused
        )

    def waits_for(self, client: int) -> bool:
        """Whether this client is one of `waiting`."""
        asked = client in self._asked and client not in self.refused
        return asked and client not in self._answered

    @property
    def total(self) -> UnitArray:
        """The exact sums [m] over the survivors; LocalError before the round is done.

        int64 where the terms have room for noise, else uint64.
        """
        if self._total is None or not self.finished:
            raise LocalError(f"there is no sum in state {self.state.name}")
        return self._total

    def receive(self, sender: int, data: bytes) -> None:
        """Take one message that the transport says `sender` sent.

        An exact copy of an accepted message has no effect, in this stage and in later ones.
        PeerError for any other that the stage does not take, and its sender is out of the round.
        A different second message of a stage is refused, and the first one stays.
        """
        if self._accepted.has(sender, data):
            return
        if not self.running:
            raise PeerError(f"no message is allowed in state {self.state.name}")
        if sender not in self._asked or sender in self.refused:
            raise PeerError(f"client {sender} was not asked in state {self.stage.name}")
        if sender in self._spoke:
            raise PeerError(f"client {sender} sent a second message in one stage")
        try:
            self._take(sender, data)
        except PeerError as error:
            self.refused[sender] = str(error)
            self._answered.discard(sender)
            raise
        self._answered.add(sender)
        self._spoke.add(sender)
        self._accepted.add(sender, data)

    def _take(self, sender: int, data: bytes) -> None:
        kind, take = _INBOUND[self.stage]
        if data[2:4] != kind:
            named = message_type(data, self.scope.place, sender).name
            raise PeerError(f"a {named} message is not allowed in state {self.stage.name}")
        take(self, sender, data)

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage; what to send to each client, empty once the round is done.

        MissingClientError where fewer answered than the round needs; the round is over then.
        """
        state, self._ended = self.state, ServerState.ABORTED
        if state not in _ADVANCE:
            raise LocalError(f"there is no stage to close in state {state.name}")
        for client in (*self.waiting, *self.refused):
            self.missing.setdefault(client, state)
        present = tuple(client for client in self._asked if client in self._answered)
        self._check_reach(state, present)
        outbound, successor = _ADVANCE[state](self, present)
        self._asked, self._answered, self._spoke = dict.fromkeys(present), set(), set()
        if successor is ServerState.DONE:
            self._ended = successor
        else:
            self.stage, self._ended = successor, None
        return outbound

    def _check_reach(self, state: ServerState, present: tuple[int, ...]) -> None:
        """MissingClientError where too few are left; in the last stage every secret has its own."""
        least = self._group.quorum
        if state in (ServerState.PREPARE, ServerState.INPUT):
            # Who answers later does not change whose noise is in the sum.
            least = max(least, self.scope.terms.noise.survivors)
        if state is ServerState.UNMASK or (len(present) >= least and self._group.reaches(present)):
            return
        raise MissingClientError(
            f"clients {list(self.waiting)} did not answer in round {self.scope.terms.index}; "
            f"the {len(present)} that are left are too few (a sum needs {least}, "
            f"and enough of them around each client), so nothing is revealed"
        )

    def _add_prepare(self, sender: int, data: bytes) -> None:
        degree = self._group.degree
        prepare = messages.decode_prepare(data, self.scope.place, sender, degree)
        # A client that cannot know whether its last input arrived sends the same once more.
        if self._prepared.setdefault(sender, prepare) != prepare:
            raise PeerError(f"client {sender} prepared the round twice, and differently")

    def _add_masked(self, sender: int, data: bytes) -> None:
        inputs = self._enrolled.inputs[sender]
        masked = messages.decode_masked(data, self._form, sender, self._group, inputs)
        if not self._prepared.keys() >= set(masked.closed):
            raise PeerError(f"client {sender} complains of clients that are not in the cohort")
        self._sum += masked.words
        self._cohort_signatures[sender] = masked.cohort
        self._closed[sender] = masked.closed
        if masked.following is not None:
            self._following[sender] = masked.following

    def _add_consistent(self, sender: int, data: bytes) -> None:
        self._signatures[sender] = messages.decode_consistent(data, self.scope.place, sender)

    def _add_unmask(self, sender: int, data: bytes) -> None:
        if self._shares is None:
            raise LocalError("shares cannot come in before they were asked for")
        owners = self._shares.asked_of(sender)
        shares = messages.decode_unmask(data, self.scope.place, sender, owners)
        self._shares.add(sender, shares)

    def _close_prepare(self, cohort: tuple[int, ...]) -> "_Step":
        self._prepared = {client: self._prepared[client] for client in cohort}
        there, place = encode_set(cohort, self._group.members), self.scope.place
        outbound = {
            client: messages.encode_cohort(there, relayed, place)
            for client, relayed in self._routes.relay(self._prepared).items()
        }
        return outbound, ServerState.INPUT

    def _close_input(self, survivors: tuple[int, ...]) -> "_Step":
        self._judge_seals(survivors)
        self.survivors = survivors
        there, place = encode_set(survivors, self._group.members), self.scope.place
        if len(survivors) < len(self._prepared):
            message = messages.encode_survivors(there, b"", place)
            return dict.fromkeys(survivors, message), ServerState.CONSISTENCY
        signed = self._listed(self._cohort_signatures)
        message = messages.encode_survivors(there, signed, place)
        return dict.fromkeys(survivors, message), self._ask_shares()

    def _judge_seals(self, survivors: tuple[int, ...]) -> None:
        """Bar who sealed garbage; MissingClientError where too few hold shares of a client."""
        if not any(self._closed.values()):
            return
        accused = Counter(owner for k in survivors for owner in self._closed[k])
        threshold, lost = self._group.threshold, []
        for owner, accusers in sorted(accused.items()):
            holders = set(self._group.holders(owner))
            # More than may be corrupt, or than there are spare shares: so many could end every
            # round by silence. One complaint alone is one word against another.
            spare = len(holders) - threshold
            if accusers > max(1, min(self._group.tolerated, spare)):
                self._bar(owner, f"{accusers} of its holders could not open its seals")
            if len(holders.intersection(survivors)) - accusers < threshold:
                lost.append(owner)
        if lost:
            raise MissingClientError(
                f"the shares of clients {lost} opened at fewer than {threshold} of their holders"
            )

    def _close_consistency(self, signers: tuple[int, ...]) -> "_Step":
        message = messages.encode_signatures(self._listed(self._signatures), self.scope.place)
        return dict.fromkeys(signers, message), self._ask_shares()

    def _listed(self, signatures: Mapping[int, bytes]) -> bytes:
        """The committee's, for everybody the same."""
        signers = (client for client in self._group.committee if client in signatures)
        return b"".join(messages.signature_entry(k, signatures[k]) for k in signers)

    def _ask_shares(self) -> ServerState:
        self._shares = OpenedShares(self._routes, self._prepared, self._closed)
        return ServerState.UNMASK

    def _close_unmask(self, _: tuple[int, ...]) -> "_Step":
        if self._shares is None:
            raise LocalError("a round cannot be unmasked before shares were asked for")
        unmasking = Unmasking(self.scope, self._group, self._prepared, self.survivors, self._shares)
        try:
            unmasking.unmask(self._sum)
            self._total = self._unpacked()
        except PeerError as error:
            self._name_others()
            raise GarbledSumError(f"the round is void: {error}") from error
        finally:
            for client, what in unmasking.frauds.items():
                self._bar(client, what)
            for client in unmasking.liars:
                self._bar(client, "it gave wrong shares")
        return {}, ServerState.DONE

    def _bar(self, client: int, what: str) -> None:
        """Leave a client out of all later cohorts of the set-up."""
        self._enrolled.barred[client] = what
        self._following.pop(client, None)

    def _name_others(self) -> None:
        """Bar the survivors that did not sign this cohort under these terms.

        Their signatures are checked only here, where the total shows that something was wrong.
        """
        there = encode_set(self._prepared, self._group.members)
        for client in self.survivors:
            text = messages.cohort_text(self.scope, client, self._group, there)
            try:
                self.scope.session.roster[client].verify(
                    self._cohort_signatures[client], text, f"client {client}'s cohort"
                )
            except PeerError as error:
                self._bar(client, str(error))

    def _unpacked(self) -> UnitArray:
        terms = self.scope.terms
        limit = len(self.survivors) * terms.bound
        return self.scope.layout.unpack(self._sum, terms.length, limit)


_Step = tuple[Mapping[int, bytes], ServerState]

# Reading: in this state, a message of this type -> what takes it. Any other costs its sender.
_INBOUND: Final[Mapping[ServerState, tuple[bytes, Callable[[ServerRound, int, bytes], None]]]] = {
    state: (kind.to_bytes(2, "big"), take)
    for state, kind, take in (
        (ServerState.PREPARE, MessageType.PREPARE, ServerRound._add_prepare),
        (ServerState.INPUT, MessageType.MASKED, ServerRound._add_masked),
        (ServerState.CONSISTENCY, MessageType.CONSISTENT, ServerRound._add_consistent),
        (ServerState.UNMASK, MessageType.UNMASK, ServerRound._add_unmask),
    )
}

# Reading: closing this stage with these clients -> what is sent, and the state after.
_ADVANCE: Final[Mapping[ServerState, Callable[[ServerRound, tuple[int, ...]], _Step]]] = {
    ServerState.PREPARE: ServerRound._close_prepare,
    ServerState.INPUT: ServerRound._close_input,
    ServerState.CONSISTENCY: ServerRound._close_consistency,
    ServerState.UNMASK: ServerRound._close_unmask,
}
