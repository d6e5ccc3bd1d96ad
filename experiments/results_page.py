"""Write the tables of the paper's studies into docs/results.md, from docs/results/*.json.

python experiments/results_page.py
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.cli import exit_status
from experiments.papers.page import sections, updated


@dataclass(frozen=True, slots=True)
class Settings:
    """Write the tables of the paper's studies into docs/results.md, from docs/results/*.json."""

    docs: Path = Path(__file__).parents[1] / "docs"
    """Folder of results.md and of results/."""


def main(settings: Settings) -> int:
    """Rewrite the sections that have results; returns the exit status."""
    page = settings.docs / "results.md"
    made = sections(settings.docs / "results")
    page.write_text(updated(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    print(f"{page.name}: {', '.join(made) or 'no results yet'}")
    return 0


if __name__ == "__main__":
    chosen = tyro.cli(Settings, prog="results_page.py")
    sys.exit(exit_status(lambda: main(chosen), interrupted="the page is as it was"))
