"""Extraction: a student stolen from Selective-FD by IDEAL, and what it shows of private images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from attacks import fit
from attacks import inversion as gmi
from attacks.base import AttackResult
from attacks.ideal import DEFAULT, QUICK, IdealK1, IdealK2, IdealK3, IdealSettings
from attacks.inversion import InversionTruth, inversion_truth
from attacks.on_run import labelled, public_of
from attacks.view import Capability, LabelFunction, Oracle, Public, View, server_view
from experiments.privacy_compare import Settings, plan
from experiments.rows import RowSpec, Terms
from experiments.runs import RowRun, WarmUp, data_of, protection_for, run_row, warm_up
from experiments.suite.applicability import unless_missing
from experiments.suite.oracles import choice_oracle, injection_oracle, unanimous_labels
from experiments.suite.scene import Findings, Job, Progress
from secure_fd.data.images import concatenate
from secure_fd.protection.base import NoProtection

Attack = IdealK1 | IdealK2 | IdealK3

ROUNDS, QUICK_ROUNDS = 10, 2
"""Fewer than a comparison's: at 256 proxies a round nearly every proxy has been answered."""
_SEARCH = gmi.InversionSettings(steps=80, restarts=2, per_class=2)
_QUICK_SEARCH = gmi.InversionSettings(steps=40, restarts=1, per_class=1)
_QUICK_PRIOR = gmi.PriorSettings(channels=8, steps=40, batch=16, learning_rate=2e-3)
_OPEN = "not applicable: missing a query to answer without a selector (it only reads)"


@dataclass(frozen=True, slots=True)
class _Row:
    """selector: of the clients. selecting: False switches it off for what the attacker asks."""

    spec: RowSpec
    label: str
    selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio"
    selecting: bool = True


def _rows() -> dict[str, _Row]:
    soft, hard = RowSpec("selective-fd", "soft"), RowSpec("selective-fd", "hard")
    masks = RowSpec("selective-fd", "hard", "masks")
    protected = (
        RowSpec("selective-fd", "soft", "masks"),
        masks,
        replace(masks, unit="label"),
        replace(masks, unit="record"),
    )
    rows = {spec.key: _Row(spec, spec.label) for spec in (soft, hard, *protected)}
    for spec in (soft, hard):
        off = f"{spec.label}, selector off for queries"
        rows[f"{spec.key}-open"] = _Row(spec, off, selecting=False)
    rows[f"{hard.key}-kulsif"] = _Row(hard, f"{hard.label}, KuLSIF selector", "kulsif")
    return rows


_ROWS = _rows()
_QUICK_ROWS = ("selective-fd-soft", "selective-fd-soft-open")


@dataclass(frozen=True, slots=True, eq=False)
class Arsenal:
    """What all rows of a seed share. runs: the rows without protection, by their kind of labels."""

    attacks: tuple[Attack, ...]
    truth: InversionTruth
    warm: WarmUp = field(repr=False)
    runs: Mapping[str, RowRun] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Extraction:
    """The scene."""

    name: str = "extraction"
    title: str = "Model extraction, then reconstruction"
    about: str = (
        "IDEAL steals a student from clients of one class each, by reading their ensembles, by "
        "choosing proxies, or by injecting images; the student is inverted with GMI's public "
        f"prior. {ROUNDS} rounds of training, one class a client: where each answer is one "
        "client's, and a selector has most to refuse."
    )

    def rows(self, job: Job) -> Mapping[str, str]:
        """Selective-FD under every protection, and with its selector off; a few where quick."""
        wanted = _QUICK_ROWS if job.quick else tuple(_ROWS)
        return {key: _ROWS[key].label for key in wanted}

    def prepare(self, job: Job, seed: int, progress: Progress) -> Arsenal:
        """The warm-up, the unprotected runs, the public prior, controls and the truth."""
        made = _plan(job)
        data = data_of(made, seed)
        warm = warm_up(made, seed, lambda k: progress(2 * k))
        runs: dict[str, RowRun] = {
            spec.labels: run_row(made, spec, seed, warm, lambda _: None)
            for spec in (_ROWS[key].spec for key in self.rows(job))
            if spec.secure is None
        }
        progress(50)
        public = public_of(data)
        members = labelled(concatenate([c.train for c in data.clients]))
        lesson = fit.QUICK if job.quick else fit.Fit()
        truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
        attacks = _attacks(job, public, seed, lambda share: progress(50 + int(40 * share)))
        progress(100)
        return Arsenal(attacks, truth, warm, runs)

    def run(self, job: Job, row: str, seed: int, prepared: Arsenal, progress: Progress) -> Findings:
        """Train the row, unless `prepare` has, and attack it at every level of access."""
        chosen = _ROWS[row]
        view, made, settled = _attacked(job, chosen, seed, prepared)
        progress(40)
        teacher = unanimous_labels(settled, made, data_of(settled, seed))
        findings: dict[str, AttackResult | str] = {}
        for done, attack in enumerate(prepared.attacks, start=1):
            if isinstance(attack, IdealK1) and not chosen.selecting:
                findings[attack.name] = _OPEN
                continue
            stolen = partial(_stolen, attack, view, prepared.truth, seed, teacher)
            findings[attack.name] = unless_missing(stolen)
            progress(40 + 20 * done)
        return findings


SCENE = Extraction()


def _stolen(
    attack: IdealK1 | IdealK2 | IdealK3,
    view: View,
    truth: InversionTruth,
    seed: int,
    teacher: LabelFunction,
) -> AttackResult:
    return replace(attack, teacher=teacher).score(attack.run(view, seed), truth, seed)


def _attacked(job: Job, row: _Row, seed: int, ready: Arsenal) -> tuple[View, RowRun, Terms]:
    """The malicious server's view of a trained row, with oracles that its clients answer."""
    settled, spec = _plan(job, row.selector), row.spec
    data = data_of(settled, seed)
    protection = protection_for(settled, spec)
    ours = spec.secure is None and row.selector == "proxy-ratio"
    made = (
        ready.runs[spec.labels]
        if ours
        else run_row(settled, spec, seed, ready.warm, lambda _: None, chosen=protection)
    )
    noisy = not isinstance(protection, NoProtection)
    makers = {
        Capability.CHOOSE_INDICES: choice_oracle,
        Capability.INJECT_PROXIES: injection_oracle,
    }
    oracles = {
        capability: Oracle(
            make(settled, made, data, protection, selecting=row.selecting, debias=noisy),
            _settings(job).queries,
        )
        for capability, make in makers.items()
    }
    return server_view(made.transcript, public_of(data), oracles), made, settled


def _attacks(
    job: Job, public: Public, seed: int, progress: Callable[[float], None]
) -> tuple[Attack, ...]:
    """One prior and one set of controls for the three levels."""
    lesson = fit.QUICK if job.quick else fit.Fit()
    search = _QUICK_SEARCH if job.quick else _SEARCH
    sizes = _QUICK_PRIOR if job.quick else gmi.PriorSettings()
    trained = gmi.train_prior(public.proxies, sizes, seed, progress)
    first = IdealK1.prepare(public, trained, seed, _settings(job), search, lesson)
    others = (
        level.prepare(public, trained, seed, _settings(job), search, lesson, first.controls)
        for level in (IdealK2, IdealK3)
    )
    return first, *others


def _settings(job: Job) -> IdealSettings:
    return QUICK if job.quick else DEFAULT


def _plan(job: Job, selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio") -> Terms:
    chosen = Settings(
        dataset=job.dataset,
        data_dir=job.data_dir,
        rounds=QUICK_ROUNDS if job.quick else ROUNDS,
        selector=selector,
        dp_eps=job.epsilon,
        dp_delta=job.delta,
        attacks="none",
        quick=job.quick,
    )
    return plan(chosen, None).terms
