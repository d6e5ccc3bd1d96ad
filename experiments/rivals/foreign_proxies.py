"""Labels of one round if proxies come from another set, or from classes without a holder.

python experiments/rivals/foreign_proxies.py --image-sets mnist5k

Selective-FD first asks its clients which proxies they know, and they estimate how common their
classes are among the proxies; the second row does neither. Each of ten clients holds one class;
where 8 and 9 are unheld, their two clients are away.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.core import study
from experiments.core.frames import Frame, frame, having, percent, summary, with_seeds
from experiments.core.grid import SEEDS
from experiments.core.shared_options import StudyOptions
from experiments.report.tables import Table

PROXY_FAULTS = ("none", "half foreign", "half rotated", "8 and 9 unheld")
ROWS = {"survey": "Selective-FD", "neither": "without survey and class shares"}
FIGURES = (
    "foreign proxies labelled",
    "own proxies labelled",
    "right labels, of own proxies labelled",
    "right labels, of own proxies",
)
_OTHER = {"mnist5k": "fashion_mnist", "mnist": "fashion_mnist"}
"""Image sets, and those that foreign proxies come from."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. trouble: of `PROXY_FAULTS`, what is wrong with the proxies. row: of `ROWS`."""

    image_set: str
    trouble: str
    row: str
    seed: int

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.image_set}, {self.trouble}: {ROWS[self.row]}, seed {self.seed}"


def cells(options: StudyOptions) -> list[Cell]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    usual = ("mnist5k",) if options.quick else tuple(_OTHER)
    seeds = SEEDS[:1] if options.quick else SEEDS
    return [
        Cell(image_set, trouble, row, seed)
        for image_set in study.listed("image_sets", options.image_sets, tuple(_OTHER), usual)
        for trouble in PROXY_FAULTS
        for seed in study.whole_numbers("seeds", options.seeds, seeds)
        for row in ROWS
    ]


@lru_cache(maxsize=2)
def federation_of(data_dir: Path | None, cell: Cell) -> tuple[Any, Any]:
    """A federation, and [P] which of its proxies are of classes that its clients hold."""
    from secure_fd.data.federated import federate  # these import torch
    from secure_fd.data.images import Images
    from secure_fd.data.partition import parse_split
    from secure_fd.data.sources import load

    data = federate(load(cell.image_set, data_dir), parse_split("strong"), 10, cell.seed)
    labels, pixels = data.proxies.labels, data.proxies.pixels.clone()
    if cell.trouble == "8 and 9 unheld":
        stay = tuple(client for client in data.clients if not {8, 9} & set(client.classes))
        return replace(data, clients=stay), (labels < 8).numpy()
    own, rng = np.ones(len(labels), dtype=np.bool_), np.random.default_rng((cell.seed, 1))
    at = np.sort(rng.choice(len(labels), len(labels) // 2, replace=False))
    own[at] = cell.trouble == "none"
    if cell.trouble == "half rotated":
        pixels[at] = pixels[at].rot90(1, (2, 3))
    if cell.trouble == "half foreign":
        pool = load(_OTHER[cell.image_set], data_dir).pool
        pixels[at] = pool.pixels[rng.choice(len(pool), len(at), replace=False)]
    return replace(data, proxies=Images(pixels, labels)), own


def measure(data_dir: Path | None, cell: Cell, _: object) -> study.Result:
    """Shares of foreign and own proxies that one round about all labels, and rightly."""
    start, (data, own) = time.process_time(), federation_of(data_dir, replace(cell, row=""))
    from experiments.core.variants import EvenClasses, WithoutSurvey  # these import torch
    from secure_fd.methods.selective_fd import SelectiveFD
    from secure_fd.simulation.simulate import simulate
    from secure_fd.training.recipes import Recipe, Schedule

    method = SelectiveFD() if cell.row == "survey" else WithoutSurvey(selector=EvenClasses())
    once = Recipe(1, Schedule(0, 0, 0, proxies_per_round=len(own)))
    run = simulate(data, method=method, recipe=once, seed=cell.seed)
    run.fit()
    votes = run.transcript.distillation[0].result
    kept, right = np.zeros((2, len(own)), dtype=np.bool_)
    kept[votes.indices] = votes.kept
    named = votes.predictions.argmax(axis=1)
    right[votes.indices] = votes.kept & (named == data.proxies.labels.numpy()[votes.indices])
    shares = ((kept, ~own), (kept, own), (right, kept & own), (right, own))
    figures = zip(FIGURES, shares, strict=True)
    found = {name: float(hit[of].mean()) for name, (hit, of) in figures if of.any()}
    return study.Result(cell, found, time.process_time() - start)


def tables(results: study.Results) -> list[Table | str]:
    """The labels of one round, by image set and trouble, and what the survey costs."""
    runs = frame(results, row=lambda cell: ROWS[cell.row])
    runs = having(runs.rename(columns={"image_set": "image set", "trouble": "proxies"}), *FIGURES)
    columns = {f"{name}, %": (name, percent) for name in FIGURES}
    title = "What one round labels, with soft labels and before networks are trained"
    made = summary(title, runs, ["image set", "proxies", "row"], columns)
    return [made, *_compared(runs[runs.proxies != PROXY_FAULTS[0]])]


def _compared(runs: Frame) -> Iterator[str]:
    """What the survey gains and loses, over all faults of proxies."""
    for name in FIGURES[:2]:
        by_fault = 100 * runs.groupby(["image set", "proxies", "row"])[name].mean().unstack()
        spans = [f"{row} {of.min():.1f} to {of.max():.1f} %" for row, of in by_fault.items()]
        yield f"{name.capitalize()}, where proxies are at fault: {'; '.join(spans)}."


STUDY = study.Study(
    name="foreign_proxies",
    folder="rivals",
    about="Labels of one round if proxies come from another set, or from classes without a holder.",
    settings=StudyOptions,
    cell=Cell,
    cells=cells,
    measure=measure,
    image_set=lambda cell: _OTHER[cell.image_set] if "foreign" in cell.trouble else cell.image_set,
    shown=with_seeds(tables),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.rivals.foreign_proxies"))
