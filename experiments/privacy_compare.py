"""What does collaborating cost, and what does it leak? One run, one table, one report.

python experiments/privacy_compare.py --secure-agg --dp-eps 4
"""

import os
import sys
import time

import tyro

from experiments.compare.rows import row_specs
from experiments.compare.settings import Settings, plan
from secure_fd.errors import SecureFDError

USAGE_ERROR = 2
INTERRUPTED = 130
_PATHS = {"--data-dir": "DATA_DIR", "--data_dir": "DATA_DIR", "--out": "OUT"}


def main() -> int:
    """Parse, run, save, show; returns the exit status."""
    settings = tyro.cli(Settings, prog="privacy_compare.py")
    start = time.monotonic()
    try:
        checked = plan(settings, os.environ.get("SECURE_FD_DATA"))
        rows = len(row_specs(checked))
        # Heavy imports come after the checks, so that --help and mistakes answer at once.
        from experiments.compare import collect, driver, run
        from experiments.report import table, write

        run.check_data(checked)
        title, out = checked.image_set.title, checked.out
        print(f"{title}: {rows} rows of {checked.rounds} rounds, into {out}", file=sys.stderr)
        outcomes = driver.compare(checked)
        found = collect.results(checked, outcomes, _command(), time.monotonic() - start)
        page = write.write_report(found, collect.images(checked, outcomes), checked.out)
    except SecureFDError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("interrupted: no results were written", file=sys.stderr)
        return INTERRUPTED
    table.print_table(found)
    print(f"\nreport: {page}")
    return 0


def _command() -> list[str]:
    """The command as anyone would repeat it, without this machine's paths."""
    return ["python", "experiments/privacy_compare.py", *_portable(sys.argv[1:])]


def _portable(arguments: list[str]) -> list[str]:
    shown: list[str] = []
    before = ""
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if before in _PATHS:
            shown.append(_PATHS[before])
        elif equals and name in _PATHS:
            shown.append(f"{name}={_PATHS[name]}")
        else:
            shown.append(argument)
        before = argument
    return shown


if __name__ == "__main__":
    sys.exit(main())
