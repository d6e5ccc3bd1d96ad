"""Client of the masked sum: for a whole session, and its machine of one round. Bytes in, bytes out.

Rules it keeps in a round, whatever the server sends:
 1. It masks for a cohort that reaches the quorum, the floor of its noise and, in its
    neighbourhood, the threshold; and it helps to open no sum of fewer. Every pair mask needs the
    secret of the pair's channel, which no relayed key can replace.
 2. Bound, lanes, modulus, noise and thresholds are its own; no message carries them.
 3. It sends one input a round. No message makes it send its words unmasked.
 4. It gives away one share a round for every neighbour: of the seed where the neighbour is a
    survivor, of the root where it is not, never both. Before that, a threshold of the group's
    committee must have signed the very cohort that it masked for (no client is missing), or the
    very cohort and survivors (a client is). A client signs one cohort and one set of survivors
    a round.
 5. A neighbour's shares that do not open cost that neighbour a holder, and this client nothing:
    it names the neighbour to the server and goes on.
 6. Any other failure, ours or theirs, leaves the round aborted, for good, and its secrets dropped.

Rules for the session:
 1. Its roster is pinned, and its group is what every member signed; see setup.py.
 2. A round's number only grows; a round that began is spent, whether it ended well or not. The
    secrets of a round are drawn for that round, and dropped with it. The one exception is a round
    that masked no input before the client left its set-up: the next set-up may begin it again,
    with other secrets and other channels. A client therefore masks one input a round.
 3. Its channels move on with every round, and serve the rounds of one epoch: a memory that is read
    later opens no round that was recorded before.
 4. It is in one set-up at a time. From its JOIN on it has left the set-up before: the server may
    go on with a new group, under which seals of the old channels do not open.
 5. In a sparse graph it reveals its nonce in at most MAX_SETUPS set-ups without a round that
    ended well, and keeps a set-up that had such a round to the end of its epoch. The graph and
    the committee follow from the nonces. The server learns them after REVEAL, and can end a
    set-up whose graph does not suit it: the bound of 2^-40 on a bad graph is for one set-up. A
    set-up that ends before REVEAL shows the server nothing, so it does not count, however often
    a JOIN is lost or a site is late. In a complete graph all members are neighbours and all
    are in the committee, whatever the seed: no limit is needed there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from secure_fd.crypto.keys import (
    SERVER,
    IdentityKey,
    RandomBytes,
    SealCapsule,
    Sealer,
    SecretHolder,
    seal_capsule,
)
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import (
    Accepted,
    ClientMachine,
    ClientState,
    Keep,
    Party,
    PartyMemory,
)
from secure_fd.secagg.masks import (
    NO_SHARES,
    Prepared,
    Shares,
    mask_input,
    open_shares,
    pair_stream,
    prepare,
    self_stream,
)
from secure_fd.secagg.session import (
    Group,
    MessageType,
    RoundCounter,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    is_elsewhere,
)
from secure_fd.secagg.setup import ClientEnrolment, ClientSetup
from secure_fd.votes.codec import UnitArray, WordArray
from secure_fd.wire import Place


@dataclass(slots=True, eq=False, repr=False)
class _RoundHeld(SecretHolder):
    """Secrets of a round, and what it has received."""

    prepared: Prepared | None
    words: WordArray | None
    shares: dict[int, Shares] = field(default_factory=dict)
    cohort: tuple[int, ...] = ()
    cohort_set: bytes = b""
    survivors: tuple[int, ...] = ()
    survivor_set: bytes = b""


class ClientRound(ClientMachine[_RoundHeld]):
    """One round of one client: start it, then answer each message until DONE.

    values: [m] private; int64 where the terms have room for noise, else uint64.

    Raises:
        LocalError: another length than agreed, or a value beyond bound and room.

    Attributes:
        gave: Whether it has given its shares, which a later failure does not take back.
    """

    __slots__ = ("_client", "_enrolment", "gave", "scope")

    def __init__(
        self,
        client: "MaskingClient",
        scope: RoundScope,
        enrolment: ClientEnrolment,
        values: UnitArray,
    ) -> None:
        prepared, enrolment.prepared = enrolment.prepared, None  # of a round that was skipped: lost
        if prepared is not None and prepared.index != scope.terms.index:
            prepared = None
        if values.shape != (scope.terms.length,):
            raise LocalError(f"values: {values.shape} where {scope.terms.length} are agreed")
        held = _RoundHeld(prepared, scope.layout.pack(values))
        super().__init__(client.number, scope.place, held)
        self.scope, self.gave = scope, False
        self._client, self._enrolment = client, enrolment

    def start(self) -> bytes:
        """Open the round: a PREPARE message, or nothing where the last round's input carried it.

        The last round's input may have been lost; unless that round ended well, what it carried
        is sent again, the same bytes. So it is to a server that started again since.
        """
        held, index = self._begin(), self.scope.terms.index
        prepared = held.prepared or self._client.prepare(index, self._enrolment)
        held.prepared, self._held, self.state = prepared, held, ClientState.PREPARED
        sent = prepared.sent
        return b"" if prepared.confirmed else self._message(MessageType.PREPARE, sent.encode())

    def withdraw(self) -> bool:
        """End the round without an input, for another set-up; return whether none was masked."""
        state, _ = self._take()
        return state in (ClientState.READY, ClientState.PREPARED)

    def _answer_cohort(self, data: bytes, held: _RoundHeld) -> tuple[bytes, ClientState]:
        """Open every share, mask the words, and prepare the next round with the same upload."""
        group, words, prepared = self._enrolment.group, held.words, held.prepared
        if words is None or prepared is None:
            raise LocalError("an input was masked already")
        held.cohort, relayed = messages.decode_cohort(data, group, self.place, self.number)
        if self.number not in held.cohort:
            raise PeerError(f"the cohort leaves out client {self.number}")
        if not relayed.keys() <= self._enrolment.channels.keys():
            raise PeerError("the cohort names a client that left during the set-up")
        self._check_reach(held.cohort, "cohort")
        closed = self._open_all(relayed, held)
        held.shares[self.number] = prepared.own
        self._mask(words, prepared, relayed)
        held.words = held.prepared = None
        held.cohort_set = encode_set(held.cohort, group.members)
        following, sign = self._following(), self._client.sign
        # Two signatures: of the cohort, which others check, and of the words, for a dispute.
        agreed = sign(messages.cohort_text(self.scope, self.number, group, held.cohort_set))
        proof = sign(messages.input_text(self.scope, self.number, group, words, held.cohort_set))
        masked = messages.Masked(words, closed, agreed, proof, following)
        inputs = self._enrolment.authenticator
        message = messages.encode_masked(masked, self.scope, self.number, group, inputs)
        return message, ClientState.SENT

    def _following(self) -> messages.Prepare | None:
        """Prepare the next round, unless it needs another set-up: no channel outlives that."""
        following, enrolment = self.scope.terms.index + 1, self._enrolment
        if not self._client.serves(following):
            self._client.close(enrolment)
            return None
        enrolment.prepared = self._client.prepare(following, enrolment)
        return enrolment.prepared.sent

    def _open_all(
        self, relayed: Mapping[int, messages.Relayed], held: _RoundHeld
    ) -> tuple[int, ...]:
        """Open what the neighbours sealed; return those whose seals did not open."""
        channels, closed = self._enrolment.channels, []
        for peer, sent in relayed.items():
            try:
                held.shares[peer] = open_shares(
                    self.place, self.number, peer, channels[peer], sent.key, sent.sealed
                )
            except PeerError:
                held.shares[peer] = NO_SHARES
                closed.append(peer)
        return tuple(closed)

    def _mask(
        self, words: WordArray, prepared: Prepared, relayed: Mapping[int, messages.Relayed]
    ) -> None:
        scope, number, own = self.scope, self.number, prepared.secrets
        pairs = {}
        for peer, sent in relayed.items():
            secret = self._enrolment.channels[peer].pair_secret(scope.terms.index)
            pairs[peer] = pair_stream(scope, number, peer, own.key, sent.key, secret)
        mask_input(words, number, pairs, self_stream(scope, number, own.seed))

    def _answer_survivors(self, data: bytes, held: _RoundHeld) -> tuple[bytes, ClientState]:
        """If no client is missing, check the signatures and unmask; else sign the survivors."""
        group = self._enrolment.group
        survivors, signatures = messages.decode_survivors(data, group, self.place)
        if not set(survivors) <= set(held.cohort) or self.number not in survivors:
            raise PeerError(f"the survivors are not of the cohort, or leave out {self.number}")
        self._check_reach(survivors, "survivors")
        held.survivors, held.survivor_set = survivors, encode_set(survivors, group.members)
        if survivors == held.cohort:
            self._check_signatures(signatures, held)
            return self._unmask(held), ClientState.DONE
        if signatures:
            raise PeerError("signatures of a cohort came although some of it is missing")
        signature = self._client.sign(self._signed_text(self.number, held))
        return self._message(MessageType.CONSISTENT, signature), ClientState.SIGNED

    def _answer_signatures(self, data: bytes, held: _RoundHeld) -> tuple[bytes, ClientState]:
        signatures = messages.decode_signatures(data, self._enrolment.group, self.place)
        self._check_signatures(signatures, held)
        return self._unmask(held), ClientState.DONE

    def _check_reach(self, present: tuple[int, ...], what: str) -> None:
        """Too small a set ends it: to hide in, for the noise, or to restore secrets from."""
        group = self._enrolment.group
        least = max(group.quorum, self.scope.terms.noise.survivors)
        if len(present) < least:
            raise PeerError(f"{what}: {len(present)} clients are below the quorum of {least}")
        near = len(set(group.holders(self.number)) & set(present))
        if near < group.threshold:
            raise PeerError(f"{what}: {near} holders are below the threshold {group.threshold}")

    def _check_signatures(self, signatures: Mapping[int, bytes], held: _RoundHeld) -> None:
        """PeerError unless a threshold of the committee signed what this client saw.

        The committee is one for all, so all that unmask agree on the cohort; holders would differ
        by client. A lying server can have the whole cohort opened by some clients and one set of
        survivors by others; even so, no threshold of both secrets of one client is given.

        One that does not verify is passed over: it is one corrupt client's, or the server's.
        """
        group, valid = self._enrolment.group, 0
        for signer, signature in signatures.items():
            if signer not in held.survivors:
                continue
            try:
                self._client.session.roster[signer].verify(
                    signature, self._signed_text(signer, held), f"client {signer}'s round"
                )
            except PeerError:
                continue
            valid += 1
            if valid == group.threshold:
                return
        raise PeerError(
            f"{valid} of the committee signed the survivors that client {self.number} saw; "
            f"{group.threshold} are needed"
        )

    def _signed_text(self, signer: int, held: _RoundHeld) -> bytes:
        """Return what `signer` signed if it saw what this client saw."""
        group, cohort = self._enrolment.group, held.cohort_set
        if held.survivors == held.cohort:
            return messages.cohort_text(self.scope, signer, group, cohort)
        return messages.survivor_text(self.scope, signer, group, cohort, held.survivor_set)

    def _unmask(self, held: _RoundHeld) -> bytes:
        """Give one share for each owner; the other of each is dropped with the round."""
        alive = set(held.survivors)
        shares = [
            held.shares[owner].seed if owner in alive else held.shares[owner].root
            for owner in sorted(held.shares)
        ]
        self.gave = True
        self._client.confirm(self._enrolment)
        return self._message(MessageType.UNMASK, *shares)

    answers: ClassVar = {
        (ClientState.PREPARED, MessageType.COHORT): _answer_cohort,
        (ClientState.SENT, MessageType.SURVIVORS): _answer_survivors,
        (ClientState.SIGNED, MessageType.SIGNATURES): _answer_signatures,
    }


MAX_SETUPS: Final = 8
"""Nonces that a client reveals in a sparse graph without a round that ended well."""


class MaskingClient(Party[ClientEnrolment]):
    """Client of the masked sum for a session: its identity, its channels, its set-ups and rounds.

    A round of another epoch than the last set-up's begins with a set-up. So does one in which the
    server invites all clients to a set-up. It does so when a client asked for one, because a
    message of the last set-up did not reach it.

    Args:
        number: Its number on the roster.
        identity: Its pinned identity.
        session: What all parties agreed on.
        random: Source of every key and nonce.
        keep: Writes what must outlive this process, before anything that depends on it leaves.
        memory: What an earlier process kept last.
        nonce: Its part in the joint seed of every set-up, drawn by default.
        seal: Seals capsules of a hybrid session; the library takes no randomness for that.

    Raises:
        LocalError: an identity that the roster does not pin, or a memory of another session.
    """

    __slots__ = (
        "_due",
        "_earlier",
        "_identity",
        "_joined",
        "_machine",
        "_nonce",
        "_random",
        "_seal",
        "_setups",
        "number",
    )

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        random: RandomBytes = os.urandom,
        keep: Keep | None = None,
        memory: bytes | None = None,
        nonce: bytes | None = None,
        seal: SealCapsule = seal_capsule,
    ) -> None:
        if number not in session.roster:
            raise LocalError(f"client {number} is not on the pinned roster")
        if session.roster[number].raw != identity.public.raw:
            raise LocalError(f"the pinned identity of client {number} is not the one it holds")
        self.number, self._identity = number, identity
        self._random, self._nonce, self._seal = random, nonce, seal
        self._setups = 0  # nonces revealed since a round ended well
        self._machine: ClientSetup | ClientRound | None = None
        self._due: tuple[RoundTerms, UnitArray] | None = None  # waits for a set-up
        self._joined = False  # since the last `load`
        self._earlier = Accepted()  # of the last set-up
        super().__init__(session, keep, memory)

    def _recall(self, known: PartyMemory, group: Group | None, epoch: int | None) -> None:
        self._setups = known.setups
        if group is not None:
            channels = {
                peer: Channel.restored(self.session, self.number, peer, state)
                for peer, state in known.channels.items()
            }
            self._enrolment = ClientEnrolment(
                group, channels, Sealer(known.inputs[self.number]), epoch
            )

    def _own_memory(self) -> dict[str, Any]:
        enrolment = self._enrolment
        if enrolment is None:
            return {"setups": self._setups}
        return {
            "setups": self._setups,
            "channels": {k: channel.state() for k, channel in enrolment.channels.items()},
            "inputs": {self.number: enrolment.authenticator.key},
        }

    # Role of the client in a sum.

    @property
    def gave(self) -> bool:
        """True if it has given what the server needs to read the newest sum."""
        return isinstance(self._machine, ClientRound) and self._machine.gave

    def start(self) -> list[bytes]:
        """Return the first message of the set-up, where there was none yet."""
        return [] if self.enrolled else self.join()

    def join(self) -> list[bytes]:
        """Join a set-up, and leave the one in use."""
        self._joined, self._machine = True, self.open_setup()
        return [self._machine.start()]

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Open the round and prepare its masks, or join the set-up that it needs."""
        self._joined, self._due = False, (terms, values)
        return self._open_due() if self.serves(terms.index) else self.join()

    def _open_due(self) -> list[bytes]:
        """Open the round whose values wait, if any; they stay until they are masked."""
        if self._due is None:
            return []
        terms, values = self._due
        opened = self._machine = self.open_round(terms, values)
        return [first] if (first := opened.start()) else []

    def receive(self, data: bytes) -> list[bytes]:
        """Answer one message; the end of a set-up enrols, and opens the round that waits.

        A message of another round, or of a set-up during a round, was late and has no effect.
        """
        machine = self._machine
        # The CAPSULES of a client without lower neighbours are the same bytes in every set-up.
        again = isinstance(machine, ClientSetup) and data[2:4] == _CAPSULES
        if self._earlier.has(SERVER, data) and not again:
            return []
        if data == messages.invitation(self.session):
            return self._accept_invitation()
        if machine is None:
            raise PeerError("a message of a sum came where none is open")
        if is_elsewhere(data, machine.place):
            return []
        due, self._due = self._due, None  # dropped where it is masked, or the machine refuses
        reply = machine.receive(data)
        if isinstance(machine, ClientSetup):
            self._due = due
            if machine.state is ClientState.DONE:
                self._earlier, self._machine = machine.accepted, None
                self.enrol(machine)
                return self._open_due()
        return [reply] if reply else []

    def _accept_invitation(self) -> list[bytes]:
        """Leave the round and join; after a JOIN in the same round an invitation has no effect.

        The values that wait are masked once, under the next set-up: a round that masked an input
        does not give its number back, and its values are not here any more.
        """
        if self._joined or self.settled:
            return []
        unmasked = False
        if isinstance(self._machine, ClientRound):
            unmasked = self._machine.withdraw()
            self._due = self._due if unmasked else None
        joined = self.join()
        if unmasked:  # the next set-up may begin the round again (rule 2)
            self._rounds = RoundCounter(self._rounds.last - 1)
        return joined

    # Set-ups and rounds.

    def open_setup(self) -> ClientSetup:
        """Begin a set-up, and leave the one in use."""
        if self._enrolment is not None:
            self._enrolment = None
            self._write()
        given = self._random, self._seal, self._nonce, self._note_reveal
        return ClientSetup(self.number, self._identity, self.session, *given)

    def _note_reveal(self) -> None:
        """Count a nonce, on disk, before it leaves; LocalError for one too many (rule 5)."""
        if not self.session.complete and self._setups >= MAX_SETUPS:
            raise LocalError(
                f"setups: {MAX_SETUPS} nonces were revealed in a sparse graph and no round ended "
                f"well; open a session"
            )
        self._setups += 1
        self._write()

    @property
    def settled(self) -> bool:
        """True if it keeps its set-up to the end of the epoch, by rule 5 for sparse graphs."""
        return self.enrolled and not self.session.complete and self._setups == 0

    def enrol(self, setup: ClientSetup) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped."""
        self._enrolment = setup.enrolment
        self._write()

    def open_round(self, terms: RoundTerms, values: UnitArray) -> ClientRound:
        """Begin a round with these values; LocalError for one spent, or of another epoch."""
        return ClientRound(self, self._spend(terms), self._in_use, values)

    def sign(self, text: bytes) -> bytes:
        """Sign with its identity."""
        return self._identity.sign(text)

    def prepare(self, index: int, enrolment: ClientEnrolment) -> Prepared:
        """Draw the secrets of a round.

        LocalError for a round of an earlier set-up, which must not leave its secrets to this one.
        """
        if enrolment is not self._enrolment:
            raise LocalError(f"round {index} belongs to a set-up that client {self.number} left")
        place = Place(self.session.id, index)
        drawn = prepare(enrolment.group, place, self.number, enrolment.channels, self._random)
        self._write()
        return drawn

    def close(self, enrolment: ClientEnrolment) -> None:
        """Drop, here and in the file, the keys of a set-up that has served its epoch."""
        for channel in enrolment.channels.values():
            channel.close()
        self._write()

    def confirm(self, enrolment: ClientEnrolment) -> None:
        """Note a round that ended well: the server has what its input carried for the next."""
        self._setups = 0
        if enrolment.prepared is not None:
            enrolment.prepared.confirmed = True

    def greeted(self) -> None:
        """Note that the server may have started again, without what was prepared for a round."""
        if self._enrolment is not None and self._enrolment.prepared is not None:
            self._enrolment.prepared.confirmed = False


_CAPSULES = MessageType.CAPSULES.to_bytes(2, "big")
