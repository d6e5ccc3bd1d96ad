"""The picture at the top of the README: what attackers learn from each protocol.

python experiments/front_picture.py

Every mark is a mean over the seeds of docs/results/attack_suite.json.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from experiments.attack_suite import STUDY
from experiments.leakage import AttackFigure
from experiments.plots import Forest, Mark, forest, line_style
from experiments.study import Results, read_results
from secure_fd.endings import exit_status
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[1] / "docs"
SOURCE = DOCS / "results" / "attack_suite.json"
PICTURE = DOCS / "results" / "front.svg"

Place = tuple[str, str, str]
"""Scene, attack and row of the suite."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One question to every protocol. rows: where its answer is, or why there is none."""

    title: str
    x: str
    rows: Mapping[str, Place | str]
    digits: int


_LABELS, _VOTES = ("federation", "label-distribution"), ("membership", "indirect")
_UPLOAD, _PICTURES = ("membership", "lira-upload"), ("updates", "gradient-analytic")
_NO_MODEL = "no update is sent"
_UNKNOWN = "not measured"
PANELS = (
    Panel(
        "Pictures",
        "excess PSNR of a record, dB",
        {
            "FedAvg": (*_PICTURES, "mlp-b1"),
            "FedAvg, DP-SGD": (*_PICTURES, "mlp-b1-dp-sgd"),
            "FedMD, soft labels": _NO_MODEL,
            "Selective-FD, soft labels": _NO_MODEL,
            "Selective-FD, hard labels": _NO_MODEL,
            "the same under masks": _NO_MODEL,
            "the same, record ε 4": _NO_MODEL,
        },
        0,
    ),
    Panel(
        "Members",
        "AUC of membership",
        {
            "FedAvg": (*_UPLOAD, "fedavg"),
            "FedAvg, DP-SGD": (*_UPLOAD, "fedavg-dp-sgd"),
            "FedMD, soft labels": _UNKNOWN,
            "Selective-FD, soft labels": (*_VOTES, "selective-fd-soft"),
            "Selective-FD, hard labels": (*_VOTES, "selective-fd-hard"),
            "the same under masks": (*_VOTES, "selective-fd-hard-masks"),
            "the same, record ε 4": (*_VOTES, "selective-fd-hard-dp-record"),
        },
        2,
    ),
    Panel(
        "Label shares",
        "error of a guess (0: known)",
        {
            "FedAvg": (*_LABELS, "fedavg"),
            "FedAvg, DP-SGD": _UNKNOWN,
            "FedMD, soft labels": (*_LABELS, "fedmd-soft"),
            "Selective-FD, soft labels": (*_LABELS, "selective-fd-soft"),
            "Selective-FD, hard labels": (*_LABELS, "selective-fd-hard"),
            "the same under masks": (*_LABELS, "selective-fd-hard-masks"),
            "the same, record ε 4": (*_LABELS, "selective-fd-hard-masks-dp-record"),
        },
        2,
    ),
)


def marks(results: Results, panel: Panel) -> Mapping[str, Mark | str]:
    """By protocol its mark, or why it has none. Raises ConfigurationError where a figure lacks."""
    return {
        name: place if isinstance(place, str) else _mark(results, place)
        for name, place in panel.rows.items()
    }


def _mark(results: Results, place: Place) -> Mark:
    scene, attack, row = place
    cells = [f for f in results.cells if (f.cell.scene, f.cell.row) == (scene, row)]
    found = [f.attacks[attack] for f in cells if attack in f.attacks]
    figures = [figure for figure in found if isinstance(figure, AttackFigure)]
    if not figures or len(figures) < len(found):
        raise ConfigurationError("results", "/".join(place), "it must have a figure of every seed")
    values = [figure.figure for figure in figures]
    control = _mean([figure.control for figure in figures])
    return Mark(_mean(values), control=control, singles=values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def picture(results: Results) -> "Figure":
    """The panels side by side over the same protocols."""
    styles = {name: line_style(i) for i, name in enumerate(PANELS[0].rows)}
    drawn = [Forest(panel.title, panel.x, marks(results, panel), styles) for panel in PANELS]
    return forest(drawn, ("an attack, mean of seeds (dots)", "the same without access"))


def spoken(results: Results) -> str:
    """The picture in words: for those who do not see it, and kept inside it as its description."""
    lines = []
    for panel in PANELS:
        said = [
            f"{name} {mark}"
            if isinstance(mark, str)
            else f"{name} {_text(mark.value, panel)} (control {_text(mark.control, panel)})"
            for name, mark in marks(results, panel).items()
        ]
        lines.append(f"{panel.title} ({panel.x}): {', '.join(said)}")
    return ". ".join(lines)


def _text(value: float | None, panel: Panel) -> str:
    return "none" if value is None else f"{round(value, panel.digits) + 0.0:.{panel.digits}f}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Draw the README's picture from the committed results of the attack suite."""

    out: Path = PICTURE
    """The SVG file."""


def main(settings: Settings) -> int:
    """Draw it; returns the exit status."""
    import matplotlib as mpl  # slow to import

    results = read_results(STUDY, SOURCE)
    about = {"Date": None, "Description": spoken(results)}
    with mpl.rc_context({"svg.hashsalt": "secure-fd", "svg.fonttype": "path"}):
        made = picture(results)
        write_atomically(settings.out, partial(made.savefig, format="svg", metadata=about))
    print(settings.out.name)
    return 0


if __name__ == "__main__":
    chosen = tyro.cli(Settings, prog="front_picture.py")
    sys.exit(exit_status(lambda: main(chosen), interrupted="the picture is as it was"))
