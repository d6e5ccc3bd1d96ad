"""The scene in which a server inverts what clients of FedAvg send."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from attacks.core.base import AttackResult, Labelled, substream
from attacks.core.fit import network
from attacks.core.view import Capability, Public, View, server_view
from attacks.inversion.imprint import Imprint, lying
from attacks.inversion.one_update import MLP, SetUp, newest_records, one_update
from attacks.inversion.updates import (
    QUICK,
    Recipe,
    Search,
    check_explained,
    client_updates,
    mean_update,
)
from attacks.inversion.updates_attack import (
    AnalyticInversion,
    MeanInversion,
    OptimisedInversion,
    UpdateInversion,
    UpdateTruth,
    distinct,
    references,
)
from attacks.on_run import labelled, public_of
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Job, Scene, Turn, launched, noted
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.protocol.transcript import Transcript
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.selectors import ProxyRatioSelector
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.recipes import SGD, Schedule

Attack = AnalyticInversion | MeanInversion | OptimisedInversion

_CNN = models.SHARED
_CLIENTS, _QUICK_CLIENTS, _LATE, _QUICK_LATE = 10, 4, 100, 10
# Held-out records serve twice: half as references, half in the control's updates.
_SIZES = {"digits": Sizes(proxies=40, test=0, held_out=60)}
_DEFAULT_SIZES = Sizes(proxies=100, test=0, held_out=140, local=260)
_SHORT = Search(iterations=500, restarts=1)
_ONE_BATCH = "clients hold one batch: not sampled, it takes more noise for ε than a larger set"
_CLOSED_FORM = "not run: the closed form answers for this architecture"


@dataclass(frozen=True, slots=True)
class _Row:
    """A protocol row. rounds: the last is attacked. search: of gradient matching."""

    label: str
    model: str = MLP
    recipe: Recipe = field(default_factory=lambda: Recipe(1))
    rounds: int = 2
    masks: bool = False
    private: bool = False
    search: Search = field(default_factory=Search)


_ROWS: Mapping[str, _Row] = {
    "mlp-b1": _Row("FedAvg, MLP, batch 1"),
    "mlp-b8": _Row("FedAvg, MLP, batch 8", recipe=Recipe(8)),
    "mlp-b64": _Row("FedAvg, MLP, batch 64", recipe=Recipe(64)),
    "mlp-b1-masks": _Row("FedAvg, MLP, batch 1 + masks", masks=True),
    "mlp-b8-masks": _Row("FedAvg, MLP, batch 8 + masks", recipe=Recipe(8), masks=True),
    "mlp-b1-dp-sgd": _Row("FedAvg, MLP, batch 1 + DP-SGD", private=True),
    "cnn-b1": _Row("FedAvg, CNN, batch 1", _CNN),
    "cnn-b1-late": _Row("FedAvg, CNN, batch 1, after training", _CNN, rounds=_LATE),
    "cnn-b1-5-steps": _Row("FedAvg, CNN, batch 1, 5 steps", _CNN, Recipe(1, 5), search=_SHORT),
    "cnn-b8": _Row("FedAvg, CNN, batch 8", _CNN, Recipe(8), search=_SHORT),
}
_SLOW = frozenset({"mlp-b64", "mlp-b8-masks", "cnn-b1-5-steps", "cnn-b8"})
_DISTILLED = "selective-fd"
_IMPRINTS: Mapping[str, str] = {
    "imprint": "FedAvg + masks, a model of the server's own",
    "imprint-dp-sgd": "FedAvg + masks + DP-SGD, a model of the server's own",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Set:
    """One seed's data. references, others: by client, two halves of the held-out records."""

    data: FederatedData
    references: tuple[Images, ...]
    others: tuple[Images, ...]

    def public(self, model: str) -> Public:
        """What everybody knows, with the network that trains."""
        architecture = partial(models.build, model, self.data.n_classes)
        return replace(public_of(self.data), architecture=architecture)


@dataclass(frozen=True, slots=True, eq=False)
class _Met:
    """A trained row. control: the view of a run whose newest round met other records."""

    caveats: tuple[str, ...]
    public: Public
    view: View
    control: View
    private: Mapping[int, Labelled]
    held_out: Mapping[int, Sequence[Labelled]]


def _meet(row: _Row, turn: Turn[_Set]) -> _Met:
    """Train, train once more on held-out records, and find what the newest round was made of."""
    made, data, seed = turn.made, turn.made.data, turn.seed
    public = made.public(row.model)
    clients = [_limited(row, client.train, data.n_classes) for client in data.clients]
    begin = models.flatten(models.build(row.model, data.n_classes, seed))
    run = _fedavg(turn.job, row, public, clients, begin, seed)
    run.fit(row.rounds)
    view = server_view(run.transcript, public)
    drawn = newest_records(clients, row.recipe, row.rounds, seed)
    _check_truth(row, view, drawn)
    private = {k: distinct(records) for k, records in drawn.items()}
    held_out = {
        k: references(own, labelled(made.references[k]), substream(seed, f"references {k}"))
        for k, own in private.items()
    }
    caveats = (_ONE_BATCH,) if row.private else ()
    return _Met(caveats, public, view, _control(turn, row, view), private, held_out)


def _fedavg(
    job: Job, row: _Row, public: Public, clients: Sequence[ClientData], start: Tensor, seed: int
) -> Federation:
    """A run from parameters `start` [m]; under DP-SGD the whole of it has the job's budget."""
    recipe = row.recipe
    private = None
    if row.private:
        steps = row.rounds * recipe.steps
        private = PrivateSGD(job.epsilon, job.delta, steps, recipe.learning_rate, recipe.batch)
    shared = [network(public, start).train() for _ in clients]  # Opacus hooks training alone
    run = Federation(
        shared,
        clients,
        None,
        FedAvg(private=private),
        schedule=Schedule(
            local_steps=recipe.steps,
            proxy_steps=0,
            sgd=SGD(recipe.learning_rate, recipe.batch),
        ),
        aggregation=MaskedSum(len(clients)) if row.masks else None,
        seed=seed,
    )
    run.transcript.keep_inputs = not row.masks
    return run


def _control(turn: Turn[_Set], row: _Row, view: View) -> View:
    """A round from where the newest one began, on held-out records that are no references.

    Without masks: the sum is the same, and what they hide the attack never got to see.
    """
    before, n_classes = view.models[-2], turn.made.data.n_classes
    clients = [_limited(row, others, n_classes) for others in turn.made.others]
    bare = replace(row, masks=False)
    start = torch.from_numpy(before.result.copy())
    run = _fedavg(turn.job, bare, view.public, clients, start, substream(turn.seed, "control"))
    run.fit(1)
    transcript = Transcript(len(clients))
    transcript.add_parameters(before)
    transcript.add_parameters(run.transcript.parameters[-1])
    return server_view(transcript, view.public)


def _limited(row: _Row, records: Images, n_classes: int) -> ClientData:
    """All records; under DP-SGD one batch, so that every record is in every batch."""
    kept = torch.arange(row.recipe.batch if row.private else len(records))
    return ClientData(records[kept], records[kept[:0]], n_classes)


def _check_truth(row: _Row, view: View, drawn: Mapping[int, Labelled]) -> None:
    if row.private:
        return  # noise hides what was drawn, but a client with one batch has nothing else
    seen = Capability.CLIENT_PARAMETERS in view.capabilities
    updates = (client_updates if seen else mean_update)(view, row.recipe)
    check_explained(view.public, updates, row.recipe, drawn)


def _distilled(turn: Turn[_Set]) -> _Met:
    """A round in which no parameters cross: there is no update to invert."""
    data, public = turn.made.data, turn.made.public(_CNN)
    networks = [models.build(_CNN, data.n_classes, turn.seed + k) for k in range(2)]
    steps = Schedule(warmup_steps=1, proxy_steps=1, proxies_per_round=64)
    method = SelectiveFD("hard", ProxyRatioSelector())
    proxies = data.proxies.pixels[:100]
    run = Federation(networks, data.clients[:2], proxies, method, schedule=steps, seed=turn.seed)
    run.fit(2)
    view = server_view(run.transcript, public)
    return _Met((), public, view, view, {}, {})


def _rows(job: Job) -> Mapping[str, str]:
    """Rows whose batches the held-out records can match, fewer in a quick job."""
    most = _SIZES.get(job.dataset, _DEFAULT_SIZES).held_out // 2
    left_out = _SLOW if job.quick else frozenset()
    fitting = {key: row for key, row in _ROWS.items() if row.recipe.records <= most}
    named = {key: row.label for key, row in fitting.items() if key not in left_out}
    return {**named, _DISTILLED: "Selective-FD hard", **_IMPRINTS}


def _prepare(job: Job, seed: int) -> _Set:
    """One class a client, and its held-out records halved."""
    clients, sizes = _QUICK_CLIENTS if job.quick else _CLIENTS, _SIZES.get(job.dataset)
    source = load(job.dataset, job.data_dir)
    data = federate(source, Split("strong"), clients, seed, sizes or _DEFAULT_SIZES)
    halves = [_halves(data.held_out, client) for client in data.clients]
    return _Set(data, tuple(a for a, _ in halves), tuple(b for _, b in halves))


def _halves(held_out: Images, client: ClientData) -> tuple[Images, Images]:
    """The held-out records of a client's classes, class by class in two equal parts."""
    own = [(held_out.labels == c).nonzero()[:, 0] for c in client.classes]
    return (
        held_out[torch.cat([found[: len(found) // 2] for found in own])],
        held_out[torch.cat([found[len(found) // 2 :] for found in own])],
    )


def _attempts(turn: Turn[_Set]) -> Mapping[str, Attempt]:
    """Invert the newest round of a row, in closed form and by search where that is needed."""
    if turn.row in _IMPRINTS:
        return {Imprint.name: partial(_imprint, turn)}
    row = _ROWS.get(turn.row, _Row("", _CNN))
    if turn.job.quick:
        row = replace(row, rounds=min(row.rounds, _QUICK_LATE), search=QUICK)
    met = _distilled(turn) if turn.row == _DISTILLED else _meet(row, turn)
    attacks: list[Attack] = [
        AnalyticInversion.prepare(met.public, row.recipe),
        MeanInversion.prepare(met.public, row.recipe),
        OptimisedInversion.prepare(met.public, row.recipe, row.search),
    ]
    return {
        attack.name: (lambda: _CLOSED_FORM)
        if row.model == MLP and isinstance(attack, OptimisedInversion)
        else partial(_inverted, attack, met, turn.seed)
        for attack in attacks
    }


def _inverted(attack: Attack, met: _Met, seed: int) -> AttackResult:
    estimate, control = attack.run(met.view, seed), attack.run(met.control, seed)
    truth = UpdateTruth(met.private, met.held_out, control)
    return noted(attack.score(estimate, truth, seed), caveats=met.caveats)


def _imprint(turn: Turn[_Set]) -> AttackResult:
    """Imprint a model on ten mixed clients' step on eight records, beside an honest model."""
    job, seed = turn.job, turn.seed
    sizes = Sizes(proxies=20 if job.quick else 50, test=1, held_out=40, local=60)
    data = federate(load(job.dataset, job.data_dir), Split("iid"), 10, seed, sizes)
    public = replace(public_of(data), architecture=partial(models.build, MLP, data.n_classes))
    private = PrivateSGD(job.epsilon, job.delta, 2) if turn.row.endswith("dp-sgd") else None
    set_up = SetUp(batch=8)
    update = partial(one_update, set_up, data, seed, private=private, masks=True)
    lied, honest = update(lie=lying(public)), update()
    found = launched(Imprint(public, set_up.recipe), lied.view, lied.records, seed)
    plain = launched(UpdateInversion(public, set_up.recipe), honest.view, honest.records, seed)
    return noted(found, {"honest_model_psnr": plain.figure}, lied.caveats)


SCENE = Scene(
    name="updates",
    title="Inverting updates",
    about="Every client holds one class and sends its parameters after one local step, or five, on "
    "a batch of known size; the server inverts what the newest round moved. Updates leak most "
    "where few records stand behind one, so small batches are where to look. Or the server sends a "
    "model of its own, and reads the sum of ten clients under masks.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
