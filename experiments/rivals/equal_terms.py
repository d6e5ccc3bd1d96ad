"""Test accuracy of every method at equal terms: Tables 1 and 2, the IID table, and Fig. 4.

python experiments/rivals/equal_terms.py --image-sets mnist --splits strong

Every network takes 200 steps of 128 images through the same views, with Nesterov's momentum and a
rate that falls to zero; heads take no steps. Rate, rounds and share of steps alone of every row
stand in `chosen_settings.json`: of four settings a row, the one with the best accuracy on pooled
validation records of seed 0 at half of the steps, measured at commit 5e07a12. The paper's own
figures stand beside ours: its networks take up to 20,000 rounds of 11 steps.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.core import published, run_config, study
from experiments.core.frames import Frame, having, ordered, seeds_of, table, with_seeds
from experiments.core.grid import HOSPITALS, ImageStudy, our_recipe
from experiments.core.measures import ACCURACY, DIVERGED, NETWORK
from experiments.core.run_config import RunConfig
from experiments.core.shared_options import TableOptions
from experiments.paper.accuracy import beside_paper, gains, places
from experiments.report.plots import Bars
from experiments.report.tables import NONE, Table, human_bytes
from secure_fd.training.recipes import SGD, Schedule

STEPS = 200
"""Steps of every network, in all."""
MAJORITY = "accuracy of the most common class"
"""Accuracy of naming the test set's most common class for every image."""
_SEEDS, _CHEST_SEEDS = (20, 21, 22), (20, 21, 22, 23)
"""Seeds of the strong split, and of chest X-rays (200 test images); elsewhere only the first."""
_VIEWS: Mapping[str, str] = {"mnist": "turn", "mnist5k": "turn", "fashion_mnist": "nudge"}
"""Views of training images by image set; none for any other."""
_BATCH, _SUMS = 128, 4


class Setting(NamedTuple):
    """Chosen settings of a row. rounds: among which the steps are divided.

    warm_up: the share of the steps that a client takes alone before the first round.
    """

    rate: float
    rounds: int
    warm_up: float = 0.0


Fields = Mapping[str, Any]
_SHARING = (
    *("fedmd", "ds-fl", "feded", "fkd", "pls", run_config.EDGEFD),
    *("selective-fd-published", "selective-fd"),
)
_ALONE = run_config.HEADS_ALONE


def _row(title: str, method: str = "heads", **own: object) -> tuple[str, Fields]:
    return title, {"method": method, **own}


ROWS: Mapping[str, tuple[str, Fields]] = {
    "independent": _row("Independent", "independent"),
    "fedavg": _row("FedAvg", "fedavg"),
    **{
        f"{method.rpartition(':')[2].lower()}-{labels}": _row(
            run_config.KNOWN[method].title, method, labels=labels
        )
        for method in _SHARING
        for labels in ("hard", "soft")
    },
    "afl": _row("AFL, a head", run_config.AFL, rounds=1, schedule=_ALONE),
    "heads-1": _row("Pooled head, one sum", rounds=1, schedule=_ALONE),
    "heads": _row("Pooled head, 3 residual rounds", rounds=_SUMS, schedule=_ALONE),
    "heads-taught": _row("Networks trained on labels of the pooled head", rounds=_SUMS),
    "truth": _row("True labels of the proxies", rounds=_SUMS, variant=run_config.TRUE_LABELS),
    "centralised": _row(
        "All records at every client", "independent", variant=run_config.ALL_RECORDS
    ),
}
"""Title of a row, and what it sets of a run; without a schedule, its networks take the steps."""


def row_of(cell: RunConfig) -> str:
    """The row that made a cell."""
    plain = {"labels": "", "variant": ""}
    return next(
        key
        for key, (_, own) in ROWS.items()
        if all(getattr(cell, name) == value for name, value in {**plain, **own}.items())
    )


def _chosen() -> Mapping[tuple[str, str], Mapping[str, Setting]]:
    """Settings by image set and split, then by row."""
    held = json.loads(Path(__file__).with_name("chosen_settings.json").read_text(encoding="utf-8"))
    return {
        (image_set, split): {key: Setting(*values) for key, values in by_row.items()}
        for place, by_row in held.items()
        for image_set, split in (place.split(),)
    }


CHOSEN = _chosen()


def cells(options: TableOptions) -> tuple[RunConfig, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    keys = study.listed("rows", options.rows, tuple(ROWS))
    if options.quick:
        brief = Setting(0.02, _SUMS)
        return tuple(cell_of(key, "digits", "strong", 0, brief, 20) for key in keys)
    sets, splits = (tuple(dict.fromkeys(names)) for names in zip(*CHOSEN, strict=True))
    sets = study.listed("image_sets", options.image_sets, sets)
    splits = study.listed("splits", options.splits, splits)
    return tuple(
        cell_of(key, image_set, split, seed, settings.get(key))
        for (image_set, split), settings in CHOSEN.items()
        if image_set in sets and split in splits
        for seed in study.whole_numbers("seeds", options.seeds, _seeds_at(split))
        for key in keys
    )


def _seeds_at(split: str) -> tuple[int, ...]:
    if split == HOSPITALS:
        return _CHEST_SEEDS
    return _SEEDS if split == "strong" else _SEEDS[:1]


def cell_of(
    row: str, image_set: str, split: str, seed: int, setting: Setting | None, steps: int = STEPS
) -> RunConfig:
    """One run. setting: None for a head.

    If clients hold all classes, their networks name the class of a vote of Selective-FD, as in its
    recipe.

    >>> cell_of("fedavg", "mnist", "strong", 0, Setting(0.05, 20)).schedule.local_steps
    10
    """
    own = dict(ROWS[row][1])
    ours = own["method"] == "selective-fd"
    if "schedule" not in own and setting is not None:
        own["schedule"] = _schedule(own, image_set, split, setting, steps)
        own.setdefault("rounds", setting.rounds)
    return RunConfig(
        image_set=image_set,
        split=split,
        selector="ratio" if ours else "",
        seed=seed,
        clients=4 if split == HOSPITALS else 10,
        class_by="network" if ours and split == "iid" else "both",
        every=own["rounds"],
        **own,
    )


def _schedule(own: Fields, image_set: str, split: str, setting: Setting, steps: int) -> Schedule:
    """As many steps for every row: alone, on private records in the rounds, or on proxies."""
    alone = round(setting.warm_up * steps)
    sgd = SGD(setting.rate, local_batch=_BATCH, distillation_batch=_BATCH, momentum=0.9)
    plan = Schedule(
        warmup_steps=alone,
        local_steps=0,
        proxy_steps=0,
        proxies_per_round=our_recipe(image_set, "strong").schedule.proxies_per_round,
        anneal_over=setting.rounds,
        anneal_warmup=True,
        augment=_VIEWS.get(image_set, "none"),
        sgd=sgd,
    )
    if "rounds" in own:  # one lesson, after the last sum
        return replace(plan, proxy_steps=steps, anneal_over=1)
    each = (steps - alone) // setting.rounds
    if run_config.unlabelled(own["method"]):
        return replace(plan, local_steps=each)
    batch = our_recipe(image_set, split).schedule.sgd.own_batch
    return replace(plan, proxy_steps=each, sgd=replace(sgd, own_batch=batch))


def measure(data_dir: Path | None, cell: RunConfig, made: Mapping[Any, Any]) -> study.Result:
    """A run, and what naming one class would get."""
    import torch

    from experiments.core import runs

    found = runs.run_cell(data_dir, cell, made)
    labels = runs.data_of(cell, data_dir).test.labels
    majority = float(torch.bincount(labels).max() / len(labels))
    return replace(found, figures={**found.figures, MAJORITY: majority})


# Tables and figure.


def _runs(results: study.Results) -> Frame:
    """Return results in the order of `ROWS`; networks replace the heads that they learn from."""
    order = list(ROWS)
    runs = published.beside(results, published.of_cell, title=lambda cell: ROWS[row_of(cell)][0])
    runs = having(runs, NETWORK, DIVERGED)
    runs[ACCURACY] = runs[NETWORK].fillna(runs[ACCURACY])
    return ordered(runs, lambda cell: order.index(row_of(cell)))


def tables(results: study.Results) -> list[Table | str]:
    """One table a place, with the paper's figures beside ours."""
    by_place = _runs(results).groupby("place", sort=False)
    return [part for place, runs in by_place for part in _shown(place, runs)]


def _shown(place: str, runs: Frame) -> Iterator[Table | str]:
    by_title, split = runs.groupby("title"), runs.split.iloc[0]
    texts = beside_paper(runs)
    sent = runs.assign(up=[result.curve[-1].up for result in runs.result])
    texts["bytes up"] = sent.groupby("title").up.max().map(human_bytes)
    texts["CPU s"] = by_title.seconds.mean().map("{:.0f}".format)
    texts["seeds"] = by_title.seed.agg(seeds_of)
    title = f"{place}: test accuracy, %, last round, {STEPS} steps a network; published: "
    made = table(title + published.CITATIONS.get(split, "nothing"), texts)
    share = " to ".join(dict.fromkeys(f"{100 * f(runs[MAJORITY]):.1f}" for f in (min, max)))
    made.rows.insert(0, ("The most common class", share, NONE, share, *[NONE] * 4))
    yield made
    for _, run in runs[runs[DIVERGED] > 0].iterrows():
        often = f"training diverged in {run[DIVERGED]:g} rounds of a client, mean."
        yield f"{run.title} {run.labels}".strip() + f", seed {run.seed}: {often}"
    if split == HOSPITALS:
        yield from gains(runs)


def panels(results: study.Results) -> list[Bars]:
    """Bars of every method, as in Fig. 4; hollow marks are the published means."""
    return places(_runs(results))


STUDY = ImageStudy(
    name="equal_terms",
    folder="rivals",
    about="Test accuracy of every method, each tuned, at equal steps.",
    settings=TableOptions,
    cells=cells,
    measure=measure,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.rivals.equal_terms"))
