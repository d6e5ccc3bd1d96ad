"""One self-contained report.html: no request leaves the page, and everything is escaped."""

import base64
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from experiments import plots
from experiments import tables as text
from experiments.plots import MEMBERSHIP, row_styles
from experiments.results import (
    IMAGES_FILE,
    Images,
    Results,
    Row,
    save,
    save_images,
    write_atomically,
)
from secure_fd.privacy.units import figure

REPORT_FILE = "report.html"
_TEMPLATE = "report.html.j2"


@dataclass(frozen=True, slots=True)
class Picture:
    """One embedded figure: heading, caption, alternative text, and the image as a data URI."""

    name: str
    heading: str
    caption: str
    alt: str
    source: str


def save_page(results: Results, folder: Path) -> Path:
    """Write report.html with the figures that `plots.save_all` left in the folder; its path."""
    figures = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    page = render(results, figures)
    path = folder / REPORT_FILE
    write_atomically(path, lambda file: file.write(page.encode()))
    return path


def render(results: Results, figures: Mapping[str, bytes]) -> str:
    """The page as text. figures: PNG bytes by the names of `plots.save_all`."""
    # Autoescape is on for everything: labels and notes are text, never markup.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "claimed": claimed}
    return environment.get_template(_TEMPLATE).render(
        results=results,
        text=text,
        colours={key: colour for key, (colour, _) in row_styles(results).items()},
        pictures=[picture for picture in _pictures(results, figures) if picture.source],
        diagnostics=list(dict.fromkeys(name for row in results.rows for name in row.diagnostics)),
        command=shlex.join(results.command),
    )


def claimed(value: object, key: str) -> str:
    """A part of a guarantee; an epsilon is rounded up, and null where nothing bounds it."""
    if key == "epsilon":
        return figure(value) if isinstance(value, float | int) else "not bounded"
    return shown(value)


def shown(value: object) -> str:
    """A setting as people write it."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {claimed(item, key)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return "∞" if value == "inf" else str(value)


def _pictures(results: Results, figures: Mapping[str, bytes]) -> list[Picture]:
    aucs = [(row.label, row.figure(MEMBERSHIP)) for row in results.rows]
    texts = [
        (
            "accuracy_bytes",
            "Accuracy against communication",
            "Each line is one method, from its first round to its last; the mark is its end. "
            "A dashed line sends nothing.",
            _listed(results, _traffic),
        ),
        (
            "accuracy",
            "Accuracy",
            "Mean over clients and seeds; whiskers are one standard deviation over clients.",
            _listed(results, lambda row: f"± {100 * row.accuracy.std_over_clients:.1f}"),
        ),
        (
            "attacks",
            "Attacks against their controls",
            "A figure says something only by its distance from the control: the same attack "
            "without access.",
            "The figures of every attack, as in the tables of this page.",
        ),
        (
            "reconstructions",
            "Reconstructions beside originals",
            "Right: the leakage figure of the row. A plausible image is no leak if the controls "
            "look the same.",
            "Private originals, what each method let out, and controls without access.",
        ),
        (
            "roc",
            "Membership inference",
            "Log-log: what counts is the left, where an accusation is rarely wrong. The axes "
            "start at the smallest rate that the non-members resolve.",
            "Area under the curve: "
            + "; ".join(f"{label} {text.number(found.figure)}" for label, found in aucs if found),
        ),
    ]
    return [
        Picture(name, heading, caption, alt, _data_uri(figures.get(name)))
        for name, heading, caption, alt in texts
    ]


def _listed(results: Results, more: Callable[[Row], str]) -> str:
    """Alternative text: every row's accuracy, and one thing more."""
    return "; ".join(
        f"{row.label} {100 * row.accuracy.mean:.1f} %, {more(row)}" for row in results.rows
    )


def _traffic(row: Row) -> str:
    return f"{text.human_bytes(row.bytes_up + row.bytes_down)} per client"


def _data_uri(png: bytes | None) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}" if png else ""


def write_report(results: Results, images: Images, folder: Path) -> Path:
    """Write results.json, reconstructions.npz, the figures and report.html; the page's path.

    The numbers come first: a failure later never costs a finished run.
    """
    save(results, folder)
    if images:
        save_images(images, folder)
    else:
        (folder / IMAGES_FILE).unlink(missing_ok=True)  # one of an earlier run
    plots.save_all(results, folder)
    return save_page(results, folder)
