"""A server that injects proxies asks clients' selectors about their raw training images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attacks.base import AttackResult, draw_challenge, pooled, substream
from attacks.images import Originals
from attacks.selector import (
    Answers,
    Asking,
    FlipRadius,
    FlipSettings,
    Informed,
    RecordWorlds,
    Victim,
    asking_through,
    behind,
    in_front,
)
from attacks.statistics import Claim
from attacks.trilateration import QUICK, SphereSettings, Trilateration, joined
from attacks.view import Capability, Oracle, Public, View, server_view
from experiments.scenes import Findings, Job, Progress, Scene
from secure_fd import models
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.knowledge import SOFT_LEVELS, Released
from secure_fd.methods.base import Labels, levels
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.guarantees import label_guarantee
from secure_fd.privacy.release import record_plan
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.selection.client import KulsifSelector, ProxyRatioSelector, Selection
from secure_fd.transcript import Transcript

_CLIENTS, _QUICK_CLIENTS = 10, 3
_REPEATS, _REPEATED = 5, 2
_TRIALS, _FEW = 4, 4
_CANDIDATES, _REFERENCES = 20, 200
_BUDGET = 1_000_000
_QUICK_ROWS = ("kulsif", "kulsif-masks", "kulsif-dp-label", "dp-record")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The data of one class a client, and of two."""

    strong: FederatedData
    weak: FederatedData


@dataclass(frozen=True, slots=True, eq=False)
class _Play:
    """One cell's circumstances."""

    job: Job
    row: str
    seed: int
    data: FederatedData
    progress: Progress

    @property
    def public(self) -> Public:
        """What everybody knows."""
        proxies, C = self.data.proxies, self.data.n_classes
        made = partial(models.build, models.SHARED, C)
        return Public(proxies.pixels, len(self.data.clients), C, made, proxies.labels)

    @property
    def sums_only(self) -> bool:
        """Whether a client has to be read through the sum over all."""
        return "masks" in self.row

    def images(self) -> int:
        """How many images are rebuilt: each takes seconds, under masks ten times as many."""
        if self.job.quick:
            return 1
        return {"kulsif": 10, "kulsif-dp-label": 5}.get(self.row, 2)

    def judged(self) -> int:
        """How many clients' records are asked about: a sum asks all clients about each."""
        most = 2 if self.job.quick else 3 if self.row.endswith("weak") else _CLIENTS
        return min(most, len(self.data.clients))

    def view(self, victim: Victim) -> View:
        """The malicious server's, with a fresh budget."""
        oracle = Oracle(victim.votes(self.data.n_classes), _BUDGET)
        run = Transcript(len(self.data.clients))
        return server_view(run, self.public, {Capability.INJECT_PROXIES: oracle})

    def victims(self, labels: Labels = "hard") -> list[Victim]:
        """A class of each client that is judged, and the records behind what the server reads."""
        kind = ProxyRatioSelector() if self.row == "proxy-ratio" else KulsifSelector()
        method = SelectiveFD(labels, kind, votes="counted")  # what abstention alone tells
        asked = self.data.clients if self.sums_only else self.data.clients[: self.judged()]
        fitted = [kind.fit(client, self.data.proxies.pixels) for client in asked]
        everyone = tuple(self._released(method, k, one.judge) for k, one in enumerate(fitted))
        found = []
        for k in range(self.judged()):
            column = self.data.clients[k].classes[0]
            read = range(len(fitted)) if self.sums_only else (k,)
            holders = [i for i in read if column in self.data.clients[i].classes]
            own = [behind(fitted[i], self.data.clients[i].train, column) for i in holders]
            cohort = tuple(everyone[i] for i in read)
            found.append(Victim(column, cohort, concatenate(own), levels(labels)))
        return found

    def _released(
        self, method: SelectiveFD, client: int, judge: Callable[[Tensor], Selection]
    ) -> Answers:
        noisy = self.row.endswith("dp-label")
        held, classes = self.data.clients[client].train, self.data.n_classes

        def answers(images: Tensor) -> Released:
            opinion = method.opinion_of(judge(images), classes)
            every = np.arange(len(images))
            said = np.full((len(images), classes), 1 / classes)  # a network that knows nothing
            honest = opinion.contribution(every, said, method.labels)
            if not noisy:
                return Released.of(honest)
            unit = LabelUnit(self.job.epsilon, self.job.delta)  # a ledger of these new proxies
            unit.prepare(images, classes, [held])
            return unit.release(0, every, lambda _: honest)

        return answers


def _rebuild(play: _Play, victims: Sequence[Victim], asking: Asking | None = None) -> AttackResult:
    """One image of each victim."""
    settings = QUICK if play.job.quick else SphereSettings()
    chosen = victims[: play.images()]
    estimates, sides = [], []
    for done, victim in enumerate(chosen):
        attack = Trilateration(victim.column, None, settings, asking or Asking())
        estimates.append(attack.run(play.view(victim), play.seed))
        sides.append(victim.sides(play.data.held_out, _REFERENCES))
        play.progress(round(70 * (done + 1) / len(chosen)))
    truth = Originals(
        {i: members.images for i, (members, _) in enumerate(sides)},
        {i: [held_out.images] for i, (_, held_out) in enumerate(sides)},
    )
    return attack.score(joined(estimates), truth, play.seed)


def _rebuild_by_repeats(play: _Play) -> AttackResult:
    """The same attacker with more queries: every image under several new indices."""
    mechanism = RandomizedResponse(play.job.epsilon, play.data.n_classes + 1)
    asking = asking_through(mechanism, _REPEATS)
    found = _rebuild(play, play.victims()[:_REPEATED], asking)
    return replace(
        found,
        name=f"{found.name}-repeats",
        title=f"{found.title}, each image asked about {_REPEATS} times",
    )


def _spent(play: _Play, found: AttackResult, clients: int) -> AttackResult:
    """With what the answers that the attack read of one client compose to at record level."""
    asked = round(found.queries / clients)
    mechanism = RandomizedResponse(play.job.epsilon, play.data.n_classes + 1)
    claim = label_guarantee(mechanism, releases=asked, delta=play.job.delta, declared=False)
    details = {"composed_epsilon": claim.composes_to[0].epsilon, "answers_a_client": float(asked)}
    return replace(
        found,
        caveats=(*found.caveats, "many answers are no longer one: see the composed epsilon"),
        details={**found.details, **details},
    )


def _tell_members(
    play: _Play, victims: Sequence[Victim], settings: FlipSettings | None = None
) -> AttackResult:
    """Records behind each estimator against as many held out."""
    estimates, truths = [], []
    most = 10 if play.job.quick else _CANDIDATES
    for victim in victims:
        challenge = draw_challenge(*victim.sides(play.data.held_out, most), play.seed)
        images = challenge.candidates.images
        attack = FlipRadius.prepare(play.public, images, victim.column, settings=settings)
        estimates.append(attack.run(play.view(victim), play.seed))
        truths.append(challenge.is_member)
    play.progress(100)
    return attack.score(pooled(estimates), np.concatenate(truths), play.seed)


def _attack_records(play: _Play) -> Findings:
    """Both worlds of every candidate, each a release of its own; and images from one of them."""
    job, clients = play.job, play.data.clients[: play.judged()]
    held = [concatenate([c.train, c.validation]) for c in clients]
    each = 2 if job.quick else _TRIALS
    trials = [in_front(records, i) for records in held for i in range(each)]
    public = (play.data.proxies.pixels, play.data.n_classes)
    made = partial(RecordWorlds.of, trials, *public, job.epsilon, job.delta)
    expected = made(noisy=False)
    asked = made(noisy=True) if play.row == "dp-record" else expected
    play.progress(40)
    plan = record_plan(job.epsilon, job.delta, len(trials[0]))
    # Without noise nothing is claimed, and nothing bounds the attack.
    claim = Claim(job.epsilon, job.delta, plan.noise) if play.row == "dp-record" else None
    found = [
        _rebuild(play, _of_unit(trials, asked.present)[::each]),
        _flip_worlds(play, trials, asked, claim, "bits"),
        _informed_worlds(play, trials, asked, expected, claim),
    ]
    found += [] if job.quick else [_flip_worlds(play, trials, asked, claim, "weights")]
    return {result.name: result for result in found}


def _of_unit(trials: list[Images], unit: RecordUnit) -> list[Victim]:
    return [
        Victim(int(records.labels[0]), (partial(unit.judge, i),), records, SOFT_LEVELS)
        for i, records in enumerate(trials)
    ]


def _flip_worlds(
    play: _Play,
    trials: list[Images],
    asked: RecordWorlds,
    claim: Claim | None,
    read: Literal["bits", "weights"],
) -> AttackResult:
    """The candidate's score in either world."""
    settings = FlipSettings(references=_FEW, read=read)
    estimates = []
    for victim in (v for unit in asked for v in _of_unit(trials, unit)):
        candidate = victim.records.pixels[:1]
        attack = FlipRadius.prepare(
            play.public, candidate, victim.column, settings=settings, claim=claim
        )
        estimates.append(attack.run(play.view(victim), play.seed))
    play.progress(70)
    return attack.score(pooled(estimates), _present(trials), play.seed)


def _informed_worlds(
    play: _Play,
    trials: list[Images],
    asked: RecordWorlds,
    expected: RecordWorlds,
    claim: Claim | None,
) -> AttackResult:
    """The attacker who knows all other records, in either world."""
    without, present = (
        [v.votes(play.data.n_classes) for v in _of_unit(trials, unit)] for unit in expected
    )
    estimates = []
    for unit in asked:
        for i, victim in enumerate(_of_unit(trials, unit)):
            attack = Informed(
                victim.records.pixels[0], victim.column, without[i], present[i], claim=claim
            )
            estimates.append(attack.run(play.view(victim), substream(play.seed, f"trial {i}")))
    play.progress(100)
    return attack.score(pooled(estimates), _present(trials), play.seed)


def _present(trials: list[Images]) -> NDArray[np.bool_]:
    """[2 T] False for the trials of the world without, then True for those of the world with."""
    return np.repeat([False, True], len(trials))


def _rows(job: Job) -> Mapping[str, str]:
    """Selectors in clear, under masks, and in both units of differential privacy."""
    epsilon = f"ε = {job.epsilon:g}"
    rows = {
        "kulsif": "KuLSIF in clear",
        "kulsif-masks": "KuLSIF + masks",
        "kulsif-masks-weak": "KuLSIF + masks, two clients a class",
        "kulsif-dp-label": f"KuLSIF + DP label unit ({epsilon})",
        "proxy-ratio": "Proxy ratio in clear",
        "dp-record": f"DP record unit ({epsilon})",
        "dp-record-noise-off": "DP record unit, its noise switched off",
    }
    return {key: rows[key] for key in _QUICK_ROWS} if job.quick else rows


def _prepare(job: Job, seed: int, progress: Progress) -> Prepared:
    """Both splits of the job's data."""
    source = load(job.dataset, job.data_dir)
    progress(50)
    clients = _QUICK_CLIENTS if job.quick else _CLIENTS
    strong, weak = (federate(source, Split(k), clients, seed) for k in ("strong", "weak"))
    return Prepared(strong, weak)


def _run(job: Job, row: str, seed: int, prepared: Prepared, progress: Progress) -> Findings:
    """Reconstruction and membership against one row."""
    data = prepared.weak if row.endswith("weak") else prepared.strong
    play = _Play(job, row, seed, data, progress)
    if row.startswith("dp-record"):
        return _attack_records(play)
    found = [_rebuild(play, play.victims()), _tell_members(play, play.victims())]
    if row == "proxy-ratio":
        found.append(_tell_members(play, play.victims("soft"), FlipSettings(read="weights")))
    if row == "kulsif-dp-label":
        found = [_spent(play, found[0], play.images()), _spent(play, found[1], play.judged())]
        if not job.quick:
            found.append(_spent(play, _rebuild_by_repeats(play), _REPEATED))
    return {result.name: result for result in found}


SCENE = Scene(
    name="selector",
    title="The client selector as an oracle on raw images",
    about="A malicious server injects proxies and reads only whether a client answers. "
    "It is measured where clients hold one class each, because any network, trained or not, "
    "then names that class: what leaks is the selector's doing alone.",
    rows=_rows,
    prepare=_prepare,
    run=_run,
)
