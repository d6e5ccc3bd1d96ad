"""CPU time of the secure sum beside its floor and beside Flower's SecAgg+, in one process, as JSON.

python benchmarks/secure_aggregation.py > secure_aggregation.json

A row is a cell (cells.py) with nobody or a tenth of the clients dropped. It has the CPU seconds
of one client and of the server, and the bytes a client sends, for

  ours                  this package's round in steady state (masked_rounds.py)
  floor                 a whole round's bare primitives (floor.py)
  floor_open_channels   the same where the clients' channels stand already, as ours do
  flower                Flower's SecAgg+ (flower_peer.py), where flwr is installed

All sum the same number of 32-bit values, and every total is checked. Ours and the floors take
turns, so that a machine that slows down slows all of them; medians are reported. What opening a
session costs stands apart, since it is paid once for many rounds. The server's memory is
measured in a process of its own (memory.py).

The cells' 20 neighbours are for comparison; a client left to its defaults insists on more.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version

import numpy as np

from cells import CELLS, Cell, Cost, tenth
from floor import floor_round
from masked_rounds import Rounds
from memory import measure_memory
from secure_fd.errors import SecureFDError

Report = dict[str, object]
Runner = Callable[[], Cost]

_FLOWER_PAIRS = 4_000
"""Pairs beyond which Flower takes minutes a round."""


def main() -> None:
    """Measure every cell and print JSON; progress goes to stderr."""
    arguments = _arguments()
    rows = [
        row
        for cell in arguments.cells
        for row in measure(cell, arguments.repeats, _flower_repeats(cell, arguments))
    ]
    _say("memory of the server")
    report: Report = {"environment": _environment(), "repeats": arguments.repeats, "rows": rows}
    report["server_memory"] = [asdict(measure_memory(cell)) for cell in arguments.cells]
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


def measure(cell: Cell, repeats: int, flower_repeats: int) -> Iterator[Report]:
    """The rows of one cell: nobody dropped, a tenth dropped."""
    ours = Rounds(cell)
    for dropped in (frozenset[int](), tenth(cell)):
        _say(f"{_name(cell)}: {len(dropped)} of {cell.clients} dropped")
        costs = _take_turns(_runners(cell, ours, dropped), repeats)
        if flower_repeats:
            from flower_peer import flower_round

            flower_round(CELLS[0], frozenset())  # Its first round pays for imports.
            costs["flower"] = _median([flower_round(cell, dropped) for _ in range(flower_repeats)])
        yield {
            **asdict(cell),
            "threshold": cell.threshold,
            "dropped": len(dropped),
            **{name: asdict(cost) for name, cost in costs.items()},
            "ratios": _ratios(costs),
            "session": asdict(ours.set_up),
        }


def _runners(cell: Cell, ours: Rounds, dropped: frozenset[int]) -> dict[str, Runner]:
    generator = np.random.default_rng(cell.clients)
    values = generator.integers(0, 2**32, cell.words, dtype=np.uint32)
    return {
        "ours": lambda: ours.run(dropped),
        "floor": lambda: floor_round(cell, dropped, values),
        "floor_open_channels": lambda: floor_round(cell, dropped, values, exchanges=1),
    }


def _take_turns(runners: Mapping[str, Runner], repeats: int) -> dict[str, Cost]:
    """Medians by name; the first turn is a warm-up."""
    turns = [{name: run() for name, run in runners.items()} for _ in range(repeats + 1)][1:]
    return {name: _median([turn[name] for turn in turns]) for name in runners}


def _median(costs: Sequence[Cost]) -> Cost:
    client = statistics.median(cost.client_s for cost in costs)
    server = statistics.median(cost.server_s for cost in costs)
    return Cost(client, server, costs[-1].up_bytes)


def _ratios(costs: Mapping[str, Cost]) -> dict[str, float]:
    """Ours over each floor, and Flower over ours: client, server, upload."""
    pairs = [("ours", name) for name in costs if name.startswith("floor")]
    pairs += [("flower", "ours")] if "flower" in costs else []
    return {
        f"{above}_to_{below}_{what}": getattr(costs[above], field) / getattr(costs[below], field)
        for above, below in pairs
        for what, field in (("client", "client_s"), ("server", "server_s"), ("up", "up_bytes"))
    }


def _flower_repeats(cell: Cell, arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("flwr") is None:
        return 0
    quick = cell.clients * cell.neighbours // 2 < _FLOWER_PAIRS
    return int(arguments.flower_repeats) if quick or arguments.slow else 0


def _environment() -> dict[str, str]:
    packages = ["cryptography", "numpy"]
    packages += ["flwr"] if importlib.util.find_spec("flwr") else []
    versions = {package: version(package) for package in packages}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=_positive, default=5, help="turns after one warm-up")
    parser.add_argument(
        "--cells",
        type=_cell,
        nargs="+",
        default=CELLS,
        metavar="N,K,M",
        help="clients, neighbours of each, 32-bit values; default: " + " ".join(map(_name, CELLS)),
    )
    parser.add_argument(
        "--flower-repeats", type=_count, default=3, help="rounds of Flower a row; 0 leaves it out"
    )
    parser.add_argument(
        "--slow", action="store_true", help="run Flower where it takes minutes a round as well"
    )
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if _count(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use 1 or more")
    return int(text)


def _cell(text: str) -> Cell:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is not three whole numbers N,K,M")
    n, k, m = map(int, parts)
    if not (n >= 10 and 9 <= k < n and m >= 1 and (k == n - 1 or k % 2 == 0)):
        allowed = "use N >= 10, K = N - 1 or an even K from 10 to N - 2, and M >= 1"
        raise argparse.ArgumentTypeError(f"{text} is not allowed; {allowed}")
    return Cell(n, k, m)


def _name(cell: Cell) -> str:
    return f"{cell.clients},{cell.neighbours},{cell.words}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except SecureFDError as error:
        raise SystemExit(f"secure_aggregation.py: {error}") from None
