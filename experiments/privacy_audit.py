"""Does every printed epsilon survive an attack on it? One run, one table, an exit status.

python experiments/privacy_audit.py --self-test
"""

import sys
import time

import tyro

from experiments.audit.settings import Settings, plan
from secure_fd.errors import SecureFDError

REFUTED = 1
USAGE_ERROR = 2
INTERRUPTED = 130


def main() -> int:
    """Parse, audit, save, show; returns the exit status."""
    settings = tyro.cli(Settings, prog="privacy_audit.py")
    start = time.monotonic()
    try:
        checked = plan(settings)
        # Heavy imports come after the checks, so that --help and mistakes answer at once.
        from experiments.audit import table, tasks

        todo = tasks.tasks(checked)
        found = table.results(checked, tasks.run_all(checked, todo))
        seconds = time.monotonic() - start
        page = table.save(found, checked, seconds)
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted: no results were written", file=sys.stderr)
        return INTERRUPTED
    table.show(found, checked, seconds)
    print(f"\nresults: {page}")
    return REFUTED if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
