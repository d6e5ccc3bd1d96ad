"""Write the tables of all studies into docs/results.md, from docs/results/*.json.

python experiments/results_page.py
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.cli import exit_status
from experiments.evidence import PAGES, STUDIES, marked, stale_files, stale_line
from experiments.page import updated
from experiments.study import load, read_results
from experiments.tables import markdown

ELSEWHERE = ("attack_suite",)
"""Studies whose figures have a page of their own: docs/attacks.md."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Write the tables of all studies into docs/results.md, and what is stale into all pages."""

    docs: Path = Path(__file__).parents[1] / "docs"
    """Folder of results.md and of results/."""


def sections(folder: Path) -> Mapping[str, str]:
    """By name of a study that the folder has results of: its tables as Markdown."""
    return dict(_sections(folder))


def _sections(folder: Path) -> Iterator[tuple[str, str]]:
    for module in STUDIES:
        study = load(module)
        path = folder / f"{study.name}.json"
        if path.exists() and study.name not in ELSEWHERE:
            found = read_results(study, path)
            source = f"`{' '.join(found.command)}` ([{path.name}]({folder.name}/{path.name}))"
            stale = stale_line(study, found)
            parts = [source, *([stale] if stale else []), markdown(study.shown(found))]
            yield study.name, "\n\n".join(parts)


def main(settings: Settings) -> int:
    """Rewrite the sections that have results, and what pages say to be stale."""
    page = settings.docs / "results.md"
    made = sections(settings.docs / "results")
    page.write_text(updated(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    print(f"{page.name}: {', '.join(made) or 'no results yet'}")
    files = stale_files(settings.docs / "results")
    for name in PAGES:
        other = settings.docs.parent / name
        other.write_text(marked(other.read_text(encoding="utf-8"), files), encoding="utf-8")
    return 0


if __name__ == "__main__":
    chosen = tyro.cli(Settings, prog="results_page.py")
    sys.exit(exit_status(lambda: main(chosen), interrupted="the page is as it was"))
