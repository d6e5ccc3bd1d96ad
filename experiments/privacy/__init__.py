"""Studies of accuracy under differential privacy, and the audit."""
