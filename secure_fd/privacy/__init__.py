"""Units, mechanisms, ledgers and accounting of differential privacy; no tensors here.

The names below are for code outside of this package that releases something of records. Each is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_fd.privacy.ledger import Booking, Budget, BudgetLedger, data_set_name

__all__ = ["Booking", "Budget", "BudgetLedger", "data_set_name"]


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name not in __all__:
        raise AttributeError(f"module 'secure_fd.privacy' has no attribute {name!r}")
    return getattr(import_module("secure_fd.privacy.ledger"), name)
