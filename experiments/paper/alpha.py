"""Fig. 10: error against alpha, the weight of the local loss.

python experiments/paper/alpha.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, mean, percent, summary, with_seeds
from experiments.core.grid import Grid, ImageStudy, later
from experiments.core.measures import ACCURACY, DISTILLED_PROXIES
from experiments.core.run_config import PROXY_LABELS, RunConfig
from experiments.core.study import Results
from experiments.report.plots import Lines
from experiments.report.tables import Table

ALPHAS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_MOST_ROUNDS = 40
_SELECTOR = "ratio"
_NOTE = "Fig. 10 (Shao, Wu and Zhang, 2024, supplement) prints no numbers."
_TITLES = {"true-labels": "true proxy labels", "selected-labels": "labels by selection"}


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Every alpha, with the proxies' true labels and with those of the selection mechanism."""
    rounds = min(cell.rounds, _MOST_ROUNDS)
    for method in PROXY_LABELS:
        selector = _SELECTOR if method == "selected-labels" else ""
        for alpha in ALPHAS:
            yield replace(cell, method=method, selector=selector, alpha=alpha, rounds=rounds)


def _runs(results: Results) -> Frame:
    """Results with the error: the share of test images that a network gets wrong."""
    runs = frame(results, labelling=lambda cell: _TITLES[cell.method])
    return runs.assign(error=1 - runs[ACCURACY])


def tables(results: Results) -> list[Table | str]:
    """One table an image set and labelling: a row an alpha."""
    columns = {"error, %": ("error", percent), DISTILLED_PROXIES: (DISTILLED_PROXIES, mean)}
    return [
        *(
            summary(", ".join(names), runs.sort_values("alpha"), ["alpha"], columns)
            for names, runs in _runs(results).groupby(["place", "labelling"], sort=False)
        ),
        _NOTE,
    ]


def panels(results: Results) -> list[Lines]:
    """Error against alpha, as in the paper."""
    return [
        Lines(place, "alpha", "test error", lines(runs, "labelling", "alpha", "error"))
        for place, runs in _runs(results).groupby("place", sort=False)
    ]


STUDY = ImageStudy(
    home="papers",
    name="alpha",
    about="Error against the weight of the local loss, as in Fig. 10.",
    cells=Grid(("mnist",), ("weak",), PROXY_LABELS, vary, rounds=20).cells,
    measure=later("experiments.paper.fixed_labels:measure"),
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.alpha"))
