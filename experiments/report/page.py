"""Self-contained HTML pages and Markdown pages: no request leaves a page, all text is escaped."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from experiments.report import tables
from experiments.report.plots import DPI
from secure_fd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT_FILE = "report.html"
_FEW = 3
"""Equal values that are listed."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One embedded figure: heading, caption, alternative text, and the image as a data URI."""

    name: str
    heading: str
    caption: str
    alt: str
    source: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values; folded: behind its title."""

    title: str
    values: Mapping[str, object]
    folded: bool = False


Part: TypeAlias = tables.Table | str | Sequence[str] | Pairs | Picture
"""Of a section: a table, a sentence, a list, pairs or a picture."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading.

    >>> Section("What was run", ["Nothing."]).anchor
    'what-was-run'
    """

    title: str
    parts: Sequence[Part]
    level: int = 2

    @property
    def anchor(self) -> str:
        """Where a link leads."""
        return self.title.lower().replace(" ", "-")


def page(
    title: str,
    about: str,
    summary: Sequence[str],
    sections: Sequence[Section],
    command: Sequence[str],
    note: str,
    alarms: Sequence[str] = (),
) -> str:
    """A whole page as text. about: a line under the title. note: at the end, above the command.

    Labels and notes are text, never markup.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["shown"] = shown
    return made.get_template("page.html.j2").render(
        title=title,
        about=about,
        summary=summary,
        alarms=alarms,
        sections=sections,
        table=tables.html,
        command=shlex.join(command),
        note=note,
    )


def write_page(page: str, folder: Path) -> Path:
    """Write report.html, whole or not at all; its path."""
    path = folder / REPORT_FILE
    write_atomically(path, lambda file: file.write(page.encode()))
    return path


def png(drawn: "Figure") -> bytes:
    """A figure as PNG."""
    buffer = BytesIO()
    drawn.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def data_uri(image: bytes | None) -> str:
    """PNG bytes as an address that needs no request; "" for None.

    >>> data_uri(b"png")
    'data:image/png;base64,cG5n'
    """
    return f"data:image/png;base64,{base64.b64encode(image).decode()}" if image else ""


def shown(value: object) -> str:
    """A setting as people write it."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {shown(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        same = len(value) > _FEW and all(item == value[0] for item in value)
        each = ", ".join(map(shown, value)) or "none"
        return f"{len(value)} of {shown(value[0])}" if same else each
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float | int):
        return f"{value:.6g}" if isinstance(value, float) else f"{value:,}"
    return "∞" if value == "inf" else str(value)
