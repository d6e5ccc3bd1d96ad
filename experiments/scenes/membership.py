"""Whole runs of every protocol row on the membership game's records."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from attacks import fit, label_only
from attacks.base import (
    AttackResult,
    BoolArray,
    Labelled,
    Scores,
    Titled,
    Words,
    pooled,
    require_disjoint,
    substream,
)
from attacks.fit import label_function
from attacks.label_only import LabelAttack, LabelOnlySettings
from attacks.membership import (
    RMIA,
    Game,
    IndirectMembership,
    LiRA,
    LossThreshold,
    OfflineLiRA,
    ShadowAttack,
    StudentLiRA,
    UploadLiRA,
    draw_game,
    gather,
    play_all,
)
from attacks.scoring import score_scores
from attacks.statistics import auc_bound, gaussian_auc, gaussian_tpr, tpr_bound
from attacks.view import (
    Capability,
    LabelOracle,
    Oracle,
    Public,
    View,
    client_view,
    outsider_view,
    server_view,
)
from experiments.results import NOT_APPLICABLE
from experiments.scenes import Findings, Job, Progress, Scene
from secure_fd import models
from secure_fd.aggregation.base import PlainSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.federation import Federation, Participant, participants_of
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.release import record_plan
from secure_fd.private_training import PrivateSGD
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.recipes import SGD, Schedule, Sizes
from secure_fd.training import accuracy, predict
from secure_fd.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Distilled:
    """A row of Selective-FD."""

    labels: Labels
    masks: bool = False
    label_unit: bool = False


FEDAVG: Mapping[str, bool] = {"fedavg": False, "fedavg-dp-sgd": True}
"""Row -> whether every step is DP-SGD."""
DISTILLED: Mapping[str, Distilled] = {
    "selective-fd-soft": Distilled("soft"),
    "selective-fd-hard": Distilled("hard"),
    "selective-fd-hard-masks": Distilled("hard", masks=True),
    "selective-fd-hard-dp-label": Distilled("hard", label_unit=True),
}
RECORD_ROW = "selective-fd-hard-dp-record"


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
class Setup:
    """What all rows of a seed share. test: for accuracy alone."""

    scale: Scale
    game: Game = field(repr=False)
    public: Public = field(repr=False)
    test: Images = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """A run. networks: by client, the one that is deployed there; none where nobody may ask it.

    accuracy: mean over clients on the test images; None where no network was trained.
    """

    transcript: Transcript
    networks: tuple[nn.Module, ...] = field(default=(), repr=False)
    accuracy: float | None = None


def set_up(job: Job, seed: int, scale: Scale) -> Setup:
    """Draw candidates, proxies and test images, disjoint, and who takes part in which run."""
    source = load(job.dataset, job.data_dir)
    sizes = Sizes(scale.proxies, 60, 0, local=scale.candidates * scale.clients)
    data = federate(source, Split("iid"), scale.clients, seed, sizes)
    owned = [concatenate([client.train, client.validation]) for client in data.clients]
    pool = gather(
        [Labelled(own.pixels, own.labels) for own in owned], scale.canaries, data.n_classes, seed
    )
    public = Public(
        data.proxies.pixels,
        scale.clients,
        data.n_classes,
        partial(models.build, models.SHARED, data.n_classes),
        data.proxies.labels,
    )
    require_disjoint(pool.candidates, Labelled(public.proxies, public.require_labels()))
    return Setup(scale, draw_game(pool, scale.runs, seed), public, data.test)


def play(setup: Setup, row: str, run: int, job: Job, seed: int) -> Played:
    """One whole run of a row, on the records that the game gives it."""
    own = substream(seed, f"run {run}")
    if row in FEDAVG:
        return _fedavg(setup, row, run, job, own)
    if row == RECORD_ROW:
        return _record_unit(setup, run, job, own)
    kind = DISTILLED[row]
    protection = LabelUnit(job.epsilon, job.delta) if kind.label_unit else NoProtection()
    made = _federation(setup, run, own, kind, protection, setup.scale.schedule)
    for _ in made.rounds(setup.scale.rounds):
        pass
    reached = float(np.mean(made.accuracies(setup.test)))
    return Played(made.transcript, tuple(made.models), reached)


def _fedavg(setup: Setup, row: str, run: int, job: Job, own: int) -> Played:
    scale = setup.scale
    batch, steps = scale.schedule.sgd.local_batch, scale.fedavg_steps
    optimiser: SGD | PrivateSGD = scale.schedule.sgd
    if FEDAVG[row]:
        optimiser = PrivateSGD(job.epsilon, job.delta, scale.private_steps, batch=batch)
    made = Federation(
        participants_of(_fresh(setup, own), _clients(setup, run)),
        None,
        FedAvg(optimiser, steps),
        seed=own,
    )
    made.fit(scale.private_steps // steps)
    final = made.models[0]
    return Played(made.transcript, (final,) * scale.clients, accuracy(final, setup.test))


def _record_unit(setup: Setup, run: int, job: Job, own: int) -> Played:
    """All that leaves a client follows from one release: one round shows it, no network takes part.

    A network that learns from raw records may not be asked there, so none is trained.
    """
    still = replace(setup.scale.schedule, warmup_steps=0, local_steps=0, proxy_steps=0)
    unit = RecordUnit(job.epsilon, job.delta)
    made = _federation(setup, run, own, Distilled("hard"), unit, still)
    for _ in made.rounds(1):
        pass
    return Played(made.transcript)


def _federation(
    setup: Setup, run: int, own: int, kind: Distilled, protection: Protection, schedule: Schedule
) -> Federation:
    clients = _clients(setup, run)
    members = [Participant(m, c) for m, c in zip(_fresh(setup, own), clients, strict=True)]
    masks = MaskedSum(len(clients), public_seed=own) if kind.masks else PlainSum(len(clients))
    return Federation(
        members,
        setup.public.proxies,
        SelectiveFD(kind.labels),
        aggregation=masks,
        protection=protection,
        schedule=schedule,
        seed=own,
    )


def _fresh(setup: Setup, own: int) -> list[nn.Module]:
    """A network a client, of the one architecture; the same for every row of a run."""
    clients = range(setup.scale.clients)
    return [setup.public.architecture(substream(own, f"network {k}")) for k in clients]


def _clients(setup: Setup, run: int) -> list[ClientData]:
    """All records train: none is held back, so that every member is one."""
    made = []
    for k in range(setup.scale.clients):
        records = setup.game.records(run, k)
        train = Images(records.images, records.labels)
        none = train[torch.zeros(0, dtype=torch.int64)]
        made.append(ClientData(train, none, setup.public.n_classes))
    return made


_DIRECT = (LiRA, OfflineLiRA, RMIA, LossThreshold)
_TARGETS = [0, 1]
"""Runs that label-only attacks are aimed at: one pair, so each candidate is inside one of them."""
_BROADCAST = Words(
    "indirect-broadcast",
    "Membership: ensembles on nearby proxies",
    IndirectMembership.figure_name,
    IndirectMembership.control_name,
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
_LABELS = LabelOnlySettings(attacked=30)
_QUICK_LABELS = replace(label_only.QUICK, sigmas=(0.1, 0.3), calibration=20)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """label_only: by client, every label-only variant on its candidates.

    indirect: by client, with the neighbours of its candidates.
    """

    setup: Setup
    label_only: tuple[tuple[LabelAttack, ...], ...] = field(repr=False)
    indirect: tuple[IndirectMembership, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Arena:
    """All runs of a row, and who may see what of them.

    answers: by run and client, the deployed network's probabilities. facts: details of all results.
    """

    setup: Setup
    runs: tuple[Played, ...]
    answers: tuple[tuple[Oracle, ...], ...]
    seed: int
    facts: Mapping[str, float]
    row: str

    @property
    def void(self) -> str:
        """What ends the sentence about a query that may not be asked."""
        assumed = "; the record unit's claim assumes that nobody is given such queries"
        return assumed if self.row == RECORD_ROW else ""

    def caveats(self, name: str) -> tuple[str, ...]:
        """What an attack's figure must be read with in this row."""
        direct = name.startswith(("label-only", *(kind.name for kind in _DIRECT)))
        if self.row in FEDAVG:
            return ()
        deployed = (_DEPLOYED,) if direct else ()
        if "dp-label" not in self.row:
            return deployed
        asked = self.setup.scale.schedule.proxies_per_round
        many = f"{_ONE_ANSWER}, and each client gave {asked:,}"
        return (*deployed, _UNCOVERED if direct else many)

    @property
    def candidates(self) -> list[tuple[int, Labelled]]:
        """Every client with its candidates."""
        pool = self.setup.game.pool
        return [(k, pool.candidates_of(k)) for k in range(self.setup.scale.clients)]

    def outside(self, run: int, client: int | None) -> View:
        """Someone who asks the network that is deployed at a client, counted anew."""
        public, answers = self.setup.public, self.answers[run]
        oracles: dict[Capability, Oracle] = {}
        if answers and client is not None:
            most = len(self.setup.game.pool.of(client)) + len(public.proxies)
            oracles[Capability.QUERY_SCORES] = Oracle(answers[client], most)
        return outsider_view(self.runs[run].transcript, public, oracles)

    def server(self, run: int, client: int | None) -> View:  # noqa: ARG002 - of all clients
        """The server, honest but curious."""
        return server_view(self.runs[run].transcript, self.setup.public)

    def client(self, run: int, client: int | None) -> View:  # noqa: ARG002 - the same for all
        """A curious client, who is sent what everybody is sent."""
        return client_view(self.runs[run].transcript, self.setup.public)

    def played_out(
        self,
        attacks: Sequence[ShadowAttack],
        view: Callable[[int, int | None], View],
        named: Titled | None = None,
    ) -> Findings:
        """One attack, in a part a client, on every run. named: where its own name is taken."""
        words = named or attacks[0]
        game = self.setup.game
        scores, queries = np.empty(game.inside.shape), 0
        try:
            for attack in attacks:
                views = [view(run, attack.client) for run in game.runs]
                estimate = play_all(attack, views, game, substream(self.seed, words.name))
                scores[:, game.pool.of(attack.client)] = estimate.values
                queries += estimate.queries
        except MissingCapabilityError as missing:
            return {words.name: f"{NOT_APPLICABLE}{missing}{self.void}"}
        estimate = Scores(scores, queries=queries)
        return self._reported(words, estimate, game.inside, game.pool.mislabelled)

    def asked_labels(self, attacks: Sequence[LabelAttack]) -> Findings:
        """One label-only variant, in a part a client, on the first pair of runs."""
        game, first = self.setup.game, attacks[0]
        try:
            seen = [[self._labels(run, k, a) for k, a in enumerate(attacks)] for run in _TARGETS]
        except MissingCapabilityError as missing:
            return {first.name: f"{NOT_APPLICABLE}{missing}{self.void}"}
        runs = [pooled(each) for each in seen]
        asked = np.flatnonzero(runs[0].mask)
        estimate = Scores(
            np.stack([run.values for run in runs]),
            right=np.stack([run.right for run in runs if run.right is not None]),
            threshold=runs[0].threshold,
            queries=sum(run.queries for run in runs),
            details=runs[0].details,
        )
        # The control of a game: its own, for all attacks alike.
        words = Words(first.name, first.title, LiRA.figure_name, LiRA.control_name)
        inside = game.inside[_TARGETS][:, asked]
        return self._reported(words, estimate, inside, game.pool.mislabelled[asked])

    def _labels(self, run: int, client: int, attack: LabelAttack) -> Scores:
        networks = self.runs[run].networks
        oracles: dict[Capability, Oracle] = {}
        if networks:
            labels = label_function(networks[client])
            oracles[Capability.QUERY_FINAL_MODEL] = LabelOracle(labels, attack.queries_needed)
        view = outsider_view(self.runs[run].transcript, self.setup.public, oracles)
        return attack.run(view, substream(self.seed, f"{attack.name} {run} {client}"))

    def _reported(
        self, words: Titled, estimate: Scores, inside: BoolArray, canaries: BoolArray
    ) -> Findings:
        """Records with their right labels, and for some attacks the canaries by themselves."""
        score = partial(
            score_scores, seed=self.seed, details=self.facts, caveats=self.caveats(words.name)
        )
        clean = score(words, estimate.taken(~canaries), inside[:, ~canaries])
        if canaries.sum() < _LEAST_CANARIES:
            few = f"{canaries.sum()} mislabelled candidates were attacked: too few for a figure"
            return {words.name: replace(clean, caveats=(*clean.caveats, few))}
        own = replace(
            _BROADCAST, name=f"{words.name}-canaries", title=f"{words.title}, mislabelled"
        )
        odd = score(own, estimate.taken(canaries), inside[:, canaries])
        low, high = odd.interval
        beside = {"canary_auc": odd.figure, "canary_auc_low": low, "canary_auc_high": high}
        found = {words.name: replace(clean, details={**clean.details, **beside})}
        return found | ({odd.name: odd} if words.name in _CANARIES else {})


@dataclass(frozen=True, slots=True, eq=False)
class _Probabilities:
    """What an oracle of scores wraps."""

    network: nn.Module

    def __call__(self, images: Tensor) -> Tensor:
        """[N, C] float64 of images [N, 1, H, W]."""
        return torch.from_numpy(predict(self.network, images))


def _answers(played: Sequence[Played]) -> tuple[tuple[Oracle, ...], ...]:
    """By run and client, probabilities that are computed once however many attacks ask."""
    return tuple(
        tuple(Oracle(_Probabilities(network), _UNCAPPED) for network in run.networks)
        for run in played
    )


def _facts(row: str, job: Job, played: Sequence[Played], game: Game) -> dict[str, float]:
    """Mean accuracy, and what the row's claim allows any attack at most where it covers them all.

    Two runs of a pair exchange records, so the claim counts in its replace-one form: for one
    Gaussian release that is noise over twice the sensitivity, for DP-SGD two steps of the claim.
    """
    reached = [run.accuracy for run in played if run.accuracy is not None]
    facts = {"accuracy": float(np.mean(reached))} if reached else {}
    if row == RECORD_ROW:
        noise = record_plan(job.epsilon, job.delta, len(game.records(0, 0))).noise / 2
        bounds = gaussian_auc(noise), gaussian_tpr(0.01, noise)
    elif FEDAVG.get(row):
        epsilon, delta = 2 * job.epsilon, min(1.0, (1 + math.exp(job.epsilon)) * job.delta)
        bounds = auc_bound(epsilon, delta), tpr_bound(0.01, epsilon, delta)
    else:
        return facts
    return {**facts, "most_auc": bounds[0], "most_tpr_at_0.01_fpr": bounds[1]}


def _rows(job: Job) -> Mapping[str, str]:
    """One architecture for all."""
    epsilon = f"ε = {job.epsilon:g}"
    return {
        "fedavg": "FedAvg",
        "fedavg-dp-sgd": f"FedAvg + DP-SGD, {epsilon}",
        "selective-fd-soft": "Selective-FD soft",
        "selective-fd-hard": "Selective-FD hard",
        "selective-fd-hard-masks": "Selective-FD hard + masks",
        "selective-fd-hard-dp-label": f"Selective-FD hard + DP label unit, {epsilon}",
        RECORD_ROW: f"Selective-FD hard + DP record unit, {epsilon}",
    }


def _prepare(job: Job, seed: int, progress: Progress) -> Prepared:
    """The game, shadows and controls of label-only attacks, and the candidates' neighbours."""
    setup = set_up(job, seed, QUICK if job.quick else FULL)
    progress(10)
    pool, clients = setup.game.pool, range(setup.scale.clients)
    variants = label_only.variants(
        setup.public,
        pool.candidates_of(0),
        seed,
        _QUICK_LABELS if job.quick else _LABELS,
    )
    progress(50)
    posed = tuple(
        tuple(attack.against(pool.candidates_of(k), seed) for attack in variants) for k in clients
    )
    indirect = tuple(
        IndirectMembership.prepare(setup.public, pool.candidates_of(k), k) for k in clients
    )
    return Prepared(setup, posed, indirect)


def _run(job: Job, row: str, seed: int, prepared: Prepared, progress: Progress) -> Findings:
    """Play all runs of a row, and attack them by every route."""
    setup, game = prepared.setup, prepared.setup.game
    played = []
    for run in game.runs:
        played.append(play(setup, row, run, job, seed))
        progress(70 * (run + 1) // len(game.runs))
    arena = _Arena(
        setup, tuple(played), _answers(played), seed, _facts(row, job, played, game), row
    )
    found: dict[str, AttackResult | str] = {}
    for kind in _DIRECT:
        found |= arena.played_out([kind(own, k) for k, own in arena.candidates], arena.outside)
    progress(80)
    for position in range(len(prepared.label_only[0])):
        found |= arena.asked_labels([own[position] for own in prepared.label_only])
    progress(90)
    uploads = [UploadLiRA(own, k) for k, own in arena.candidates]
    found |= arena.played_out(uploads, arena.server)
    found |= arena.played_out(prepared.indirect, arena.server)
    found |= arena.played_out(prepared.indirect, arena.client, _BROADCAST)
    student = StudentLiRA(game.pool.candidates, training=fit.QUICK)
    found |= arena.played_out([student], arena.client)
    return found


SCENE = Scene(
    name="membership",
    title="Membership, against shadow federations",
    about="Five clients hold about a hundred records each, of all classes, a tenth mislabelled; "
    "sixteen whole federations of every row differ in which half of the candidates took part, "
    "and each is attacked with the others as shadows. Small mixed sets are where membership "
    "shows: a client of one class trains a constant predictor.",
    rows=_rows,
    prepare=_prepare,
    run=_run,
)
