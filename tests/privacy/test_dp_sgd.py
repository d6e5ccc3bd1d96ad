"""DP-SGD at the price it says: calibration, clipping, noise and sampling."""

import gc
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.methods import fedavg
from secure_fd.methods.base import Method
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.privacy import dp_sgd
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.dp_sgd import PrivateBudget, PrivateSGD, TrainingPlan
from secure_fd.privacy.events import Gaussian
from secure_fd.privacy.ledger import Booking, BudgetLedger, Ledger
from secure_fd.privacy.samplers import FloatGaussian, Random, SeededRandom
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.dp_sgd import PrivateGradient, PrivateTrainer
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import accuracy
from secure_fd.votes.codec import FloatArray
from tests.refusals import refused
from tests.toy import network, toy

CPU = torch.device("cpu")
SETTINGS = PrivateSGD(epsilon=4.0, delta=1e-5, steps=30, batch=16)

given_noise = pytest.mark.usefixtures("uncalibrated")
"""For tests that do not ask what the noise is worth: finding it takes a second or two."""


@pytest.fixture
def uncalibrated(monkeypatch):
    monkeypatch.setattr(dp_sgd, "calibrate", lambda _epsilon, _delta, _plan: 1.1)


def private(
    data: Images | None = None, random: Random = os.urandom, **changes: float
) -> PrivateTrainer:
    settings = replace(SETTINGS, **changes)
    records = data or toy()
    return PrivateTrainer(network(), records, PrivateBudget(settings, len(records), random), CPU)


def noiseless(made: PrivateTrainer) -> PrivateTrainer:
    """Return it without noise: sampling and clipping alone."""
    made.budget.noise = 0.0
    return made


def test_the_guarantee_is_that_of_the_calibration():
    budget = private().budget
    with pytest.raises(LocalError, match="no noise before"):
        budget.step_noise(10)
    claim = budget.guarantee()
    assert (claim.holds, claim.epsilon, claim.delta) == (True, 4.0, pytest.approx(1e-5))
    assert claim.delta >= 1e-5
    assert budget.noise == calibrate(4.0, 1e-5, TrainingPlan(100, 16, 30))


@given_noise
def test_steps_beyond_the_planned_ones_are_refused_and_seeded_noise_has_no_epsilon():
    made = private(steps=3)
    made.take_steps(3)
    with pytest.raises(BudgetError, match="planned for 3 steps"):
        made.take_steps(1)
    assert made.budget.guarantee().holds
    seeded = private(random=SeededRandom(1))
    seeded.take_steps(1)
    assert not seeded.budget.guarantee().holds


def batches(made: PrivateTrainer, steps: int) -> list[Tensor]:
    """The records drawn in each of these steps, which add no noise."""
    seen: list[Tensor] = []
    noiseless(made)._gradient._wrapped.register_forward_pre_hook(
        lambda _module, given: seen.append(given[0])
    )
    made.take_steps(steps)
    return seen


@given_noise
def test_batches_and_noise_differ_between_runs():
    """Batches that a seed repeats would undo the amplification that the accountant grants."""
    one, other = ([x.numpy().tobytes() for x in batches(private(), 3)] for _ in range(2))
    assert one != other
    runs = [private(), private()]
    for made in runs:
        made.budget.rate = 0.0  # noise alone
        made.take_steps(1)
    assert not torch.equal(*(flatten(r.model) for r in runs))


@given_noise
def test_keys_that_agree_in_32_bits_give_other_noise():
    """torch keeps 32 bits of a seed, which can be searched; every bit of this key must count."""
    keys = (bytes(28) + bytes([1, 2, 3, 4]), bytes([1]) + bytes(27) + bytes([1, 2, 3, 4]))
    drawn = [FloatGaussian(lambda size, key=key: key[:size]).normal(100) for key in keys]
    assert not np.array_equal(*drawn)
    assert len(np.intersect1d(*drawn)) == 0


def updates(made: PrivateTrainer, count: int) -> Tensor:
    """[count, parameters] one step's update each, from the same starting point."""
    start, rows = flatten(made.model), []
    for _ in range(count):
        before = flatten(made.model)
        made.take_steps(1)
        rows.append(flatten(made.model) - before)
    assert not torch.equal(start, flatten(made.model))
    return torch.stack(rows)


@given_noise
def test_an_empty_batch_is_a_step_of_noise():
    """With one record and a rate of 1/100 nearly all batches are empty."""
    made = private(data=toy(100), batch=1)
    drawn = updates(made, 30)
    assert (drawn.abs().sum(dim=1) > 0).all()
    assert torch.isfinite(drawn).all()
    assert made.budget.guarantee().holds
    quiet = noiseless(private(data=toy(100), batch=1))
    still = updates(quiet, 30).abs().sum(dim=1) == 0
    assert 3 < int(still.sum()) < 25  # (1 - 1/100)^100 = 0.37 of them, so 11 +- 2.6


@given_noise
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_an_absurd_record_moves_an_update_by_at_most_its_clip(size):
    """Adding a record moves the noiseless sum of gradients by at most clip, the update by lr/16."""
    base = toy(20)
    absurd = Images(size * torch.ones(1, 1, 4, 4), torch.tensor([1]))
    joined = Images(
        torch.cat([base.pixels, absurd.pixels]), torch.cat([base.labels, absurd.labels])
    )

    def update(data: Images, clip: float) -> Tensor:
        made = noiseless(private(data=data, clip=clip, learning_rate=1.0))
        made.budget.rate = 1.0  # all are drawn, so that only the record differs
        made._gradient._clipper.expected_batch_size = 16
        return updates(made, 1)[0]

    for clip in (0.1, 1.0):
        moved = float((update(joined, clip) - update(base, clip)).norm())
        assert moved <= clip / 16 * (1 + 1e-4)
        assert moved > 0.99 * clip / 16  # its gradient is far above the clip: it moves by all of it
    # Without clipping the same record moves the update without bound.
    assert float((update(joined, 1e12) - update(base, 1e12)).norm()) > 10 / 16


@given_noise
def test_a_record_that_overflows_moves_nothing(monkeypatch):
    """A server that chooses the weights could make one record's gradient NaN, and so the model."""
    base = toy(20)
    dark = torch.zeros(20, 1, 4, 4)
    dark[..., 1:, :] = base.pixels[..., 1:, :]  # only the target lights the first row
    target = torch.ones(1, 1, 4, 4)
    data = Images(torch.cat([dark, target]), torch.cat([base.labels, torch.tensor([1])]))

    def stepped(held: Images) -> Tensor:
        made = noiseless(private(data=held))
        made.budget.rate = 1.0
        with torch.no_grad():
            made.model[1].weight[:, :4] = 3e38
        made.take_steps(1)
        return flatten(made.model)

    without = stepped(Images(dark, base.labels))
    assert torch.allclose(stepped(data), without, atol=1e-6)
    monkeypatch.setattr(PrivateGradient, "_drop_what_is_not_finite", lambda _: None)
    assert not stepped(data).isfinite().all()  # the mutation that clips alone


@given_noise
@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(16),
        nn.BatchNorm1d(16, affine=False),
        nn.BatchNorm1d(16, affine=False, track_running_stats=False),
        nn.InstanceNorm1d(16, track_running_stats=True),
    ],
)
def test_layers_that_mix_records_are_refused(layer):
    mixing = nn.Sequential(nn.Flatten(), layer, nn.Linear(16, 2))
    with pytest.raises(ConfigurationError, match=r"Norm1d 1. is not allowed; use layers"):
        PrivateTrainer(mixing, toy(), PrivateBudget(SETTINGS, len(toy())), CPU)


def test_private_training_learns_at_epsilon_4_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    made = private(data=toy(1000), batch=100, learning_rate=1.0)
    made.take_steps(30)
    assert accuracy(made.model, toy(seed=1)) > 0.9
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("epsilon", value) for value in (0.0, math.inf, math.nan)),
        *(("delta", 1.0), ("steps", 0), ("batch", 0), ("clip", 0.0), ("learning_rate", -0.1)),
    ],
)
def test_private_settings_are_checked(field, value):
    with refused(field):
        replace(SETTINGS, **{field: value})


# Payment before a batch is chosen or noise is drawn.

DELTA = 1e-5
WHOLE = PrivateSGD(4.0, DELTA, steps=2, batch=30)
"""Event of all records in every step, whose epsilon has a closed form."""
DATA = "ward 7"

# One budget, in a process that is killed once noise was drawn.


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


def killed_once_it_drew(path: Path, kind: type[PrivateBudget]) -> None:
    """A step's noise in a process of its own, which dies with it in its memory."""

    def drawn_and_dead(_: FloatGaussian, count: int) -> FloatArray:
        path.with_suffix(".drew").write_text(str(count))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    child = os.fork()
    if not child:
        gc.disable()  # objects of other tests end in their own process
        try:
            with BudgetLedger.open(path, DATA) as ledger:
                budget = kind(WHOLE, 30, ledger=ledger)
                FloatGaussian.uniform = drawn_and_dead
                budget.batch()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def bookings(path: Path) -> tuple[Booking, ...]:
    with BudgetLedger.open(path, DATA) as ledger:
        return ledger.bookings


def drew_unpaid(path: Path, kind: type[PrivateBudget]) -> bool:
    """Return True if the process had drawn noise that was not booked when it died."""
    BudgetLedger.create(path, DATA, epsilon=4.0, delta=DELTA).close()
    killed_once_it_drew(path, kind)
    return path.with_suffix(".drew").exists() and not bookings(path)


def test_a_process_that_is_killed_with_noise_in_memory_has_paid(tmp_path):
    path = tmp_path / "ledger"
    assert not drew_unpaid(path, PrivateBudget)
    (booked,) = bookings(path)
    assert (booked.name, booked.event.times) == ("DP-SGD", WHOLE.steps)
    with BudgetLedger.open(path, DATA) as ledger:
        again = PrivateBudget(WHOLE, 30, ledger=ledger)
        with pytest.raises(BudgetError, match="beyond its total of 4"):
            again.batch()


def test_seeded_noise_is_refused_where_the_data_are_real(tmp_path):
    with BudgetLedger.create(tmp_path / "ledger", DATA, epsilon=4.0, delta=DELTA) as ledger:
        budget = PrivateBudget(WHOLE, 30, SeededRandom(1), ledger)
        with refused("random"):
            budget.batch()
        assert not ledger.bookings


@pytest.mark.parametrize("mutation", [PaysAfter, PaysNothing])
def test_mutations_that_pay_late_or_never_are_caught(tmp_path, mutation):
    assert drew_unpaid(tmp_path / "ledger", mutation)


# Federations: every client's own ledger, and what came before what.


SMALL = AdversarialSettings(hidden=16, discriminator=16, sums=1, steps=1)
BRIEF = Schedule(warmup_steps=0, local_steps=1, proxy_steps=0, sgd=SGD(local_batch=16))
PLANNED = {"fedavg": FedAvg(), "dafkd": DaFKD(generated=8, steps=1, adversarial=SMALL)}

methods = pytest.mark.parametrize("name", sorted(PLANNED))


class Watch:
    """Draws and payments, in order."""

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
    """A federation whose clients train by DP-SGD for this number of planned rounds."""
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
