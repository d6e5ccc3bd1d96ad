"""Fig. 10: error against alpha, the weight of the local loss.

python experiments/paper/alpha.py --quick
"""

from collections.abc import Iterator
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percents, table, with_seeds
from experiments.core.grid import Grid, ImageStudy, later
from experiments.core.measures import ACCURACY
from experiments.core.run_config import PROXY_LABELS, RunConfig
from experiments.core.study import Results
from experiments.paper.statements import Statement, beside, few_rounds
from experiments.report.plots import Lines
from experiments.report.tables import Table

ALPHAS = (0.0, 0.1, 0.5, 0.9)
_TITLES = dict(zip(PROXY_LABELS, ("true labels", "selected labels"), strict=True))


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Every alpha, with the proxies' true labels and with those of the selection mechanism."""
    for method in PROXY_LABELS:
        selector = "ratio" if method == "selected-labels" else ""
        for alpha in ALPHAS:
            yield replace(cell, method=method, selector=selector, alpha=alpha)


def _runs(results: Results) -> Frame:
    """Results with the error: the share of test images that a network gets wrong."""
    runs = frame(results, labelling=lambda cell: _TITLES[cell.method])
    return runs.assign(error=1 - runs[ACCURACY]).sort_values("alpha", kind="stable")


def tables(results: Results) -> list[Table | str]:
    """The error by alpha and labelling, and the paper's statements, for each image set."""
    made: list[Table | str] = []
    for place, runs in _runs(results).groupby("place", sort=False):
        texts = percents(runs, ["alpha"], "labelling", "error")
        steps = runs.rounds.max() * runs.cell.iloc[0].schedule.fedavg_steps
        made.append(table(f"{place}: test error, %, after {steps} steps on fixed labels", texts))
        made += beside("Fig. 10, which prints no numbers", _stated(runs))
    return made


def _stated(runs: Frame) -> Iterator[Statement]:
    by_alpha = (100 * runs.error).groupby([runs.alpha, runs.labelling])
    errors, spread = by_alpha.mean().unstack(), by_alpha.std().unstack().fillna(0)
    true, ours = (errors[title] for title in _TITLES.values())
    paper, here = "true labels: the error falls as alpha falls", _least(true)
    # From each alpha to the next, within the deviation over seeds at either.
    falls = (true.diff() >= -spread[true.name].rolling(2).max()).iloc[1:].all()
    yield Statement(paper, here, falls, few_rounds(runs))
    paper, here = "selected labels: the error rises again as alpha nears 0", _least(ours)
    yield Statement(paper, here, ours.idxmin() != ours.index[0])
    gaps, paper = ours - true, "selected labels cost accuracy at every alpha"
    yield Statement(
        paper, f"{gaps.min():+.1f} to {gaps.max():+.1f} points", round(gaps.min(), 1) > 0
    )


def _least(errors: Frame) -> str:
    at_first = f"{errors.iloc[0]:.1f} % at alpha {errors.index[0]:g}"
    return f"{at_first}, least {errors.min():.1f} % at {errors.idxmin():g}"


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
    cells=Grid(("mnist",), ("weak",), PROXY_LABELS, vary, rounds=15).cells,
    measure=later("experiments.paper.fixed_labels:measure"),
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.alpha"))
