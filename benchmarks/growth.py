"""How the cost of a round grows with the number of clients, as JSON: python benchmarks/growth.py

Every row is a session over the graph that n clients get by default, 6,000 values of 32 bits each,
with a tenth of the clients dropping out: CPU seconds of one client and of the server, bytes that a
client sends, and what opening the session costs each. All parties run in this process, so the
largest row takes minutes. per_neighbour_s is a client's time over its neighbours: flat where the
cost grows as the graph's degree does, which is with the logarithm of n.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict

from cells import Cell, tenth
from masked_rounds import Rounds
from secure_fd.secagg.graph import default_degree

SIZES = (10, 30, 100, 300, 1_000)
VALUES = 6_000


def grow(clients: int, repeats: int) -> dict[str, object]:
    """Medians of one size, a tenth dropped in each round."""
    cell = Cell(clients, default_degree(clients), VALUES)
    session = Rounds(cell)
    costs = [session.run(tenth(cell)) for _ in range(repeats + 1)][1:]
    client = statistics.median(cost.client_s for cost in costs)
    return {
        **asdict(cell),
        "dropped": len(tenth(cell)),
        "client_s": client,
        "per_neighbour_s": client / cell.neighbours,
        "server_s": statistics.median(cost.server_s for cost in costs),
        "up_bytes": costs[-1].up_bytes,
        "session": asdict(session.set_up),
    }


def main() -> None:
    """Measure every size and print JSON; progress goes to stderr."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2, help="rounds a size, after one warm-up")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    arguments = parser.parse_args()
    if arguments.repeats < 1 or min(arguments.sizes) < 3:
        parser.error("use 1 repeat or more, and sizes of 3 or more")
    rows = []
    for done, clients in enumerate(arguments.sizes, start=1):
        sys.stderr.write(f"{clients} clients ({done} of {len(arguments.sizes)})\n")
        rows.append(grow(clients, arguments.repeats))
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    json.dump({"rows": rows}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
