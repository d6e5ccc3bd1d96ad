"""Write the tables of every study into docs/results/NAME.md, and those that other pages copy.

python experiments/report/results_page.py [FOLDER of docs/ and README.md]
"""

import re
import sys
from pathlib import Path

from experiments.core.provenance import ROOT, Code
from experiments.core.study import Results, Study, load, read_results
from experiments.report.tables import Table, markdown, piped, rendered
from experiments.studies import STUDIES
from secure_fd.cli import exit_status

MODULES = (*STUDIES.values(), "experiments.suite.attack_suite", "experiments.privacy.privacy_audit")
"""Studies with a page of tables."""
EXPLAINED = {
    "attack_suite": "explanation/attacks.md",
    "privacy_audit": "explanation/privacy_units.md",
}
"""Page that explains a study's tables if it is not results.md, by study."""
COPYING = ("README.md", "docs/results.md")
"""Pages with copies of tables."""
_MAIN = "experiments.privacy_compare"
_MARK = re.compile(
    r"(<!-- (\w+)\.json, (printed|table \d+) -->\n)(?:\n(?:\|.*\n)+|```\w+\n[^`]*```\n)?"
)
"""A mark, and the copy behind it."""


def write_pages(root: Path = ROOT) -> list[Path]:
    """Write the page of every study that has results, then the copies of tables on other pages.

    Returns the files that are written. root: of docs/ and README.md.
    """
    folder, pages = root / "docs" / "results", dict[Path, str]()
    for study in map(load, MODULES):
        if (data := folder / f"{study.name}.json").exists():
            plot = data.with_suffix(".svg")
            shown = f"\n![{study.about.strip()}]({plot.name})\n" if plot.exists() else ""
            pages[data.with_suffix(".md")] = page(study, read_results(study, data)) + shown
    for path in (root / name for name in COPYING):
        if path.exists():
            pages[path] = copied(path.read_text(encoding="utf-8"), folder)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return [*pages]


def copied(text: str, folder: Path) -> str:
    """Return a page in which the copy behind each mark is what a folder's results show.

    `<!-- alpha.json, table 2 -->` asks for the second table of that file, `printed` for what a
    terminal shows down to the end of the first.
    """
    return _MARK.sub(lambda mark: mark[1] + _copy(folder / f"{mark[2]}.json", mark[3]), text)


def _copy(data: Path, what: str) -> str:
    modules = {module.rpartition(".")[2]: module for module in MODULES}
    study = load(modules.get(data.stem, _MAIN))
    parts = study.shown(read_results(study, data))
    tables = [part for part in parts if isinstance(part, Table)]
    if what == "printed":
        return f"```text\n{rendered(parts[: parts.index(tables[0]) + 1], width=100)}```\n"
    return f"\n{piped(tables[int(what.split()[1]) - 1])}\n"


def page(study: Study, results: Results) -> str:
    """Heading, origin, command and every table of a study."""
    data = f"{study.name}.json"
    about = study.about.strip().split("\n\n")[0].rstrip(".")
    explained = EXPLAINED.get(study.name, "results.md")
    version, date = results.versions["secure-fd"], results.created[:10]
    code = f"{Code(results.commit)}{' with changes' if results.dirty else ''}"
    parts = [
        f"# Tables: {study.name.replace('_', ' ')}",
        f"{' '.join(about.split())}. Measured at version {version} on {date}, {code}."
        f" This page is written from [{data}]({data}) by `results_page.py` alone;"
        f" [{explained.split('/')[-1]}](../{explained}) explains it.",
        f"Command: `{' '.join(results.command)}`",
        markdown(study.shown(results)),
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Rewrite the pages and copies of results that there are."""
    root = Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT
    for path in write_pages(root):
        print(path.relative_to(root))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, interrupted="the pages are as they were"))
