"""Private ways to a classifier at one epsilon for a record: pooled heads, and their rival.

python experiments/privacy/private_rivals.py --image-sets mnist5k --epsilons 1,4

Ours: heads of all clients from one or two sums under noise, and the networks that are trained on
their labels and receive no record. One client of each architecture trains: two clients of one
architecture differ in their seed alone, so the mean estimates the same figure in half of the time.
Rival: a linear head by DP-GD on the public map, of all clients under shares of one noise inside
masked sums, computed as the server would obtain it. Its step was chosen once, from a grid of four,
by the validation records of all clients; ranks, cut-off and number of sums of ours follow the noise
by a rule. Both on MNIST-5k, seeds 0 and 1; no choice is in epsilon. Noise is seeded, so that a
figure can be repeated; an epsilon is that of the same noise with fresh randomness.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.core import frames, study
from experiments.core.frames import Frame, frame, ordered, percents, summary, table
from experiments.core.grid import HOSPITALS, SEEDS, ImageStudy, later
from experiments.core.measures import ACCURACY, NETWORK
from experiments.core.shared_options import StudyOptions
from experiments.report.tables import NONE, Table
from secure_fd.data.image_sets import IMAGE_SETS

EPSILONS = ("0.25", "1", "4", "inf")
DELTA = 1e-5
HEAD, HONEST = "head accuracy", "shares of noise that must stay secret"
RELEASES, KILOBYTES = "noisy sums", "kB up"
MODELS = {NETWORK: "networks", ACCURACY: "networks with the head", HEAD: "head alone"}
"""Figure of a cell -> the predictor whose accuracy it is."""
MASKS, LOCAL, DESCENT = "under masks", "local noise", "DP-GD, under masks"
ROWS = {"networks": MASKS, "heads": MASKS, "local": LOCAL, "gd": DESCENT}
"""Row of a cell -> way to a head; networks are trained in the first alone."""
_ALL_ROWS = ("networks", "local", "gd")
_PLACES = {
    ("mnist", "strong"): _ALL_ROWS,
    ("fashion_mnist", "strong"): ("heads",),
    ("cifar10_features", "strong"): ("heads",),
    ("chest_xray", HOSPITALS): ("heads",),
    ("mnist5k", "strong"): _ALL_ROWS,
    ("mnist5k", "iid"): ("heads", "local"),
}
"""Image set and split -> rows. IID clients hold few records of each class, which costs local noise
most."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. row: of `ROWS`. epsilon: of a record, all rounds; "inf" for none."""

    image_set: str
    split: str
    row: str
    epsilon: str
    seed: int

    @property
    def label(self) -> str:
        """Name of the cell while it runs."""
        return f"{self.place}: {self.row}, epsilon {self.epsilon}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    epsilons: str | None = None
    """Epsilons out of 0.25, 1, 4 and inf, with commas; by default all."""


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return the cells that a command line asks for. Raises ConfigurationError for a bad name."""
    epsilons = study.listed("epsilons", settings.epsilons, EPSILONS)
    sets = study.listed("image_sets", settings.image_sets, tuple(name for name, _ in _PLACES))
    seeds = study.whole_numbers("seeds", settings.seeds, SEEDS)
    if settings.quick:
        return tuple(Cell("digits", "strong", row, "4", 0) for row in _ALL_ROWS)
    return tuple(
        Cell(name, split, row, epsilon, seed)
        for (name, split), rows in _PLACES.items()
        if name in sets
        for seed in seeds  # a worker keeps the data and the features of the newest seeds
        for row in rows
        for epsilon in epsilons
        if epsilon != "inf" or ROWS[row] == MASKS
    )


# Tables.


def shown(results: study.Results) -> list[Table | str]:
    """Return accuracy by place, way, model and epsilon; what each way takes; and what follows."""
    runs = frame(results, way=lambda cell: ROWS[cell.row], epsilon=lambda c: float(c.epsilon))
    runs = frames.having(runs, *MODELS, KILOBYTES).rename(columns=MODELS)
    kept = [*runs.columns.difference([*MODELS.values()], sort=False)]
    by_model = runs.melt(kept, [*MODELS.values()], "model", "share").dropna(subset="share")
    by_model = ordered(by_model, lambda cell: list(ROWS).index(cell.row))
    texts = percents(by_model, ["place", "way", "model"], "epsilon", "share")
    costs = {name: (name, _span) for name in (HONEST, RELEASES, KILOBYTES)}
    return [
        table(
            "Test accuracy, %, at an epsilon for one record, present or zeroed out, over the whole "
            "run, delta 1e-5; networks: mean over one client of each architecture",
            texts.rename(columns=frames.epsilon_text),
        ),
        *_lessons(by_model),
        summary("What each way takes from a client", runs, ["place", "way"], costs),
    ]


def _lessons(by_model: Frame) -> Iterator[str]:
    """Yield what the accuracies show, as far as they were measured."""
    wide = by_model.pivot_table("share", ["place", "model", "epsilon"], "way", "mean") * 100
    wide = wide.reindex(columns=[MASKS, LOCAL, DESCENT])
    by_epsilon = wide[MASKS].unstack("epsilon").reindex(columns=[0.25, math.inf])
    lost = (by_epsilon[math.inf] - by_epsilon[0.25]).dropna()
    if len(lost):
        each = "; ".join(f"{place}, {model} {x:.1f}" for (place, model), x in lost.items())
        yield f"Points of accuracy that ε = 0.25 costs under masks, against no noise: {each}."
    for way in (LOCAL, DESCENT):
        ahead = (wide[MASKS] - wide[way]).dropna()
        if len(ahead):
            behind = ahead[ahead <= -0.05]  # 0.1 points as they are printed
            places = [f"on {place} at ε = {e:g} by {-x:.1f}" for (place, _, e), x in behind.items()]
            yield (
                f"Against {way}, the head under masks gains {ahead.max():.1f} points at most. "
                f"It is behind {'; '.join(places) or 'nowhere'}."
            )


def _span(values: Frame) -> str:
    """Return the least and the most of a figure over epsilons."""
    ends = dict.fromkeys(f"{value:,.0f}" for value in (values.min(), values.max()))
    return " to ".join(ends) if values.notna().any() else NONE


STUDY = ImageStudy(
    name="private_rivals",
    folder="privacy",
    about="Private ways to a classifier, on equal terms.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    needs=lambda _: (),
    measure=later("experiments.privacy.rival_heads:measure"),
    shown=frames.with_seeds(shown),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.privacy.private_rivals"))
