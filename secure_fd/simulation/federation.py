"""The courier for one process: it hands bytes between parties, trains, and evaluates.

No rule of a method, sum or privacy mechanism stands here: another courier carries the same bytes
over a network. A client that refuses a message is silent for the rest of the round.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.public_draws import joint_seed, public_nonces
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images, pixel_bytes, proxy_pixels
from secure_fd.errors import BudgetError, ConfigurationError, LocalError, PeerError
from secure_fd.methods.base import Method
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.privacy.guarantee import Guarantee, weakest
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Outbound, Server
from secure_fd.protocol.transcript import (
    Float32Array,
    ObservedRound,
    RoundReport,
    Transcript,
    observed,
)
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.build import PublicFacts, RunParts, checked, named_recipe
from secure_fd.simulation.checks import check_parties, check_test, device_of
from secure_fd.training.recipes import Schedule
from secure_fd.training.trainer import (
    Steps,
    TrainingMode,
    default_device,
    run_each,
    torch_settings_for,
)
from secure_fd.votes.codec import FloatArray, contributors
from secure_fd.wire import Stage

StepRunner = Callable[[Sequence[Steps]], None]
_LOG = logging.getLogger("secure_fd")
_REFUSALS = (PeerError, LocalError, BudgetError)
"""Exceptions with which a client rejects a message."""


_STAGES: Final = tuple(Stage)


@dataclass(frozen=True, slots=True)
class Dropouts:
    """Every client drops out of every round by itself, at a stage that is as likely as any other.

    rate: chance in [0, 1) of one client in one round. seed: 0 or more; it decides the whole plan.

    >>> Dropouts(0.0, seed=0).plan(0, 4)
    {}
    """

    rate: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ConfigurationError("rate", self.rate, "use a number from 0 to less than 1")
        if self.seed < 0:
            raise ConfigurationError("seed", self.seed, "use 0 or more")

    def plan(self, round_index: int, n_clients: int) -> dict[int, Stage]:
        """Return, for each client that drops out of the round, the first stage that it misses."""
        rng = np.random.default_rng((self.seed, round_index))
        lost = rng.random(n_clients) < self.rate
        stages = rng.integers(len(_STAGES), size=n_clients)
        return {int(k): _STAGES[stages[k]] for k in np.flatnonzero(lost)}


class Federation:
    """Clients and a server of any method in one process, over the real bytes.

    Set `trainer` before the first round to run training steps otherwise, and the fields of
    `transcript` to record more than by default.

    Args:
        networks: one for each client, not shared.
        clients: their private records.
        proxies: public pixels [P, ...]; a method that needs none does not receive them.
        method: an instance.
        aggregation: the secure sum; in clear by default.
        protection: the privacy mechanism; none by default.
        schedule: training steps; by default those of `recipe`.
        dropouts: simulated faults; a client that drops out is away for the rest of the round.
        releases_per_pair: how often a client answers one proxy in all; None: once a round. A survey
            of known proxies is one of these answers, and is not made before votes where it is 1.
        seed: of training, and of the proxies' draw where clients do not draw them together.
        device: by default a GPU where there is one.

    Example:
        >>> from secure_fd import SelectiveFD, federate, load, models, parse_split
        >>> data = federate(load("digits"), parse_split("strong"), 3, seed=0)
        >>> networks = [models.build("cnn-5-5-50", 10, seed=k) for k in range(3)]
        >>> run = Federation(networks, data.clients, data.proxies.pixels, SelectiveFD())
        >>> run.method.name
        'Selective-FD soft'
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        clients: Sequence[ClientData],
        proxies: Tensor | None,
        method: Method,
        *,
        aggregation: SecureSum | None = None,
        protection: PrivacyMechanism | None = None,
        schedule: Schedule | None = None,
        dropouts: Dropouts | None = None,
        releases_per_pair: int | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        n = len(clients)
        self.method, self.models, self.data = checked(method), list(networks), list(clients)
        self._device = default_device() if device is None else device_of(device)
        proxies = proxies if self.method.needs_proxies else None
        check_parties(networks, clients, proxies, seed)
        facts = PublicFacts.of_clients(clients, proxies)
        self.recipe = named_recipe("ours", method, facts)
        """Rounds and schedule by default."""
        if not isinstance(schedule, Schedule | None):
            raise ConfigurationError("schedule", schedule, "use a Schedule")
        if isinstance(aggregation, str):
            raise ConfigurationError("aggregation", aggregation, "use a SecureSum, as MaskedSum is")
        steps = (schedule or self.recipe.schedule).fitted(facts.n_proxies)
        self.protection, self.aggregation = protection or NoProtection(), aggregation or PlainSum(n)
        if self.aggregation.n_clients != n:
            made = self.aggregation.n_clients
            raise ConfigurationError("aggregation", made, f"make it for {n} clients")
        recipe = replace(self.recipe, schedule=steps)
        parts = RunParts(self.method, self.protection, recipe, facts, seed, releases_per_pair)
        parts.check_sum(self.aggregation)
        joint = self.aggregation.seed or joint_seed(public_nonces(seed, n))
        self._setting = parts.setting(joint, self._device)
        self.method.check(self._setting, networks)
        pairs = enumerate(zip(networks, clients, strict=True))
        owns = [parts.own(k, model, data, self._device) for k, (model, data) in pairs]
        self.roles = [self.method.client(self._setting, own) for own in owns]
        self.server_role = self.method.server(self._setting, networks[0])
        self.trainer: StepRunner = run_each
        """Runs the training steps that are due, each whole (examples/own_trainer.py)."""
        self.transcript = Transcript(n)
        self._connect()
        self._dropouts = dropouts or Dropouts(0.0, seed=0)
        self._away: Mapping[int, Stage] = {}
        self._silent: dict[int, Stage] = {}  # from which stage on a client that refused is silent
        self._refusals: dict[int, str] = {}
        self._seen: list[ObservedRound[None]] = []  # the sums of this round
        self._inputs: dict[int, bytes] = {}  # that the server took, as they were sent
        self._inputs_of: RoundTerms | None = None  # the sum that they are of
        self._answered = np.zeros(2)
        self._training = TrainingMode(networks)
        self._next = 0
        self.begun = False
        """True if the first round was prepared: networks warmed up, and releases counted."""

    def _connect(self) -> None:
        """Make client and server parties of the roles."""
        sums, noise = self.aggregation, self.protection.noise_terms
        key = IdentityKey.generate(os.urandom)
        self.clients = [
            Client(k, sums.session, key.public, role, sums.client(k), noise)
            for k, role in enumerate(self.roles)
        ]
        everyone = tuple(range(len(self.clients)))
        self.server = Server(everyone, sums.session, key, self.server_role, sums.server(), noise)

    @property
    def global_parameters(self) -> Float32Array | None:
        """[m] of the server's newest global model; None where the method has none."""
        return self.server_role.parameters()

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of all releases so far, the weakest one of all clients.

        None where nothing is.
        """
        return weakest(claim for role in self.roles if (claim := role.guarantee()))

    def accuracies(self, test: Images) -> list[float]:
        """Every client's accuracy on images that no part of the run has seen.

        Raises ConfigurationError for what is no `Images` of the records' shape.
        """
        check_test(test, self._setting.shape)
        held = test.to(self._device)
        with self._threads():
            return [role.accuracy(held) for role in self.roles]

    def answers(self, test: Images) -> list[FloatArray]:
        """Every client's scores [N, C] of the images; ConfigurationError as for `accuracies`."""
        check_test(test, self._setting.shape)
        held = test.pixels.to(self._device)
        with self._threads():
            return [role.answers(held) for role in self.roles]

    def fit(self, rounds: int | None = None) -> list[RoundReport]:
        """Run `rounds` rounds, by default the recipe's, and return their reports."""
        return list(self.rounds(self.recipe.rounds if rounds is None else rounds))

    def rounds(self, count: int) -> Iterator[RoundReport]:
        """Run rounds; each is reported when every client has learnt from it.

        A client that sends something bad, or refuses what it was sent, costs itself the round, and
        the report names it; only where no client at all can begin, the first one's error is raised.

        The first call warms up and prepares the protection. A later one goes on where the last
        one ended: what was released stays released, and no round's number is used twice.
        Between rounds and after them networks are in evaluation mode.
        """
        if not isinstance(count, int):
            raise ConfigurationError("rounds", count, "use a whole number")
        if count < 0:
            raise ConfigurationError("rounds", count, "use 0 or more")
        return self._rounds(count)

    def _rounds(self, count: int) -> Iterator[RoundReport]:
        if not self.begun:
            with self._training, self._threads():
                self._begin()
        for _ in range(count):
            with self._training, self._threads():
                report = self._round()
            came = "aborted" if report.aborted else f"{report.kept:.0%} of proxies distilled"
            there = len(report.survivors), len(self.clients)
            _LOG.info("round %d: %s; %d of %d clients in the sum", report.index, came, *there)
            yield report

    def _threads(self) -> AbstractContextManager[None]:
        return torch_settings_for(self.models, self._setting.shape, self._device)

    def _begin(self) -> None:
        proxies = self._setting.proxies
        if proxies is not None:
            self.protection.agree(len(proxies), self._setting.n_classes)
            sent = self.transcript.proxies_bytes
            self.transcript.broadcast(pixel_bytes(proxy_pixels(proxies)) if sent is None else sent)
        spent = self.aggregation.setup_traffic
        for k in range(len(self.clients)):
            self.transcript.up[k] += spent.up.get(k, 0)
            self.transcript.down[k] += spent.down.get(k, 0)
        reasons = [
            reason
            for k, client in enumerate(self.clients)
            if (reason := self._ask(k, client.start))
        ]
        if len(reasons) == len(self.clients):
            raise reasons[0]
        self._work()
        self._until_idle()
        self.begun = True

    def _round(self) -> RoundReport:
        index, self._next = self._next, self._next + 1
        self._seen = []
        self._away = self._dropouts.plan(index, len(self.clients))
        self._silent, self._refusals = {}, {}
        asked = self.server.begin()
        self._carry(asked)
        if not asked:
            for client in self.clients:
                self._ask(client.number, client.alone)
            self._work()
        self._until_idle()
        return self._report(index)

    def _until_idle(self) -> None:
        while self.server.busy:
            terms, position = self.server.terms, len(self._seen)
            inputs = self._inputs if self._inputs_of is terms else {}
            out = self.server.advance()
            if terms is not None and len(self.server.results) > position:
                made, n = self.server.results[-1], len(self.clients)
                self._seen.append(observed(self._next - 1, position, terms, n, made, inputs))
            self._carry(out)

    def _carry(self, out: Outbound) -> None:
        """Hand messages to clients one by one, so that one masked input exists at a time."""
        stage, open_now = self.server.sums.stage, self.server.busy
        for k, messages in sorted(out.items()):
            if not self._reached(k, stage, open_now):
                if not open_now or self._away.get(k) is Stage.PREPARE:
                    self.server.returned(k, self.clients[k].position)
                continue
            for data in messages:
                if k not in self._silent:
                    self.transcript.down[k] += len(data)
                    self._ask(k, partial(self.clients[k].receive, data))
        self._work()

    def _work(self) -> None:
        """Train what is due, then let every client go on, until none has training left."""
        while due := [client for client in self.clients if client.work is not None]:
            self.trainer([client.work for client in due if client.work is not None])
            for client in due:
                self._ask(client.number, client.resume)

    def _ask(self, client: int, step: Callable[[], Sequence[bytes]]) -> Exception | None:
        """Let a client go on, and hand over its answers; what it raised, where it refused."""
        stage = self.server.sums.stage
        try:
            replies = step()
        except _REFUSALS as error:
            self._silent[client], self._refusals[client] = stage, str(error)
            return error
        for data in replies:
            if self._answers(client):
                self.transcript.up[client] += len(data)
                sums = self.server.sums
                due = sums.stage is Stage.INPUT and client in sums.waiting
                self.server.receive(client, data)
                if due and self.transcript.keep_inputs and client not in self.server.refused:
                    if self._inputs_of is not self.server.terms:
                        self._inputs, self._inputs_of = {}, self.server.terms
                    self._inputs[client] = data
        return None

    def _answers(self, client: int) -> bool:
        """Return whether a client's message of the stage that is open reaches the server."""
        limit = self._away.get(client)
        return limit is None or _STAGES.index(self.server.sums.stage) < _STAGES.index(limit)

    def _reached(self, client: int, stage: Stage, open_now: bool) -> bool:
        """Return whether a message reaches a client: a silent one receives no later stage."""
        limit = self._away.get(client)
        if limit is None:
            return True
        if limit is Stage.PREPARE:
            return False
        if open_now:
            return _STAGES.index(stage) <= _STAGES.index(limit)
        return self.server.aborted and _STAGES.index(stage) < _STAGES.index(limit)

    def _report(self, index: int) -> RoundReport:
        result, aborted = self.server.last, self.server.aborted
        missing = self._missing()
        survivors = () if result is None else result.survivors
        for seen in self._seen:
            self.server_role.record(seen, self.transcript)
        if result is not None or aborted:
            self.transcript.close(None if aborted else survivors, missing)
        refused = self.server.refused | self._refusals
        self.transcript.refused |= refused
        single, some = self._alone(survivors)
        self._answered += (single, some)
        return RoundReport(
            index=index,
            kept=0.0 if aborted else self._kept(),
            single=single / max(1, some),
            bytes_up=float(self.transcript.up.mean()),
            bytes_down=float(self.transcript.down.mean()),
            survivors=survivors,
            missing=tuple(missing.items()),
            aborted=aborted,
            why=self.server.why,
            refused=tuple(sorted(refused.items())),
        )

    def _missing(self) -> dict[int, Stage]:
        """For each client that left the sum early, the stage at which it left, as the sum noticed.

        In ascending order of clients.
        """
        server, noticed = self.server, self.server.sums.missing
        if server.aborted and noticed:
            return dict(sorted(noticed.items()))
        survivors = () if server.last is None else server.last.survivors
        refused = dict.fromkeys(server.refused, server.sums.stage) | self._silent
        left = {k: s for k, s in refused.items() if k in noticed or k not in survivors}
        silent = {**left, **self._away}
        return {k: noticed.get(k, stage) for k, stage in sorted(silent.items())}

    def _kept(self) -> float:
        """Share of the round's proxies, or of the held classes, that clients distil from."""
        kept = self.server_role.kept
        if kept is not None:
            return kept
        distilled = np.concatenate([role.has_target for role in self.roles])
        return float(distilled.mean()) if len(distilled) else 0.0

    def _alone(self, survivors: Sequence[int]) -> tuple[int, int]:
        """At how many proxies one survivor gave nearly the whole count, and any of them some."""
        units = [self.roles[k].units for k in survivors]
        return contributors([own for own in units if own is not None], self._setting.n_classes)

    @property
    def single_contributors(self) -> float:
        """Share of the answered proxies of all rounds at which one client gives the count, nearly.

        No sum can hide such a client's answer, only whose it is. Only the clients know this figure.
        """
        return float(self._answered[0] / max(1.0, self._answered[1]))
