"""Write every study's tables into docs/results/NAME.md, and the list of attacks from their classes.

python experiments/report/results_page.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from attacks import markdown_table
from experiments.core.provenance import ROOT, Code
from experiments.core.study import Results, Study, load, read_results
from experiments.report.tables import markdown
from experiments.studies import STUDIES
from secure_fd.cli import exit_status

MODULES = (
    *STUDIES.values(),
    "experiments.suite.attack_suite",
    "experiments.privacy.privacy_audit",
)
"""Studies with a page of tables."""
SAID = {"attack_suite": "attacks", "privacy_audit": "audit"}
"""By study, the page that says what was found, where that is not results.md."""


def table_pages(folder: Path) -> Mapping[str, str]:
    """By name of a study that the folder has results of: its page of tables, as Markdown."""
    files = {study: folder / f"{study.name}.json" for study in map(load, MODULES)}
    return {
        study.name: page(study, read_results(study, path))
        for study, path in files.items()
        if path.exists()
    }


def page(study: Study, results: Results) -> str:
    """Heading, command, code version and every table of a study."""
    data = f"{study.name}.json"
    about = " ".join(study.about.split()).split(". ")[0].rstrip(".")
    said = SAID.get(study.name, "results")
    parts = [
        f"# Tables: {study.name.replace('_', ' ')}",
        f"{about}. These are all tables of that study, written from"
        f" [{data}]({data}) by `results_page.py` alone; [{said}.md](../{said}.md)"
        " says how to read them and what was found.",
        f"Command: `{' '.join(results.command)}`",
        f"Measured at {_version(results)}.",
        markdown(study.shown(results)),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def _version(results: Results) -> str:
    """The code that measured a file; older files do not say whether it had changes."""
    after = {None: " or before", True: " with changes that were not committed", False: ""}
    return f"{Code(results.commit)}{after[results.dirty]}"


def attack_list() -> str:
    """The page of all attacks by name, written from their classes."""
    return (
        "# All attacks by name\n\n"
        "Every attack with what it must be able to see, its figure, and the control that the figure"
        " is read beside. Written from the attacks' classes by `results_page.py` alone;"
        f" [attacks.md](../attacks.md) says how to read it.\n\n{markdown_table()}\n"
    )


def main() -> int:
    """Rewrite the pages of studies that have results."""
    docs = ROOT / "docs"
    for name, text in table_pages(docs / "results").items():
        (docs / "results" / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"results/{name}.md")
    (docs / "attacks" / "all.md").write_text(attack_list(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, interrupted="the pages are as they were"))
