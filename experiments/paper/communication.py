"""Fig. 7: accuracy and bytes against rounds, Selective-FD under masks beside plain FedAvg.

python experiments/paper/communication.py --quick
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.published import method_title
from experiments.core.run_config import RunConfig
from experiments.core.study import Point, Result, Results, Value
from experiments.core.summary import Column, summary
from experiments.report.plots import Lines, drawn
from experiments.report.tables import NONE, Table, human_bytes
from secure_fd.data.image_sets import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTE = (
    "Fig. 7 prints no numbers, the text says up to 900 times less (Shao, Wu and Zhang, arXiv, "
    "2023); its proxies are PNG and its models RAR, ours are zlib and fixed point. Proxies, the "
    "masks' set-up and FedAvg's first model are sent once: they are in all, not in a round. "
    "Accuracies before the last round are those of 2,000 test images. On CIFAR-10 FedAvg trains a "
    "small head on frozen features and sends that; the paper's sends a ResNet-18."
)
EVERY = 5
"""Rounds between two points."""
PAPER_MODEL = "mlp-1024-1024"
"""FedAvg's on the 28 x 28 sets; on CIFAR-10 it is ResNet-18."""


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Selective-FD under masks with hard and with soft labels, and FedAvg in clear."""
    base = replace(cell, every=min(EVERY, max(1, cell.rounds // 2)), secure="masks")
    for labels in ("hard", "soft"):
        yield replace(base, method="selective-fd", labels=labels, selector="ratio")
    features = cell.image_set.endswith("_features")
    yield replace(base, method="fedavg", secure="", model="" if features else PAPER_MODEL)


def moved(point: Point) -> float:
    """Bytes of a client both ways until a point of the curve."""
    return point.up + point.down


def _total(result: Result) -> float:
    return moved(result.curve[-1])


def _a_round(result: Result, bytes_of: Callable[[Point], float]) -> float:
    """Bytes a round between the first point and the last; what is sent once comes before both."""
    first, last = result.curve[0], result.curve[-1]
    if first.round == last.round:
        return bytes_of(last) / last.round
    return (bytes_of(last) - bytes_of(first)) / (last.round - first.round)


_up = partial(_a_round, bytes_of=attrgetter("up"))
_down = partial(_a_round, bytes_of=attrgetter("down"))
_both = partial(_a_round, bytes_of=moved)


def _columns(fedavg: Sequence[Result]) -> list[Column]:
    """Columns of one image set. fedavg: FedAvg's results there."""

    def shown(found: Sequence[Result], value: Value) -> str:
        return human_bytes(study.moments(found, value)[0])

    def times(found: Sequence[Result], value: Value) -> str:
        if not fedavg:
            return NONE
        return f"{study.moments(fedavg, value)[0] / study.moments(found, value)[0]:,.1f}"

    return [
        ("accuracy, %", study.percent),
        ("up a round", partial(shown, value=_up)),
        ("down a round", partial(shown, value=_down)),
        ("FedAvg's a round, times", partial(times, value=_both)),
        ("in all", partial(shown, value=_total)),
        ("FedAvg's in all, times", partial(times, value=_total)),
        ("until FedAvg's last accuracy", partial(_until, fedavg=fedavg)),
    ]


def _until(found: Sequence[Result], fedavg: Sequence[Result]) -> str:
    """Mean bytes until the first point at FedAvg's last accuracy of the same seed."""
    last = {result.cell.seed: result.accuracy for result in fedavg}
    reached = []
    for result in found:
        wanted = last.get(result.cell.seed, math.inf)
        enough = [moved(point) for point in result.curve if point.accuracy >= wanted]
        if not enough:
            return "not reached"
        reached.append(enough[0])
    return human_bytes(sum(reached) / len(reached))


def _name(cell: RunConfig) -> str:
    masks = ", masks" if cell.secure else ""
    return f"{method_title(cell.method)} {cell.labels}".strip() + masks


def tables(results: Results) -> list[Table | str]:
    """One table an image set."""
    made: list[Table | str] = []
    for image_set, found in study.grouped(results.cells, lambda cell: cell.image_set).items():
        title = f"{IMAGE_SETS[image_set].title}, strong: bytes of a client"
        columns = _columns([result for result in found if result.cell.method == "fedavg"])
        made.append(summary(title, ("method",), found, lambda cell: (_name(cell),), columns))
    return [*made, _NOTE]


def figure(results: Results) -> "Figure":
    """A row an image set: accuracy left, cumulative bytes right."""
    panels = []
    for image_set, found in study.grouped(results.cells, lambda cell: cell.image_set).items():
        title, by_name = f"{IMAGE_SETS[image_set].title}, strong", study.grouped(found, _name)
        accuracy = {name: study.curve(of) for name, of in by_name.items()}
        both_ways = {name: study.curve(of, moved) for name, of in by_name.items()}
        y, scales = "bytes of a client, both ways", ("linear", "log")
        panels.append(Lines(title, "round", "test accuracy", accuracy))
        panels.append(Lines(title, "round", y, both_ways, share=False, scales=scales))
    return drawn(panels, columns=2)


STUDY = ImageStudy(
    home="papers",
    name="communication",
    about="Accuracy and bytes against rounds, beside FedAvg, as in Fig. 7.",
    cells=Grid(PAPER_SETS, ("strong",), ("selective-fd", "fedavg"), vary).cells,
    shown=study.with_seeds(tables),
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.communication"))
