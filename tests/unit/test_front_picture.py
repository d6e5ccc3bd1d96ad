"""The README's picture says what the committed results say, and nothing else."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from experiments.attack_suite import STUDY
from experiments.front_picture import (
    PANELS,
    PICTURE,
    SOURCE,
    Settings,
    main,
    marks,
    picture,
    spoken,
)
from experiments.leakage import AttackFigure
from experiments.plots import Mark
from experiments.study import Results, read_results
from secure_fd.errors import ConfigurationError

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(STUDY, SOURCE)


def test_the_committed_picture_describes_the_committed_results(results: Results) -> None:
    found = re.search(r"<dc:description>(.*?)</dc:description>", PICTURE.read_text(), re.DOTALL)
    assert found is not None
    assert " ".join(unescape(found[1]).split()) == spoken(results)


def test_it_is_drawn_the_same_twice(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        assert main(Settings(tmp_path / name)) == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_all_panels_share_their_rows(results: Results) -> None:
    assert len({tuple(panel.rows) for panel in PANELS}) == 1
    assert len(picture(results).axes) == len(PANELS)


def test_a_mark_is_the_mean_of_its_seeds(results: Results) -> None:
    mark = marks(results, PANELS[0])["FedAvg"]
    assert isinstance(mark, Mark)
    cells = [f for f in results.cells if (f.cell.scene, f.cell.row) == ("updates", "mlp-b1")]
    values = [f.attacks["gradient-analytic"] for f in cells]
    figures = [value.figure for value in values if isinstance(value, AttackFigure)]
    assert mark.value == pytest.approx(sum(figures) / 3)
    assert list(mark.singles) == figures


def test_another_result_makes_another_picture_and_a_missing_one_none(results: Results) -> None:
    fewer = replace(results, cells=[f for f in results.cells if f.cell.seed != 22])
    assert marks(fewer, PANELS[1]) != marks(results, PANELS[1])
    without = [f for f in results.cells if f.cell.scene != "membership"]
    with pytest.raises(ConfigurationError, match="membership/lira-upload/fedavg"):
        spoken(replace(results, cells=tuple(without)))


def test_the_readme_shows_it() -> None:
    assert f"]({PICTURE.relative_to(README.parent).as_posix()})" in README.read_text()
