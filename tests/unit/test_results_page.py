"""The pages of tables are those that the committed results give."""

from experiments.core.provenance import ROOT
from experiments.report.results_page import table_pages

COMMITTED = ROOT / "docs" / "results"


def test_the_committed_tables_are_those_of_the_committed_results():
    found = {path.stem: path.read_text(encoding="utf-8") for path in COMMITTED.glob("*.md")}
    assert found == table_pages(COMMITTED)
