"""Fig. 5: how well client selectors detect wrong predictions, and the accuracy that follows.

python experiments/paper/client_selectors.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.core import published, study
from experiments.core.frames import Frame, bars, having, mean, percent, summary, with_seeds
from experiments.core.grid import Grid, ImageStudy
from experiments.core.measures import ACCURACY, AUROC_CLASS, OVER_CLIENTS
from experiments.core.published import selector_title
from experiments.core.run_config import BY_NETWORK, COUNTED, RunConfig
from experiments.core.study import Results
from experiments.paper.statements import Statement, beside, few_rounds, reaches
from experiments.report.plots import Bars
from experiments.report.tables import Table

_SETS = ("mnist", "cifar10_features")
_NAMES = ("image set", "selector")
_THEIRS = selector_title("kulsif")
_FEATURES = "clients hold features of one frozen backbone, not ResNets of their own"


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Selective-FD with hard labels and counted votes under every selector."""
    base = replace(cell, method="selective-fd", labels="hard", every=cell.rounds)
    for selector in ("kulsif", *BY_NETWORK):
        yield replace(base, selector=selector)
    yield replace(base, selector="ratio", variant=COUNTED)


def _known(cell: RunConfig) -> published.Published | None:
    """Return the paper's figure of its own selector."""
    return published.of_cell(cell) if cell.selector == "kulsif" else None


def _runs(results: Results) -> Frame:
    runs = published.beside(results, _known, selector=lambda cell: selector_title(cell.selector))
    return having(runs, AUROC_CLASS, OVER_CLIENTS).rename(columns={"images": "image set"})


def tables(results: Results) -> list[Table | str]:
    """One table of all image sets, and the paper's statements."""
    runs = _runs(results)
    title = f"Client selectors, strong split, hard labels, {runs.rounds.max()} rounds"
    columns = {
        "AUROC, mean over clients": (AUROC_CLASS, mean),
        "deviation over clients": (OVER_CLIENTS, mean),
        "accuracy, %": (ACCURACY, percent),
        "paper": ("published", "first"),
    }
    by_images = runs.groupby("image set", sort=False)
    stated = (part for images, of in by_images for part in _stated(images, of))
    return [
        summary(title, runs, _NAMES, columns),
        "AUROC is of own against other classes: after its warm-up a network of one class names "
        "that class everywhere, so it is right exactly there. Confidence and energy are read off "
        "the warmed-up network. Votes are 0 or 1. The paper's accuracy is that of Table 1, with "
        "KuLSIF.",
        *beside("Fig. 5, which prints no numbers, and Table 1", stated),
    ]


def _stated(images: str, runs: Frame) -> Iterator[Statement]:
    why = _FEATURES if "CIFAR" in images else few_rounds(runs)
    means = runs.groupby("selector")[[AUROC_CLASS, ACCURACY]].mean()
    theirs, others = means.loc[_THEIRS], means.loc[[*BY_NETWORK]].max()
    for name, value in (("AUROC", AUROC_CLASS), ("accuracy", ACCURACY)):
        paper = f"{images}: best {name} by {_THEIRS}, not by confidence or energy"
        here = f"{theirs[value]:.3f} and at most {others[value]:.3f}"
        yield Statement(paper, here, theirs[value] > others[value], why)
    yield reaches(f"{images}: accuracy by {_THEIRS}", runs[runs.selector == _THEIRS], why)


def panels(results: Results) -> list[Bars]:
    """AUROC left, accuracy right, with deviations over seeds; the paper's are over clients."""
    runs, auroc, accuracy = _runs(results), (AUROC_CLASS, "", ""), (ACCURACY, "", "known")
    return [
        bars("Own classes against others", "AUROC", runs, _NAMES, auroc),
        bars("After distillation", "test accuracy", runs, _NAMES, accuracy),
    ]


STUDY = ImageStudy(
    home="papers",
    name="client_selectors",
    about="Client selectors side by side: AUROC and accuracy, as in Fig. 5.",
    cells=Grid(_SETS, ("strong",), ("selective-fd",), vary, rounds=20).cells,
    shown=with_seeds(tables),
    panels=panels,
    reads=("per_client",),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.client_selectors"))
