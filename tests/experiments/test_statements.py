"""Figures of a study beside a paper: what is printed follows from the results."""

from dataclasses import replace

from experiments.core.study import Result, gathered, load
from experiments.paper.heterogeneity import by_architecture, runs_of, tables
from experiments.paper.statements import Statement, beside
from experiments.report.tables import Table
from secure_fd.data.image_sets import TABLE_3

STUDY = load("experiments.paper.heterogeneity")


def sentence(*statements: Statement) -> str:
    *_, last = beside("Fig. 0", statements)
    assert isinstance(last, str)
    return last


def test_ours_falls_short_only_where_a_statement_fails_and_has_a_reason():
    held, other = Statement("a", "1", True, "few"), Statement("b", "2", False)
    short = Statement("c", "3", False, "few")
    assert "none" in sentence(held, other)
    assert sentence(held, other, short) == "Ours falls short in: c (here 3); what differs: few."
    assert sentence(short, short._replace(paper="d")).count("few") == 1


def test_statements_follow_from_a_new_measurement():
    cells = STUDY.cells(STUDY.settings(rows="selective-fd"))

    def shown(worst: float) -> str:
        beta = min(cell.split for cell in cells)
        shares = [worst if cell.split == beta else 0.9 for cell in cells]
        each = zip(cells, shares, strict=True)
        found = [Result(cell, {"accuracy": s}, 1.0, (s,) * cell.clients) for cell, s in each]
        *_, last = tables(gathered(STUDY, found))
        return str(last)

    assert "none" in shown(0.88)
    assert "10.0 %" in shown(0.1)


def test_accuracy_by_architecture_is_the_mean_of_its_clients():
    cell = replace(STUDY.cells(STUDY.settings(rows="independent"))[0], seed=20)
    shares = tuple(k / 10 for k in range(10))
    found = gathered(STUDY, [Result(cell, {"accuracy": 0.45}, 1.0, shares)])
    made = by_architecture(runs_of(found))
    assert isinstance(made, Table)
    assert [row[0] for row in made.rows] == list(TABLE_3)
    assert [row[1] for row in made.rows] == ["5.0", "25.0", "45.0", "65.0", "85.0"]


def test_a_part_of_the_accuracies_states_its_own_rounds_and_no_gain_over_missing_rows():
    study = load("experiments.paper.accuracy")
    cells = study.cells(study.settings(rows="selective-fd", image_sets="chest_xray", rounds=500))
    found = gathered(study, [Result(cell, {"accuracy": 0.8}, 1.0) for cell in cells])
    text = str(study.shown(found))
    assert "nan" not in text
    assert "500 rounds" in text
