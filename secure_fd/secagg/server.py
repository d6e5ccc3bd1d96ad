"""Server of the masked sum: for a whole session, and its machine of one round. Bytes in, bytes out.

Rules:
 1. A stage takes one message from every client it asked, from no other client and none twice;
    the transport vouches for who sent it. A client that sends something else is out of the round,
    and the round goes on.
 2. A stage that is closed goes on with the clients that answered, down to the quorum and, until the
    inputs are in, the floor of their noise; below, the round ends, nothing is unmasked, and
    MissingClientError says who was missing.
 3. Inputs are added as they come: the memory is one vector, however many clients there are.
 4. Every restored secret is checked against what its owner published. A decoded sum must lie in
    -room .. survivors * bound + room in every lane; otherwise the round aborts.
 5. A client whose shares do not open at more of its holders than may be corrupt, or than there
    are to spare, has sealed garbage, and is in no later cohort of the set-up. So is one that gave
    wrong shares of more secrets than there may be corrupt dealers, sealed a vault that does not
    open, or masked for another cohort or other terms.
 6. A round's number only grows. A round that ended is over; what clients have prepared for the
    next one stays.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from secure_fd.crypto.keys import SERVER, SIGNATURE_BYTES, AgreementKey, Sealer, SecretHolder
from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.machine import (
    Accepted,
    Closed,
    Keep,
    Party,
    PartyMemory,
    ServerMachine,
    ServerState,
)
from secure_fd.secagg.session import (
    Group,
    MessageType,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    is_elsewhere,
)
from secure_fd.secagg.setup import ServerSetup, input_authenticator
from secure_fd.secagg.unmasking import Unmasking
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Stage, Sum, frame


@dataclass(slots=True, eq=False, repr=False)
class ServerEnrolment(SecretHolder):
    """Result of a set-up for the server.

    Attributes:
        inputs: For each client that went on to the end, the key of its tags.
        barred: For each client that is in no later cohort, what it did.
        epoch: Epoch that it serves, None before its first round.
        prepared: What clients prepared for the round of this index.
    """

    group: Group
    inputs: Mapping[int, Sealer]
    barred: dict[int, str]
    epoch: int | None = None
    prepared: tuple[int, dict[int, messages.Prepare]] = field(default_factory=lambda: (0, {}))


class ServerRound(ServerMachine):
    """One round of the server: receive a stage's messages, then advance to the next stage.

    Attributes:
        survivors: Clients whose inputs are in the sum, ascending.
    """

    def __init__(self, scope: RoundScope, enrolment: ServerEnrolment) -> None:
        index, came = enrolment.prepared
        prepared = came if index == scope.terms.index else {}
        for client in enrolment.barred:
            prepared.pop(client, None)
        asked = (client for client in enrolment.inputs if client not in enrolment.barred)
        super().__init__(scope.place, ServerState.PREPARE, asked, prepared)
        self.scope, self.survivors = scope, tuple[int, ...]()
        self._enrolment, self._group = enrolment, enrolment.group
        self._prepared = prepared
        self._following: dict[int, messages.Prepare] = {}
        enrolment.prepared = (scope.terms.index + 1, self._following)
        self._sum = np.zeros(scope.words, dtype=np.uint64)
        self._closed: dict[int, tuple[int, ...]] = {}
        self._signatures: dict[int, bytes] = {}  # of the survivors
        self._cohort_signatures: dict[int, bytes] = {}
        self._unmasking: Unmasking
        self._total: UnitArray | None = None

    @property
    def opened(self) -> bool:
        """True if shares were asked for: clients may have given what opens the sum."""
        return self.stage is ServerState.UNMASK

    @property
    def total(self) -> UnitArray:
        """The exact sums [m] over the survivors; LocalError before the round is done.

        int64 where the terms have room for noise, else uint64.
        """
        if self._total is None or not self.finished:
            raise LocalError(f"there is no sum in state {self.state.name}")
        return self._total

    def _check_reach(self, present: tuple[int, ...]) -> None:
        """MissingClientError where too few are left."""
        least = self._group.quorum
        if self.stage in (ServerState.PREPARE, ServerState.INPUT):
            # A client that answers later does not change whose noise is in the sum.
            least = max(least, self.scope.terms.noise.survivors)
        if len(present) < least or not self._group.reaches(present):
            raise MissingClientError(
                f"clients {list(self.waiting)} did not answer in round {self.scope.terms.index}; "
                f"the {len(present)} that are left are too few (a sum needs {least}, "
                f"and enough of them around each client), so nothing is revealed"
            )

    def _add_prepare(self, sender: int, data: bytes) -> None:
        prepare = messages.decode_prepare(data, self.place, sender, self._group.degree)
        # A client that cannot know whether its last input arrived sends the same once more.
        if self._prepared.setdefault(sender, prepare) != prepare:
            raise PeerError(f"client {sender} prepared the round twice, and differently")

    def _add_masked(self, sender: int, data: bytes) -> None:
        inputs = self._enrolment.inputs[sender]
        masked = messages.decode_masked(data, self.scope, sender, self._group, inputs)
        if not self._prepared.keys() >= set(masked.closed):
            raise PeerError(f"client {sender} complains of clients that are not in the cohort")
        self._sum += masked.words
        self._cohort_signatures[sender] = masked.cohort
        self._closed[sender] = masked.closed
        if masked.following is not None:
            self._following[sender] = masked.following

    def _add_consistent(self, sender: int, data: bytes) -> None:
        kind = MessageType.CONSISTENT
        (signature,) = messages.read(data, self.place, sender, kind, SIGNATURE_BYTES)
        self._signatures[sender] = signature

    def _add_unmask(self, sender: int, data: bytes) -> None:
        owners = self._unmasking.asked_of(sender)
        size = ELEMENT_BYTES * len(owners)
        (shares,) = messages.read(data, self.place, sender, MessageType.UNMASK, size)
        self._unmasking.add(sender, owners, shares)

    def _close_prepare(self, cohort: tuple[int, ...]) -> Closed:
        self._check_reach(cohort)
        self._prepared = {client: self._prepared[client] for client in cohort}
        there = encode_set(cohort, self._group.members)
        head = frame(MessageType.COHORT, self.place, SERVER, there)
        outbound = {client: bytearray(head) for client in cohort}
        for sender, sent in self._prepared.items():
            sealed = struct.unpack(f"{messages.SEALED_BYTES}s" * self._group.degree, sent.sealed)
            for peer, shares in zip(self._group.neighbours(sender), sealed, strict=True):
                if peer in outbound:
                    outbound[peer] += sent.key + shares
        return {client: bytes(data) for client, data in outbound.items()}, ServerState.INPUT

    def _close_input(self, survivors: tuple[int, ...]) -> Closed:
        self._check_reach(survivors)
        self._judge_seals(survivors)
        self.survivors = survivors
        whole = len(survivors) == len(self._prepared)
        signed = self._cohort_signatures if whole else {}
        message = messages.encode_survivors(survivors, signed, self._group, self.place)
        successor = self._ask_shares() if whole else ServerState.CONSISTENCY
        return dict.fromkeys(survivors, message), successor

    def _judge_seals(self, survivors: tuple[int, ...]) -> None:
        """Bar who sealed garbage; MissingClientError where too few hold shares of a client."""
        accused = Counter(owner for k in survivors for owner in self._closed[k])
        threshold, lost = self._group.threshold, []
        for owner, accusers in sorted(accused.items()):
            holders = set(self._group.holders(owner))
            # More than may be corrupt, or than there are spare shares: that number could end
            # every round by silence. One complaint alone is one word against another.
            spare = len(holders) - threshold
            if accusers > max(1, min(self._group.tolerated, spare)):
                self._bar(owner, f"{accusers} of its holders could not open its seals")
            if len(holders.intersection(survivors)) - accusers < threshold:
                lost.append(owner)
        if lost:
            raise MissingClientError(
                f"the shares of clients {lost} opened at fewer than {threshold} of their holders"
            )

    def _close_consistency(self, signers: tuple[int, ...]) -> Closed:
        self._check_reach(signers)
        message = messages.encode_signatures(self._signatures, self._group, self.place)
        return dict.fromkeys(signers, message), self._ask_shares()

    def _ask_shares(self) -> ServerState:
        cohort, left = self._prepared, self.survivors
        self._unmasking = Unmasking(self.scope, self._group, cohort, left, self._closed)
        return ServerState.UNMASK

    def _close_unmask(self, _: tuple[int, ...]) -> Closed:
        """Every secret has a threshold of its own here, so that no quorum is asked for."""
        unmasking, terms = self._unmasking, self.scope.terms
        try:
            unmasking.unmask(self._sum)
            limit = len(self.survivors) * terms.bound
            self._total = self.scope.layout.unpack(self._sum, terms.length, limit)
        except PeerError as error:
            self._name_others()
            raise GarbledSumError(f"the round is aborted: {error}") from error
        finally:
            for client, what in unmasking.frauds.items():
                self._bar(client, what)
            for client in unmasking.liars:
                self._bar(client, "it gave wrong shares")
        return {}, ServerState.DONE

    def _bar(self, client: int, what: str) -> None:
        """Leave a client out of all later cohorts of the set-up."""
        self._enrolment.barred[client] = what
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

    takes: ClassVar = {
        ServerState.PREPARE: (MessageType.PREPARE, _add_prepare),
        ServerState.INPUT: (MessageType.MASKED, _add_masked),
        ServerState.CONSISTENCY: (MessageType.CONSISTENT, _add_consistent),
        ServerState.UNMASK: (MessageType.UNMASK, _add_unmask),
    }
    closes: ClassVar = {
        ServerState.PREPARE: _close_prepare,
        ServerState.INPUT: _close_input,
        ServerState.CONSISTENCY: _close_consistency,
        ServerState.UNMASK: _close_unmask,
    }


class MaskingServer(Party[ServerEnrolment]):
    """Server of the masked sum for a session: its set-ups, then one round after another.

    A client that lost a message of the set-up has none, and joins in every round. The next round
    then begins with a set-up of all clients, so that it is in that round's sum.

    Args:
        session: What all parties agreed on.
        key: The X25519 key that the session pins, under which inputs are authenticated.
        keep: Writes what must outlive this process, before anything that depends on it leaves.
        memory: What an earlier process kept last.
    """

    __slots__ = ("_asking", "_due", "_earlier", "_key", "_round", "_setup")

    def __init__(
        self,
        session: Session,
        key: AgreementKey,
        keep: Keep | None = None,
        memory: bytes | None = None,
    ) -> None:
        if key.public != session.server:
            raise LocalError("the server's key is not the one that the session pins")
        self._key = key
        self._round: ServerRound | None = None
        self._due: RoundTerms | None = None  # of the round that waits for the set-up
        self._earlier = Accepted()  # of the last set-up
        self._asking: set[int] = set()
        super().__init__(session, keep, memory)
        self._setup = None if self.enrolled else ServerSetup(session)

    def _recall(self, known: PartyMemory, group: Group | None, epoch: int | None) -> None:
        if group is not None:
            inputs = {client: Sealer(key) for client, key in known.inputs.items()}
            barred = dict.fromkeys(known.barred, "it was barred before a restart")
            self._enrolment = ServerEnrolment(group, inputs, barred, epoch)

    def _own_memory(self) -> dict[str, Any]:
        inputs = {} if self._enrolment is None else self._enrolment.inputs
        keys = {client: tags.key for client, tags in inputs.items()}
        return {"inputs": keys, "barred": tuple(self.barred)}

    # Role of the server in a sum.

    @property
    def busy(self) -> bool:
        """True if a stage of the set-up or of a sum is open."""
        machine = self._setup or self._round
        return machine is not None and machine.running

    @property
    def stage(self) -> Stage:
        """The stage that is open, or was last; PREPARE in a set-up."""
        return Stage.PREPARE if self._round is None else Stage[self._round.stage.name]

    @property
    def opened(self) -> bool:
        """True if clients may have given what it takes to read the newest sum."""
        return self._round is not None and self._round.opened

    @property
    def result(self) -> Sum | None:
        """The newest sum, once it is there."""
        if self._round is None or not self._round.finished:
            return None
        return Sum(self._round.total, self._round.survivors)

    @property
    def missing(self) -> dict[int, Stage]:
        """For each client that left this sum, the first stage that it did not answer."""
        noticed = {} if self._round is None else self._round.missing
        return {client: Stage[stage.name] for client, stage in noticed.items()}

    @property
    def waiting(self) -> set[int]:
        """The clients that the round still waits for in this stage."""
        return set() if self._round is None else set(self._round.waiting)

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Open the round; inputs of the last one may have carried its first stage already.

        A round of a new epoch begins with a set-up, for which clients join of themselves. A set-up
        within an epoch is for clients that asked for one; the others are invited.
        """
        serves = self.serves(terms.index)
        if serves and not self._needs_setup():
            self._asking = set()
            return self._open_due(terms)
        self.open_setup()
        self._due, self._round = terms, None
        if not self.session.complete:
            self._asking = set()  # where the others are settled, no further round is lost
        invited = messages.invitation(self.session)
        return dict.fromkeys(self.session.roster, invited) if serves else {}

    def _open_due(self, terms: RoundTerms) -> Mapping[int, bytes]:
        opened = self._round = self.open_round(terms)
        return {} if opened.waiting or self.barred else opened.advance()

    def _needs_setup(self) -> bool:
        """Return whether a client asks for a set-up that the others would join.

        In a sparse graph clients keep a set-up that served a round; see `MaskingClient.settled`.
        """
        machine = self._setup or self._round
        failed = machine is not None and machine.state is ServerState.ABORTED
        return bool(self._asking) and (failed or self.session.complete)

    def receive(self, sender: int, data: bytes) -> None:
        """Take a message of this stage; one that is not asked for any more is left unread.

        A client that was away cannot know that its last input brought what PREPARE brings, nor one
        that begins a round that a set-up comes before it. A message of another round, or of
        another stage of a set-up, was late.

        Raises:
            PeerError: a bad message, whose sender is out of the round.
        """
        prepares, setup = data[2:4] == _PREPARE, self._setup
        if setup is not None:
            due, _ = setup.takes[setup.stage]
            if data[2:4] == due.to_bytes(2, "big"):
                setup.receive(sender, data)
            return
        if self._earlier.has(sender, data) or self._asks(sender, data):
            return
        opened = self._opened_round()
        again = prepares and opened.state is not ServerState.PREPARE
        late = again or is_elsewhere(data, opened.place)
        if opened.waits_for(sender) and not late:
            opened.receive(sender, data)

    def _asks(self, sender: int, data: bytes) -> bool:
        """Return whether a client has no part in the set-up in use; PeerError for a bad JOIN.

        It joins where it knows of no set-up; where it knows of an earlier one, it prepares a round
        without being a member. A barred client brings about no set-up.
        """
        if data[2:4] not in (_JOIN, _PREPARE) or sender not in self.session.roster:
            return False
        if data[2:4] == _JOIN:
            messages.decode_join(data, self.session, sender).verify(self.session)
        elif sender in self.group.members:
            return False
        if sender not in self.barred:
            self._asking.add(sender)
        return True

    def advance(self) -> Mapping[int, bytes]:
        """Close the stage: relays by client. MissingClientError where too few are left."""
        setup, terms = self._setup, self._due
        if setup is None:
            return self._opened_round().advance()
        relayed = setup.advance()
        if setup.finished:
            within = terms is not None and self.serves(terms.index)
            self.enrol(setup, self.barred if within else None)
            # In mid-round no client is invited: one that asked in an earlier sum still waits.
            self._asking = set() if within else self._asking - set(setup.group.members)
            self._earlier, self._due = setup.accepted, None
            if terms is not None:
                self._open_due(terms)
        return relayed

    def _opened_round(self) -> ServerRound:
        if self._round is None:
            raise LocalError("no sum was opened")
        return self._round

    # Set-ups and rounds.

    def open_setup(self) -> ServerSetup:
        """Begin a set-up; the one in use stays until it is done."""
        self._setup = ServerSetup(self.session)
        return self._setup

    @property
    def barred(self) -> Mapping[int, str]:
        """For each client that is in no later cohort of this set-up, what it did."""
        return {} if self._enrolment is None else self._enrolment.barred

    def enrol(self, setup: ServerSetup, barred: Mapping[int, str] | None = None) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped.

        barred: clients that stay barred, where the set-up replaces one within its epoch.
        """
        group, inputs = setup.group, {}
        for client in setup.present:
            secret = self._key.exchange(setup.channel_key(client))
            inputs[client] = input_authenticator(group, client, secret)
        self._enrolment, self._setup = ServerEnrolment(group, inputs, dict(barred or {})), None
        self._write()

    def open_round(self, terms: RoundTerms) -> ServerRound:
        """Begin a round; LocalError for one that is spent, or of another epoch."""
        return ServerRound(self._spend(terms), self._in_use)


_JOIN, _PREPARE = (kind.to_bytes(2, "big") for kind in (MessageType.JOIN, MessageType.PREPARE))
