"""Fig. 7: accuracy and bytes against rounds, Selective-FD under masks beside plain FedAvg.

python experiments/paper/communication.py --quick
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from experiments.core import study
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.published import method_title
from experiments.core.rows import Cell
from experiments.core.study import Point, Result, Results
from experiments.report.plots import Lines, drawn
from experiments.report.tables import NONE, Table, human_bytes, new_table
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


def vary(cell: Cell) -> Iterator[Cell]:
    """Selective-FD under masks with hard and with soft labels, and FedAvg in clear."""
    base = replace(cell, every=min(EVERY, max(1, cell.rounds // 2)), secure="masks")
    for labels in ("hard", "soft"):
        yield replace(base, method="selective-fd", labels=labels, selector="ratio")
    features = cell.image_set.endswith("_features")
    yield replace(base, method="fedavg", secure="", model="" if features else PAPER_MODEL)


@dataclass(frozen=True, slots=True)
class Way:
    """One method on one image set, over seeds. up, down: bytes a client and round, on average.

    total: bytes both ways to the end, with those that are sent once.
    """

    name: str
    found: Sequence[Result]
    up: float
    down: float
    total: float

    @property
    def rate(self) -> float:
        """Bytes both ways, a client and round."""
        return self.up + self.down

    def until(self, rival: "Way") -> float | None:
        """Bytes until the first point at the rival's last accuracy of the seed: mean, or None."""
        last = {result.cell.seed: result.accuracy for result in rival.found}
        reached = []
        for result in self.found:
            wanted = last.get(result.cell.seed, math.inf)
            enough = [moved(p) for p in result.curve if p.accuracy >= wanted]
            if not enough:
                return None
            reached.append(enough[0])
        return sum(reached) / len(reached)


def moved(point: Point) -> float:
    """Bytes both ways until a point of the curve."""
    return point.up + point.down


def ways(results: Results) -> Mapping[str, list[Way]]:
    """By image set; FedAvg last."""
    made = {}
    for image_set, found in study.grouped(results.cells, lambda cell: cell.image_set).items():
        by_line = study.grouped(found, lambda cell: (cell.method == "fedavg", cell.labels))
        made[image_set] = [_way(of) for _, of in sorted(by_line.items())]
    return made


def _way(found: Sequence[Result]) -> Way:
    cell = found[0].cell
    name = f"{method_title(cell.method)} {cell.labels}".strip() + (", masks" if cell.secure else "")
    up, down = (study.moments(found, partial(_rate, way=way))[0] for way in ("up", "down"))
    total = study.moments(found, lambda r: moved(r.curve[-1]))[0]
    return Way(name, found, up, down, total)


def _rate(result: Result, way: str) -> float:
    """Bytes a round between the first point and the last; what is sent once comes before both."""
    first, last = result.curve[0], result.curve[-1]
    if first.round == last.round:
        return float(getattr(last, way)) / last.round
    return float(getattr(last, way) - getattr(first, way)) / (last.round - first.round)


def tables(results: Results) -> list[Table | str]:
    """One table an image set."""
    made: list[Table | str] = []
    for image_set, found in ways(results).items():
        title = f"{IMAGE_SETS[image_set].title}, strong: bytes of a client"
        columns = (
            *("method", "accuracy, %", "up a round", "down a round", "FedAvg's a round, times"),
            *("in all", "FedAvg's in all, times", "until FedAvg's last accuracy"),
        )
        table = new_table(title, columns)
        fedavg = next((way for way in found if way.found[0].cell.method == "fedavg"), None)
        for way in found:
            until = None if fedavg is None else way.until(fedavg)
            table.add_row(
                way.name,
                study.percent(way.found),
                human_bytes(way.up),
                human_bytes(way.down),
                NONE if fedavg is None else f"{fedavg.rate / way.rate:,.1f}",
                human_bytes(way.total),
                NONE if fedavg is None else f"{fedavg.total / way.total:,.1f}",
                "not reached" if until is None else human_bytes(until),
            )
        made.append(table)
    return [*made, _NOTE]


def figure(results: Results) -> "Figure":
    """A row an image set: accuracy left, cumulative bytes right."""
    panels = []
    for image_set, found in ways(results).items():
        title = IMAGE_SETS[image_set].title
        accuracy = {way.name: study.curve(way.found) for way in found}
        both_ways = {way.name: study.curve(way.found, moved) for way in found}
        panels += [
            Lines(f"{title}, strong", "round", "test accuracy", accuracy),
            Lines(
                f"{title}, strong",
                "round",
                "bytes of a client, both ways",
                both_ways,
                share=False,
                scales=("linear", "log"),
            ),
        ]
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
