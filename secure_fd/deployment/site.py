"""A participant across pushes, in one process: set-up first, then the client's rounds.

A site reads bytes and gives bytes; which transport brought them it does not know. Everything that a
later process of it must not forget is in its state file before an answer leaves. Round secrets,
records and network are in this process alone; the network is saved after each push that changed it.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch

from secure_fd.crypto.keys import IdentityKey, fields
from secure_fd.data.federated import ClientData
from secure_fd.deployment import site_network
from secure_fd.deployment.envelope import PROCESS_BYTES, Answer, AnswerState, Push, PushKind
from secure_fd.deployment.parties import Agreement, kept_seed
from secure_fd.errors import BudgetError, LocalError, MissingCapabilityError, PeerError
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientRole
from secure_fd.secagg.client import Client as SumMember
from secure_fd.secure_sum.masked import MaskedClient
from secure_fd.storage import Store
from secure_fd.training.trainer import TrainingMode, run_each, threads_for

log = logging.getLogger(__name__)
_REFUSALS = (PeerError, LocalError, BudgetError, MissingCapabilityError)
_HELLO = b"secure-fd site"
CHALLENGE_BYTES = 32


def hello_text(session: bytes, challenge: bytes, process: bytes) -> bytes:
    """What a site signs to say which of the roster it is, to whoever asked with this challenge."""
    return fields(_HELLO, session, challenge, process)


class Site:
    """One participant.

    folder: of its own files, where its network is saved. pushes, refusals: so many, for its
    operator. Raises LocalError for a state file of another session.
    """

    def __init__(
        self,
        agreement: Agreement,
        number: int,
        identity: IdentityKey,
        data: ClientData,
        file: Store,
        folder: Path,
    ) -> None:
        self.agreement, self.number = agreement, number
        self.pushes = self.refusals = 0
        self._identity, self._data, self._file = identity, data, file
        self._network_file = folder / "network.pt"
        self._member = SumMember(
            number,
            identity,
            agreement.roster.session,
            keep=lambda memory: file.put({"memory": memory}),
            memory=file.get("memory"),
        )
        self._sums = MaskedClient(self._member)
        self._half: ClientRole | None = None
        self._client: Client | None = None
        self._process = os.urandom(PROCESS_BYTES)
        self._at = -1
        self._begun, self.done = False, False
        self._unsaved = False
        self._training: AbstractContextManager[None] = nullcontext()

    def answer(self, data: bytes) -> bytes:
        """Carry out one push. PeerError for bytes that are none; nothing is done then."""
        arrived, push = time.monotonic(), Push.decode(data)
        if push.at <= self._at:
            return self._say(AnswerState.STALE, push, arrived, [])
        self._at = push.at
        self.pushes += 1
        sent: list[bytes] = []
        state = AnswerState.DONE
        try:
            self._carry_out(push, sent)
        except _REFUSALS as error:
            state = AnswerState.REFUSED
            self.refusals += 1
            log.warning("refused", extra={"reason": str(error), "push": push.kind.name})
        if self._unsaved:
            self._save()
        return self._say(state, push, arrived, sent)

    def _say(self, state: AnswerState, push: Push, arrived: float, parts: Sequence[bytes]) -> bytes:
        taken, process = time.monotonic() - arrived, self._process
        return Answer(state, push.at, process, self.position, taken, tuple(parts)).encode()

    @property
    def told(self) -> bytes:
        """The digest of all broadcasts that it has read; empty before a session."""
        return b"" if self._client is None else self._client.told

    @property
    def position(self) -> int:
        """Broadcasts that it has read."""
        return 0 if self._client is None else self._client.position

    def _carry_out(self, push: Push, sent: list[bytes]) -> None:
        """Answers are put into `sent` as they are made, so that a refusal leaves earlier ones."""
        match push.kind:
            case PushKind.HELLO:
                sent.extend(self._hello(push.parts))
            case PushKind.JOIN:
                self._join(sent)
            case PushKind.BEGIN:
                self._begin(sent)
            case PushKind.ALONE:
                self._go(self._party().alone, sent)
            case PushKind.CARRY:
                self._carry(push.parts, sent)
            case PushKind.END:
                self.done = True  # it would wait for nothing, also where it refuses what is due
                self._carry(push.parts, sent)
                if self._begun and self.has_network:  # a last result may replace what was trained
                    self._save()

    def _hello(self, parts: Sequence[bytes]) -> list[bytes]:
        """Number, whether it came to the end of a set-up, and a signature."""
        if len(parts) != 1 or len(parts[0]) != CHALLENGE_BYTES:
            raise PeerError(f"a challenge has {CHALLENGE_BYTES} bytes")
        if self._client is None and self._is_set_up:
            self._open()
        session = self.agreement.roster.session.id
        signed = self._identity.sign(hello_text(session, parts[0], self._process))
        number, enrolled = self.number.to_bytes(4, "big"), bytes([self._is_set_up])
        return [number, enrolled, signed]

    @property
    def _is_set_up(self) -> bool:
        """Whether it came to the end of a set-up, also while it joins another one."""
        return self._member.enrolled or bool(self._file.get("seed"))

    def _join(self, sent: list[bytes]) -> None:
        """Join a set-up; before it begins another may follow, where one did not reach all sites."""
        if self._is_set_up:
            if self._client is None:
                self._open()  # a new process: it knows now whether it has read a broadcast
            if self._begun or self.position:
                raise PeerError("the server asks for a set-up that was made")
            self._file.put({"seed": b""})
        self._client = self._half = None
        self._sums = MaskedClient(self._member)
        sent.extend(self._sums.join())

    def _open(self) -> Client:
        """The client and its half, once the set-up has agreed on a seed."""
        seed = kept_seed(self._file, self._member)
        self._half = self.agreement.half(self.number, self._data, seed)
        self._training = TrainingMode([self._model])
        self._client = self.agreement.client(self.number, self._half, self._sums, self._file)
        return self._client

    def _begin(self, sent: list[bytes]) -> None:
        """Learn alone; then take over the network that an earlier process saved."""
        if not self._is_set_up:
            raise PeerError("the server begins before a set-up was made")
        client = self._client or self._open()
        if self._begun:  # it is another life of the server that asks
            return
        self._begun = True
        self._go(client.start, sent)
        if self.has_network:
            kept = site_network.load_site_network(self._network_file)
            self._model.load_state_dict(kept.network.state_dict())
            self._unsaved = False  # the file is newer than what was learnt alone just now

    def _party(self) -> Client:
        if self._client is None:
            raise PeerError("a message came before the session began")
        return self._client

    def _carry(self, parts: Sequence[bytes], sent: list[bytes]) -> None:
        for data in parts:
            if self._client is None:
                sent.extend(self._sums.receive(data))
            else:
                client = self._client
                self._go(partial(client.receive, data), sent)

    def _go(self, step: Callable[[], list[bytes]], sent: list[bytes]) -> None:
        """Let the client go on, and run the training that is due."""
        client, read = self._party(), self.position
        shape, device = self._data.train.pixels.shape[1:], self.half.learner.device
        threads = threads_for([self._model], shape, device)
        with self._training, threads:  # a method may have left its network as one that is asked
            sent.extend(step())
            while client.work is not None:
                run_each([client.work])
                self._unsaved = True
                sent.extend(client.resume())
        # A broadcast may replace the network, or choose the head in its place.
        self._unsaved |= self.position != read

    @property
    def _model(self) -> torch.nn.Module:
        return self.half.learner.model

    @property
    def has_network(self) -> bool:
        """Whether a trained network is in its folder."""
        return self._network_file.exists()

    def _save(self) -> None:
        """Replace the saved network whole, so that a crash leaves the old one or the new one."""
        self._unsaved = False
        roster, name = self.agreement.roster, self.agreement.architecture(self.number)
        site_network.write(self._network_file, self.half, name, roster.classes, roster.shape)

    @property
    def half(self) -> ClientRole:
        """The method's half; LocalError before the session began."""
        if self._half is None:
            raise LocalError("there is no half before the session began")
        return self._half
