"""Units, mechanisms, ledgers and accounting of differential privacy; no tensors here."""
