"""The scene of Fig. 8: public digits are not private ones, and its queries pass by every filter."""

from attacks.core.base import Labelled, require_disjoint
from experiments.suite.scenes import Cell
from experiments.suite.scenes.figure8 import FIRST_PRIVATE, digits, some
from secure_fd.data.images import concatenate


def test_the_prior_sees_no_private_digit_and_nothing_overlaps():
    data, outside = digits(Cell("figure8", "", 3), None)
    assert outside.labels.max() < FIRST_PRIVATE
    private = concatenate([part for c in data.clients for part in (c.train, c.validation)])
    parts = [private, data.proxies, data.held_out, data.test, outside]
    assert all(part.labels.min() >= FIRST_PRIVATE for part in parts[:-1])
    assert [client.classes for client in data.clients] == [(5,), (6,), (7,), (8,), (9,)]
    assert sum(map(len, parts)) == 5000
    for i, one in enumerate(parts):
        for other in parts[i + 1 :]:
            require_disjoint(Labelled(one.pixels, one.labels), Labelled(other.pixels, other.labels))
    assert len(some(outside, 30, 0)) == 30
