"""Clients drop out: what the sums of different rounds, put together, show of one client."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attacks.base import AttackResult
from attacks.label_distribution import Participation
from attacks.rounds import Differencing
from attacks.view import View, server_view
from attacks.votes import statements, undoing
from experiments import attacking, runs
from experiments.privacy_compare import Plan, Settings, row_specs
from experiments.suite.applicability import unless_missing
from experiments.suite.scene import Findings, Job, Progress
from experiments.suite.scenes.federation import (
    Prepared,
    declared,
    recorder_for,
    suite_plan,
)

_DROP = 0.2
_ROUNDS, _QUICK_ROUNDS = 30, 3
_ONCE = "-one-release"
_KEYS = (
    "selective-fd-hard",
    "selective-fd-hard-masks",
    f"selective-fd-hard-masks{_ONCE}",
    "selective-fd-hard-masks-dp-label",
    "selective-fd-hard-masks-dp-record",
)


@dataclass(frozen=True, slots=True)
class Dropouts:
    """Rows of the comparison in which a fifth of the clients drops out of every round."""

    name: str = "dropouts"
    title: str = "Clients that drop out: many sums together"
    about: str = (
        "The strong split, with every client away from a round with chance .2, half of them "
        "before their votes are in. A sum hides its terms; two sums whose terms differ by one "
        "client, or thirty, do not."
    )

    def rows(self, job: Job) -> Mapping[str, str]:
        """Selective-FD in clear, masked, masked with one release a proxy, and with noise."""
        labels = {spec.key: spec.label for spec in row_specs(self._plan(job, ""))}
        # A minute's look does without the record unit, whose release takes longest.
        return {
            key: labels[key.removesuffix(_ONCE)] + ", one release" * key.endswith(_ONCE)
            for key in (_KEYS[:-1] if job.quick else _KEYS)
        }

    def prepare(self, job: Job, seed: int, progress: Progress) -> Prepared:
        """Warmed clients."""
        plan = self._plan(job, "")
        warm = runs.warm_up(
            plan.terms, seed, lambda done: progress(90 * done // plan.terms.clients)
        )
        return Prepared(warm, attacking.prepare(plan.terms, seed, plan.attacks, lambda _: None))

    def run(
        self, job: Job, row: str, seed: int, prepared: Prepared, progress: Progress
    ) -> Findings:
        """Train a row, then put its sums together."""
        plan = self._plan(job, row)
        spec = next(spec for spec in row_specs(plan) if spec.key == row.removesuffix(_ONCE))
        recorder = recorder_for(plan.terms, spec)
        made = runs.run_row(
            plan.terms,
            spec,
            seed,
            prepared.warm,
            lambda done: progress(90 * done // plan.terms.rounds),
            recorder,
        )
        said = statements(recorder, made.transcript)
        view = server_view(made.transcript, prepared.arsenal.public)
        subtract = Differencing()
        found = {
            **attacking.attack_row(
                plan.terms, plan.attacks, prepared.arsenal, made, lambda _: None
            ),
            "differencing": unless_missing(
                lambda: subtract.score(subtract.run(view, seed), said, seed)
            ),
            "participation": unless_missing(lambda: _participation(view, made, prepared)),
        }
        return declared(found, tuple(found)) if spec.unit == "record" else found

    def _plan(self, job: Job, row: str) -> Plan:
        """One release: a round asks about as many proxies as leaves some for every round."""
        rounds = _QUICK_ROUNDS if job.quick else _ROUNDS
        settings = Settings(rounds=rounds, drop=_DROP, attacks="label-distribution")
        made = suite_plan(job, settings)
        if not row.endswith(_ONCE):
            return made
        few = made.image_set.proxies // rounds
        return suite_plan(job, replace(settings, releases=1, proxies_per_round=few))


def _participation(view: View, made: runs.RowRun, prepared: Prepared) -> AttackResult:
    attack = Participation(undoing(made.response) if made.response else None)
    estimate = attack.run(view, made.seed)
    return attack.score(estimate, prepared.arsenal.histograms, made.seed)


SCENE = Dropouts()
