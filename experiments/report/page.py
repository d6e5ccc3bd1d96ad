"""Self-contained HTML pages: no request leaves a page, all text is escaped."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from experiments.report.tables import Table
from secure_fd.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDED = (
    "Seeds drive data, training and noise, so that every figure can be repeated. Epsilon is that "
    "of each mechanism with fresh noise."
)
KEYS = "Unless an insecure setting of this page says otherwise, keys are fresh in every run."
_FEW = 3
"""Equal values that are listed."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One embedded figure: heading, caption and alternative text."""

    name: str
    heading: str
    caption: str
    alt: str
    figure: "Figure"

    @property
    def source(self) -> str:
        """The image as an address that needs no request."""
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png")
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values; folded: behind its title."""

    title: str
    values: Mapping[str, object]
    folded: bool = False


Part: TypeAlias = Table | str | Sequence[str] | Pairs | Picture
"""Part of a section: a table, a sentence, a list, pairs or a picture."""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page. Labels and notes are text, never markup.

    about: a line under the title. sections: by heading. note: at the end, above the command.
    alarms: insecure settings.
    """

    title: str
    about: str
    summary: Sequence[str]
    sections: Mapping[str, Sequence[Part]]
    command: Sequence[str]
    note: str
    alarms: Sequence[str] = ()

    def html(self) -> str:
        """Return the page as text."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

        loader = FileSystemLoader(Path(__file__).parent)
        made = Environment(autoescape=True, loader=loader, undefined=StrictUndefined)
        made.trim_blocks = made.lstrip_blocks = True
        made.filters |= {"shown": shown, "command": shlex.join}
        return made.get_template("page.html.j2").render(page=self)

    def write(self, folder: Path) -> Path:
        """Write report.html, whole or not at all; return its path."""
        path = folder / "report.html"
        write_atomically(path, lambda file: file.write(self.html().encode()))
        return path


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
