"""A data set's budget: prices of what was booked, totals that hold, answers given again."""

import copy
import math
import os
import pickle
import stat
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import pytest

from secure_fd.codec import Codec
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import (
    Composed,
    DistributedGaussian,
    Event,
    Gaussian,
    Primitive,
    Repeated,
    Response,
    SampledGaussian,
)
from secure_fd.privacy.ledger import Booking, BudgetLedger, Ledger, ledger_of
from secure_fd.privacy.record import NoisyClassSums, PooledRecordUnit
from secure_fd.privacy.samplers import Random, SeededRandom, unmet_by
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.density_ratio import ReferenceSettings
from tests.refusals import refused
from tests.small_federation import STILL, federation, record_unit

DELTA = 1e-5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ward7.ledger"


def created(path: Path, epsilon: float = 4.0, delta: float = DELTA) -> BudgetLedger:
    return BudgetLedger.create(path, "ward 7", epsilon=epsilon, delta=delta)


def never() -> bytes:
    raise AssertionError("noise was drawn")


# Prices and totals.


MIXED: tuple[Event, ...] = (
    Gaussian(3.0),
    Response(0.5, 11),
    Repeated(DistributedGaussian(1e9, 7, 1e5, 100), 2),
)


def test_the_price_is_the_accountant_s_for_all_that_was_booked():
    ledger = Ledger(delta=DELTA)
    for event in MIXED:
        ledger.book("a release", event)
    composed = Composed(MIXED)
    by_hand = accountant_for(composed).epsilon(composed, DELTA)
    assert ledger.spent == pytest.approx(by_hand, rel=1e-12)
    alone = [accountant_for(event).epsilon(event, DELTA) for event in MIXED]
    assert max(alone) < ledger.spent < sum(alone)


def test_small_releases_add_up_to_the_total_and_no_further(path):
    """A refusal books nothing, in the file neither."""
    with created(path, epsilon=2.0) as ledger, pytest.raises(BudgetError):
        while True:
            ledger.book("one of many", Gaussian(20.0))
    with BudgetLedger.open(path, "ward 7") as ledger:
        for event in (Gaussian(2.0), Gaussian(0.0), Repeated(Gaussian(20.0), 100)):
            with pytest.raises(BudgetError):
                ledger.release("large", event, b"", never)
        count = len(ledger.bookings)
        assert ledger.bookings == (Booking("one of many", Gaussian(20.0)),) * count
        one_more = Repeated(Gaussian(20.0), count + 1)
        assert count > 50
        assert ledger.spent <= 2.0 < accountant_for(one_more).epsilon(one_more, DELTA)


def test_a_release_may_cost_exactly_what_is_left():
    event = Gaussian(2.0)
    exact = Ledger(accountant_for(event).epsilon(event, DELTA), DELTA)
    exact.book("all", event)
    assert exact.spent == exact.total.epsilon


def test_releases_whose_noise_is_worth_nothing_are_refused(path):
    """Draws that delta does not cover, seeded noise and no noise; simulations may seed theirs."""
    ledger = Ledger(epsilon=100.0, delta=1e-30)
    ledger.book("few", Gaussian(10.0), draws=1)
    with pytest.raises(BudgetError):
        ledger.book("many", Gaussian(10.0), draws=10**6)
    unmet = unmet_by(SeededRandom(0))
    assert Ledger().release("a", Gaussian(1.2), b"", lambda: b"seeded", unmet=unmet) == b"seeded"
    pooled(Ledger(), random=SeededRandom(0)).release_sums(RECORDS, (10, 2))
    with created(path) as ledger:
        with refused("random"):
            ledger.release("means", Gaussian(1.2), b"", never, unmet=unmet)
        with refused("random"):
            pooled(ledger, random=SeededRandom(0)).release_sums(RECORDS, (10, 2))
        with pytest.raises(BudgetError):
            pooled(ledger, epsilon=math.inf).release_sums(RECORDS, (10, 2))
        assert not ledger.bookings


# One ledger a data set, with one total.


@pytest.mark.parametrize(
    "changed", [{"data": "ward 8"}, {"epsilon": 8.0}, {"epsilon": 2.0}, {"delta": 1e-4}]
)
def test_another_data_set_or_total_is_refused(path, changed):
    created(path).close()
    [field] = changed
    with refused(field):
        BudgetLedger.open(path, **{"data": "ward 7"} | changed)
    with pytest.raises(ConfigurationError, match="it exists"):
        created(path, epsilon=8.0)
    with BudgetLedger.open(path, "ward 7") as ledger:
        assert (ledger.total.epsilon, ledger.total.delta) == (4.0, DELTA)


@pytest.mark.parametrize(
    "changed",
    [
        *({"data": data} for data in ("", "two\nlines", "simulation")),
        *({"epsilon": epsilon} for epsilon in (0.0, math.nan, math.inf)),
        *({"delta": delta} for delta in (0.0, 1.0)),
    ],
)
def test_a_total_that_is_none_is_refused_and_makes_no_file(path, changed):
    [field] = changed
    with refused(field):
        BudgetLedger.create(path, **{"data": "ward 7", "epsilon": 4.0, "delta": DELTA} | changed)
    assert list(path.parent.iterdir()) == []


def test_a_file_is_for_its_owner_and_for_one_process(path):
    """Files of others and missing ones are in the tests of the store."""
    with created(path) as ledger:
        ledger.book("means", Gaussian(4.0))
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
        for opened in (path, path.parent / "." / path.name):
            with pytest.raises(ConfigurationError, match="a process has it open"):
                BudgetLedger.open(opened, "ward 7")
    with pytest.raises(LocalError, match="it was closed"):
        ledger.book("means", Gaussian(4.0))


def test_answers_are_in_no_text_and_in_no_copy(path):
    secret = b"an answer as private as the records"
    with created(path) as ledger:
        ledger.release("means", Gaussian(1.2), b"round 1", lambda: secret)
        for single in (ledger, ledger._file):
            assert "private" not in repr(single) + str(single)
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(LocalError, match="cannot be pickled or copied"):
                    copied(single)


# Events as bytes.

EVENTS = Codec[Event](Event, "an event", LocalError)


def test_every_event_is_read_back_as_it_was():
    every = (
        *(Gaussian(0.1), DistributedGaussian(1e20, 7, 2**20, 10_000)),
        *(SampledGaussian(1.1, 1 / 3), Response(math.inf, 11)),
    )
    assert {type(event) for event in every} == set(get_args(Primitive))
    nested = Composed((Repeated(Composed(every), 3), Composed(()), *every))
    for event in (*every, nested):
        assert EVENTS.decode(EVENTS.encode(event)) == event
    given = DistributedGaussian(4, np.int64(7), np.float64(2), 5)
    assert EVENTS.encode(given) == EVENTS.encode(DistributedGaussian(4.0, 7, 2.0, 5))


ONE = {"type": "Gaussian", "noise_multiplier": 1.0}
PACKED = msgspec.msgpack.encode
NESTED = PACKED({"type": "Repeated", "event": ONE, "times": 1})


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff", b"\x91" * 100_000, PACKED(ONE) + b" "),
        *(PACKED(ONE | {"noise_multiplier": z}) for z in (1, "1.0", math.nan, -1.0)),
        *(PACKED(ONE | other) for other in ({"type": "Gauss"}, {"further": 1})),
        PACKED({"type": "Response", "epsilon": 1.0, "alphabet_size": 11.0}),
        *(NESTED[:-1] + times for times in (b"\xc3", b"\xff", b"\xcc\x01")),
    ],
)
def test_an_event_has_one_form(data):
    with pytest.raises(LocalError):
        EVENTS.decode(data)


# Where noise on records is drawn.


def pooled(
    ledger: BudgetLedger,
    session: bytes | None = b"session 1",
    epsilon: float = 4.0,
    random: Random = os.urandom,
) -> NoisyClassSums:
    """Client 0's part of a unit for two sums of 10 features and 2 classes."""
    unit = PooledRecordUnit(
        epsilon,
        DELTA,
        records=[30] * 10,
        n_proxies=40,
        n_classes=2,
        sums=2,
        features=ReferenceSettings(rank=5, n_features=10),
        random=random,
        ledgers={0: ledger},
        session=session,
    )
    return unit.client(0)


RECORDS = [(np.eye(30, 10), np.eye(30, 2))]


def test_pooled_sums_are_paid_for_one_by_one_and_replayed(path):
    with created(path) as ledger:
        first = pooled(ledger)
        sums = ((b"", b"sum 0"), (b"a head", b"sum 1"))
        vectors = [first.release_sums(RECORDS, (10, 2), *each) for each in sums]
        assert len(ledger.bookings) == 2
        assert ledger.spent <= 4.0
    with BudgetLedger.open(path, "ward 7") as ledger:
        again = pooled(ledger)
        for vector, each in zip(vectors, sums, strict=True):
            assert again.release_sums(RECORDS, (10, 2), *each).tolist() == vector.tolist()
        later = pooled(ledger)  # restarted in the second sum: it made no first one
        assert later.release_sums(RECORDS, (10, 2), *sums[1]).tolist() == vectors[1].tolist()
        for part, each in (
            (pooled(ledger), (b"another head", b"sum 1")),
            (pooled(ledger), (b"", b"sum 1")),
            (pooled(ledger), (b"", b"")),
            (pooled(ledger, b"2"), sums[0]),
            (pooled(ledger, None), sums[0]),
        ):
            with pytest.raises(BudgetError):
                part.release_sums(RECORDS, (10, 2), *each)
        assert len(ledger.bookings) == 2


def test_a_client_without_budget_is_missing_and_the_others_sum(digits):
    with refused("ledgers"):
        ledger_of({0: Ledger()}, 3)
    ledgers = {number: Ledger(4.0) for number in range(4)}
    ledgers[2].book("an earlier run", Gaussian(1.2))
    unit = record_unit(digits, ledgers=ledgers)
    run = federation(
        digits,
        PooledHeads(0),
        aggregation=MaskedSum(4, public_seed=0),
        protection=unit,
        schedule=STILL,
    )
    [report] = run.fit(1)
    assert [client for client, _ in report.refused] == [2]
    assert report.survivors == (0, 1, 3)
    assert [len(ledgers[k].bookings) for k in range(4)] == [1, 1, 1, 1]
