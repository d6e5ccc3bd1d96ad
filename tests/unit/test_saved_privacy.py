"""Saved runs with noise: what was released stays released, and no key travels.

Their ledgers are in test_saved_ledgers.py.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_fd import (
    FedAvg,
    Federation,
    Recipe,
    RecordUnit,
    SelectiveFD,
    Simulation,
    kept,
    kept_ledgers,
    saved,
    simulate,
)
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.afl import AFL
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.feded import FedED
from secure_fd.methods.fedproto import FedProto
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.privacy import samplers
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.private_training import PaidBudget, PrivateBudget
from secure_fd.protection.label import LabelUnit
from secure_fd.simulation import fresh_networks, simulated_ledgers
from tests.saved_federation import (
    CLIENTS,
    DELTA,
    EPSILON,
    FEATURES,
    METHODS,
    STEPS,
    Make,
    dp_sgd,
    federation,
    noisy_client,
    noisy_local,
    noisy_pooled,
    noisy_record,
    pooled,
    same,
    written,
)


@pytest.mark.parametrize("make", [noisy_pooled, noisy_local, noisy_record, noisy_client])
def test_with_the_same_noise_a_run_goes_on_bit_for_bit(
    weak_digits: FederatedData, tmp_path: Path, make: Make
) -> None:
    whole = make(weak_digits, SeededRandom(7))
    reports = whole.fit(2)
    random = SeededRandom(7)
    begun, going = make(weak_digits, random), make(weak_digits, random)
    begun.fit(1)
    saved.go_on(going, written(begun, tmp_path / "run.pt"))
    same(going, begun)
    assert [r.kept for r in going.fit(1)] == [reports[1].kept]
    same(going, whole)


def budgets(run: Federation) -> Iterator[PrivateBudget]:
    for half in run._halves:
        trainer: Any = half.learner.trainer
        yield trainer.budget


@pytest.mark.parametrize("method", METHODS, ids=["fedavg", "dafkd"])
def test_dp_sgd_goes_on_with_the_same_noise_and_pays_once(
    weak_digits: FederatedData, tmp_path: Path, method: FedAvg | DaFKD
) -> None:
    begun, going = (
        dp_sgd(weak_digits, method, simulated_ledgers(CLIENTS, EPSILON, DELTA)) for _ in range(2)
    )
    begun.fit(1)
    saved.go_on(going, written(begun, tmp_path / "run.pt"))
    first, second = list(budgets(begun)), list(budgets(going))
    assert [b.taken for b in first] == [b.taken for b in second]
    assert first[0].taken > 0
    keys = [(a.chance._stream, b.chance._stream) for a, b in zip(first, second, strict=True)]
    assert not any(a is b for a, b in keys)
    for own, budget in zip(second, first, strict=True):
        own.chance = budget.chance  # a test alone hands keys on
    going.fit(1)
    assert [b.taken for b in second] == [b.settings.steps for b in second]
    ledgers = kept_ledgers.ledgers_of(going)
    assert [len(ledger.bookings) for ledger in ledgers] == [1] * CLIENTS
    assert going.guarantee() == begun.guarantee()


def test_dp_sgd_of_a_saved_run_is_that_of_one_that_went_on(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks bit for bit, where both draw the same noise: the step's number decides it."""

    class ByStep:
        unmet: tuple[str, ...] = ()

        def __init__(self, budget: PrivateBudget) -> None:
            self._budget = budget

        def uniform(self, count: int) -> np.ndarray[Any, Any]:
            return np.random.default_rng((1, self._budget.taken)).random(count)

        def normal(self, count: int) -> np.ndarray[Any, Any]:
            return np.random.default_rng((2, self._budget.taken)).normal(size=count)

    monkeypatch.setattr(kept, "KEPT", {**kept.KEPT, "ByStep": ()})
    monkeypatch.setattr(ByStep, "__module__", "secure_fd.test")
    runs = [dp_sgd(weak_digits, METHODS[1]) for _ in range(3)]
    for run in runs:
        for budget in budgets(run):
            budget.chance = ByStep(budget)  # type: ignore[assignment]
    whole, begun, going = runs
    whole.fit(2)
    begun.fit(1)
    saved.go_on(going, written(begun, tmp_path / "run.pt"))
    going.fit(1)
    same(going, whole)
    with pytest.raises(AssertionError):
        same(begun, whole)


def test_the_pooled_heads_of_simulate_are_saved(weak_digits: FederatedData, tmp_path: Path) -> None:
    def made() -> Simulation:
        recipe = Recipe(2, STEPS)
        return simulate(weak_digits, unit="record", epsilon=4, secure="masks", recipe=recipe)

    begun, going = made(), made()
    begun.fit(1)
    begun.save(tmp_path / "run.pt")
    going.load(tmp_path / "run.pt")
    same(begun.federation, going.federation)
    assert going.accuracies == begun.accuracies
    assert not going.fit(1)[0].refused
    assert len(going.transcript.heads) == 2
    assert going.guarantee.startswith("Pooled heads")


# Nothing is released a second time, and nothing of it said again.


@pytest.mark.parametrize(
    ("make", "part", "counter", "most"),
    [(noisy_pooled, "PooledGuard", "_sums", 2), (noisy_client, "ClientGuard", "_rounds", 3)],
)
def test_no_more_is_released_than_was_planned(
    weak_digits: FederatedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    part: str,
    counter: str,
    most: int,
) -> None:
    def counted() -> int:
        begun, going = make(weak_digits, SeededRandom(1)), make(weak_digits, SeededRandom(2))
        begun.fit(1)
        saved.go_on(going, written(begun, tmp_path / "run.pt"))
        going.fit(1)
        guard: Any = going.protection.parts[0]
        return int(getattr(guard, counter))

    assert counted() == 2 <= most
    rest = tuple(name for name in kept.KEPT[part] if name != counter)
    monkeypatch.setattr(kept, "KEPT", {**kept.KEPT, part: rest})
    assert counted() == 1  # the twin counts anew, and so would release one more


def test_a_share_of_noise_does_not_travel(weak_digits: FederatedData, tmp_path: Path) -> None:
    """A client's own vector, without the noise of the others, is nearly its records."""

    def held(*, local: bool) -> list[bool]:
        ledgers = simulated_ledgers(CLIENTS, EPSILON, DELTA)
        run = pooled(weak_digits, local=local, ledgers=ledgers)
        run.fit(1)
        written(run, tmp_path / "run.pt")
        file = (tmp_path / "run.pt").read_bytes()
        answers = [
            entry.body
            for ledger in ledgers.values()
            for entry in ledger._log.entries()
            if entry.kind == "answered"
        ]
        assert len(answers) == CLIENTS
        return [answer in file for answer in answers]

    assert not any(held(local=False))
    assert all(held(local=True))  # complete by itself, and the search finds it


def test_no_key_of_noise_is_in_the_file(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[bytes] = []
    draw = samplers.draw

    def noted(random: Callable[[int], bytes], count: int) -> bytes:
        drawn.append(draw(random, count))
        return drawn[-1]

    monkeypatch.setattr(samplers, "draw", noted)
    begun = dp_sgd(weak_digits, METHODS[0])
    begun.fit(1)
    written(begun, tmp_path / "run.pt")
    keys = [value for value in drawn if len(value) == 32]
    assert len(keys) == CLIENTS
    assert not any(key in (tmp_path / "run.pt").read_bytes() for key in keys)


def test_what_voids_a_claim_stays(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed made the first round's noise: the operating system's for the second saves nothing."""

    def claimed() -> float:
        begun, going = pooled(weak_digits, random=SeededRandom(1)), pooled(weak_digits)
        begun.fit(1)
        saved.go_on(going, written(begun, tmp_path / "run.pt"))
        claim = going.guarantee()
        assert claim is not None
        return claim.epsilon

    assert math.isinf(claimed())
    monkeypatch.setattr(kept, "KEPT", {**kept.KEPT, "PooledRecordUnit": ()})
    assert math.isfinite(claimed())


@pytest.mark.parametrize("unit", [LabelUnit, RecordUnit])
def test_another_epsilon_is_another_run(
    weak_digits: FederatedData, tmp_path: Path, unit: Callable[[float, float], Any]
) -> None:
    def made(epsilon: float) -> Federation:
        method = SelectiveFD("hard", server_threshold=1.0, votes="counted")
        return federation(weak_digits, method, protection=unit(epsilon, DELTA))

    begun = made(2.0)
    begun.fit(1)
    state = written(begun, tmp_path / "run.pt")
    with pytest.raises(ConfigurationError) as refused:
        saved.go_on(made(8.0), state)
    assert refused.value.field == "budget"
    saved.go_on(made(2.0), state)


# Every field of every part has a name.


def parts_of(part: object, found: dict[str, object]) -> None:
    """All parts that are reached from one, by class."""
    name = type(part).__name__
    if name not in kept.KEPT:
        return
    found[name] = part
    for field in kept.KEPT[name]:
        parts_of(getattr(part, field), found)


def fields_of(part: object) -> set[str]:
    """What it holds, in a dictionary or in slots."""
    slots = {s for kind in type(part).__mro__ for s in getattr(kind, "__slots__", ())}
    return set(vars(part) if hasattr(part, "__dict__") else ()) | {
        slot for slot in slots if hasattr(part, slot)
    }


def unnamed(part: object) -> set[str]:
    """Fields of a part that neither table names, and names of no field."""
    name = type(part).__name__
    known, settled = kept.KEPT[name], kept.SETTLED.get(name, ())
    held = fields_of(part)
    computed = {field for field in known if isinstance(getattr(type(part), field, None), property)}
    return held ^ ((set(known) - computed) | set(settled))


def test_every_field_of_every_part_is_named(weak_digits: FederatedData) -> None:
    paid = simulated_ledgers(CLIENTS, EPSILON, DELTA)
    label = LabelUnit(EPSILON, DELTA)
    counted = SelectiveFD("hard", server_threshold=1.0, votes="counted")
    central = FedED("soft", weak_digits.proxies.pixels, fresh_networks(weak_digits, 1)[0])
    runs = [
        *(
            make(weak_digits, SeededRandom(1))
            for make in (noisy_pooled, noisy_local, noisy_record, noisy_client)
        ),
        *(dp_sgd(weak_digits, METHODS[1]), dp_sgd(weak_digits, METHODS[0], paid)),
        federation(weak_digits, counted, protection=label),
        *(federation(weak_digits, made) for made in (central, FedProto(), FKD(), Independent())),
        federation(weak_digits, AFL(features=FEATURES)),
    ]
    found: dict[str, object] = {}
    for run in runs:
        run.fit(1)
        for part in (*run._halves, run._server_half, run.protection, run.transcript):
            parts_of(part, found)
    assert set(found) == set(kept.KEPT)
    assert {name: unnamed(part) for name, part in found.items() if unnamed(part)} == {}
    assert set(kept.SETTLED) <= set(kept.KEPT)
    guard: Any = found["PooledGuard"]
    guard._forgotten = 1  # the twin gains a field
    assert unnamed(guard) == {"_forgotten"}
    assert isinstance(found["PaidBudget"], PaidBudget)
