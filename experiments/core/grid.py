"""The grids of the paper's studies: what a command line chooses, and the recipe of each cell.

Baselines take plain SGD at .1, constant, on images as they are. The difference between rows is
therefore one of method and schedule together; an ablation gives Selective-FD the baselines'.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.core import study
from experiments.core.run_config import BY_NETWORK, REPORTED_SEED, RunConfig
from experiments.core.shared_options import TableOptions
from secure_fd.data.image_sets import IMAGE_SETS, image_set
from secure_fd.data.partition import parse_split
from secure_fd.training.recipes import SGD, Recipe, Schedule, ours, paper

PAPER_SETS = ("mnist", "fashion_mnist", "cifar10_features")
QUICK_SET = "digits"
SEEDS = tuple(range(REPORTED_SEED, REPORTED_SEED + 3))
"""Seeds of every cell by default."""
PUBLISHED = "selective-fd-published"
"""Selective-FD as its authors run it."""
HOSPITALS = "hospitals"
"""The split of chest X-rays, and of nothing else."""
WARMUP = 200
"""Steps of the paper's warm-up."""
_BASELINE_ROUNDS = dict.fromkeys((*PAPER_SETS, "chest_xray"), 15)
"""Rounds of the paper's methods under its recipe, so that three seeds of all fit into a night."""
_OTHER_ROUNDS = 30
_BATCH = 128
_ONE_CLASS = ("strong", HOSPITALS)
_QUICK_ROUNDS = 2
_QUICK_STEPS = 20
_QUICK_CLIENTS = 3
_CLIENTS = {"chest_xray": 4}
_MOST_CLIENTS = 10


# Recipes, by image set and split.


# The paper's Table 5 takes a tenth of the training images as proxies, and 512 of them a round; the
# small bundled sets need a larger share. Every step takes a batch from all predictions received
# so far, at a quarter of the arithmetic of the paper's ten steps on one round's 512.
_STEPS = {
    "digits": (30, 128, 64),
    "mnist": (100, 512, 128),
    "fashion_mnist": (100, 512, 128),
    "cifar10": (30, 2000, 128),
    "chest_xray": (30, 375, 64),
}
"""Image set -> rounds, proxies of a round, batch of distillation."""


def paper_recipe(name: str, split: str) -> Recipe:
    """The paper's steps on an image set: 5 local and 6 proxy steps a round in the IID split.

    >>> paper_recipe("mnist5k", "strong").schedule.proxy_steps
    10
    """
    usual = (30, min(256, image_set(name).proxies), 64)
    images = name.removesuffix("_patches").removesuffix("_features")
    rounds, asked, batch = _STEPS.get(images, usual)
    local, proxy = (5, 6) if split == "iid" else (1, 10)
    sgd = SGD(distillation_batch=batch)
    return Recipe(rounds, Schedule(WARMUP, local, proxy, asked, sgd=sgd))


def our_recipe(image_set: str, split: str, rounds: int | None = None) -> Recipe:
    """Rounds and schedule of Selective-FD; rounds: in the place of the recipe's own.

    >>> our_recipe("mnist", "strong").rounds
    50
    """
    known = IMAGE_SETS[image_set]
    held = _classes_held(split, known.n_classes)
    return ours(known.n_classes, known.proxies, held, image_set=image_set, rounds=rounds)


def _classes_held(split: str, n_classes: int) -> float:
    """Return the number of classes that a client holds on average, by the split."""
    chosen = parse_split(split)
    if chosen.kind == "dirichlet":
        return 1 + (n_classes - 1) * chosen.beta / (1 + chosen.beta)
    return {"strong": 1, HOSPITALS: 1, "weak": 2}.get(chosen.kind, n_classes)


def baselines(image_set: str, split: str) -> Schedule:
    """Return the paper's steps and rate, with batches and memory of our Selective-FD.

    200 steps of warm-up, then 1 local and 10 proxy steps a round (IID 5 and 6). Batches have 128
    samples. Proxies a round are those of Selective-FD in splits that are not IID.
    """
    steps = paper_recipe(image_set, split).schedule
    proxies = our_recipe(image_set, "strong").schedule.proxies_per_round
    sgd = replace(steps.sgd, distillation_batch=_BATCH)
    return replace(steps, proxies_per_round=proxies, sgd=sgd)


# Cells.


def default_cell(
    image_set: str, split: str, seed: int, rounds: int | None = None, *, quick: bool = False
) -> RunConfig:
    """Independent learning at Selective-FD's schedule: what a study's cells vary."""
    count = rounds or (_QUICK_ROUNDS if quick else our_recipe(image_set, split).rounds)
    steps = our_recipe(image_set, split, count).schedule
    clients = _CLIENTS.get(image_set, _MOST_CLIENTS)
    if quick:
        warm, distilled = (min(_QUICK_STEPS, n) for n in (steps.warmup_steps, steps.proxy_steps))
        steps = replace(steps, warmup_steps=warm, proxy_steps=distilled)
        clients = clients if split == HOSPITALS else _QUICK_CLIENTS
    return RunConfig(
        image_set=image_set,
        split=split,
        method="independent",
        seed=seed,
        rounds=count,
        schedule=steps,
        clients=clients,
    )


def on_its_recipe(cell: RunConfig, *, quick: bool, rounds: int | None) -> RunConfig:
    """The cell on the schedule of its method, the paper's for baselines, and their rounds.

    Selectors that read a network, and votes that a network alone divides between a client's
    classes, need one that has learnt something.
    """
    divides = cell.selector == "kulsif" and parse_split(cell.split).kind not in _ONE_CLASS
    if not cell.schedule.warmup_steps and (cell.selector in BY_NETWORK or divides):
        count = _QUICK_STEPS if quick else WARMUP
        return replace(cell, schedule=replace(cell.schedule, warmup_steps=count))
    usual = _QUICK_ROUNDS if quick else _BASELINE_ROUNDS.get(cell.image_set, _OTHER_ROUNDS)
    if cell.method == PUBLISHED:
        return _as_published(cell, rounds or usual)
    if cell.variant or cell.method == "selective-fd":
        return replace(cell, class_by="network") if _networks_name_classes(cell) else cell
    steps = baselines(cell.image_set, cell.split)
    if quick:
        return replace(cell, schedule=replace(steps, warmup_steps=_QUICK_STEPS))
    if cell.every:  # bytes are compared over all rounds
        return replace(cell, schedule=steps)
    return replace(cell, schedule=steps, rounds=rounds or usual)


def _as_published(cell: RunConfig, rounds: int) -> RunConfig:
    """The cell on the steps of the authors' code."""
    known = IMAGE_SETS[cell.image_set]
    held = _classes_held(cell.split, known.n_classes)
    steps = paper(known.n_classes, known.proxies, held, image_set=cell.image_set)
    return replace(cell, schedule=steps.schedule, rounds=rounds, every=min(rounds, 25))


def _networks_name_classes(cell: RunConfig) -> bool:
    """Return whether networks alone name classes: clients hold all, and votes have weights."""
    weighed = cell.selector == "ratio" and cell.quantile is None and not cell.variant
    return weighed and parse_split(cell.split).kind == "iid"


@dataclass(frozen=True, slots=True)
class Settings(TableOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    rounds: int | None = None
    """Rounds of every cell; by default what the image set needs."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes of a study. image_sets, splits: what is run by default. methods: what may be named.

    vary: from a default cell of one place and seed, the study's cells there. rounds: of every cell,
    where the recipes have more.
    """

    image_sets: tuple[str, ...]
    splits: tuple[str, ...]
    methods: tuple[str, ...]
    vary: Callable[[RunConfig], Iterator[RunConfig]]
    rounds: int | None = None

    def cells(self, settings: Settings) -> tuple[RunConfig, ...]:
        """The cells that a command line asks for, each once.

        Raises ConfigurationError for a value that is not allowed.
        """
        study.at_least(1, rounds=settings.rounds)
        quick = settings.quick
        usual = (QUICK_SET,) if quick else self.image_sets
        sets = study.listed("image_sets", settings.image_sets, tuple(IMAGE_SETS), usual)
        splits = study.listed("splits", settings.splits, self.splits)
        methods = study.listed("rows", settings.rows, self.methods)
        seeds = study.whole_numbers("seeds", settings.seeds, SEEDS[: 1 if quick else None])
        rounds = settings.rounds or (None if quick else self.rounds)
        made = (
            on_its_recipe(cell, quick=quick, rounds=rounds)
            for image_set in sets
            for split in splits
            if (split == HOSPITALS) == (image_set == "chest_xray")
            for seed in seeds
            for cell in self.vary(default_cell(image_set, split, seed, rounds, quick=quick))
            if cell.method in methods
        )
        return tuple(dict.fromkeys(made))


# Studies.


def later(home: str) -> Callable[..., Any]:
    """A function "module:name", imported when it is first called: --help waits for no library.

    >>> later("math:sqrt")(4)
    2.0
    """

    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the function
        module, _, name = home.partition(":")
        return getattr(import_module(module), name)(*arguments, **options)

    return call


_NEEDS, _PREPARE = later("experiments.core.runs:needs"), later("experiments.core.runs:prepare")
_MEASURE = later("experiments.core.runs:run_cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStudy(study.Study):
    """A study whose cells are runs of a federation."""

    settings: type = Settings
    cell: type = RunConfig
    needs: Callable[[Any], Sequence[Hashable]] = _NEEDS
    prepare: Callable[[Path | None, Any], Any] = _PREPARE
    measure: Callable[[Path | None, Any, Mapping[Any, Any]], study.Result] = _MEASURE
