"""Selective federated distillation with secure sums and differential privacy."""

__version__ = "0.1.0"
