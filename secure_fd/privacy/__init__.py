"""Units, mechanisms, ledgers and accounting of differential privacy; no tensors here.

The names below are for code outside of this package that releases something of records.
"""

from secure_fd.privacy.ledger import Booking, Budget, BudgetLedger, data_set_name

__all__ = ["Booking", "Budget", "BudgetLedger", "data_set_name"]
