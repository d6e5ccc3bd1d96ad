"""One client of ten that lies: what is left of the others' accuracy, in the bound and beyond."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attacks.base import AttackResult
from attacks.poisoning import LenientSum, Lie, Poisoned, poisoned
from experiments.leakage import Attempt
from experiments.scenes import Job, Progress, Scene, Turn
from secure_fd import models
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, exchange_of, participants_of
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.recipes import SGD, Recipe, Schedule, Sizes

_CLIENTS: Final = 10
_SIZES: Final = Sizes(proxies=30, test=30, held_out=1, local=30)
_RECIPES: Final[Mapping[str, Recipe]] = {
    "strong": Recipe(
        5,
        Schedule(
            warmup_steps=0,
            local_steps=0,
            proxy_steps=20,
            proxies_per_round=300,
            anneal_over=5,
            sgd=SGD(0.02, 32, 32, own_batch=4, momentum=0.9),
        ),
    ),
    "iid": Recipe(
        1,
        Schedule(
            warmup_steps=100,
            local_steps=0,
            proxy_steps=100,
            proxies_per_round=300,
            anneal_over=1,
            sgd=SGD(0.02, 32, 32, momentum=0.9),
        ),
    ),
}
"""Of each split: as this package's recipe has it, and short."""
_LIES: Final[Mapping[str, tuple[str, Lie]]] = {
    "bound": ("at the bound", Lie()),
    "beyond": ("at 3 x the bound", Lie(3)),
    "off": ("at 3 x the bound, and 1 x off the right class", Lie(3, off=1)),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """accuracies: by client. void: rounds without a sum."""

    accuracies: tuple[float, ...]
    void: int


def outcome(data: FederatedData, recipe: Recipe, seed: int, lie: Lie | None) -> Outcome:
    """Selective-FD with hard labels under masks, with a liar or without."""
    method, sums = exchange_of(SelectiveFD("hard")), MaskedSum(_CLIENTS, public_seed=seed)
    networks = [
        models.build(models.SHARED, data.n_classes, 100 * seed + k) for k in range(_CLIENTS)
    ]
    made = Federation(
        participants_of(networks, data.clients),
        data.proxies.pixels,
        method if lie is None else Poisoned(method, data.proxies.labels.numpy(), lie),
        aggregation=sums if lie is None else LenientSum(sums),
        schedule=recipe.schedule,
        seed=seed,
    )
    reports = made.fit(recipe.rounds)
    return Outcome(tuple(made.accuracies(data.test)), sum(report.void for report in reports))


def _rows(job: Job) -> Mapping[str, str]:  # noqa: ARG001 - the same in every job
    return {
        f"{split}-{key}": f"Selective-FD hard + masks, {split}, one liar {words}"
        for split in _RECIPES
        for key, (words, _) in _LIES.items()
    }


_Prepared = Mapping[str, tuple[FederatedData, Outcome]]


def _prepare(job: Job, seed: int, progress: Progress) -> _Prepared:
    """By split, the data and the run without a liar."""
    source, made = load(job.dataset, job.data_dir), {}
    for done, (split, recipe) in enumerate(_RECIPES.items(), start=1):
        kind = Split("strong") if split == "strong" else Split("iid")
        data = federate(source, kind, _CLIENTS, seed, _SIZES)
        made[split] = (data, outcome(data, recipe, seed, None))
        progress(100 * done // len(_RECIPES))
    return made


def _attempts(turn: Turn[_Prepared]) -> Mapping[str, Attempt]:
    split, _, key = turn.row.partition("-")
    data, honest = turn.made[split]
    lied = outcome(data, _RECIPES[split], turn.seed, _LIES[key][1])
    turn.progress(100)
    details = {"void_rounds": float(lied.void), "rounds": float(_RECIPES[split].rounds)}
    found: AttackResult = poisoned(lied.accuracies, honest.accuracies, turn.seed, details)
    return {found.name: lambda: found}


SCENE = Scene(
    name="poisoning",
    title="One client of ten lies",
    about="Votes under masks, of which only the sum is checked. Client 0 names the class after the "
    "right one for every proxy. The figure is the accuracy of the nine honest clients; a void "
    "round teaches nobody.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
