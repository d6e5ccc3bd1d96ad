"""A site's process: set-up first, then the client's rounds; bytes in, bytes out.

Everything that a later process must not lose is in the state file before an answer leaves. Round
secrets, records and network are in this process only; the network is saved after each push that
changed it.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch

from secure_fd.crypto.keys import IdentityKey, IdentityPublic
from secure_fd.data.federated import ClientData
from secure_fd.deployment import keys, model, screen
from secure_fd.deployment.budget import Budget, bytes_of, check_left, default_ledger
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
from secure_fd.deployment.members import binding, follows, move
from secure_fd.deployment.parties import (
    CPU,
    agreed_proxies,
    encoder_in,
    kept_seed,
    parts_of,
    records_in,
)
from secure_fd.deployment.preflight import (
    SiteFiles,
    UnreachableError,
    connection_checks,
    site_checks,
)
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.deployment.shared_accuracy import AccuracyClient
from secure_fd.errors import LocalError, PeerError, SecureFDError
from secure_fd.optional import extra
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientRole
from secure_fd.secure_sum.masked import MaskedClient, masked_guarantee
from secure_fd.simulation.build import RunParts, fresh_network
from secure_fd.storage import Store
from secure_fd.training.trainer import TrainingMode, run_each, torch_settings_for

log = logging.getLogger(__name__)


class Site:
    """One site of a roster. LocalError for a state file of another session.

    folder: home of the site, where its network is saved. clock: returns seconds; for the figures
    of a round only. on_state: called with what it does from now on, the round and their number.
    done: whether the run is over.
    """

    def __init__(
        self,
        roster: RosterFile,
        parts: RunParts,
        number: int,
        identity: IdentityKey,
        data: ClientData,
        file: Store,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        on_state: Callable[[str, int, int], object] = lambda *_: None,
    ) -> None:
        self._roster, self._parts, self._number = roster, parts, number
        self._on_state = on_state
        self._identity, self._data, self._file = identity, data, file
        self._network_file, self._clock = folder / "network.pt", clock
        self._kept: model.SiteModel | None = None  # network of an earlier process
        self._sums = MaskedClient(
            number,
            identity,
            roster.session,
            keep=lambda memory: file.put({"memory": memory, **binding(roster)}),
            memory=file.get("memory"),
        )
        self._client: Client | None = None
        self._own_role: ClientRole | None = None
        self._challenge, self._attempt = b"", 0  # of the newest greeting; set-up that it joined
        self.done = False
        self._changed = False  # the network, since it was saved
        self._training: AbstractContextManager[None] = nullcontext()

    def answer(self, data: bytes) -> bytes:
        """Carry out one push and return the answer; PeerError for bytes that are no push."""
        arrived, push = self._clock(), Push.decode(data)
        sent: list[bytes] = []
        refused = False
        self._on_state(screen.TRAINING, push.round, push.rounds)
        try:
            self._carry_out(push, sent)
        except SecureFDError as error:
            refused = True
            log.warning(f"refused {push.kind.name}: {error}")
        learnt = self._changed
        if learnt:
            self._save()
        taken = self._clock() - arrived
        self._on_state(screen.SENT, push.round, push.rounds)
        if learnt and push.round:
            step = f"{self._party().shared} sent" if sent else "trained"
            right = "none" if (found := self.accuracy) is None else f"{found:.1%}"
            log.info(
                f"round {push.round} of {push.rounds}: {step} after {taken:.1f} s; accuracy on "
                f"own validation records: {right}{self._shown_mean()}"
            )
        return Answer(refused, self.position, taken, tuple(sent)).encode()

    @property
    def name(self) -> str:
        """Its name on the roster."""
        return self._roster.sites[self._number].name

    @property
    def digest(self) -> bytes:
        """Digest of all broadcasts that it has read; empty before a session."""
        return b"" if self._client is None else self._client.digest

    @property
    def position(self) -> int:
        """Broadcasts that it has read."""
        return 0 if self._client is None else self._client.position

    def _carry_out(self, push: Push, sent: list[bytes]) -> None:
        """Add answers to `sent` as they are made, so that a refusal leaves earlier ones."""
        if push.kind is PushKind.HELLO:
            self._compare_rosters(push.parts, sent)
            sent.extend(self._hello(push.parts))
            return
        if push.kind is PushKind.JOIN:
            self._join(push, sent)
            return
        # Also if it refuses what is due, as nothing will follow.
        self.done = self.done or push.kind is PushKind.END
        for data in push.parts:
            if self._client is None:
                sent.extend(self._sums.receive(data))
            else:
                self._go(partial(self._client.receive, data), sent)
        # A copy that comes within a later round would end that round here.
        if push.kind is PushKind.ALONE and self.position <= push.position:
            self._go(self._party().alone, sent)

    def _compare_rosters(self, parts: Sequence[bytes], sent: list[bytes]) -> None:
        """Refuse a greeting under another roster, so that both operators are shown why."""
        own = roster_hint(self._roster.digest)
        if len(parts) > 1 and parts[1] != own:
            sent.extend([self._identity.public.raw, own])
            found = other_roster("the server", parts[1], own)
            raise PeerError(f"{found}: ask the coordinator for its roster")

    def _hello(self, parts: Sequence[bytes]) -> list[bytes]:
        """Return its number, whether it completed the server's set-up, and a signature.

        Before the server accepted one, the site neither begins nor keeps a seed: it may be asked to
        join another set-up, and miss the end of that one.
        """
        challenge, _, *name = parts if len(parts) > 1 else (b"", b"")
        if len(challenge) != CHALLENGE_BYTES or len(name) > 1:
            raise PeerError(f"a challenge has {CHALLENGE_BYTES} bytes")
        self._challenge, self._attempt = challenge, 0
        is_set_up = name == [set_up_name(self._seed)]
        if self._client is None and is_set_up:
            self._begin()
        self._sums.greeted()
        signed = self._identity.sign(hello_text(self._roster.session.id, challenge))
        return [self._number.to_bytes(4, "big"), bytes([is_set_up]), signed]

    @property
    def _seed(self) -> bytes:
        """Seed of the set-up in which this site began, or of the newest; empty before any."""
        newest = self._sums.group.seed if self._sums.enrolled else b""
        return self._file.get("seed") or newest

    def _join(self, push: Push, sent: list[bytes]) -> None:
        """Join a set-up; another may follow before the first round, if one missed some sites.

        An invitation to an earlier one may come late, or twice: it would take this site out of the
        set-up that it has completed since.
        """
        if self._file.get("place") is not None:  # it has read a broadcast
            raise PeerError("the server asks for a set-up that was made")
        if push.parts != (self._challenge,) or push.position <= self._attempt:
            raise PeerError("an invitation to an earlier set-up came late")
        self._attempt = push.position
        self._file.put({"seed": b""})
        self._client = None
        sent.extend(self._sums.join())

    def _begin(self) -> None:
        """Make the client, now that the set-up has agreed on a seed, and train alone.

        Then take over the network that an earlier process saved.
        """
        roster, parts, number = self._roster, self._parts, self._number
        kept = self._kept = model.load(self._network_file) if self.has_network else None
        network = parts.network(number)
        if kept is not None:  # of the same form
            network = fresh_network(self._architecture, len(roster.classes), parts.seed, number)
        own = parts.own(number, network, self._data, CPU)
        setting = parts.setting(kept_seed(self._file, self._sums), CPU)
        parts.method.check(setting, [own.model])
        role: ClientRole = parts.method.client(setting, own)
        self._own_role, noise = role, parts.protection.noise_terms
        if roster.terms.share_accuracy:
            role = AccuracyClient(role, self._data.validation)
        session, server = roster.session.id, IdentityPublic(roster.identity)
        self._training = TrainingMode([own.model])
        client = Client(number, session, server, role, self._sums, noise, file=self._file)
        self._client = client
        self._go(client.start, [])
        if kept is not None and kept.architecture == self._architecture:
            self._model.load_state_dict(kept.network.state_dict())
            self._changed = False  # the file is newer than what was trained alone just now

    @property
    def _architecture(self) -> str:
        """Architecture of the network that it has, as its number may be another one since."""
        if self._kept is None or self._parts.method.shares_parameters:
            return self._parts.architectures[self._number]
        return self._kept.architecture

    def _party(self) -> Client:
        if self._client is None:
            raise PeerError("a message came before the session began")
        return self._client

    def _go(self, step: Callable[[], list[bytes]], sent: list[bytes]) -> None:
        """Run a step of the client, and the training that is due."""
        client, read = self._party(), self.position
        # A method may have left its network in evaluation mode.
        with self._training, self._threads():
            sent.extend(step())
            while client.work is not None:
                run_each([client.work])
                self._changed = True
                sent.extend(client.resume())
        # A broadcast may replace the network, or choose the head in its place.
        self._changed |= self.position != read

    @property
    def _model(self) -> torch.nn.Module:
        return self.role.learner.model

    @property
    def has_begun(self) -> bool:
        """True if the session began in this process."""
        return self._client is not None

    @property
    def has_network(self) -> bool:
        """True if a trained network is in its folder."""
        return self._network_file.exists()

    def _save(self) -> None:
        """Replace the saved network as a whole: a crash leaves the old one or the new one."""
        self._changed = False
        name, shape = self._architecture, self._roster.shape
        model.write(self._network_file, self.role, name, self._roster.classes, shape)

    def export(self, more: Mapping[str, object]) -> None:
        """Write the trained network as a program for plain PyTorch, with its card, into model/.

        more: further lines of the card.
        """
        roster, claim = self._roster, self._party().role.guarantee()
        noise = "No differential privacy: no noise is added." if claim is None else claim.sentence()
        about: dict[str, object] = {
            "federation": roster.name,
            "site": self.name,
            "method": roster.terms.method,
            "rounds": roster.terms.rounds or self._parts.recipe.rounds,
            "broadcasts": self.digest.hex()[:16],
            "records": len(self._data.train),
            "fingerprint of the records": self._fingerprint(),
            "accuracy on own validation records": self.accuracy,
            "guarantee": f"{masked_guarantee(self._sums.group, None)} {noise}",
            **more,
        }
        model.export(model.load(self._network_file), self._network_file.parent / "model", about)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of what it answers with, on its own validation records; None without any."""
        held_out = self._data.validation
        with self._threads():
            return self.role.accuracy(held_out) if len(held_out) else None

    def _threads(self) -> AbstractContextManager[None]:
        """Return torch's settings for a network and records of this size."""
        shape, device = self._data.train.pixels.shape[1:], self.role.learner.device
        return torch_settings_for([self._model], shape, device)

    def _shown_mean(self) -> str:
        mean = self.mean_accuracy
        return "" if mean is None else f"; mean of all sites in the last round: {mean:.1%}"

    def _fingerprint(self) -> str:
        """Hash of its records under a key of this home, so that no other party can compare it."""
        key = self._file.get("fingerprint")
        if key is None:
            key = os.urandom(32)
            self._file.put({"fingerprint": key})
        whole = hashlib.blake2b(key=key, digest_size=8)
        for record in sorted(bytes_of(self._data)):
            whole.update(record)
        return whole.hexdigest()

    @property
    def role(self) -> ClientRole:
        """Client role of the method; PeerError before the session began."""
        self._party()
        return cast(ClientRole, self._own_role)

    @property
    def mean_accuracy(self) -> float | None:
        """The newest mean accuracy over sites, where they share it."""
        role = self._party().role
        return role.mean if isinstance(role, AccuracyClient) else None


@dataclass(frozen=True, slots=True)
class JoinCommand(SiteFiles):
    """Take part in the rounds of a roster; the trained model is in the folder model of the home."""

    ledger: Path | None = None
    """File that counts the epsilon of these records over all federations; by default beside the
    records, by their folder's name."""
    budget: float | None = None
    """Most epsilon of one record over all federations, set when the ledger is made; by default that
    of its first roster."""
    patience: float = 86400.0
    """Seconds without a server after which it stops; by default a day."""

    def __call__(self) -> int:
        """Take part until the run is over, and return the exit status.

        Raises ConfigurationError where roster, records or proxy samples are not what was agreed
        on, and where the ledger does not allow the roster's epsilon; LocalError where the server
        cannot be reached, and where the run ends before this site trained a network;
        MissingCapabilityError without the extra, or without the ML-KEM-768 that the roster asks
        for.
        """
        with extra("flower"):
            from secure_fd.deployment.flower import attend

        roster, home = self.roster.resolve(), keys.home_of(self.home, self.data)
        agreed = read(roster)
        list(site_checks(agreed, self.data, home))
        check = partial(connection_checks, agreed)
        with suppress(UnreachableError):  # it may come later
            list(check())
        with closing(keys.open_state(home)) as file:
            chosen = Budget(self.ledger or default_ledger(self.data), self.budget)
            shown = screen.OwnScreen()
            site = site_of(home, self.data, agreed, self.public(), file, chosen, shown.note)
            encoder = encoder_in(self.data)
            certificate = keys.certificate_of(agreed, home)
            done, patience = lambda: site.done, self.patience
            try:
                with shown.live(site.name):
                    attend(agreed.address, certificate, site.answer, done, patience, check)
            finally:
                if site.has_begun and site.has_network:
                    site.export(encoder)
        if not site.has_network:
            raise LocalError(
                "the run is over and this site has no network: no round gave it a result to train"
            )
        log.info(f"the model is {home / 'model'}; secure-fd predict uses it")
        log.info(f"ended; digest of all broadcasts {site.digest.hex()[:16]}")
        return 0


def site_of(
    home: Path,
    data: Path,
    agreed: RosterFile,
    proxies: Path,
    file: Store,
    budget: Budget,
    on_state: Callable[[str, int, int], object] = lambda *_: None,
) -> Site:
    """Make the site from its files."""
    identity = keys.identity_in(file)
    number = agreed.number_of(identity.public.raw)
    public = agreed_proxies(proxies, agreed)
    records = records_in(data, agreed, number)
    ledger = budget.ledger(agreed, number, records, file)
    parts = parts_of(agreed, public, None if ledger is None else {number: ledger})
    begun = file.get("place") is not None and not follows(file, agreed)
    if ledger is not None:
        check_left(ledger, parts.protection, begun=begun)
    move(file, agreed)  # last, since a roster that is refused must not end a session
    return Site(agreed, parts, number, identity, records, file, home, on_state=on_state)
