"""The comparison's own federation, one class a client: what sums show."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from attacks import votes
from attacks.base import AttackResult
from attacks.label_distribution import Participation
from attacks.on_run import Arsenal, prepare
from attacks.rounds import Differencing
from attacks.view import View, server_view
from experiments import runs
from experiments.comparison import run_of
from experiments.leakage import Attempt
from experiments.privacy_compare import Plan, Settings, every_row, plan
from experiments.rows import RowSpec, Terms
from experiments.scenes import Job, Progress, Scene, Turn, launched

_QUICK_CLIENTS = 5


def suite_plan(job: Job, settings: Settings) -> Plan:
    """A plan of the comparison with the job's data and budget, under masks where a row has any."""
    made = plan(
        replace(
            settings,
            dataset=job.dataset,
            data_dir=job.data_dir,
            secure_agg=True,
            dp_eps=job.epsilon,
            dp_delta=job.delta,
            quick=job.quick,
            clients=_QUICK_CLIENTS if job.quick else settings.clients,
        ),
        None,
    )
    # A minute's look learns less from each round.
    if not job.quick:
        return made
    fewer = replace(made.terms.schedule, proxy_steps=2)
    return replace(made, terms=replace(made.terms, schedule=fewer))


def recorder_for(terms: Terms, spec: RowSpec) -> votes.Recorder:
    """The row's protection, which keeps the truth for scoring and changes no bit of the run."""
    epsilon, delta = terms.epsilon, terms.delta
    if epsilon is None or spec.unit is None:
        return votes.RecordedClear()
    return votes.RecordedLabels(epsilon, delta)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What all rows of a seed share: warmed clients, and what attacks need before a transcript."""

    warm: runs.WarmUp = field(repr=False)
    arsenal: Arsenal = field(repr=False)


def _prepared(plan: Plan, seed: int, progress: Progress) -> Prepared:
    warm = runs.warm_up(plan.terms, seed, lambda done: progress(20 * done // plan.terms.clients))
    names, quick, data = plan.attacks.names, plan.attacks.quick, runs.data_of(plan.terms, seed)
    arsenal = prepare(
        names, data, seed, quick=quick, progress=lambda share: progress(20 + 8 * share // 10)
    )
    return Prepared(warm, arsenal)


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """A trained row, and what its clients said in each of its sums."""

    plan: Plan
    made: runs.RowRun
    recorder: votes.Recorder
    arsenal: Arsenal
    said: tuple[votes.Said, ...] = field(repr=False)

    @classmethod
    def of(cls, plan: Plan, spec: RowSpec, turn: Turn[Prepared]) -> "_Scored":
        """Train a row and write down what is said in it."""
        recorder = recorder_for(plan.terms, spec)
        made = runs.run_row(
            plan.terms,
            spec,
            turn.seed,
            None if spec.kind == "fedavg" else turn.made.warm,
            turn.progress,
            recorder,
        )
        said = votes.statements(recorder, made.transcript)
        return cls(plan, made, recorder, turn.made.arsenal, said)

    def view(self) -> View:
        """The server's view of the run."""
        return server_view(self.made.transcript, self.arsenal.public)

    def differencing(self) -> AttackResult:
        """Sums subtracted from each other."""
        return launched(Differencing(), self.view(), self.said, self.made.seed)

    def participation(self) -> AttackResult:
        """Sums against who was there."""
        attack = Participation(votes.undoing(self.made.response) if self.made.response else None)
        return launched(attack, self.view(), self.arsenal.histograms, self.made.seed)


def _attempts(scored: _Scored, others: Mapping[str, Attempt]) -> Mapping[str, Attempt]:
    """The comparison's attacks, and these."""
    run = run_of(scored.plan.terms, scored.made)
    known: Mapping[str, Attempt] = {
        name: partial(scored.arsenal.attack, name, run) for name in scored.plan.attacks.names
    }
    return {**known, **others}


# One class a client.

_ROUNDS, _QUICK_ROUNDS = 12, 2
_ROWS = (
    "fedavg",
    "fedmd-soft",
    "selective-fd-soft",
    "selective-fd-hard",
    "selective-fd-hard-masks",
    "selective-fd-hard-masks-dp-label",
)


def _plan(job: Job) -> Plan:
    rounds = _QUICK_ROUNDS if job.quick else _ROUNDS
    # Another scene has inversion at length; a minute's look does without the prior.
    attacks = ["label-distribution", *([] if job.quick else ["inversion"]), *job.own]
    return suite_plan(job, Settings(rounds=rounds, attacks=",".join(attacks)))


def _rows(job: Job) -> Mapping[str, str]:
    """FedAvg, FedMD and Selective-FD, the last in clear, masked, and with noise."""
    specs = {spec.key: spec.label for spec in every_row(_plan(job))}
    return {key: specs[key] for key in _ROWS}


def _prepare(job: Job, seed: int, progress: Progress) -> Prepared:
    return _prepared(_plan(job), seed, progress)


def _on_sums(turn: Turn[Prepared]) -> Mapping[str, Attempt]:
    """The comparison's own attacks."""
    plan = _plan(turn.job)
    spec = next(spec for spec in every_row(plan) if spec.key == turn.row)
    return _attempts(_Scored.of(plan, spec, turn), {})


FEDERATION = Scene(
    name="federation",
    title="One class a client: sums",
    about="The strong split of the comparison, in which every client holds one class, so that "
    "labels, authors and votes have most to hide. Shorter than the comparison: these attacks "
    "read votes, which selectors decide before the first round.",
    rows=_rows,
    prepare=_prepare,
    attempts=_on_sums,
)


# Clients that drop out.

_DROP = 0.2
_MANY, _QUICK_MANY = 30, 3
"""Rounds."""
_ONCE = "-one-release"
_DROPPING_ROWS = (
    "selective-fd-hard",
    "selective-fd-hard-masks",
    f"selective-fd-hard-masks{_ONCE}",
    "selective-fd-hard-masks-dp-label",
)


def _dropping_plan(job: Job, row: str = "") -> Plan:
    """One release: a round asks about as many proxies as leaves some for every round."""
    rounds = _QUICK_MANY if job.quick else _MANY
    settings = Settings(rounds=rounds, drop=_DROP, attacks="label-distribution")
    made = suite_plan(job, settings)
    if not row.endswith(_ONCE):
        return made
    few = made.image_set.proxies // rounds
    return suite_plan(job, replace(settings, releases=1, proxies_per_round=few))


def _dropping_rows(job: Job) -> Mapping[str, str]:
    """Selective-FD in clear, masked, masked with one release a proxy, and with noise."""
    labels = {spec.key: spec.label for spec in every_row(_dropping_plan(job))}
    return {
        key: labels[key.removesuffix(_ONCE)] + ", one release" * key.endswith(_ONCE)
        for key in _DROPPING_ROWS
    }


def _prepare_dropping(job: Job, seed: int, progress: Progress) -> Prepared:
    return _prepared(_dropping_plan(job), seed, progress)


def _on_many_sums(turn: Turn[Prepared]) -> Mapping[str, Attempt]:
    """Sums subtracted, and sums against who was there."""
    plan = _dropping_plan(turn.job, turn.row)
    spec = next(spec for spec in every_row(plan) if spec.key == turn.row.removesuffix(_ONCE))
    scored = _Scored.of(plan, spec, turn)
    others = {"differencing": scored.differencing, "participation": scored.participation}
    return _attempts(scored, others)


DROPOUTS = Scene(
    name="dropouts",
    title="Clients that drop out: many sums together",
    about="The strong split, with every client away from a round with chance .2, half of them "
    "before their votes are in. A sum hides its terms; two sums whose terms differ by one "
    "client, or thirty, do not.",
    rows=_dropping_rows,
    prepare=_prepare_dropping,
    attempts=_on_many_sums,
)
