"""Methods without proxies: predictions by class, the distillation from them, and its steps."""

import numpy as np
import pytest

from secure_fd.errors import PeerError
from secure_fd.methods.class_means import read_sum, sum_message
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.votes.codec import KnowledgeCodec, Sums
from tests.small_federation import alike, federation, parameters, run

PREDICTIONS = np.array([[0.8, 0.1, 0.1], [0.4, 0.5, 0.1], [0.0, 0.7, 0.3], [0.3, 0.6, 0.1]])
OF_CLASS = np.eye(3)[[0, 0, 1, 1]]
"""Four records: one of class 0 is taken for class 1. Class 2 has no record."""


@pytest.fixture(scope="module")
def mixed():
    """Four clients that hold every class."""
    return alike(4, 20, 24)


def test_fkd_averages_the_predictions_of_a_class_and_pls_the_right_ones():
    every, right = (kind().contribution(PREDICTIONS, OF_CLASS) for kind in (FKD, PLS))
    assert (every.weights.tolist(), right.weights.tolist()) == ([1, 1, 0], [0.5, 1, 0])
    assert np.allclose(every.predictions[:2], [[0.6, 0.3, 0.1], [0.15, 0.65, 0.2]])
    assert np.allclose(right.predictions[:2], [[0.8, 0.1, 0.1], [0.15, 0.65, 0.2]])
    hard = FKD("hard").contribution(PREDICTIONS, OF_CLASS)
    assert hard.predictions[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


def sums(*rows):
    weights = np.array([weight for weight, _ in rows])
    return Sums(weights, weights[:, None] * np.array([row for _, row in rows]))


def test_fkd_distils_the_mean_of_the_others_and_pls_the_mean_of_all():
    """Class 0: its own and another's; class 1: its own alone; class 2 has no holder."""
    everyone = sums((2.0, (0.5, 0.3, 0.2)), (1.0, (0.0, 1.0, 0.0)), (0.0, (0, 0, 0)))
    others = sums((1.0, (0.7, 0.1, 0.2)), (0.0, (0, 0, 0)), (0.0, (0, 0, 0)))
    nothing = [0, 0, 0]
    assert np.allclose(FKD().teaching(everyone, others), [[0.7, 0.1, 0.2], nothing, nothing])
    assert np.allclose(PLS().teaching(everyone, others), [[0.5, 0.3, 0.2], nothing, nothing])


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("kind", [FKD, PLS])
def test_where_each_class_has_one_holder_it_is_independent_learning(digits, mixed, kind, labels):
    """To the last bit; and not at all where clients share classes."""
    for data, same in ((digits, True), (mixed, False)):
        alone, made = run(federation(data, Independent())), federation(data, kind(labels))
        kept = {report.kept for report in made.rounds(2)}
        assert (kept == {0.0}) is same
        assert np.array_equal(parameters(made), parameters(alone)) is same


@pytest.mark.parametrize(("levels", "width"), [(51, 1), (52, 2), (13108, 4)])
def test_a_message_reads_back(levels, width):
    codec, clients = KnowledgeCodec(2, levels), 5
    total = np.array([0, 1, clients * levels, 7], dtype=np.uint64)
    message = sum_message(total, clients, codec)
    assert len(message) == 4 + 4 * width
    read, of = read_sum(message, codec)
    assert (read.tolist(), of) == (total.tolist(), clients)
    for broken in (message[:-1], message + b"x", b""):
        with pytest.raises(PeerError):
            read_sum(broken, codec)
