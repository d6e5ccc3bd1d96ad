"""`python -m secure_fd` is the command `secure-fd`."""

import sys
from importlib import import_module

if __name__ == "__main__":
    # By name: this package does not know the experiments that are made with it.
    sys.exit(import_module("experiments.cli").main())
