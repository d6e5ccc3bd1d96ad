"""What one round teaches of proxies that are of no class that a client holds."""

import pytest

from experiments.rivals.foreign_proxies import FIGURES, ROWS, Cell, federation_of
from experiments.rivals.foreign_proxies import measure as measured


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
