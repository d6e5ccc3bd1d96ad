"""DP-SGD is paid for before a batch is chosen or noise is drawn; twins that are not are caught."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from secure_fd.data.federated import FederatedData
from secure_fd.errors import BudgetError
from secure_fd.methods import fedavg
from secure_fd.methods.base import Method
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.ledger import Booking, BudgetLedger, Ledger
from secure_fd.privacy.samplers import FloatGaussian
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.federation import Federation
from secure_fd.simulation.simulate import simulate
from secure_fd.training import models
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.votes.codec import FloatArray

DELTA = 1e-5
SETTINGS = PrivateSGD(4.0, DELTA, steps=2, batch=30)
"""Of all records in every step, which has a price in closed form."""
DATA = "ward 7"

# One budget, in a process that is killed once noise was drawn.


def private(settings: PrivateSGD, n_records: int, ledger: BudgetLedger) -> PrivateBudget:
    return PrivateBudget(settings, n_records, ledger=ledger)


class PaysAfter(PrivateBudget):
    """A mutation that draws and then pays."""

    def batch(self) -> NDArray[np.bool_]:
        self._chance.uniform(1)
        return super().batch()


class PaysNothing(PrivateBudget):
    """A mutation whose steps are never booked."""

    def batch(self) -> NDArray[np.bool_]:
        self.taken += 1
        return self._chance.uniform(self._plan.n_records) < self.rate


def books_after(settings: PrivateSGD, n_records: int, ledger: BudgetLedger) -> PrivateBudget:
    """A mutation that books what it has drawn already."""
    return PaysAfter(settings, n_records, ledger=ledger)


def books_nothing(settings: PrivateSGD, n_records: int, _: BudgetLedger) -> PrivateBudget:
    """A twin that knows no ledger."""
    return PrivateBudget(settings, n_records)


Make = Callable[[PrivateSGD, int, BudgetLedger], PrivateBudget]


def killed_once_it_drew(path: Path, make: Make) -> None:
    """A step's noise in a process of its own, which dies with it in its memory."""

    def drawn_and_dead(_: FloatGaussian, count: int) -> FloatArray:
        path.with_suffix(".drew").write_text(str(count))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    child = os.fork()
    if not child:
        try:
            with BudgetLedger.open(path, DATA) as ledger:
                budget = make(SETTINGS, 30, ledger)
                FloatGaussian.uniform = drawn_and_dead
                budget.batch()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def bookings(path: Path) -> tuple[Booking, ...]:
    with BudgetLedger.open(path, DATA) as ledger:
        return ledger.bookings


def drew_unpaid(path: Path, make: Make) -> bool:
    """Whether it had drawn what nobody had paid for when it died."""
    BudgetLedger.create(path, DATA, epsilon=4.0, delta=DELTA).close()
    killed_once_it_drew(path, make)
    return path.with_suffix(".drew").exists() and not bookings(path)


def test_whoever_is_killed_with_noise_in_memory_has_paid(tmp_path):
    path = tmp_path / "ledger"
    assert not drew_unpaid(path, private)
    (booked,) = bookings(path)
    assert (booked.name, booked.event.times) == ("DP-SGD", SETTINGS.steps)
    with BudgetLedger.open(path, DATA) as ledger:
        again = private(SETTINGS, 30, ledger)
        with pytest.raises(BudgetError, match="beyond its total of 4"):
            again.batch()


@pytest.mark.parametrize("twin", [books_after, books_nothing])
def test_twins_that_pay_late_or_never_are_caught(tmp_path, twin):
    assert drew_unpaid(tmp_path / "ledger", twin)


# Federations: every client's own ledger, and what came before what.


SMALL = AdversarialSettings(hidden=16, discriminator=16, sums=1, steps=1)
BRIEF = Schedule(warmup_steps=0, local_steps=1, proxy_steps=0, sgd=SGD(local_batch=16))
PLANNED = {"fedavg": FedAvg(), "dafkd": DaFKD(generated=8, steps=1, adversarial=SMALL)}

methods = pytest.mark.parametrize("name", sorted(PLANNED))


class Watch:
    """Who drew and who paid, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drew: set[int] = set()
        self.paid: set[int] = set()
        self.unpaid = False
        draw, book = FloatGaussian.uniform, Ledger.book

        def drawn(chance: FloatGaussian, count: int) -> FloatArray:
            self.drew.add(id(chance))
            self.unpaid |= len(self.drew) > len(self.paid)
            return draw(chance, count)

        def booked(ledger: Ledger, name: str, event: object, **rest: object) -> None:
            book(ledger, name, event, **rest)
            self.paid.add(id(ledger))

        monkeypatch.setattr(FloatGaussian, "uniform", drawn)
        monkeypatch.setattr(Ledger, "book", booked)


def run_of(
    data: FederatedData, name: str, ledgers: dict[int, Ledger] | None, rounds: int = 1
) -> Federation:
    """A federation whose clients train by DP-SGD for so many planned rounds."""
    method: Method = PLANNED[name].trained_privately(4.0, DELTA, rounds, BRIEF, ledgers)
    networks = [models.build(models.SHARED, data.n_classes, 0) for _ in data.clients]
    return Federation(networks, data.clients, None, method, aggregation=PlainSum(4), schedule=BRIEF)


def opened(total: float = 4.0) -> dict[int, Ledger]:
    return {number: Ledger(total, DELTA) for number in range(4)}


@methods
def test_every_client_books_all_its_steps_before_it_draws(digits, name, monkeypatch):
    watch, ledgers = Watch(monkeypatch), opened()
    run = run_of(digits, name, ledgers, rounds=2)
    run.fit(2)
    assert len(watch.drew) == len(watch.paid) == 4
    assert not watch.unpaid
    for ledger in ledgers.values():
        (booked,) = ledger.bookings
        assert booked.event.times == 2 * (1 if name == "fedavg" else 2)
        assert 3.9 < ledger.spent <= 4.0
    with pytest.raises(BudgetError, match="DP-SGD was planned for"):
        run.fit(1)


@methods
@pytest.mark.parametrize("mutation", [PaysAfter, PaysNothing])
def test_federations_that_pay_late_or_never_are_caught(digits, name, mutation, monkeypatch):
    watch = Watch(monkeypatch)
    monkeypatch.setattr(fedavg, "PrivateBudget", mutation)
    run_of(digits, name, opened()).fit(1)
    assert watch.unpaid


@methods
def test_a_client_whose_budget_is_spent_trains_no_step(digits, name):
    ledgers = opened()
    ledgers[2].book("an earlier run", Gaussian(1.2))
    with pytest.raises(BudgetError, match="DP-SGD: with it data set 'simulation'"):
        run_of(digits, name, ledgers).fit(1)
    assert len(ledgers[2].bookings) == 1


def test_a_simulation_without_ledgers_takes_no_more_steps_than_planned(digits):
    run = simulate(digits, method="fedavg", unit="record", epsilon=4.0)
    client = run.federation.clients[0].role
    budget = client.learner.trainer.budget
    budget.taken = budget.settings.steps
    with pytest.raises(BudgetError, match="planned for"):
        budget.batch()
