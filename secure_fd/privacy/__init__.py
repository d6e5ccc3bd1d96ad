"""Units, mechanisms, ledgers and accounting of differential privacy; no tensors here.

The names below are for whoever releases something of records by code of their own; each is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_fd.privacy.ledger import Booking as Booking
    from secure_fd.privacy.ledger import Budget as Budget
    from secure_fd.privacy.ledger import BudgetLedger as BudgetLedger
    from secure_fd.privacy.ledger import data_set_name as data_set_name

_HOMES = dict.fromkeys(("Booking", "Budget", "BudgetLedger", "data_set_name"), "ledger")

__all__ = ["Booking", "Budget", "BudgetLedger", "data_set_name"]


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'secure_fd.privacy' has no attribute {name!r}")
    return getattr(import_module(f"secure_fd.privacy.{_HOMES[name]}"), name)
