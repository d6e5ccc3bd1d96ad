"""The server selector: precise ensembles teach, ties never do."""

import numpy as np
import pytest

from secure_fd.errors import ConfigurationError
from secure_fd.methods.selective_fd import check_server_threshold, precise
from secure_fd.votes.codec import Sums, one_hot

RNG = np.random.default_rng(0)
TIES = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])


@pytest.mark.parametrize("threshold", [0.3, 0.5, 1.0, 1.4])
def test_it_is_the_l1_distance_to_the_own_label(threshold):
    """2 (1 - max h) is |h - onehot(h)|_1, by definition rather than by formula here."""
    h = RNG.dirichlet(np.full(6, 0.9), size=2000)
    distance = np.abs(h - one_hot(h.argmax(axis=1), 6)).sum(axis=1)
    found = precise(h, threshold)
    clear = np.abs(distance - threshold) > 1e-9
    assert found[clear].tolist() == (distance <= threshold)[clear].tolist()
    assert 0 < found.sum() < len(found)


def test_the_line_itself_is_kept():
    assert precise(np.array([[0.75, 0.25]]), 0.5).tolist() == [True]
    assert precise(np.array([[0.75 - 2**-30, 0.25 + 2**-30]]), 0.5).tolist() == [False]


@pytest.mark.parametrize("threshold", [0.01, 1.0, 2.0])
def test_ties_are_never_kept(threshold):
    assert not precise(TIES, threshold).any()


def test_a_threshold_of_two_keeps_everything_else():
    h = RNG.dirichlet(np.ones(10), size=300)
    assert precise(h, 2.0).all()
    assert not precise(TIES, 2.0).any()


def test_ensembles_are_means_of_those_who_answered():
    total = np.array([[2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    h = Sums(total.sum(axis=1), total).mean
    assert h.tolist() == [[0.5, 0.25, 0.25], [0, 0, 0], [0, 1, 0]]
    # Nobody answered: a zero row, which is a tie, so it never teaches.
    assert precise(h, 2.0).tolist() == [True, False, True]


def test_thresholds_are_distances():
    for good in (1e-9, 1.0, 2.0):
        check_server_threshold(good)
    for bad in (0.0, -1.0, 2.0001, np.nan, np.inf):
        with pytest.raises(ConfigurationError, match="server_threshold"):
            check_server_threshold(bad)
