"""The paper's Tables 1 and 2, its IID row and Fig. 4: its figures beside ours under two recipes.

python experiments/paper/accuracy.py --image-sets mnist --splits strong

The paper's steps: its steps and rates, Selective-FD as its authors run it, for the rounds that a
night allows; `--rounds 500 --rows selective-fd --out FOLDER` takes more. Equal terms: see
`core.equal_steps`. The paper's other methods run at equal terms on chest X-rays alone, where the
paper states gains over the best of them; `rivals.equal_terms` sets Selective-FD beside them.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.core import published, study
from experiments.core.equal_steps import QUICK, STEPS, equal_cell, setting
from experiments.core.frames import Frame, bars, diverged, percent, seeds_of, table, with_seeds
from experiments.core.grid import (
    HOSPITALS,
    PAPER_SETS,
    PUBLISHED,
    QUICK_SET,
    SEEDS,
    ImageStudy,
    default_cell,
    later,
    on_its_recipe,
)
from experiments.core.measures import ACCURACY, DIVERGED
from experiments.core.published import GAINS_FIG_4, method_title
from experiments.core.run_config import RunConfig, unlabelled
from experiments.core.shared_options import TableOptions
from experiments.core.study import Result, Results
from experiments.report.plots import Bars
from experiments.report.tables import NONE, Table

_BASELINES = ("independent", "fedmd", "ds-fl", "feded", "fkd", "pls")
"""Methods that the paper compares Selective-FD with."""
METHODS = (*_BASELINES, "fedavg", "selective-fd")
LABELS = ("hard", "soft")
OURS, THEIRS = "equal terms", "paper's steps"
_SPLITS = ("strong", "weak", "iid", HOSPITALS)


@dataclass(frozen=True, slots=True)
class Settings(TableOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    rounds: int | None = None
    """Rounds of the paper's steps; by default 15."""


def cells(settings: Settings) -> tuple[RunConfig, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    study.at_least(1, rounds=settings.rounds)
    methods = study.listed("rows", settings.rows, METHODS)
    sets = study.listed("image_sets", settings.image_sets, (*PAPER_SETS, "chest_xray"))
    splits = study.listed("splits", settings.splits, _SPLITS)
    seeds = study.whole_numbers("seeds", settings.seeds, SEEDS)
    if settings.quick:
        sets, splits, seeds = (QUICK_SET,), splits[:1], (0,)
    return tuple(
        made
        for image_set in sets
        for split in splits
        if (split == HOSPITALS) == (image_set == "chest_xray")
        for seed in seeds
        for method in methods
        for labels in ([""] if unlabelled(method) else LABELS)
        for made in _both(method, labels, image_set, split, seed, settings)
    )


def _both(
    method: str, labels: str, image_set: str, split: str, seed: int, settings: Settings
) -> Iterator[RunConfig]:
    """A method under the paper's steps, at equal terms, or both."""
    quick, own = settings.quick, {"method": method, "labels": labels}
    as_published = PUBLISHED if method == "selective-fd" else method
    if method != "fedavg":  # its accuracy is in no table of the paper
        base = default_cell(image_set, split, seed, settings.rounds, quick=quick)
        theirs = replace(base, method=as_published, labels=labels)
        found = on_its_recipe(theirs, quick=quick, rounds=settings.rounds)
        yield replace(found, every=found.rounds)
    if split == HOSPITALS or method not in _BASELINES:
        chosen = QUICK if quick else setting(f"{method}-{labels}".rstrip("-"), image_set, split)
        yield equal_cell(own, chosen, image_set, split, seed, quick=quick)


def measure(data_dir: Path | None, cell: RunConfig, made: Mapping[Any, Any]) -> Result:
    """Train and test; the file has room for little beside the accuracy."""
    found = later("experiments.core.runs:run_cell")(data_dir, cell, made)
    return Result(cell, found.only(ACCURACY, DIVERGED), found.seconds)


# Tables and figure.


def _recipe(cell: RunConfig) -> str:
    """Networks at equal terms take steps whose rate falls; the paper's is constant."""
    return THEIRS if cell.schedule.anneal_over is None else OURS


def _runs(results: Results) -> Frame:
    return published.beside(
        results,
        published.of_cell,
        title=lambda cell: method_title(cell.method.removesuffix("-published")),
        recipe=_recipe,
    )


def tables(results: Results) -> list[Table | str]:
    """Selective-FD in all places, then every method in each: the paper's figures beside ours."""
    runs = _runs(results)
    ours = runs[runs.method.str.startswith("selective-fd")]
    texts, by_place = _beside_paper(ours, "place"), runs.groupby("place", sort=False)
    first: list[Table | str] = []
    if len(ours):
        first = [table("Selective-FD beside the paper, test accuracy, %, last round", texts)]
    if (runs.recipe == THEIRS).any():
        first.append(_recipes(runs))
    parts = [part for place, of in by_place for part in _shown(place, of)]
    return [*first, *parts]


def _recipes(runs: Frame) -> str:
    """What differs between the columns, and from the paper."""
    counts = " or ".join(map(str, sorted(runs[runs.recipe == THEIRS].rounds.unique())))
    return (
        f"Paper's steps: {counts} rounds at its rates, where the authors' code trains up to 20,000 "
        "and reports its best test; here the last counts. Selective-FD runs as its authors run it, "
        "with KuLSIF, votes that count alike, and batches of the newest predictions. Other methods "
        f"take batches of 128 from all predictions so far. Equal terms: {STEPS} steps a "
        "network; Selective-FD is this package's method, with ratios to proxies and votes that "
        "have weights. CIFAR-10 is features of a frozen network, where the paper trains ResNets, "
        "and our chest X-rays are not the paper's."
    )


def _shown(place: str, runs: Frame) -> Iterator[Table | str]:
    texts = _beside_paper(runs, "title").rename_axis("method")
    texts["seeds"] = runs.groupby("title").seed.agg(seeds_of)
    split = runs.split.iloc[0]
    title = f"{place}: test accuracy, %, last round; equal terms: {STEPS} steps a network; paper: "
    yield table(title + published.CITATIONS[split], texts)
    yield from _gains(runs) if split == HOSPITALS else _short(runs)
    yield from _beside_fedavg(runs)
    yield from diverged(runs, "title", "labels", "recipe")


def _of_labels(runs: Frame, labels: str) -> Frame:
    """Results in a column of the table: a method without labels is the same in both."""
    return runs[runs.labels.isin(["", labels])]


def _beside_paper(runs: Frame, by: str) -> Frame:
    """The paper's percent and ours under each recipe, for hard and for soft labels.

    by: title or place.
    """
    from pandas import concat

    parts = {}
    for labels in LABELS:
        of = _of_labels(runs, labels)
        parts[f"{labels}: paper"] = of.groupby(by).published.first()
        for recipe in (THEIRS, OURS):
            under = of[of.recipe == recipe].groupby(by)[ACCURACY]
            parts[f"{labels}: {recipe}"] = under.agg(percent)
    return concat(parts, axis=1).reindex(runs[by].unique()).rename_axis(by)


def _means(runs: Frame, labels: str, recipe: str) -> Frame:
    of = _of_labels(runs, labels)
    return of[of.recipe == recipe].groupby("method")[[ACCURACY, "known"]].mean()


def _short(runs: Frame) -> Iterator[str]:
    """Where our Selective-FD is below the paper's, under each recipe."""
    below = []
    for recipe in (THEIRS, OURS):
        for labels in LABELS:
            means = _means(runs, labels, recipe)
            for method, found in means.iterrows():
                gap = 100 * (found["known"] - found[ACCURACY])
                if str(method).startswith("selective-fd") and round(gap, 1) > 0:
                    below.append(f"by {gap:.1f} points with {labels} labels under {recipe}")
    if below:
        yield f"Selective-FD falls short of the paper {', '.join(below)}."


def _beside_fedavg(runs: Frame) -> Iterator[str]:
    """Points of Selective-FD over FedAvg, which shares parameters, at equal terms."""
    gaps = []
    for labels in LABELS:
        means = _means(runs, labels, OURS)[ACCURACY]
        if {"fedavg", "selective-fd"} <= set(means.index):
            gap = 100 * (means["selective-fd"] - means["fedavg"])
            gaps.append(f"{gap:+.1f} with {labels} labels")
    if gaps:
        yield f"Selective-FD over FedAvg, which shares parameters, points: {', '.join(gaps)}."


def _gains(runs: Frame) -> Iterator[str]:
    """Points over the best baseline of the paper, as the text on Fig. 4 has them."""
    for labels in LABELS:
        points = []
        for recipe in (THEIRS, OURS):
            means = _means(runs, labels, recipe)[ACCURACY]
            best = means.reindex(_BASELINES).max(skipna=False)
            gain = 100 * (means.filter(like="selective-fd").max() - best)
            points.append(NONE if math.isnan(gain) else f"{gain:+.2f} ({recipe})")
        shown = ", ".join([*points, f"{GAINS_FIG_4[labels]:+.2f} (paper)"])
        yield f"Selective-FD over the best baseline of the paper, {labels} labels, points: {shown}."


def panels(results: Results) -> list[Bars]:
    """Bars of every method, as in Fig. 4; hollow marks are the paper's means.

    Under the paper's steps; at equal terms the two that run everywhere.
    """
    from pandas import concat

    runs = _runs(results)
    equal = runs.recipe == OURS
    runs = runs.assign(title=runs.title.mask(equal, runs.title + f", {OURS}"))
    runs = runs[~(equal & runs.method.isin(_BASELINES))]
    both = concat(_of_labels(runs, labels).assign(series=f"{labels} labels") for labels in LABELS)
    names, columns = ("title", "series"), (ACCURACY, "", "known")
    return [
        bars(place, "test accuracy", of, names, columns)
        for place, of in both.groupby("place", sort=False)
    ]


STUDY = ImageStudy(
    home="papers",
    name="accuracy",
    about="Test accuracy beside the paper: Tables 1 and 2, the IID table, and Fig. 4.",
    settings=Settings,
    cells=cells,
    measure=measure,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.accuracy"))
