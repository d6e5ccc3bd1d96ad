"""What one round teaches of proxies that are of no class that a client holds."""

import pytest

from experiments.core.shared_options import StudyOptions
from experiments.rivals.foreign_proxies import (
    FIGURES,
    ROWS,
    TROUBLES,
    Cell,
    cells,
    federation_of,
)
from experiments.rivals.foreign_proxies import measure as measured
from secure_fd.errors import ConfigurationError


def test_every_trouble_and_row_is_run():
    made = cells(StudyOptions())
    assert len({cell.label for cell in made}) == len(made) == 3 * 4 * 2 * 3
    assert {cell.trouble for cell in made} == set(TROUBLES)
    assert {cell.row for cell in made} == set(ROWS)
    with pytest.raises(ConfigurationError) as caught:
        cells(StudyOptions(image_sets="mnist5"))
    assert caught.value.field == "image_sets"


def test_selective_fd_drops_foreign_proxies_which_its_twin_teaches():
    """Half of the digits' 400 proxies rotated; the digits of two classes in nobody's hands."""
    for trouble, share in (("half rotated", 0.5), ("8 and 9 unheld", 0.8)):
        own = federation_of(None, Cell("digits", trouble, "", 0))[1]
        assert own.mean() == pytest.approx(share)
        kept, lost = (measured(None, Cell("digits", trouble, row, 0), {}).figures for row in ROWS)
        foreign, own, right, _ = FIGURES
        assert kept[foreign] < 0.15
        assert lost[foreign] > 0.9
        assert kept[own] > 0.75
        assert kept[right] > 0.9
