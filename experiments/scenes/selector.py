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
from attacks.on_run import public_of
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
from attacks.view import Capability, Oracle, View, server_view
from experiments.leakage import Attempt
from experiments.scenes import Job, Progress, Scene, Turn, noted
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
_WEIGHTS, _REPEATS_NAME = f"{FlipRadius.name}-weights", f"{Trilateration.name}-repeats"
_QUICK_ROWS = ("kulsif", "kulsif-masks", "kulsif-dp-label", "dp-record")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The data of one class a client, and of two."""

    strong: FederatedData
    weak: FederatedData


@dataclass(frozen=True, slots=True, eq=False)
class _Play:
    """One row under one seed. data: of one class a client, or of two."""

    job: Job
    row: str
    seed: int
    data: FederatedData

    @property
    def sums_only(self) -> bool:
        """Whether a client has to be read through the sum over all."""
        return "masks" in self.row

    def images(self) -> int:
        """How many images are rebuilt: each takes seconds, under masks ten times as many."""
        if self.job.quick:
            return 1
        return {"kulsif": 10, "kulsif-dp-label": 5}.get(self.row, 2)

    def trials(self) -> int:
        """How many records of a client are tried."""
        return 2 if self.job.quick else _TRIALS

    def judged(self) -> int:
        """How many clients' records are asked about: a sum asks all clients about each."""
        most = 2 if self.job.quick else 3 if self.row.endswith("weak") else _CLIENTS
        return min(most, len(self.data.clients))

    def view(self, victim: Victim) -> View:
        """The malicious server's, with a fresh budget."""
        oracle = Oracle(victim.votes(self.data.n_classes), _BUDGET)
        run = Transcript(len(self.data.clients))
        return server_view(run, public_of(self.data), {Capability.INJECT_PROXIES: oracle})

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
            return unit.parts[0].release(every, lambda _: honest)

        return answers


def _rebuild(
    play: _Play, victims: Sequence[Victim] | None = None, asking: Asking | None = None
) -> AttackResult:
    """One image of each victim, by default of the row's."""
    settings = QUICK if play.job.quick else SphereSettings()
    estimates, sides = [], []
    for victim in (victims or play.victims())[: play.images()]:
        attack = Trilateration(victim.column, None, settings, asking or Asking())
        estimates.append(attack.run(play.view(victim), play.seed))
        sides.append(victim.sides(play.data.held_out, _REFERENCES))
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
        name=_REPEATS_NAME,
        title=f"{found.title}, each image asked about {_REPEATS} times",
    )


def _spent(play: _Play, attack: Callable[[], AttackResult], clients: int) -> AttackResult:
    """With what the answers that the attack read of one client compose to at record level."""
    found = attack()
    asked = round(found.queries / clients)
    mechanism = RandomizedResponse(play.job.epsilon, play.data.n_classes + 1)
    claim = label_guarantee(mechanism, releases=asked, delta=play.job.delta, declared=False)
    details = {"composed_epsilon": claim.composes_to[0].epsilon, "answers_a_client": float(asked)}
    return noted(found, details, ["many answers are no longer one: see the composed epsilon"])


def _tell_members(
    play: _Play, labels: Labels = "hard", settings: FlipSettings | None = None
) -> AttackResult:
    """Records behind each estimator against as many held out."""
    estimates, truths = [], []
    most = 10 if play.job.quick else _CANDIDATES
    for victim in play.victims(labels):
        challenge = draw_challenge(*victim.sides(play.data.held_out, most), play.seed)
        images = challenge.candidates.images
        attack = FlipRadius.prepare(public_of(play.data), images, victim.column, settings=settings)
        estimates.append(attack.run(play.view(victim), play.seed))
        truths.append(challenge.is_member)
    return attack.score(pooled(estimates), np.concatenate(truths), play.seed)


@dataclass(frozen=True, slots=True, eq=False)
class _Worlds:
    """Both worlds of every candidate, each a release of its own. expected: without noise."""

    play: _Play
    trials: list[Images]
    expected: RecordWorlds
    asked: RecordWorlds
    claim: Claim | None

    @classmethod
    def of(cls, play: _Play) -> "_Worlds":
        """A few records of every client that is judged; without noise nothing is claimed."""
        job, noisy = play.job, play.row == "dp-record"
        held = [concatenate([c.train, c.validation]) for c in play.data.clients[: play.judged()]]
        trials = [in_front(records, i) for records in held for i in range(play.trials())]
        public = (play.data.proxies.pixels, play.data.n_classes)
        made = partial(RecordWorlds.of, trials, *public, job.epsilon, job.delta)
        expected = made(noisy=False)
        asked = made(noisy=True) if noisy else expected
        plan = record_plan(job.epsilon, job.delta, len(trials[0]))
        claim = Claim(job.epsilon, job.delta, plan.noise) if noisy else None
        return cls(play, trials, expected, asked, claim)

    def victims(self, unit: RecordUnit) -> list[Victim]:
        """Each trial's candidate and its client, in one world."""
        return [
            Victim(int(records.labels[0]), (unit.parts[i].judge,), records, SOFT_LEVELS)
            for i, records in enumerate(self.trials)
        ]

    @property
    def present(self) -> NDArray[np.bool_]:
        """[2 T] False for the trials of the world without, then True for those with."""
        return np.repeat([False, True], len(self.trials))

    def rebuild(self) -> AttackResult:
        """An image of one client each, from the world with its record."""
        return _rebuild(self.play, self.victims(self.asked.present)[:: self.play.trials()])

    def flip(self, read: Literal["bits", "weights"]) -> AttackResult:
        """The candidate's score in either world."""
        settings = FlipSettings(references=_FEW, read=read)
        estimates = []
        for victim in (v for unit in self.asked for v in self.victims(unit)):
            candidate = victim.records.pixels[:1]
            attack = FlipRadius.prepare(
                public_of(self.play.data), candidate, victim.column, settings=settings,
                claim=self.claim,
            )  # fmt: skip
            estimates.append(attack.run(self.play.view(victim), self.play.seed))
        return attack.score(pooled(estimates), self.present, self.play.seed)

    def informed(self) -> AttackResult:
        """The attacker who knows all other records, in either world."""
        without, present = (
            [v.votes(self.play.data.n_classes) for v in self.victims(unit)]
            for unit in self.expected
        )
        estimates, seed = [], self.play.seed
        for unit in self.asked:
            for i, victim in enumerate(self.victims(unit)):
                attack = Informed(
                    victim.records.pixels[0], victim.column, without[i], present[i],
                    claim=self.claim,
                )  # fmt: skip
                estimates.append(attack.run(self.play.view(victim), substream(seed, f"trial {i}")))
        return attack.score(pooled(estimates), self.present, seed)


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


def _attempts(turn: Turn[Prepared]) -> Mapping[str, Attempt]:
    """Reconstruction and membership, as far as what a row's server reads allows."""
    data = turn.made.weak if turn.row.endswith("weak") else turn.made.strong
    play, thorough = _Play(turn.job, turn.row, turn.seed, data), not turn.job.quick
    if turn.row.startswith("dp-record"):
        worlds = _Worlds.of(play)
        found: dict[str, Callable[[], AttackResult]] = {
            Trilateration.name: worlds.rebuild,
            FlipRadius.name: partial(worlds.flip, "bits"),
            Informed.name: worlds.informed,
        }
        return found | ({_WEIGHTS: partial(worlds.flip, "weights")} if thorough else {})
    rebuild, tell = partial(_rebuild, play), partial(_tell_members, play)
    found = {Trilateration.name: rebuild, FlipRadius.name: tell}
    if turn.row == "proxy-ratio":
        found[_WEIGHTS] = partial(tell, "soft", FlipSettings(read="weights"))
    if turn.row == "kulsif-dp-label":
        counts = {Trilateration.name: play.images(), FlipRadius.name: play.judged()}
        found = {name: partial(_spent, play, found[name], n) for name, n in counts.items()}
        if thorough:
            found[_REPEATS_NAME] = partial(
                _spent, play, partial(_rebuild_by_repeats, play), _REPEATED
            )
    return found


SCENE = Scene(
    name="selector",
    title="The client selector as an oracle on raw images",
    about="A malicious server injects proxies and reads only whether a client answers. "
    "It is measured where clients hold one class each, because any network, trained or not, "
    "then names that class: what leaks is the selector's doing alone.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
