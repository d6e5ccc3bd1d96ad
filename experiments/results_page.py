"""Write the tables of the paper's studies into docs/results.md, from docs/results/*.json.

python experiments/results_page.py
"""

import sys
from pathlib import Path

from experiments.cli import exit_status
from experiments.papers.page import sections, updated

DOCS = Path(__file__).parents[1] / "docs"


def main() -> int:
    """Rewrite the sections that have results; returns the exit status."""
    page = DOCS / "results.md"
    made = sections(DOCS / "results")
    page.write_text(updated(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    print(f"{page.name}: {', '.join(made) or 'no results yet'}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, interrupted="the page is as it was"))
