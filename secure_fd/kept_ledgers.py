"""The budget ledgers of a saved run: those in memory travel with it, those on disk must agree.

A ledger on disk is never written into the file of a run: it is opened again, and stands where it
stood when the run was saved, or the run does not go on. So nothing that was spent is forgotten, and
no round that somebody went on with is released again. DP-SGD pays for all steps before the first,
so that later ones would not show: its ledger gets an entry that costs nothing before the first
draw after a save. Of a ledger in memory all bookings travel, and the answers but those that hold a
share of a sum's noise: these are nearly as private as the records, and nobody may ask for them
again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.kept_values import damaged, decode, encode
from secure_fd.privacy.append_log import Entry
from secure_fd.privacy.events import Composed
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.private_training import PaidBudget
from secure_fd.protection.pooled import PooledRecordUnit

if TYPE_CHECKING:
    from secure_fd.federation import Federation

MOVED_ON: Final = "steps after a saved run, paid for before"
"""Name of the entry that costs nothing."""


def ledgers_of(run: "Federation") -> list[BudgetLedger]:
    """Of the run's clients, in their order, each once; of its protection, or of its method."""
    held: Any = getattr(run.protection, "_ledgers", None) or getattr(run.method, "ledgers", None)
    own = [held[k] for k in range(len(run.clients)) if k in held] if held else []
    return list({id(ledger): ledger for ledger in own}.values())


def state_of_ledgers(run: "Federation") -> list[dict[str, Any]]:
    """What each is for, and where it stands; of one in memory what is in it."""
    unit = run.protection
    shares = isinstance(unit, PooledRecordUnit) and not unit.local
    return [_state(ledger, answers=not shares) for ledger in ledgers_of(run)]


def go_on_with_ledgers(run: "Federation", states: object) -> None:
    """Fill a fresh run's ledgers in memory, and compare those on disk; before the run begins.

    Raises ConfigurationError where one is for something else, was used already, or does not stand
    where it stood.
    """
    ledgers = ledgers_of(run)
    if not isinstance(states, list) or len(states) != len(ledgers):
        theirs = len(states) if isinstance(states, list) else "no"
        raise ConfigurationError("ledgers", len(ledgers), f"the saved run has {theirs} of them")
    try:
        for ledger, state in zip(ledgers, states, strict=True):
            _check_same(ledger, state)
        for ledger, state in zip(ledgers, states, strict=True):
            if ledger.is_simulation:
                _fill(ledger, state)
    except (KeyError, TypeError, ValueError, LocalError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise damaged("a ledger is incomplete") from error


def move_on_at_next_draw(run: "Federation") -> None:
    """Let ledgers on disk show whether a run went on since it was saved, or loaded.

    Those of DP-SGD: every other release books itself, or is replayed.
    """
    for half in run._halves:
        budget = getattr(half.learner.trainer, "budget", None)
        if isinstance(budget, PaidBudget) and not budget._ledger.is_simulation:
            chance: Any = budget.chance
            chance._pay = _paying(budget)


def _paying(budget: PaidBudget) -> Callable[[], None]:
    ledger = budget._ledger
    stood = _stands(ledger)

    def pay() -> None:
        budget._pay()
        if _stands(ledger) == stood:
            ledger.book(MOVED_ON, Composed(()))

    return pay


def _state(ledger: BudgetLedger, *, answers: bool) -> dict[str, Any]:
    held = _entries(ledger) if ledger.is_simulation else []
    entries = [each for each in held if answers or each.kind != "answered"]
    return {
        "budget": encode(ledger.budget.encode()),
        "stands": encode(_stands(ledger)),
        "entries": [encode((each.kind, each.request, each.body)) for each in entries],
    }


def _stands(ledger: BudgetLedger) -> tuple[int, bytes]:
    """How many entries there are, and the hash of them all."""
    return ledger._log._count, ledger._log._chain


def _entries(ledger: BudgetLedger) -> list[Entry]:
    return list(ledger._log.entries()) if ledger._log._count else []


def _check_same(ledger: BudgetLedger, state: dict[str, Any]) -> None:
    if decode(state["budget"]) != ledger.budget.encode():
        allowed = "the saved run has a ledger of another data set or total"
        raise ConfigurationError("ledgers", ledger.budget.data, allowed)
    stands, stood = _stands(ledger), decode(state["stands"])
    if ledger.is_simulation and stands[0]:
        raise ConfigurationError("ledgers", ledger.budget.data, "a fresh run has an empty one")
    if not ledger.is_simulation and stands != stood:
        allowed = (
            f"it has {stands[0]} entries where the saved run left {stood[0]}: it was used since, "
            f"or is another file"
        )
        raise ConfigurationError("ledgers", ledger.budget.data, allowed)


def _fill(ledger: BudgetLedger, state: dict[str, Any]) -> None:
    for encoded in state["entries"]:
        kind, request, body = decode(encoded)
        ledger._take(Entry(ledger._log.append(kind, request, body), kind, request, body))
