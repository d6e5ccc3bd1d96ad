"""What does collaborating cost, and what does it leak? One run, one table, one report.

python experiments/privacy_compare.py --secure-agg --dp-eps 4
"""

import os
import sys
import time

import tyro

from experiments.cli import command, exit_status
from experiments.compare.rows import row_specs
from experiments.compare.settings import Settings, plan


def main() -> int:
    """Parse, run, save, show; returns the exit status."""
    settings = tyro.cli(Settings, prog="privacy_compare.py")
    return exit_status(lambda: _compare(settings), interrupted="no results were written")


def _compare(settings: Settings) -> int:
    start = time.monotonic()
    checked = plan(settings, os.environ.get("SECURE_FD_DATA"))
    rows = len(row_specs(checked))
    # Heavy imports come after the checks, so that --help and mistakes answer at once.
    from experiments import report
    from experiments.compare import collect, driver, run

    run.check_data(checked)
    title, out = checked.image_set.title, checked.out
    print(f"{title}: {rows} rows of {checked.rounds} rounds, into {out}", file=sys.stderr)
    outcomes = driver.compare(checked)
    repeat = command("privacy_compare.py", sys.argv[1:])
    found = collect.results(checked, outcomes, repeat, time.monotonic() - start)
    page = report.write_report(found, collect.images(checked, outcomes), checked.out)
    report.print_table(found)
    print(f"\nreport: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
