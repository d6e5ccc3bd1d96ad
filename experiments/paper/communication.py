"""Fig. 7: accuracy and bytes against rounds, Selective-FD under masks beside plain FedAvg.

python experiments/paper/communication.py --quick
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percent, points, table, with_seeds
from experiments.core.grid import PAPER_SETS, Grid, ImageStudy
from experiments.core.measures import ACCURACY
from experiments.core.published import method_title
from experiments.core.run_config import RunConfig
from experiments.core.study import Point, Result, Results
from experiments.report.plots import Lines
from experiments.report.tables import Table, human_bytes

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


def _name(cell: RunConfig) -> str:
    masks = ", masks" if cell.secure else ""
    return f"{method_title(cell.method)} {cell.labels}".strip() + masks


def _costs(result: Result, wanted: float) -> dict[str, float]:
    """Bytes of a client a round, in all, and until an accuracy is reached (infinite: never).

    A round is the mean between the first point and the last; what is sent once comes before both.
    """
    curve, last = result.curve, result.curve[-1]
    first = curve[0] if len(curve) > 1 else Point(0, 0.0, 0.0, 0.0)
    rounds = last.round - first.round
    up, down = (last.up - first.up) / rounds, (last.down - first.down) / rounds
    until = [point.up + point.down for point in curve if point.accuracy >= wanted]
    return {
        "up": up,
        "down": down,
        "both": up + down,
        "all": last.up + last.down,
        "until": min(until, default=math.inf),
    }


def _texts(runs: Frame) -> Frame:
    """The table of one image set, whose rows are methods."""
    from pandas import DataFrame

    fedavg = runs[runs.method == "FedAvg"]
    last = dict(zip(fedavg.seed, fedavg[ACCURACY], strict=True))
    costs = [_costs(result, last.get(result.cell.seed, math.inf)) for result in runs.result]
    by_method = runs.join(DataFrame(costs, runs.index)).groupby("method", sort=False)
    means = by_method[["up", "down", "both", "all", "until"]].mean()
    times = means.reindex(["FedAvg"]).iloc[0] / means
    return DataFrame(
        {
            "accuracy, %": by_method[ACCURACY].agg(percent),
            "up a round": means.up.map(human_bytes),
            "down a round": means.down.map(human_bytes),
            "FedAvg's a round, times": times.both.map("{:,.1f}".format, "ignore"),
            "in all": means["all"].map(human_bytes),
            "FedAvg's in all, times": times["all"].map("{:,.1f}".format, "ignore"),
            "until FedAvg's last accuracy": means.until.map(_reached),
        }
    )


def _reached(cost: float) -> str:
    return "not reached" if math.isinf(cost) else human_bytes(cost)


def tables(results: Results) -> list[Table | str]:
    """One table an image set."""
    return [
        *(
            table(f"{images}, strong: bytes of a client", _texts(runs))
            for images, runs in frame(results, method=_name).groupby("images", sort=False)
        ),
        _NOTE,
    ]


def panels(results: Results) -> list[Lines]:
    """A row an image set: accuracy left, cumulative bytes right."""
    made = []
    for images, runs in points(frame(results, method=_name)).groupby("images", sort=False):
        title, y, scales = f"{images}, strong", "bytes of a client, both ways", ("linear", "log")
        accuracy, moved = (lines(runs, "method", "round", value) for value in (ACCURACY, "moved"))
        made.append(Lines(title, "round", "test accuracy", accuracy))
        made.append(Lines(title, "round", y, moved, share=False, scales=scales))
    return made


STUDY = ImageStudy(
    home="papers",
    name="communication",
    about="Accuracy and bytes against rounds, beside FedAvg, as in Fig. 7.",
    cells=Grid(PAPER_SETS, ("strong",), ("selective-fd", "fedavg"), vary).cells,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.communication"))
