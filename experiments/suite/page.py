"""Everything that a run of the suite leaves behind, and its one self-contained page."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from attacks.view import THREATS, Capability
from experiments.page import REPORT_FILE, shown
from experiments.plots import DPI
from experiments.results import write_atomically
from experiments.suite import pictures, text
from experiments.suite.drawing import Drawing
from experiments.suite.pictures import Pictures
from experiments.suite.plots import drawings
from experiments.suite.results import SuiteResults, save
from experiments.tables import human_seconds

PLOTS, IMAGES = "plots", "images"
"""Folders of PNG figures, and of the arrays of images."""
_TEMPLATE = "page.html.j2"


@dataclass(frozen=True, slots=True)
class Embedded:
    """A figure of the page. source: a data URI."""

    attack: str
    heading: str
    caption: str
    alt: str
    source: str


def write_report(results: SuiteResults, images: Mapping[str, Pictures], folder: Path) -> Path:
    """Write the JSON file, images by scene, figures and report.html; the page's path.

    The numbers come first: a failure later never costs a finished run.
    """
    save(results, folder)
    for scene in results.scenes:
        pictures.save(images.get(scene.name, {}), folder / IMAGES / f"{scene.name}.npz")
    plots = folder / PLOTS
    plots.mkdir(exist_ok=True)
    for stale in plots.glob("*.png"):
        stale.unlink()
    embedded: dict[str, list[Embedded]] = {}
    for scene in results.scenes:
        made = drawings(scene, images.get(scene.name, {}))
        embedded[scene.name] = [
            _kept(drawing, plots / f"{scene.name}-{drawing.name}.png") for drawing in made
        ]
    path = folder / REPORT_FILE
    page = render(results, embedded).encode()
    write_atomically(path, lambda file: file.write(page))
    return path


def render(results: SuiteResults, embedded: Mapping[str, Sequence[Embedded]]) -> str:
    """The page as text. embedded: by scene, its figures."""
    # Autoescape is on for everything: labels and caveats are text, never markup.
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1]]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template(_TEMPLATE).render(
        results=results,
        text=text,
        pictures={scene.name: embedded.get(scene.name, ()) for scene in results.scenes},
        threats=THREATS,
        capabilities=list(Capability),
        command=shlex.join(results.command),
        human_seconds=human_seconds,
    )


def _kept(drawing: Drawing, path: Path) -> Embedded:
    """The figure as a file, and as a part of the page."""
    buffer = BytesIO()
    drawing.figure.savefig(buffer, format="png", dpi=DPI)
    png = buffer.getvalue()
    write_atomically(path, lambda file: file.write(png))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return Embedded(drawing.attack, drawing.heading, drawing.caption, drawing.alt, source)
