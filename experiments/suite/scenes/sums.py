"""The comparison's own federation, one class a client: what sums show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from attacks.core.view import server_view
from attacks.on_run import Arsenal, prepare
from attacks.server import votes
from attacks.server.differencing import Differencing
from attacks.server.label_distribution import Participation
from experiments.compare.comparison import run_of
from experiments.compare.leakage import Attempt
from experiments.core import runs
from experiments.core.rows import RowSpec, Terms
from experiments.privacy_compare import Plan, Settings, every_row, plan
from experiments.suite.scenes import Job, Scene, Turn, launched

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


Planned = Callable[[Job, str], Plan]
"""The plan of a row by its key; of the key "" what all rows of a scene share."""
_ONCE = "-one-release"
"""How the keys of rows end that answer a proxy once in the whole run."""


def _prepared(planned: Planned, job: Job, seed: int) -> Prepared:
    plan = planned(job, "")
    warm = runs.warm_up(plan.terms, seed)
    names, quick, data = plan.attacks.names, plan.attacks.quick, runs.data_of(plan.terms, seed)
    arsenal = prepare(names, data, seed, quick=quick)
    return Prepared(warm, arsenal)


def _attempts(planned: Planned, turn: Turn[Prepared]) -> Mapping[str, Attempt]:
    """Train a row, and attack it as the comparison does; where clients drop out, all its sums."""
    plan, arsenal, seed = planned(turn.job, turn.row), turn.made.arsenal, turn.seed
    spec = next(s for s in every_row(plan) if s.key == turn.row.removesuffix(_ONCE))
    recorder = recorder_for(plan.terms, spec)
    warm = None if spec.kind == "fedavg" else turn.made.warm
    made = runs.run_row(plan.terms, spec, seed, warm, recorder)
    run, view = run_of(plan.terms, made), server_view(made.transcript, arsenal.public)
    known: dict[str, Attempt] = {
        name: partial(arsenal.attack, name, run) for name in plan.attacks.names
    }
    if not plan.terms.drop:
        return known
    said = votes.statements(recorder, made.transcript)
    who = Participation(votes.undoing(made.response) if made.response else None)
    return {
        **known,
        "differencing": lambda: launched(Differencing(), view, said, seed),
        "participation": lambda: launched(who, view, arsenal.histograms, seed),
    }


def _rows(planned: Planned, keys: Sequence[str], job: Job) -> Mapping[str, str]:
    """The labels of these rows."""
    labels = {spec.key: spec.label for spec in every_row(planned(job, ""))}
    return {
        key: labels[key.removesuffix(_ONCE)] + ", one release" * key.endswith(_ONCE) for key in keys
    }


# One class a client.

_ROUNDS, _QUICK_ROUNDS = 12, 2
_ROWS = (
    *("fedavg", "fedmd-soft", "selective-fd-soft", "selective-fd-hard"),
    *("selective-fd-hard-masks", "selective-fd-hard-masks-dp-label"),
)


def _plan(job: Job, _: str) -> Plan:
    rounds = _QUICK_ROUNDS if job.quick else _ROUNDS
    # Another scene has inversion at length; a minute's look does without the prior.
    attacks = ["label-distribution", *([] if job.quick else ["inversion"]), *job.own]
    return suite_plan(job, Settings(rounds=rounds, attacks=",".join(attacks)))


FEDERATION = Scene(
    name="federation",
    title="One class a client: sums",
    about="The strong split of the comparison, in which every client holds one class, so that "
    "labels, authors and votes have most to hide. Shorter than the comparison: these attacks "
    "read votes, which selectors decide before the first round.",
    rows=partial(_rows, _plan, _ROWS),
    prepare=partial(_prepared, _plan),
    attempts=partial(_attempts, _plan),
)


# Clients that drop out.

_DROP = 0.2
_MANY, _QUICK_MANY = 30, 3
"""Rounds."""
_DROPPING_ROWS = (
    *("selective-fd-hard", "selective-fd-hard-masks", f"selective-fd-hard-masks{_ONCE}"),
    "selective-fd-hard-masks-dp-label",
)


def _dropping_plan(job: Job, row: str) -> Plan:
    """One release: a round asks about as many proxies as leaves some for every round."""
    rounds = _QUICK_MANY if job.quick else _MANY
    settings = Settings(rounds=rounds, drop=_DROP, attacks="label-distribution")
    made = suite_plan(job, settings)
    if not row.endswith(_ONCE):
        return made
    few = made.image_set.proxies // rounds
    return suite_plan(job, replace(settings, releases=1, proxies_per_round=few))


DROPOUTS = Scene(
    name="dropouts",
    title="Clients that drop out: many sums together",
    about="The strong split, with every client away from a round with chance .2, half of them "
    "before their votes are in. A sum hides its terms; two sums whose terms differ by one "
    "client, or thirty, do not.",
    rows=partial(_rows, _dropping_plan, _DROPPING_ROWS),
    prepare=partial(_prepared, _dropping_plan),
    attempts=partial(_attempts, _dropping_plan),
)
