"""Fig. 7: accuracy and bytes against rounds, Selective-FD under masks beside plain FedAvg.

python experiments/paper/communication.py --quick
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from experiments.core import study
from experiments.core.frames import Frame, frame, lines, percent, points, table, with_seeds
from experiments.core.grid import Grid, ImageStudy
from experiments.core.measures import ACCURACY
from experiments.core.run_config import RunConfig
from experiments.core.study import Point, Result, Results
from experiments.paper.statements import Statement, beside, few_rounds
from experiments.report.plots import Lines
from experiments.report.tables import Table, human_bytes

_NOTE = (
    "The paper's proxies are PNG and its models RAR, ours are zlib and fixed point. Proxies, the "
    "masks' set-up and FedAvg's first model are sent once: they are in all, not in a round. "
    "Accuracies before the last round are those of 2,000 test images."
)
_SETS = ("mnist", "fashion_mnist")
"""Where FedAvg sends the paper's model. On CIFAR-10 features it would send a small head."""
EVERY = 5
"""Rounds between two points."""
PAPER_MODEL = "mlp-1024-1024"
_TIMES = 900
_BYTES = "a round asks about 1,000 proxies under masks, the paper's about 512 in clear"


def vary(cell: RunConfig) -> Iterator[RunConfig]:
    """Selective-FD under masks with hard and with soft labels, and FedAvg in clear."""
    base = replace(cell, every=min(EVERY, max(1, cell.rounds // 2)), secure="masks")
    for labels in ("hard", "soft"):
        yield replace(base, method="selective-fd", labels=labels, selector="ratio")
    yield replace(base, method="fedavg", secure="", model=PAPER_MODEL)


def _runs(results: Results) -> Frame:
    return frame(results, method=lambda cell: cell.title)


def _costs(result: Result) -> dict[str, float]:
    """Bytes of a client a round, and in all.

    A round is the mean between the first point and the last; what is sent once comes before both.
    """
    curve, last = result.curve, result.curve[-1]
    first = curve[0] if len(curve) > 1 else Point(0, 0.0, 0.0, 0.0)
    rounds = last.round - first.round
    up, down = (last.up - first.up) / rounds, (last.down - first.down) / rounds
    return {"up": up, "down": down, "a round": up + down, "in all": last.up + last.down}


def _by_method(runs: Frame) -> Frame:
    """Mean accuracy and costs by method, and by how much FedAvg's are larger."""
    from pandas import DataFrame

    every = runs[["method", ACCURACY]].join(DataFrame(map(_costs, runs.result), runs.index))
    means = every.groupby("method", sort=False).mean()
    times = means.reindex(["FedAvg"]).iloc[0] / means[["a round", "in all"]]
    return means.join(times[["a round", "in all"]].add_suffix(", times"))


def _texts(runs: Frame, means: Frame) -> Frame:
    """The table of one image set, whose rows are methods."""
    texts = means.drop(columns=ACCURACY).astype(object)
    for name in texts:
        show = "{:,.1f}".format if name.endswith("times") else human_bytes
        texts[name] = means[name].map(show, "ignore")
    texts.insert(0, "accuracy, %", runs.groupby("method", sort=False)[ACCURACY].agg(percent))
    return texts.rename(columns=lambda name: f"FedAvg's {name}" if "times" in name else name)


def tables(results: Results) -> list[Table | str]:
    """One table an image set, and the paper's statements."""
    by_images = _runs(results).groupby("images", sort=False)
    means = {images: _by_method(runs) for images, runs in by_images}
    return [
        *(
            table(f"{images}, strong: bytes of a client", _texts(runs, means[images]))
            for images, runs in by_images
        ),
        _NOTE,
        *beside("Fig. 7 and its text", _stated(means, results)),
    ]


def _stated(means: Mapping[str, Frame], results: Results) -> Iterator[Statement]:
    few = few_rounds(frame(results))
    ours = {images: of.drop("FedAvg") for images, of in means.items()}
    for images, of in ours.items():
        gaps = 100 * (of[ACCURACY] - means[images][ACCURACY]["FedAvg"])
        here = f"{gaps.min():+.1f} to {gaps.max():+.1f} points"
        if images == "Fashion-MNIST":
            yield Statement(f"{images}: less accurate than FedAvg", here, gaps.max() < 0)
        else:
            yield Statement(f"{images}: about as accurate as FedAvg", here, gaps.min() > -1, few)
    names = ("a round, times", "in all, times")
    times, in_all = (max(of[name].max() for of in ours.values()) for name in names)
    here = f"up to {times:,.0f} in a round and {in_all:,.0f} in all"
    yield Statement(f"up to {_TIMES} times fewer bytes than FedAvg", here, times >= _TIMES, _BYTES)


def panels(results: Results) -> list[Lines]:
    """A row an image set: accuracy left, cumulative bytes right."""
    made = []
    for images, runs in points(_runs(results)).groupby("images", sort=False):
        title, y, scales = f"{images}, strong", "bytes of a client, both ways", ("linear", "log")
        accuracy, moved = (lines(runs, "method", "round", value) for value in (ACCURACY, "moved"))
        made.append(Lines(title, "round", "test accuracy", accuracy))
        made.append(Lines(title, "round", y, moved, share=False, scales=scales))
    return made


STUDY = ImageStudy(
    home="papers",
    name="communication",
    about="Accuracy and bytes against rounds, beside FedAvg, as in Fig. 7.",
    cells=Grid(_SETS, ("strong",), ("selective-fd", "fedavg"), vary, rounds=40).cells,
    shown=with_seeds(tables),
    panels=panels,
    reads=("curve",),
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.paper.communication"))
