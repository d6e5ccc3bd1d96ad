"""Ledgers of saved runs: nothing is spent, or released, a second time."""

from pathlib import Path

import pytest

from secure_fd import (
    FedAvg,
    Federation,
    kept_ledgers,
    saved,
)
from secure_fd.data.federated import FederatedData
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.kept_ledgers import MOVED_ON
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.simulation import simulated_ledgers
from tests.saved_federation import (
    CLIENTS,
    DELTA,
    EPSILON,
    METHODS,
    Ledgers,
    dp_sgd,
    pooled,
    written,
)


def test_a_ledger_in_memory_travels(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded() -> list[BudgetLedger]:
        going = pooled(weak_digits, ledgers=simulated_ledgers(CLIENTS, EPSILON, DELTA))
        saved.go_on(going, state)
        return kept_ledgers.ledgers_of(going)

    begun = pooled(weak_digits, ledgers=simulated_ledgers(CLIENTS, EPSILON, DELTA))
    begun.fit(1)
    state = written(begun, tmp_path / "run.pt")
    [spent] = {ledger.spent for ledger in kept_ledgers.ledgers_of(begun)}
    assert spent > 0
    event = kept_ledgers.ledgers_of(begun)[0].bookings[0].event
    ledger = loaded()[0]
    assert ledger.spent == spent
    ledger.book("the second sum", event)
    with pytest.raises(BudgetError):
        ledger.book("a third one", event)
    monkeypatch.setattr(kept_ledgers, "_fill", lambda *_: None)  # the twin forgets
    forgetful = loaded()[0]
    for _ in range(2):
        forgetful.book("a sum", event)  # three in all


def on_disk(folder: Path, *, opened: bool, epsilon: float = EPSILON) -> dict[int, BudgetLedger]:
    folder.mkdir(exist_ok=True)
    if opened:
        return {k: BudgetLedger.open(folder / str(k), f"ward {k}") for k in range(CLIENTS)}
    return {
        k: BudgetLedger.create(folder / str(k), f"ward {k}", epsilon=epsilon, delta=DELTA)
        for k in range(CLIENTS)
    }


def close(ledgers: Ledgers) -> None:
    for ledger in ledgers.values():
        ledger.close()


@pytest.mark.parametrize("method", [None, METHODS[0]], ids=["pooled", "dp-sgd"])
def test_ledgers_on_disk_are_opened_again_and_pay_once(
    weak_digits: FederatedData, tmp_path: Path, method: FedAvg | None
) -> None:
    def made(ledgers: Ledgers) -> Federation:
        if method is None:
            return pooled(weak_digits, ledgers=ledgers)
        return dp_sgd(weak_digits, method, ledgers)

    ledgers = on_disk(tmp_path / "ledgers", opened=False)
    begun = made(ledgers)
    begun.fit(1)
    state = written(begun, tmp_path / "run.pt")
    close(ledgers)
    again = on_disk(tmp_path / "ledgers", opened=True)
    going = made(again)
    saved.go_on(going, state)
    report = going.fit(1)[0]
    assert not report.void
    assert not report.refused
    paid = [[b for b in ledger.bookings if b.name != MOVED_ON] for ledger in again.values()]
    assert {len(bookings) for bookings in paid} == {2 if method is None else 1}
    claim = going.guarantee()
    assert claim is not None
    assert claim.epsilon <= EPSILON
    close(again)


def test_a_round_that_somebody_went_on_with_is_not_released_again(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's total would let it pass: only that it has moved on tells."""
    ledgers = on_disk(tmp_path / "ledgers", opened=False, epsilon=100.0)
    begun = pooled(weak_digits, ledgers=ledgers)
    begun.fit(1)
    state = written(begun, tmp_path / "run.pt")
    begun.fit(1)
    close(ledgers)
    again = on_disk(tmp_path / "ledgers", opened=True)
    with pytest.raises(ConfigurationError, match="used since") as refused:
        saved.go_on(pooled(weak_digits, ledgers=again), state)
    assert refused.value.field == "ledgers"
    assert {len(ledger.bookings) for ledger in again.values()} == {2}
    monkeypatch.setattr(kept_ledgers, "_check_same", lambda *_: None)  # the twin does not look
    twin = pooled(weak_digits, ledgers=again)
    saved.go_on(twin, state)
    twin.fit(1)
    assert {len(ledger.bookings) for ledger in again.values()} == {3}
    close(again)


@pytest.mark.parametrize("loaded", [False, True], ids=["after-save", "after-load"])
def test_steps_that_were_paid_for_at_once_are_not_taken_again(
    weak_digits: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, loaded: bool
) -> None:
    """DP-SGD books all steps before the first, so that a second round shows by its mark alone."""

    def refused(folder: Path) -> bool:
        ledgers = on_disk(folder, opened=False)
        run = dp_sgd(weak_digits, METHODS[0], ledgers)
        run.fit(1)
        state = written(run, tmp_path / "run.pt")
        if loaded:
            close(ledgers)
            ledgers = on_disk(folder, opened=True)
            run = dp_sgd(weak_digits, METHODS[0], ledgers)
            saved.go_on(run, state)
        before = [ledger.spent for ledger in ledgers.values()]
        run.fit(1)  # the second round, once
        close(ledgers)
        again = on_disk(folder, opened=True)
        assert [ledger.spent for ledger in again.values()] == before
        try:
            saved.go_on(dp_sgd(weak_digits, METHODS[0], again), state)
        except ConfigurationError as error:
            assert "used since" in str(error)
            return True
        finally:
            close(again)
        return False

    assert refused(tmp_path / "ledgers")
    monkeypatch.setattr(saved, "move_on_at_next_draw", lambda _: None)
    assert not refused(tmp_path / "twin")


def test_a_run_that_is_saved_after_each_round_goes_on_from_the_newest_file(
    weak_digits: FederatedData, tmp_path: Path
) -> None:
    ledgers = on_disk(tmp_path / "ledgers", opened=False)
    run = dp_sgd(weak_digits, METHODS[0], ledgers)
    states = []
    for _ in range(2):
        run.fit(1)
        states.append(written(run, tmp_path / "run.pt"))
    close(ledgers)
    again = on_disk(tmp_path / "ledgers", opened=True)
    with pytest.raises(ConfigurationError, match="used since"):
        saved.go_on(dp_sgd(weak_digits, METHODS[0], again), states[0])
    going = dp_sgd(weak_digits, METHODS[0], again)
    saved.go_on(going, states[1])
    assert going.guarantee() == run.guarantee()
    with pytest.raises(BudgetError):
        going.fit(1)  # more than was planned
    close(again)


def test_other_ledgers_are_refused(weak_digits: FederatedData, tmp_path: Path) -> None:
    ledgers = on_disk(tmp_path / "ledgers", opened=False)
    begun = pooled(weak_digits, ledgers=ledgers)
    begun.fit(1)
    state = written(begun, tmp_path / "run.pt")
    used = simulated_ledgers(CLIENTS, EPSILON, DELTA)
    others: list[Ledgers | None] = [
        None,
        used,
        on_disk(tmp_path / "new", opened=False),  # of the same name and total, and empty
        on_disk(tmp_path / "larger", opened=False, epsilon=8.0),
    ]
    for other in others:
        with pytest.raises(ConfigurationError) as refused:
            saved.go_on(pooled(weak_digits, ledgers=other), state)
        assert refused.value.field == "ledgers"
    simulated = pooled(weak_digits, ledgers=used)
    simulated.fit(1)
    with pytest.raises(ConfigurationError, match="empty one"):
        saved.go_on(pooled(weak_digits, ledgers=used), written(simulated, tmp_path / "run.pt"))
    for each in (ledgers, others[2], others[3]):
        close(each or {})
