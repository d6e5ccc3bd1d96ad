"""Write the tables of every study into docs/results/NAME.md.

python experiments/report/results_page.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path

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
EXPLAINED = {
    "attack_suite": "explanation/attacks.md",
    "privacy_audit": "explanation/privacy_units.md",
}
"""Page that explains a study's tables if it is not results.md, by study."""


def table_pages(folder: Path) -> Mapping[str, str]:
    """Return the page of tables of every study that the folder has results of, by its name."""
    files = {study: folder / f"{study.name}.json" for study in map(load, MODULES)}
    return {
        study.name: page(study, read_results(study, path))
        for study, path in files.items()
        if path.exists()
    }


def page(study: Study, results: Results) -> str:
    """Heading, origin, command and every table of a study."""
    data = f"{study.name}.json"
    about = study.about.strip().split("\n\n")[0].rstrip(".")
    explained = EXPLAINED.get(study.name, "results.md")
    version, date = results.versions["secure-fd"], results.created[:10]
    parts = [
        f"# Tables: {study.name.replace('_', ' ')}",
        f"{' '.join(about.split())}. Measured at version {version} on {date}, {_code(results)}."
        f" This page is written from [{data}]({data}) by `results_page.py` alone;"
        f" [{explained.split('/')[-1]}](../{explained}) explains it.",
        f"Command: `{' '.join(results.command)}`",
        markdown(study.shown(results)),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def _code(results: Results) -> str:
    """The code that measured a file; older files do not record whether it had changes."""
    after = {None: " or before", True: " with changes that were not committed", False: ""}
    return f"{Code(results.commit)}{after[results.dirty]}"


def main() -> int:
    """Rewrite the pages of studies that have results."""
    docs = ROOT / "docs"
    for name, text in table_pages(docs / "results").items():
        (docs / "results" / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"results/{name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, interrupted="the pages are as they were"))
