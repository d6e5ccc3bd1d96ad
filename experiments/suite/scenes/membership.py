"""Whole runs of every protocol row on the membership game's records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core import base
from attacks.core.fit import label_function
from attacks.core.scoring import score_scores
from attacks.core.statistics import auc_bound, tpr_bound
from attacks.core.view import (
    Capability,
    LabelOracle,
    Oracle,
    Public,
    View,
    client_view,
    outsider_view,
    server_view,
)
from attacks.membership import label_shadows
from attacks.membership import shadows as membership
from attacks.membership.label_only import LabelOnlyGap
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from attacks.membership.overfitted import all_training
from attacks.on_run import labelled, public_of
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Job, Scene, Turn, noted
from secure_fd.data.federated import ClientData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.protocol.transcript import Transcript
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import accuracy, predict


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Selective-FD, or of FedAvg where it has no labels.

    noise: in steps, or of a unit.
    """

    label: str
    labels: Labels | None = None
    masks: bool = False
    noise: Literal["", "steps", "label"] = ""


_ROWS: Mapping[str, Row] = {
    "fedavg": Row("FedAvg"),
    "fedavg-dp-sgd": Row("FedAvg + DP-SGD", noise="steps"),
    "selective-fd-soft": Row("Selective-FD soft", "soft"),
    "selective-fd-hard": Row("Selective-FD hard", "hard"),
    "selective-fd-hard-masks": Row("Selective-FD hard + masks", "hard", masks=True),
    "selective-fd-hard-dp-label": Row("Selective-FD hard + DP label unit", "hard", noise="label"),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the game is.

    runs: whole federations. candidates: a client's of each class, half of them in each run.
    canaries: of these, mislabelled; half of these too. proxies: of each class. rounds: of
    distillation, all of which ask about all proxies. fedavg_steps: local, a round. Clients of both
    kinds of protocol take `private_steps` on their records, and distilling ones further steps on
    proxies.
    """

    runs: int
    clients: int
    candidates: int
    canaries: int
    proxies: int
    rounds: int
    fedavg_steps: int
    schedule: Schedule

    @property
    def private_steps(self) -> int:
        """Steps on private records that a client takes in the whole run."""
        return self.schedule.warmup_steps + self.rounds * self.schedule.local_steps


FULL = Scale(
    runs=16,
    clients=5,
    candidates=22,
    canaries=2,
    proxies=50,
    rounds=8,
    fedavg_steps=10,
    schedule=Schedule(100, 5, 6, 500, sgd=SGD(local_batch=32, distillation_batch=32)),
)
QUICK = Scale(
    runs=6,
    clients=3,
    candidates=10,
    canaries=2,
    proxies=20,
    rounds=2,
    fedavg_steps=10,
    schedule=Schedule(10, 5, 4, 200, sgd=SGD(local_batch=16, distillation_batch=16)),
)
"""For a look: the last digits of every figure are noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What all rows of a seed share. test: for accuracy alone.

    indirect: by client, with the neighbours of its candidates.
    """

    scale: Scale
    game: membership.Game = field(repr=False)
    public: Public = field(repr=False)
    test: Images = field(repr=False)
    indirect: tuple[membership.IndirectMembership, ...] = field(repr=False)

    @property
    def candidates(self) -> list[tuple[int, base.Labelled]]:
        """Every client with its candidates."""
        return [(k, self.game.pool.candidates_of(k)) for k in range(self.scale.clients)]


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A run. networks: by client, the one that is deployed there; none where nobody may ask it.

    accuracy: mean over clients on the test images; None where no network was trained.
    """

    transcript: Transcript
    networks: tuple[nn.Module, ...] = field(default=(), repr=False)
    accuracy: float | None = None


_Members = tuple[list[nn.Module], list[ClientData]]
"""Networks and records of the clients."""


def play(made: Prepared, row: Row, job: Job, seed: int, run: int) -> Played:
    """One whole run of a row, on the records that the game gives it."""
    own = base.substream(seed, f"run {run}")
    # A network a client, of the one architecture; the same for every row of a run.
    networks = [
        made.public.architecture(base.substream(own, f"network {k}"))
        for k in range(made.scale.clients)
    ]
    clients = clients_of(made, run)
    if row.labels is None:
        return _fedavg(made, row, job, (networks, clients), own)
    protection: PrivacyMechanism = NoProtection()
    if row.noise:
        protection = LabelUnit(job.epsilon, job.delta)
    runner = Federation(
        networks,
        clients,
        made.public.proxies,
        SelectiveFD(row.labels),
        aggregation=(MaskedSum(len(clients), public_seed=own) if row.masks else None),
        protection=protection,
        schedule=made.scale.schedule,
        seed=own,
    )
    runner.fit(made.scale.rounds)
    reached = float(np.mean(runner.accuracies(made.test)))
    return Played(runner.transcript, tuple(runner.models), reached)


def _fedavg(made: Prepared, row: Row, job: Job, members: _Members, own: int) -> Played:
    scale = made.scale
    private = None
    if row.noise:
        batch = scale.schedule.sgd.local_batch
        private = PrivateSGD(job.epsilon, job.delta, scale.private_steps, batch=batch)
    # Six megabytes a run at full scale: the server keeps what it saw, and so does its attacker.
    steps = Schedule(local_steps=scale.fedavg_steps, proxy_steps=0, sgd=scale.schedule.sgd)
    runner = Federation(*members, None, FedAvg(private=private), schedule=steps, seed=own)
    runner.transcript.keep_uploads = True
    runner.fit(scale.private_steps // scale.fedavg_steps)
    final = runner.models[0]
    return Played(runner.transcript, (final,) * scale.clients, accuracy(final, made.test))


def clients_of(made: Prepared, run: int) -> list[ClientData]:
    """Who holds what in a run. All of it trains: nothing is held back, so that members are."""
    game, count = made.game, range(made.scale.clients)
    return [all_training(game.records(run, k), made.public.n_classes) for k in count]


_DIRECT = (membership.LiRA, membership.RMIA, membership.LossThreshold)
_TARGETS = [0, 1]
"""Runs that the gap attack is aimed at: one pair, so each candidate is inside one of them."""
_BROADCAST = base.Words(
    "indirect-broadcast",
    "Membership: ensembles on nearby proxies",
    membership.IndirectMembership.figure_name,
    membership.IndirectMembership.control_name,
)
_UNCAPPED = 1_000_000
_CANARIES = ("lira", "lira-upload", "indirect")
"""Attacks whose figure on mislabelled canaries is a finding of its own."""
_LEAST_CANARIES = 50
"""With 15, scores that are all equal had an area of .78 by the random order of ties alone."""
_DEPLOYED = (
    "asks the networks that clients deploy, each trained on its client's few records: the protocol "
    "needs no such query and protects against none"
)
_ONE_ANSWER = "the label unit's ε is of one shared answer: it bounds no membership"
_UNCOVERED = f"{_ONE_ANSWER}, and covers no query to a network"


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """All runs of a row, and who may see what of them.

    answers: by run and client, the deployed network's probabilities. facts: details of all results.
    """

    made: Prepared
    row: Row
    seed: int
    runs: tuple[Played, ...]
    answers: tuple[tuple[Oracle, ...], ...]
    facts: Mapping[str, float]

    @classmethod
    def of(cls, made: Prepared, row: Row, job: Job, seed: int) -> "Arena":
        """Play all runs of a row; probabilities are computed once however many attacks ask."""
        game = made.game
        played = []
        for run in game.runs:
            played.append(play(made, row, job, seed, run))
        answers = tuple(
            tuple(Oracle(partial(_probabilities, network), _UNCAPPED) for network in run.networks)
            for run in played
        )
        facts = _facts(row, job, played)
        return cls(made, row, seed, tuple(played), answers, facts)

    def caveats(self, name: str) -> tuple[str, ...]:
        """What an attack's figure must be read with in this row."""
        direct = name.startswith(("label-only", *(kind.name for kind in _DIRECT)))
        if self.row.labels is None:
            return ()
        deployed = (_DEPLOYED,) if direct else ()
        if self.row.noise != "label":
            return deployed
        asked = self.made.scale.schedule.proxies_per_round
        many = f"{_ONE_ANSWER}, and each client gave {asked:,}"
        return (*deployed, _UNCOVERED if direct else many)

    def outside(self, run: int, client: int | None) -> View:
        """Someone who asks the network that is deployed at a client, counted anew."""
        public, answers = self.made.public, self.answers[run]
        oracles: dict[Capability, Oracle] = {}
        if answers and client is not None:
            most = len(self.made.game.pool.of(client)) + len(public.proxies)
            oracles[Capability.QUERY_SCORES] = Oracle(answers[client], most)
        return outsider_view(self.runs[run].transcript, public, oracles)

    def labels(self, run: int, client: int | None) -> View:
        """Someone who is told the labels alone of the network that is deployed at a client."""
        networks = self.runs[run].networks
        oracles: dict[Capability, Oracle] = {}
        if networks and client is not None:
            answer = label_function(networks[client])
            oracles[Capability.QUERY_FINAL_MODEL] = LabelOracle(answer, _UNCAPPED)
        return outsider_view(self.runs[run].transcript, self.made.public, oracles)

    def server(self, run: int, client: int | None) -> View:  # noqa: ARG002 - of all clients
        """The server, honest but curious."""
        return server_view(self.runs[run].transcript, self.made.public)

    def client(self, run: int, client: int | None) -> View:  # noqa: ARG002 - the same for all
        """A curious client, who is sent what everybody is sent."""
        return client_view(self.runs[run].transcript, self.made.public)

    def played_out(
        self,
        attacks: Sequence[membership.ShadowAttack],
        view: Callable[[int, int | None], View],
        named: base.Titled | None = None,
    ) -> tuple[base.AttackResult, ...]:
        """One attack, in a part a client, on every run. named: where its own name is taken."""
        words = named or attacks[0]
        game = self.made.game
        scores, queries = np.empty(game.inside.shape), 0
        for attack in attacks:
            views = [view(run, attack.client) for run in game.runs]
            estimate = membership.play_all(
                attack, views, game, base.substream(self.seed, words.name)
            )
            scores[:, game.pool.of(attack.client)] = estimate.values
            queries += estimate.queries
        estimate = base.Scores(scores, queries=queries)
        return self._reported(words, estimate, game.inside, game.pool.mislabelled)

    def gaps(self, attacks: Sequence[LabelOnlyGap]) -> tuple[base.AttackResult, ...]:
        """Score the gap attack, in a part a client, on the first pair of runs."""
        game, first = self.made.game, attacks[0]
        seen = [
            [attack.run(self.labels(run, k), self.seed) for k, attack in enumerate(attacks)]
            for run in _TARGETS
        ]
        runs = [base.pooled(each) for each in seen]
        estimate = base.Scores(
            np.stack([run.values for run in runs]),
            right=np.stack([run.right for run in runs if run.right is not None]),
            threshold=runs[0].threshold,
            queries=sum(run.queries for run in runs),
        )
        # The control of a game: its own, for all attacks alike.
        words = base.Words(
            first.name, first.title, membership.LiRA.figure_name, membership.LiRA.control_name
        )
        return self._reported(words, estimate, game.inside[_TARGETS], game.pool.mislabelled)

    def _reported(
        self,
        words: base.Titled,
        estimate: base.Scores,
        inside: base.BoolArray,
        canaries: base.BoolArray,
    ) -> tuple[base.AttackResult, ...]:
        """Records with their right labels, and for some attacks the canaries by themselves."""
        score = partial(
            score_scores, seed=self.seed, details=self.facts, caveats=self.caveats(words.name)
        )
        clean = score(words, estimate.taken(~canaries), inside[:, ~canaries])
        if canaries.sum() < _LEAST_CANARIES:
            few = f"{canaries.sum()} mislabelled candidates were attacked: too few for a figure"
            return (noted(clean, caveats=[few]),)
        own = replace(
            _BROADCAST, name=f"{words.name}-canaries", title=f"{words.title}, mislabelled"
        )
        odd = score(own, estimate.taken(canaries), inside[:, canaries])
        low, high = odd.interval
        beside = {"canary_auc": odd.figure, "canary_auc_low": low, "canary_auc_high": high}
        return (noted(clean, beside), *([odd] if words.name in _CANARIES else []))


def _probabilities(network: nn.Module, images: Tensor) -> Tensor:
    """[N, C] float64 of images [N, 1, H, W]."""
    return torch.from_numpy(predict(network, images))


def _facts(row: Row, job: Job, played: Sequence[Played]) -> dict[str, float]:
    """Mean accuracy, and what the row's claim allows any attack at most where it covers them all.

    Two runs of a pair exchange records, so the claim counts in its replace-one form: for DP-SGD
    two steps of the claim.
    """
    reached = [run.accuracy for run in played if run.accuracy is not None]
    facts = {"accuracy": float(np.mean(reached))} if reached else {}
    if row.noise == "steps":
        epsilon, delta = 2 * job.epsilon, min(1.0, (1 + math.exp(job.epsilon)) * job.delta)
        facts["most_auc"] = auc_bound(epsilon, delta)
        facts["most_tpr_at_0.01_fpr"] = tpr_bound(0.01, epsilon, delta)
    return facts


def _rows(job: Job) -> Mapping[str, str]:
    """One architecture for all."""
    epsilon = f", ε = {job.epsilon:g}"
    return {key: row.label + epsilon * bool(row.noise) for key, row in _ROWS.items()}


def _prepare(job: Job, seed: int) -> Prepared:
    """Draw candidates, proxies and test images, disjoint, and who takes part in which run.

    And the candidates' neighbours, which the attack on votes compares.
    """
    scale = QUICK if job.quick else FULL
    sizes = Sizes(scale.proxies, 60, 0, local=scale.candidates * scale.clients)
    data = federate(load(job.dataset, job.data_dir), Split("iid"), scale.clients, seed, sizes)
    owned = [labelled(concatenate([c.train, c.validation])) for c in data.clients]
    pool = membership.gather(owned, scale.canaries, data.n_classes, seed)
    public = public_of(data)
    base.require_disjoint(pool.candidates, base.Labelled(public.proxies, public.require_labels()))
    game = membership.draw_game(pool, scale.runs, seed)
    each = [pool.candidates_of(k) for k in range(scale.clients)]
    indirect = tuple(
        membership.IndirectMembership.prepare(public, own, k) for k, own in enumerate(each)
    )
    return Prepared(scale, game, public, data.test, indirect)


def _attempts(turn: Turn[Prepared]) -> Mapping[str, Attempt]:
    """Play all runs of a row, and attack them by every route."""
    prepared, row = turn.made, _ROWS[turn.row]
    arena = Arena.of(prepared, row, turn.job, turn.seed)
    candidates = prepared.candidates
    shadows: dict[str, Attempt] = {
        kind.name: partial(arena.played_out, [kind(own, k) for k, own in candidates], arena.outside)
        for kind in _DIRECT
    }
    uploads = [membership.UploadLiRA(own, k) for k, own in candidates]
    probes = label_shadows.QUICK if turn.job.quick else ProbeSettings()
    asked = [ShadowedLabels.prepare(prepared.public, own, k, probes) for k, own in candidates]
    return {
        **shadows,
        LabelOnlyGap.name: partial(arena.gaps, [LabelOnlyGap(own) for _, own in candidates]),
        ShadowedLabels.name: partial(arena.played_out, asked, arena.labels),
        membership.UploadLiRA.name: partial(arena.played_out, uploads, arena.server),
        membership.IndirectMembership.name: partial(
            arena.played_out, prepared.indirect, arena.server
        ),
        _BROADCAST.name: partial(arena.played_out, prepared.indirect, arena.client, _BROADCAST),
    }


SCENE = Scene(
    name="membership",
    title="Membership, against shadow federations",
    about="Five clients hold about a hundred records each, of all classes, a tenth mislabelled; "
    "sixteen whole federations of every row differ in which half of the candidates took part, "
    "and each is attacked with the others as shadows. Small mixed sets are where membership "
    "shows: a client of one class trains a constant predictor.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
