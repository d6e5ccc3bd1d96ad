"""Cost of secure sums and of a round of training, as one file of results.

python benchmarks/performance.py > docs/results/performance.json
python benchmarks/performance_page.py

Secure sums beside their floors and Flower's SecAgg+ (sums.py), and ten clients that train beside a
plain loop (rounds.py), in one process. It takes about 26 minutes of CPU time, nearly all of it for
the sums of 1,000 clients; `--clients 100` leaves them out. Progress goes to standard error.

Needs the extras: pip install "secure-fd[flower,he]".
"""

import argparse
import sys

import rounds
from clock import report
from sums import CELLS, rows_of


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, 100), metavar="COUNT")
    parser.add_argument("--clients", type=int, default=1_000, help="leave out sums of more")
    asked = parser.parse_args()
    training, sums = rounds.rows(asked.repeats), list[dict[str, object]]()
    for cell in CELLS:
        if cell.clients <= asked.clients:
            print(f"{cell.sum}: {cell.clients} clients, {cell.values} values", file=sys.stderr)
            sums += rows_of(cell, asked.repeats)
    report(vars(asked), ["flwr", "tenseal"], sums=sums, rounds=training)


if __name__ == "__main__":
    main()
