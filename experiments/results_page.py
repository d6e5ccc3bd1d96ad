"""Write the tables of all studies into docs/results.md and audit.md, from docs/results/*.json.

python experiments/results_page.py
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.evidence import PAGES, STUDIES, marked, stale_files, stale_line
from experiments.page import updated
from experiments.study import Study, load, read_results
from experiments.tables import markdown
from secure_fd.endings import exit_status

AUDIT = "privacy_audit"
ELSEWHERE = ("attack_suite", AUDIT)
"""Studies whose figures have a page of their own: docs/attacks.md, docs/audit.md."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Write the tables of all studies into their pages, and what is stale into all pages."""

    docs: Path = Path(__file__).parents[1] / "docs"
    """Folder of results.md, of audit.md and of results/."""


def sections(folder: Path) -> Mapping[str, str]:
    """By name of a study that the folder has results of: its tables as Markdown, for results.md."""
    return dict(_sections(folder, [s for s in map(load, STUDIES) if s.name not in ELSEWHERE]))


def audit_section(folder: Path) -> Mapping[str, str]:
    """The tables of the privacy audit, for audit.md; none without results."""
    return dict(_sections(folder, [s for s in map(load, STUDIES) if s.name == AUDIT]))


def _sections(folder: Path, studies: Sequence[Study]) -> Iterator[tuple[str, str]]:
    for study in studies:
        path = folder / f"{study.name}.json"
        if path.exists():
            found = read_results(study, path)
            source = f"`{' '.join(found.command)}` ([{path.name}]({folder.name}/{path.name}))"
            stale = stale_line(study, found)
            parts = [source, *([stale] if stale else []), markdown(study.shown(found))]
            yield study.name, "\n\n".join(parts)


def main(settings: Settings) -> int:
    """Rewrite the sections that have results, and what pages say to be stale."""
    results = settings.docs / "results"
    for name, made in (("results.md", sections(results)), ("audit.md", audit_section(results))):
        page = settings.docs / name
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
