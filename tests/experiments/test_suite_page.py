"""Page of the attack suite: one table a scene, and what a cell keeps of a result."""

from attacks.core.result import AttackResult
from experiments.core.study import Result, gathered
from experiments.report.tables import markdown
from experiments.suite.attack_suite import STUDY, Settings, shown
from experiments.suite.scenes import Cell
from experiments.suite.suite_page import tables


def found(figure: float) -> AttackResult:
    return shown(
        AttackResult(
            name="lira",
            title="LiRA",
            figure=figure,
            figure_name="AUC",
            unit="",
            interval=(figure - 0.001, figure + 0.001),
            control=0.5,
            control_name="a coin",
            n_members=100,
            n_non_members=100,
            caveats=("a sentence",),
            details={
                "tpr_at_0.01_fpr": 0.04,
                "delta_p_value": 0.5,
                "mean_psnr": 9.0,
                "positive_control": 0.9,
            },
        )
    )


def test_a_cell_keeps_what_the_page_shows():
    kept = found(0.8)
    assert set(kept.details) == {"tpr_at_0.01_fpr", "delta_p_value", "positive_control"}
    assert kept.caveats == ()


def test_a_scene_is_one_table_of_rows_and_attacks_with_controls_and_a_sentence():
    rows = {"fedavg": 0.8, "selective-fd-hard": 0.5, "overfitted fedavg": 0.9}
    cells = [
        Result(Cell("membership", row, seed), {}, 1.0, attacks={"lira": found(figure)})
        for row, figure in rows.items()
        for seed in (20, 21, 22)
    ]
    text = markdown(tables(gathered(STUDY, cells, Settings())))
    assert "| FedAvg | 0.800* [0.800, 0.800] |" in text
    assert "| Selective-FD hard | 0.500 [0.500, 0.500] |" in text
    assert "| control | 0.50 |" in text
    assert "1 of 2 figures show more than the control; not: lira (Selective-FD hard)." in text
    assert "| FedAvg | 0.040 |" in text  # true positives at 1 % false positives
