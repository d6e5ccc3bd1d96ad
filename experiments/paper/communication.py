"""Fig. 7: accuracy and bytes against rounds, Selective-FD under masks beside plain FedAvg.

python experiments/paper/communication.py --quick
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from experiments.core.grid import PAPER_SETS, Grid, paper_study
from experiments.core.measures import RESNET_DOWN, RESNET_UP
from experiments.core.published import method_title
from experiments.core.rows import Cell
from experiments.core.study import Point, Result, Results, grouped, main, moments, percent
from experiments.report.plots import Line, Lines, drawn
from experiments.report.tables import NONE, Table, human_bytes, new_table
from secure_fd.data.image_sets import IMAGE_SETS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    resnet: whether they are ResNet-18's. total: bytes both ways to the end, with whatever is sent
    once.
    """

    name: str
    found: Sequence[Result]
    up: float
    down: float
    total: float
    resnet: bool = False

    @property
    def rate(self) -> float:
        """Bytes both ways, a client and round."""
        return self.up + self.down

    def moved(self, point: Point) -> float:
        """Bytes both ways until a point of the curve."""
        if self.resnet:
            return self.rate * point.round + self.down  # the first model is sent before round one
        return point.up + point.down

    def until(self, rival: "Way") -> float | None:
        """Bytes until the first point at the rival's last accuracy of the seed: mean, or None."""
        last = {result.cell.seed: result.accuracy for result in rival.found}
        reached = []
        for result in self.found:
            wanted = last.get(result.cell.seed, math.inf)
            enough = [self.moved(p) for p in result.curve if p.accuracy >= wanted]
            if not enough:
                return None
            reached.append(enough[0])
        return sum(reached) / len(reached)


def ways(results: Results) -> Mapping[str, list[Way]]:
    """By image set; FedAvg last."""
    made = {}
    for image_set, found in grouped(results.cells, lambda cell: cell.image_set).items():
        by_line = grouped(found, lambda cell: (cell.method == "fedavg", cell.labels))
        made[image_set] = [_way(of) for _, of in sorted(by_line.items())]
    return made


def _way(found: Sequence[Result]) -> Way:
    cell, figures = found[0].cell, found[0].figures
    name = f"{method_title(cell.method)} {cell.labels}".strip() + (", masks" if cell.secure else "")
    if RESNET_UP in figures:
        up, down = figures[RESNET_UP], figures[RESNET_DOWN]
        total = (up + down) * cell.rounds + down
        return Way(f"{name}, ResNet-18", found, up, down, total, resnet=True)
    up, down = (moments(found, partial(_rate, way=way))[0] for way in ("up", "down"))
    total = moments(found, lambda r: r.curve[-1].up + r.curve[-1].down)[0]
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
                percent(way.found),
                human_bytes(way.up),
                human_bytes(way.down),
                NONE if fedavg is None else f"{fedavg.rate / way.rate:,.1f}",
                human_bytes(way.total),
                NONE if fedavg is None else f"{fedavg.total / way.total:,.1f}",
                "not reached" if until is None else human_bytes(until),
            )
        made.append(table)
    return [*made, *_notes(results)]


def _notes(results: Results) -> Iterator[str]:
    yield (
        "Fig. 7 prints no numbers, the text says up to 900 times less (Shao, Wu and Zhang, arXiv, "
        "2023); its proxies are PNG and its models RAR, ours are zlib and fixed point. Proxies, "
        "the masks' set-up and FedAvg's first model are sent once: they are in all, not in a "
        "round. Accuracies before the last round are those of 2,000 test images."
    )
    if any(RESNET_UP in result.figures for result in results.cells):
        yield (
            "CIFAR-10: FedAvg's bytes are those of an encoded ResNet-18, as in the paper; its "
            "accuracy is that of FedAvg on frozen features, where only a small head is trained: "
            "sending that head alone, it would move about a sixtieth of these bytes. The frozen "
            "network's public weights are counted for neither side."
        )


def figure(results: Results) -> "Figure":
    """A row an image set: accuracy left, cumulative bytes right."""
    panels = []
    for image_set, found in ways(results).items():
        title = IMAGE_SETS[image_set].title
        accuracy = {way.name: _curve(way, attrgetter("accuracy")) for way in found}
        moved = {way.name: _curve(way, way.moved) for way in found}
        panels += [
            Lines(f"{title}, strong", "round", "test accuracy", accuracy),
            Lines(
                f"{title}, strong",
                "round",
                "bytes of a client, both ways",
                moved,
                share=False,
                scales=("linear", "log"),
            ),
        ]
    return drawn(panels, columns=2)


def _curve(way: Way, value: Callable[[Point], float]) -> Line:
    """Over the rounds that all seeds have a point at."""
    rounds = tuple(point.round for point in way.found[0].curve)
    table = np.array([[value(point) for point in result.curve] for result in way.found])
    deviation = table.std(axis=0, ddof=1) if len(table) > 1 else np.zeros(len(rounds))
    return Line(tuple(map(float, rounds)), tuple(table.mean(axis=0)), tuple(deviation))


STUDY = paper_study(
    name="communication",
    about="Accuracy and bytes against rounds, beside FedAvg, as in Fig. 7.",
    grid=Grid(PAPER_SETS, ("strong",), ("selective-fd", "fedavg"), vary),
    tables=tables,
    figure=figure,
)

if __name__ == "__main__":
    raise SystemExit(main("experiments.paper.communication"))
