"""The comparison's own federation, one class a client: what sums, and a server that lies, show."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from attacks.base import AttackResult
from attacks.label_distribution import Participation
from attacks.on_run import Arsenal
from attacks.rounds import Differencing, InconsistentProxies, SplitCohort, SplitViews
from attacks.view import AnswerFunction, Capability, Oracle, View, server_view
from attacks.votes import (
    Attribution,
    Collusion,
    Holders,
    RecordedClear,
    RecordedLabels,
    RecordedRecords,
    Recorder,
    Said,
    SingleContributor,
    named,
    statements,
    told,
    undoing,
)
from experiments import attacking, runs
from experiments.attacking import unless_missing
from experiments.privacy_compare import Plan, Settings, plan, row_specs
from experiments.rows import RowSpec, Terms
from experiments.scenes import Findings, Job, Progress, Scene
from experiments.scenes.extraction import injection_oracle
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protection.base import NoProtection
from secure_fd.secagg.graph import threshold

_ROUNDS, _QUICK_ROUNDS = 12, 2
_QUICK_CLIENTS = 5
_KEYS = (
    "fedavg",
    "fedmd-soft",
    "selective-fd-soft",
    "selective-fd-hard",
    "selective-fd-hard-masks",
    "selective-fd-hard-masks-dp-label",
    "selective-fd-hard-masks-dp-record",
)


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


def recorder_for(terms: Terms, spec: RowSpec) -> Recorder:
    """The row's protection, which keeps the truth for scoring and changes no bit of the run."""
    epsilon, delta = terms.epsilon, terms.delta
    if epsilon is None or spec.unit is None:
        return RecordedClear()
    return (RecordedLabels if spec.unit == "label" else RecordedRecords)(epsilon, delta)


DECLARED = "the record unit makes every client's set of classes public: here that is all"
"""What an attack on labels or authors must say in a row of the record unit, one class a client."""


def declared(found: Findings, names: tuple[str, ...]) -> Findings:
    """The findings of a row of the record unit: what these attacks miss is public all the same."""
    return {
        name: replace(result, caveats=(*result.caveats, DECLARED))
        if name in names and isinstance(result, AttackResult)
        else result
        for name, result in found.items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What all rows of a seed share."""

    warm: runs.WarmUp = field(repr=False)
    arsenal: Arsenal = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Scored:
    """A trained row, and what its clients said in each of its sums."""

    made: runs.RowRun
    recorder: Recorder
    arsenal: Arsenal
    said: tuple[Said, ...] = field(repr=False)

    def view(self) -> View:
        return server_view(self.made.transcript, self.arsenal.public)

    def with_colluders(self, count: int) -> View:
        transcript = self.made.transcript
        own = told(self.recorder, transcript, range(count)) if transcript.distillation else None
        return server_view(transcript, self.arsenal.public, colluders=own)


_LABELS_AND_AUTHORS = ("label-distribution", "attribution", "collusion", "single-contributor")


def _on_sums(scored: _Scored) -> Findings:
    """Attribution, sums of one, and colluders: as many as masks withstand, and all but one."""
    clients, seed = scored.arsenal.public.n_clients, scored.made.seed
    few, most = 2 * threshold(clients) - clients - 1, clients - 1
    found = {
        "attribution": unless_missing(lambda: _attribution(scored)),
        "single-contributor": unless_missing(lambda: _single(scored)),
        "collusion": unless_missing(lambda: _collusion(scored, few)),
        "collusion-all-but-one": unless_missing(lambda: _collusion(scored, most)),
    }
    limit = found["collusion-all-but-one"]
    if isinstance(limit, AttackResult):
        curve = {
            f"{count}_colluders": Collusion().score(estimate, scored.said, seed).figure
            for count in range(1, clients)
            for estimate in [Collusion().run(scored.with_colluders(count), seed)]
        }
        found["collusion-all-but-one"] = replace(
            limit, name="collusion-all-but-one", details={**limit.details, **curve}
        )
    return found


def _attribution(scored: _Scored) -> AttackResult:
    seed = scored.made.seed
    estimate = Attribution().run(scored.view(), seed)
    return Attribution().score(estimate, Holders(scored.arsenal.histograms, scored.said), seed)


def _single(scored: _Scored) -> AttackResult:
    seed = scored.made.seed
    return SingleContributor().score(
        SingleContributor().run(scored.view(), seed), scored.said, seed
    )


def _collusion(scored: _Scored, count: int) -> AttackResult:
    seed = scored.made.seed
    estimate = Collusion().run(scored.with_colluders(count), seed)
    return Collusion().score(estimate, scored.said, seed)


def _split(plan: Plan, scored: _Scored) -> AttackResult | str:
    made, public = scored.made, scored.arsenal.public
    attack = InconsistentProxies(probes=20 if plan.settings.quick else 100)
    oracles: dict[Capability, Oracle] = {}
    data = runs.data_of(plan.terms, made.seed)
    if made.transcript.distillation:
        oracles[Capability.SPLIT_VIEWS] = Oracle(_lying(plan.terms, scored, data), attack.probes)

    def attacked() -> AttackResult:
        estimate = attack.run(server_view(made.transcript, public, oracles), made.seed)
        truth = _probed(plan.terms, scored, data, attack.indices(public, made.seed))
        return attack.score(estimate, truth, made.seed)

    return unless_missing(attacked)


def _lying(terms: Terms, scored: _Scored, data: FederatedData) -> SplitViews:
    """Real parties behind masks; without masks the server reads each upload anyway."""
    made, n_clients = scored.made, len(data.clients)
    return SplitViews(
        votes=_votes_of_each(terms, scored, data),
        levels=scored.recorder.levels(_levels(terms, made.spec, data)),
        decoy=torch.zeros(data.proxies.pixels.shape[1:]),
        cohort=None if made.spec.secure is None else SplitCohort(n_clients),
    )


def _levels(terms: Terms, spec: RowSpec, data: FederatedData) -> int:
    method = runs.method_of(terms.run(spec, 0), data)
    if not isinstance(method, FedMD | SelectiveFD):
        raise LocalError(f"{spec.key}: clients cast no votes")
    return method.levels


def _votes_of_each(terms: Terms, scored: _Scored, data: FederatedData) -> AnswerFunction:
    made = scored.made
    uncovered = replace(made, spec=replace(made.spec, secure=None))
    return injection_oracle(terms, uncovered, data, scored.recorder)


def _probed(terms: Terms, scored: _Scored, data: FederatedData, indices: IntArray) -> IntArray:
    """[K, n] what each client says of these proxies, before the label unit's noise."""
    votes = _votes_of_each(terms, scored, data)
    if scored.made.spec.unit == "label":
        bare = replace(scored.made, spec=replace(scored.made.spec, secure=None, unit=None))
        votes = injection_oracle(terms, bare, data, NoProtection())
    answers = votes(data.proxies.pixels[torch.from_numpy(indices)]).numpy()
    return torch.stack(
        [torch.from_numpy(named(answers[:, k])) for k in range(answers.shape[1])]
    ).numpy()


_DROP = 0.2
_ROUNDS_dropouts, _QUICK_ROUNDS_dropouts = 30, 3
_ONCE = "-one-release"
_KEYS_dropouts = (
    "selective-fd-hard",
    "selective-fd-hard-masks",
    f"selective-fd-hard-masks{_ONCE}",
    "selective-fd-hard-masks-dp-label",
    "selective-fd-hard-masks-dp-record",
)


def _participation(view: View, made: runs.RowRun, prepared: Prepared) -> AttackResult:
    attack = Participation(undoing(made.response) if made.response else None)
    estimate = attack.run(view, made.seed)
    return attack.score(estimate, prepared.arsenal.histograms, made.seed)


def _federation_rows(job: Job) -> Mapping[str, str]:
    """FedAvg, FedMD and Selective-FD, the last in clear, masked, and with noise."""
    specs = {spec.key: spec for spec in row_specs(_federation_plan(job))}
    return {key: specs[key].label for key in _KEYS}


def _federation_prepare(job: Job, seed: int, progress: Progress) -> Prepared:
    """Warmed clients; a prior with its controls."""
    plan = _federation_plan(job)
    warm = runs.warm_up(plan.terms, seed, lambda done: progress(20 * done // plan.terms.clients))
    arsenal = attacking.prepare(
        plan.terms, seed, plan.attacks, lambda share: progress(20 + 8 * share // 10)
    )
    return Prepared(warm, arsenal)


def _federation_run(
    job: Job, row: str, seed: int, prepared: Prepared, progress: Progress
) -> Findings:
    """Train a row, then everything that a server could try."""
    plan = _federation_plan(job)
    spec = next(spec for spec in row_specs(plan) if spec.key == row)
    recorder = recorder_for(plan.terms, spec)
    made = runs.run_row(
        plan.terms,
        spec,
        seed,
        None if spec.kind == "fedavg" else prepared.warm,
        lambda done: progress(70 * done // plan.terms.rounds),
        recorder,
    )
    known = attacking.attack_row(plan.terms, plan.attacks, prepared.arsenal, made, lambda _: None)
    progress(90)
    scored = _Scored(made, recorder, prepared.arsenal, statements(recorder, made.transcript))
    found = {**known, **_on_sums(scored), "inconsistent-proxies": _split(plan, scored)}
    return declared(found, _LABELS_AND_AUTHORS) if spec.unit == "record" else found


def _federation_plan(job: Job) -> Plan:
    rounds = _QUICK_ROUNDS if job.quick else _ROUNDS
    # Another scene has inversion at length; a minute's look does without the prior.
    attacks = ["label-distribution", *([] if job.quick else ["inversion"]), *job.own]
    return suite_plan(job, Settings(rounds=rounds, attacks=",".join(attacks)))


FEDERATION = Scene(
    name="federation",
    title="One class a client: sums, colluders, a lying server",
    about="The strong split of the comparison, in which every client holds one class, so that "
    "labels, authors and votes have most to hide. Shorter than the comparison: these attacks "
    "read votes, which selectors decide before the first round.",
    rows=_federation_rows,
    prepare=_federation_prepare,
    run=_federation_run,
)


def _dropouts_rows(job: Job) -> Mapping[str, str]:
    """Selective-FD in clear, masked, masked with one release a proxy, and with noise."""
    labels = {spec.key: spec.label for spec in row_specs(_dropouts_plan(job, ""))}
    # A minute's look does without the record unit, whose release takes longest.
    return {
        key: labels[key.removesuffix(_ONCE)] + ", one release" * key.endswith(_ONCE)
        for key in (_KEYS_dropouts[:-1] if job.quick else _KEYS_dropouts)
    }


def _dropouts_prepare(job: Job, seed: int, progress: Progress) -> Prepared:
    """Warmed clients."""
    plan = _dropouts_plan(job, "")
    warm = runs.warm_up(plan.terms, seed, lambda done: progress(90 * done // plan.terms.clients))
    return Prepared(warm, attacking.prepare(plan.terms, seed, plan.attacks, lambda _: None))


def _dropouts_run(
    job: Job, row: str, seed: int, prepared: Prepared, progress: Progress
) -> Findings:
    """Train a row, then put its sums together."""
    plan = _dropouts_plan(job, row)
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
        **attacking.attack_row(plan.terms, plan.attacks, prepared.arsenal, made, lambda _: None),
        "differencing": unless_missing(
            lambda: subtract.score(subtract.run(view, seed), said, seed)
        ),
        "participation": unless_missing(lambda: _participation(view, made, prepared)),
    }
    return declared(found, tuple(found)) if spec.unit == "record" else found


def _dropouts_plan(job: Job, row: str) -> Plan:
    """One release: a round asks about as many proxies as leaves some for every round."""
    rounds = _QUICK_ROUNDS_dropouts if job.quick else _ROUNDS_dropouts
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
    rows=_dropouts_rows,
    prepare=_dropouts_prepare,
    run=_dropouts_run,
)
