"""Witnesses keep the truth of a run, void rounds or not, and change no bit of it."""

import numpy as np
import pytest

from attacks.votes import RecordedClear, RecordedLabels, named, statements, told
from secure_fd.aggregation.base import Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData
from secure_fd.errors import LocalError
from tests.small_federation import all_proxies, faults, federation, run


def test_recorderes_keep_what_a_readable_run_shows(digits: FederatedData) -> None:
    """Dropouts on the way, and a void round between two that gave sums."""
    plan = faults({1: dict.fromkeys(range(4), Stage.INPUT), 2: {1: Stage.INPUT}})
    recorder = RecordedClear()
    made = run(federation(digits, protection=recorder, dropouts=plan), rounds=3)
    records = made.transcript.distillation
    assert [record.index for record in records] == [0, 2]
    for record, heard in zip(records, statements(recorder, made.transcript), strict=True):
        assert record.uploads is not None
        assert heard.sent.keys() == record.uploads.keys()
        for k, words in record.uploads.items():
            np.testing.assert_array_equal(heard.sent[k], named(words.reshape(-1, 10) * 1.0))
    own = told(recorder, made.transcript, range(2))
    assert [sorted(told_by) for told_by in own] == [[0, 1], [0]]


def test_recorderes_change_no_bit_and_tell_masked_truth(digits: FederatedData) -> None:
    recorder = RecordedClear()
    masked = run(federation(digits, protection=recorder, aggregation=MaskedSum(4, public_seed=0)))
    clear = run(federation(digits))
    for one, other in zip(
        masked.transcript.distillation, clear.transcript.distillation, strict=True
    ):
        np.testing.assert_array_equal(one.total, other.total)
    assert len(statements(recorder, masked.transcript)) == 2


def test_recorderes_refuse_a_run_that_they_did_not_see(digits: FederatedData) -> None:
    recorder = RecordedClear()
    run(federation(digits, protection=recorder), rounds=1)
    other = run(federation(digits, seed=1), rounds=1)
    with pytest.raises(LocalError, match="no uploads"):
        statements(recorder, other.transcript)


def test_the_label_units_recorder_hears_answers_before_their_noise(digits: FederatedData) -> None:
    every = all_proxies(digits)
    recorder = RecordedLabels(0.5, 1e-5)
    noisy = run(federation(digits, protection=recorder, schedule=every), rounds=1)
    (heard,) = statements(recorder, noisy.transcript)
    clear = run(federation(digits, schedule=every), rounds=1).transcript.distillation[0]
    assert clear.uploads is not None
    for k, words in clear.uploads.items():
        np.testing.assert_array_equal(heard.meant[k], named(words.reshape(-1, 10) * 1.0))
    assert any((heard.meant[k] != heard.sent[k]).mean() > 0.3 for k in range(4))
