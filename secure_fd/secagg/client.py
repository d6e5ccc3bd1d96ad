"""One round of a client: its machine and all of its transitions. Bytes in, bytes out.

Rules it keeps, whatever the server sends:
 1. It masks for a cohort that reaches the quorum, the floor of its noise and, in its
    neighbourhood, the threshold; and it helps to open no sum of fewer. Every pair mask needs the
    secret of the pair's channel, which no relayed key can replace.
 2. Bound, lanes, modulus, noise and thresholds are its own; no message carries them.
 3. It sends one input a round. No message makes it send its words unmasked.
 4. It gives away one share a round for every neighbour: of the seed where the neighbour is a
    survivor, of the root where it is not, never both. Before that, a threshold of the group's
    committee must have signed the very cohort that it masked for (nobody is missing), or the
    very cohort and survivors (somebody is). A client signs one cohort and one set of survivors
    a round.
 5. A neighbour's shares that do not open cost that neighbour a holder, and this client nothing:
    it names the neighbour to the server and goes on.
 6. Any other failure, ours or theirs, leaves the round aborted, for good, and its secrets dropped.
"""

import os
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

from secure_fd.crypto.keys import SERVER, Authenticator, IdentityKey, RandomBytes, SecretHolder
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
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
from secure_fd.secagg.memory import Keep, Memory
from secure_fd.secagg.messages import Prepare
from secure_fd.secagg.session import (
    Accepted,
    Floors,
    Group,
    MessageType,
    Place,
    RoundCounter,
    RoundScope,
    RoundTerms,
    Session,
    encode_set,
    message_type,
)
from secure_fd.secagg.setup import ClientSetup, Enrolment
from secure_fd.votes.codec import UnitArray, WordArray


class ClientState(Enum):
    """Where a client stands in a round."""

    READY = auto()
    PREPARED = auto()
    SENT = auto()
    SIGNED = auto()
    DONE = auto()
    ABORTED = auto()


class _Held(SecretHolder):
    """What a round must forget when it ends."""

    __slots__ = (
        "cohort",
        "cohort_set",
        "prepared",
        "shares",
        "survivor_set",
        "survivors",
        "unconfirmed",
        "words",
    )

    def __init__(self, prepared: Prepared | None, unconfirmed: messages.Prepare | None) -> None:
        self.prepared = prepared
        self.unconfirmed = unconfirmed
        self.words: WordArray | None = None
        self.shares: dict[int, Shares] = {}
        self.cohort: tuple[int, ...] = ()
        self.cohort_set = b""
        self.survivors: tuple[int, ...] = ()
        self.survivor_set = b""


class ClientRound(SecretHolder):
    """One round of one client: load the values, start, then answer each message until DONE."""

    __slots__ = ("_accepted", "_client", "_enrolment", "_held", "_state", "gave", "scope")

    def __init__(self, client: "Client", scope: RoundScope, enrolment: Enrolment) -> None:
        self.scope = scope
        self.gave = False
        """Whether it has given its shares, which a later failure does not take back."""
        self._accepted = Accepted()
        self._client = client
        self._enrolment = enrolment
        self._state = ClientState.READY
        self._held: _Held | None = _Held(*client.pop_round_secrets(scope.terms.index))

    @property
    def number(self) -> int:
        """The client's."""
        return self._client.number

    @property
    def state(self) -> ClientState:
        """Where the round stands; ABORTED never changes again."""
        return self._state

    def load(self, values: UnitArray) -> None:
        """Take the private values [m]: once, any time before the cohort is answered.

        int64 where the terms have room for noise, else uint64. LocalError for another length than
        agreed, or a value beyond bound and room.
        """
        state, held = self._take()
        if held is None or held.words is not None:
            raise LocalError(f"values cannot be loaded again, nor in state {state.name}")
        if values.shape != (self.scope.terms.length,):
            raise LocalError(f"values: {values.shape} where {self.scope.terms.length} are agreed")
        held.words = self.scope.layout.pack(values)
        self._state, self._held = state, held

    def start(self) -> bytes | None:
        """Open the round: a PREPARE message, or None where the last round's input carried it.

        The last round's input may have been lost; unless that round ended well, what it carried
        is sent again, the same bytes.
        """
        state, held = self._take()
        if state is not ClientState.READY or held is None:
            raise LocalError(f"a round starts from READY, not from {state.name}")
        if held.prepared is None:
            index = self.scope.terms.index
            self._client.prepare(index, self._enrolment)
            held.prepared, held.unconfirmed = self._client.pop_round_secrets(index)
        sent, held.unconfirmed = held.unconfirmed, None
        self._state, self._held = ClientState.PREPARED, held
        if sent is None:
            return None
        return messages.encode_prepare(sent, self.scope.place, self.number)

    def receive(self, data: bytes) -> bytes:
        """Answer one message of the server; PeerError for any that the table does not list.

        An exact copy of an accepted message has no effect; its answer is empty.
        """
        if self._accepted.has(SERVER, data):
            return b""
        state, held = self._take()
        kind = message_type(data, self.scope.place, SERVER)
        if held is None or (state, kind) not in _TRANSITIONS:
            raise PeerError(f"a {kind.name} message is not allowed in state {state.name}")
        reply, successor = _TRANSITIONS[state, kind](self, data, held)
        self._state = successor
        if successor is ClientState.DONE:
            self.gave = True
            self._client.confirm(self.scope.terms.index + 1)
        else:
            self._held = held
        self._accepted.add(SERVER, data)
        return reply

    def withdraw(self) -> bool:
        """End the round without an input, for another set-up; return whether none was masked.

        Only then may the round's number be used once more, and only under another set-up.
        """
        state, _ = self._take()
        unmasked = state in (ClientState.READY, ClientState.PREPARED)
        if unmasked:
            self._client.release(self.scope.terms.index)
        return unmasked

    def _take(self) -> tuple[ClientState, _Held | None]:
        """Leave the round aborted and empty; whoever succeeds puts back what it still needs."""
        state, held = self._state, self._held
        self._state, self._held = ClientState.ABORTED, None
        return state, held

    def _answer_cohort(self, data: bytes, held: _Held) -> "_Step":
        """Open every share, mask the words, and prepare the next round with the same upload."""
        group, place, prepared = self._enrolment.group, self.scope.place, held.prepared
        if held.words is None or prepared is None:
            raise LocalError("the cohort cannot be answered before values are loaded")
        held.cohort, relayed = messages.decode_cohort(data, group, place, self.number)
        if self.number not in held.cohort:
            raise PeerError(f"the cohort leaves out client {self.number}")
        if not relayed.keys() <= self._enrolment.channels.keys():
            raise PeerError("the cohort names a client that left during the set-up")
        self._check_reach(held.cohort, "cohort")
        closed = self._open_all(relayed, held)
        held.shares[self.number] = prepared.own
        words, held.words = held.words, None
        self._mask(words, prepared, relayed)
        held.prepared = None
        held.cohort_set = encode_set(held.cohort, group.members)
        following = self._following()
        masked = self._signed(words, closed, following, held.cohort_set)
        inputs = self._enrolment.authenticator
        message = messages.encode_masked(masked, self.scope, self.number, group, inputs)
        return message, ClientState.SENT

    def _following(self) -> Prepare | None:
        """The next round's secrets, unless it needs another set-up: no channel outlives that."""
        following = self.scope.terms.index + 1
        if not self._client.serves(following):
            self._client.close(self._enrolment)
            return None
        return self._client.prepare(following, self._enrolment)

    def _open_all(self, relayed: Mapping[int, messages.Relayed], held: _Held) -> tuple[int, ...]:
        """Open what the neighbours sealed; whose did not open."""
        channels, place, closed = self._enrolment.channels, self.scope.place, []
        for peer, sent in relayed.items():
            try:
                held.shares[peer] = open_shares(
                    place, self.number, peer, channels[peer], sent.key, sent.sealed
                )
            except PeerError:
                held.shares[peer] = NO_SHARES
                closed.append(peer)
        return tuple(closed)

    def _signed(
        self,
        words: WordArray,
        closed: tuple[int, ...],
        following: Prepare | None,
        cohort: bytes,
    ) -> messages.Masked:
        """Signed twice: the cohort, which others check, and the words, which a dispute would."""
        group, number = self._enrolment.group, self.number
        agreed = self._client.sign(messages.cohort_text(self.scope, number, group, cohort))
        proof = self._client.sign(messages.input_text(self.scope, number, group, words, cohort))
        return messages.Masked(words, closed, agreed, proof, following)

    def _mask(
        self, words: WordArray, prepared: Prepared, relayed: Mapping[int, messages.Relayed]
    ) -> None:
        scope, key, index = self.scope, prepared.secrets.key, self.scope.terms.index
        pairs = {
            peer: pair_stream(
                scope,
                self.number,
                peer,
                key,
                sent.key,
                self._enrolment.channels[peer].pair_secret(index),
            )
            for peer, sent in relayed.items()
        }
        mask_input(
            words, self.number, pairs, self_stream(scope, self.number, prepared.secrets.seed)
        )

    def _answer_survivors(self, data: bytes, held: _Held) -> "_Step":
        """Nobody is missing: check the cohort's signatures and unmask. Else sign who is left."""
        group, place = self._enrolment.group, self.scope.place
        survivors, signatures = messages.decode_survivors(data, group, place)
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
        message = messages.encode_consistent(signature, place, self.number)
        return message, ClientState.SIGNED

    def _answer_signatures(self, data: bytes, held: _Held) -> "_Step":
        group, place = self._enrolment.group, self.scope.place
        signatures = messages.decode_signatures(data, group, place)
        self._check_signatures(signatures, held)
        return self._unmask(held), ClientState.DONE

    def _check_reach(self, present: tuple[int, ...], what: str) -> None:
        """Too small a set ends it: to hide in, for the noise, or to restore secrets from."""
        group, noise = self._enrolment.group, self.scope.terms.noise
        least = max(group.quorum, self._client.floors.cohort, noise.survivors)
        if len(present) < least:
            raise PeerError(f"{what}: {len(present)} clients are below the quorum of {least}")
        near = len(set(group.holders(self.number)) & set(present))
        if near < group.threshold:
            raise PeerError(f"{what}: {near} holders are below the threshold {group.threshold}")

    def _check_signatures(self, signatures: messages.Signatures, held: _Held) -> None:
        """PeerError unless a threshold of the committee signed what this client saw.

        The committee is one for all, so all that unmask agree; holders would differ by client.

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

    def _signed_text(self, signer: int, held: _Held) -> bytes:
        """What `signer` signed if it saw what this client saw."""
        group, cohort = self._enrolment.group, held.cohort_set
        if held.survivors == held.cohort:
            return messages.cohort_text(self.scope, signer, group, cohort)
        return messages.survivor_text(self.scope, signer, group, cohort, held.survivor_set)

    def _unmask(self, held: _Held) -> bytes:
        """One share for each owner, and the other of each is dropped with the round."""
        alive = set(held.survivors)
        shares = [
            held.shares[owner].seed if owner in alive else held.shares[owner].root
            for owner in sorted(held.shares)
        ]
        return messages.encode_unmask(shares, self.scope.place, self.number)


_Step = tuple[bytes, ClientState]

# Reading: in this state, this message -> how to answer it, with the state after. Anything that is
# not listed aborts.
_TRANSITIONS: Final[
    Mapping[tuple[ClientState, MessageType], Callable[[ClientRound, bytes, _Held], _Step]]
] = {
    (ClientState.PREPARED, MessageType.COHORT): ClientRound._answer_cohort,
    (ClientState.SENT, MessageType.SURVIVORS): ClientRound._answer_survivors,
    (ClientState.SIGNED, MessageType.SIGNATURES): ClientRound._answer_signatures,
}


# A client for a whole session: what lasts from round to round.
#
#  1. Its roster is pinned, and its group is what every member signed; see setup.py.
#  2. A round's number only grows; a round that began is spent, whether it ended well or not. The
#     secrets of a round are drawn for that round, and dropped with it. The one exception is a round
#     that masked no input before the client left its set-up: the next set-up may begin it again,
#     with other secrets and other channels. A client therefore masks one input a round.
#  3. Its channels move on with every round, and serve the rounds of one epoch: whoever reads its
#     memory later opens no round that was recorded before.
#  4. It is in one set-up at a time. From its JOIN on it has left the set-up before: the server may
#     go on with a new group, under which seals of the old channels do not open.
#  5. In a sparse graph it reveals its nonce in at most MAX_SETUPS set-ups without a round that
#     ended well, and keeps a set-up that had such a round to the end of its epoch. The graph and
#     the committee follow from the nonces. The server learns them after REVEAL, and can end a
#     set-up whose graph does not suit it: the bound of 2^-40 on a bad graph is for one set-up. A
#     set-up that ends before REVEAL shows the server nothing, so it does not count, however often
#     a JOIN is lost or a site is late. In a complete graph all members are neighbours and all
#     are in the committee, whatever the seed: no limit is needed there.


MAX_SETUPS: Final = 8
"""Nonces that a client reveals in a sparse graph without a round that ended well."""


class Client(SecretHolder):
    """A client for a whole session: its identity, its floors, its channels, its rounds."""

    __slots__ = (
        "_enrolment",
        "_epoch",
        "_identity",
        "_keep",
        "_prepared",
        "_random",
        "_released",
        "_rounds",
        "_setups",
        "_unconfirmed",
        "floors",
        "number",
        "session",
    )

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        floors: Floors | None = None,
        random: RandomBytes = os.urandom,
        keep: Keep | None = None,
        memory: bytes | None = None,
    ) -> None:
        """keep: writes what must outlive this process, before anything that hangs on it leaves.

        memory: what an earlier process kept last; LocalError for what is not of this session.
        """
        if number not in session.roster:
            raise LocalError(f"client {number} is not on the pinned roster")
        if session.roster[number].raw != identity.public.raw:
            raise LocalError(f"the pinned identity of client {number} is not the one it holds")
        self.floors = floors or Floors()
        self.floors.check_session(session)
        self.number = number
        self.session = session
        self._identity = identity
        self._random = random
        self._rounds = RoundCounter()
        self._setups = 0  # nonces revealed since a round ended well
        self._released = -1  # a round that was left before it masked anything
        self._enrolment: Enrolment | None = None
        self._epoch: int | None = None
        self._prepared: Prepared | None = None
        self._unconfirmed: Prepare | None = None
        self._keep = keep
        if memory is not None:
            self._recall(Memory.decode(memory, session))

    def _recall(self, known: Memory) -> None:
        """Go on where an earlier process stood; what it had prepared for a round is lost."""
        self._rounds, self._setups = RoundCounter(known.last), known.setups
        if known.group is None:
            return
        channels = {
            peer: Channel.restored(self.session, self.number, peer, state)
            for peer, state in known.channels.items()
        }
        inputs = Authenticator(known.inputs[self.number])
        self._enrolment = Enrolment(known.group, channels, inputs)
        self._epoch = known.last // self.session.epoch if known.used else None

    def memory(self) -> bytes:
        """What must outlive this process, for a file that nobody else reads: it holds keys."""
        enrolment, states = self._enrolment, {}
        if enrolment is not None:
            states = {peer: channel.state() for peer, channel in enrolment.channels.items()}
        known = Memory(
            last=self._rounds.last,
            setups=self._setups,
            used=self._epoch is not None,
            group=None if enrolment is None else enrolment.group,
            channels=states,
            inputs={} if enrolment is None else {self.number: enrolment.authenticator.key},
        )
        return known.encode(self.session)

    def _write(self) -> None:
        if self._keep is not None:
            self._keep(self.memory())

    def open_setup(self, nonce: bytes | None = None) -> ClientSetup:
        """Begin a set-up, and leave the one in use. nonce: its part in the joint seed."""
        if self._enrolment is not None:
            self._enrolment, self._prepared, self._unconfirmed = None, None, None
            self._epoch = None
            self._write()
        return ClientSetup(
            *(self.number, self._identity, self.session, self.floors, self._random, nonce),
            self._note_reveal,
        )

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
        """Whether it keeps its set-up to the end of the epoch, as rule 5 asks of sparse graphs."""
        return self.enrolled and not self.session.complete and self._setups == 0

    @property
    def enrolled(self) -> bool:
        """Whether a set-up is in use."""
        return self._enrolment is not None

    @property
    def group(self) -> Group:
        """Of the set-up in use; LocalError before one."""
        if self._enrolment is None:
            raise LocalError(f"client {self.number} has no set-up")
        return self._enrolment.group

    def serves(self, index: int) -> bool:
        """Whether the set-up in use is that of the round's epoch."""
        epoch = index // self.session.epoch
        return self._enrolment is not None and self._epoch in (None, epoch)

    def enrol(self, setup: ClientSetup) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped."""
        self._enrolment, self._prepared, self._unconfirmed = setup.enrolment, None, None
        self._epoch = None
        if self._released == self._rounds.last >= 0:
            self._rounds = RoundCounter(self._released - 1)
        self._released = -1
        self._write()

    def open_round(self, terms: RoundTerms) -> ClientRound:
        """Begin a round; LocalError unless its number is above that of every earlier one.

        LocalError, too, for a round of another epoch than the set-up has served.
        """
        if self._enrolment is None or not self.serves(terms.index):
            raise LocalError(f"client {self.number} has no set-up to open round {terms.index} in")
        self.floors.check_terms(terms)
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        self._epoch = terms.index // self.session.epoch
        self._write()
        return ClientRound(self, scope, self._enrolment)

    def release(self, index: int) -> None:
        """Note that a round masked no input: the next set-up may begin it again (rule 2)."""
        self._released = index

    def sign(self, text: bytes) -> bytes:
        """A signature of its identity."""
        return self._identity.sign(text)

    def prepare(self, index: int, enrolment: Enrolment) -> Prepare:
        """Draw the secrets of a round, keep them for it, and give what goes to the server.

        LocalError for a round of an earlier set-up, which must not leave its secrets to this one.
        """
        if enrolment is not self._enrolment:
            raise LocalError(f"round {index} belongs to a set-up that client {self.number} left")
        place = Place(self.session.id, index)
        self._prepared, self._unconfirmed = prepare(
            enrolment.group, place, self.number, enrolment.channels, self._random
        )
        self._write()
        return self._unconfirmed

    def close(self, enrolment: Enrolment) -> None:
        """Forget, and have the file forget, the keys of a set-up that has served its epoch."""
        for channel in enrolment.channels.values():
            channel.close()
        self._write()

    def confirm(self, index: int) -> None:
        """The server has what an input carried for the round `index`: one ended before it."""
        self._setups = 0
        if self._prepared is not None and self._prepared.index == index:
            self._unconfirmed = None

    def pop_round_secrets(self, index: int) -> tuple[Prepared | None, Prepare | None]:
        """The secrets of a round, handed out once; those of a round that was skipped are lost.

        With them what the server may not have had of them: the very bytes, to be sent again.
        """
        prepared, unconfirmed = self._prepared, self._unconfirmed
        self._prepared = self._unconfirmed = None
        fits = prepared is not None and prepared.index == index
        return (prepared, unconfirmed) if fits else (None, None)
