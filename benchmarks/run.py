"""Benchmarks of sums, one case a run, as JSON on standard output.

python benchmarks/run.py secure-aggregation > secure_aggregation.json

  secure-aggregation  CPU time and bytes of the masked sum beside its floor and Flower's SecAgg+
  growth              how the cost of a round grows with the number of clients
  homomorphic         CPU time and bytes of the encrypted sum beside TenSEAL's own
  proven              CPU time and bytes of the proven sum beside a floor of its arithmetic
  rounds              client-rounds of training per CPU second (rounds.py)

Progress goes to standard error. Times are CPU seconds of this process, medians after a warm-up.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import numpy as np

from proven_sums import VOTE_CELLS, VoteRounds
from secure_fd.errors import SecureFDError
from secure_fd.secagg.graph import default_degree
from secure_fd.secagg.session import RoundTerms
from secure_fd.votes.codec import WordArray
from secure_sums import (
    CELLS,
    Cell,
    Cost,
    Rounds,
    Stopwatch,
    floor_round,
    measure_memory,
    medians,
    seconds,
    tenth,
)

if TYPE_CHECKING:
    from secure_fd.secure_sum.homomorphic import HomomorphicSum

Report = dict[str, object]


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Medians of the times, and the bytes of the last."""
    client = statistics.median(cost.client_s for cost in costs)
    server = statistics.median(cost.server_s for cost in costs)
    return Cost(client, server, costs[-1].up_bytes)


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


FLOWER_PAIRS: Final = 4_000
"""Pairs beyond which Flower takes minutes a round."""


def secure_aggregation(arguments: argparse.Namespace) -> Report:
    """Rows of every cell with nobody and with a tenth dropped, and the server's memory.

    Runners take turns, so that a machine that slows down slows all of them. ours: a round in steady
    state; session: what opening it cost. floor: bare primitives. flower: where flwr is installed.
    The cells' 20 neighbours are for comparison; a client left to its defaults insists on more.
    """
    repeats = arguments.repeats or 5
    rows = [row for cell in arguments.cells for row in _cell_rows(cell, repeats, arguments)]
    say("memory of the server")
    memory = [asdict(measure_memory(cell)) for cell in arguments.cells]
    return {"repeats": repeats, "rows": rows, "server_memory": memory}


def _cell_rows(cell: Cell, repeats: int, arguments: argparse.Namespace) -> Iterator[Report]:
    ours, flower_repeats = Rounds(cell), _flower_repeats(cell, arguments)
    values = np.random.default_rng(cell.clients).integers(0, 2**32, cell.words, dtype=np.uint32)
    for dropped in (frozenset[int](), tenth(cell)):
        say(f"{_name(cell)}: {len(dropped)} of {cell.clients} dropped")
        runners: dict[str, Callable[[], Cost]] = {
            "ours": partial(ours.run, dropped),
            "floor": partial(floor_round, cell, dropped, values),
        }
        turns = [{name: run() for name, run in runners.items()} for _ in range(repeats + 1)][1:]
        costs = {name: median_cost([turn[name] for turn in turns]) for name in runners}
        if flower_repeats:
            from flower_peer import flower_round

            flower_round(CELLS[0], frozenset())  # Its first round pays for imports.
            runs = [flower_round(cell, dropped) for _ in range(flower_repeats)]
            costs["flower"] = median_cost(runs)
        yield {
            **asdict(cell),
            "threshold": cell.threshold,
            "dropped": len(dropped),
            **{name: asdict(cost) for name, cost in costs.items()},
            "ratios": _ratios(costs),
            "session": asdict(ours.set_up),
        }


def _ratios(costs: Mapping[str, Cost]) -> dict[str, float]:
    """Ours over the floor, and Flower over ours: client, server, upload."""
    pairs = [("ours", "floor"), *([("flower", "ours")] if "flower" in costs else [])]
    return {
        f"{above}_to_{below}_{what}": getattr(costs[above], field) / getattr(costs[below], field)
        for above, below in pairs
        for what, field in (("client", "client_s"), ("server", "server_s"), ("up", "up_bytes"))
    }


def _flower_repeats(cell: Cell, arguments: argparse.Namespace) -> int:
    if importlib.util.find_spec("flwr") is None:
        return 0
    quick = cell.clients * cell.neighbours // 2 < FLOWER_PAIRS
    return int(arguments.flower_repeats) if quick or arguments.slow else 0


VALUES: Final = 6_000


def growth(arguments: argparse.Namespace) -> Report:
    """Sessions over the graph that n clients get by default, a tenth dropping out.

    per_neighbour_s is a client's time over its neighbours: flat where the cost grows as the
    graph's degree does, which is with the logarithm of n. The largest row takes minutes.
    """
    repeats, rows = arguments.repeats or 2, []
    for clients in arguments.sizes:
        say(f"{clients} clients")
        cell = Cell(clients, default_degree(clients), VALUES)
        session = Rounds(cell)
        cost = median_cost([session.run(tenth(cell)) for _ in range(repeats + 1)][1:])
        per_neighbour = {"per_neighbour_s": cost.client_s / cell.neighbours}
        found = {"dropped": len(tenth(cell)), **per_neighbour, **asdict(cost)}
        rows.append({**asdict(cell), **found, "session": asdict(session.set_up)})
    return {"repeats": repeats, "rows": rows}


CLIENTS: Final = 10
SUMS: Final = ((5_120, 1), (6_600, 1), (6_600, 4095), (100_000, 1), (100_000, 4095))
"""Values and their bound: 512 proxies of 10 classes first; hard labels, and lanes of 16 bits."""


def homomorphic(arguments: argparse.Namespace) -> Report:
    """One round of ten clients a row, on one thread; ratios are to the floor of the same row.

    encrypt: one client packs and encrypts, over TenSEAL's encryption alone. add: the server
    checks, reads and adds all inputs, over adding arrays of that size. decrypt: the key holder,
    its checks included, over TenSEAL's decryption alone.
    """
    import tenseal

    from secure_fd.secure_sum import homomorphic as he

    repeats, sums = arguments.repeats or 7, he.HomomorphicSum(CLIENTS)
    cells = []
    for at, (length, bound) in enumerate(SUMS):
        say(f"{length} values up to {bound}")
        values = np.random.default_rng(length).integers(0, bound, length, np.uint64, endpoint=True)
        turns = range(at * (repeats + 1), (at + 1) * (repeats + 1))
        runs = [_encrypted_round(sums, RoundTerms(k, length, bound), values) for k in turns]
        ciphertexts = runs[0][1]["client_up_bytes"] // he.CIPHER_BYTES
        spent = medians([seconds for seconds, _ in runs])
        least = medians([_encryption_floors(ciphertexts) for _ in runs])
        cells.append(
            {
                **{"clients": CLIENTS, "values": length, "bound": bound},
                "ciphertexts": ciphertexts,
                **{f"{step}_ms": 1e3 * spent[step] for step in least},
                **{f"{step}_ratio": spent[step] / least[step] for step in least},
                "round_s": spent["round"],
                **runs[0][1],
            }
        )
    return {"repeats": repeats, "tenseal": tenseal.__version__, "cells": cells}


def _encrypted_round(
    sums: "HomomorphicSum", terms: RoundTerms, values: WordArray
) -> tuple[dict[str, float], dict[str, int]]:
    """CPU seconds, those of encryption for one client, and bytes."""
    server, watches = sums.server(), [Stopwatch() for _ in range(4)]
    server.open(terms)
    encrypt, add, decrypt, end = watches
    with encrypt:
        inputs = {k: sums.client(k).load(terms, values)[0] for k in range(CLIENTS)}
    with add:
        for k, message in inputs.items():
            server.receive(k, message)
        ((holder, question),) = server.advance().items()
    with decrypt:
        (answer,) = sums.client(holder).receive(question)
    with end:
        server.receive(holder, answer)
    total = server.result
    if total is None or not np.array_equal(total.total, values * np.uint64(CLIENTS)):
        raise SystemExit("homomorphic: the sum is wrong")
    server.advance()
    spent = {"encrypt": encrypt.seconds / CLIENTS, "add": add.seconds, "decrypt": decrypt.seconds}
    up = len(inputs[holder])
    moved = {"client_up_bytes": up, "holder_up_bytes": up + len(answer)}
    whole = sum(watch.seconds for watch in watches)
    return spent | {"round": whole}, moved | {"holder_down_bytes": len(question)}


def _encryption_floors(ciphertexts: int) -> dict[str, float]:
    """CPU seconds of TenSEAL's encryption, of n additions, and of TenSEAL's decryption."""
    import tenseal

    from secure_fd.secure_sum import homomorphic as he

    scheme = tenseal.SCHEME_TYPE.BFV
    bits = list(he.PRIME_BITS)
    context = tenseal.context(scheme, he.DEGREE, he.PLAIN_MODULUS, bits, n_threads=1)
    slots = list(range(he.DEGREE))
    vectors = [tenseal.bfv_vector(context, slots) for _ in range(ciphertexts)]
    arrays = [np.ones((ciphertexts, 4 * he.DEGREE), np.uint64) for _ in range(CLIENTS)]
    total = np.zeros_like(arrays[0])
    works: dict[str, Callable[[], object]] = {
        "encrypt": lambda: [tenseal.bfv_vector(context, slots) for _ in range(ciphertexts)],
        "add": lambda: [np.add(total, array, out=total) for array in arrays],
        "decrypt": lambda: [vector.decrypt() for vector in vectors],
    }
    return {name: seconds(work) for name, work in works.items()}


def proven(arguments: argparse.Namespace) -> Report:
    """Votes that prove their range: 512 proxies of 10 classes, and 100,000 values.

    Times are milliseconds of one client, and of each aggregator for one client. Ratios are to the
    floor of the same row: field additions of a share and one transform.
    """
    repeats, rows = arguments.repeats or 5, []
    for cell in VOTE_CELLS:
        say(f"{cell.clients} clients, {cell.rows} rows of {cell.classes}")
        session = VoteRounds(cell)
        cost = medians([session.run() for _ in range(repeats + 1)])
        times = {f"{name}_ms": 1e3 * spent for name, spent in cost.items()}
        floor = cost.pop("floor")
        ratios = {f"{name}_ratio": spent / floor for name, spent in cost.items()}
        rows.append({**asdict(cell), **session.sizes(), **times, **ratios})
    return {"repeats": repeats, "rows": rows}


def rounds(arguments: argparse.Namespace) -> Report:
    """Client-rounds per CPU second, beside the plain loop and beside the arithmetic."""
    from rounds import FEDERATIONS, measure  # loads torch

    repeats = arguments.repeats or 5
    every = [(title, batch) for title in FEDERATIONS for batch in arguments.batches]
    return {"repeats": repeats, "rows": [measure(*each, repeats) for each in every]}


CASES: Final[Mapping[str, Callable[[argparse.Namespace], Report]]] = {
    "secure-aggregation": secure_aggregation,
    "growth": growth,
    "homomorphic": homomorphic,
    "proven": proven,
    "rounds": rounds,
}


def main() -> None:
    """Run one case, print its JSON."""
    arguments = _arguments()
    report = CASES[arguments.case](arguments)
    json.dump({"environment": _environment(), **report}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _environment() -> dict[str, str]:
    packages = ["cryptography", "numpy", "torch"]
    packages += ["flwr"] if importlib.util.find_spec("flwr") else []
    versions = {package: version(package) for package in packages}
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cases = parser.add_subparsers(dest="case", required=True)
    made = {
        name: cases.add_parser(name, help=(run.__doc__ or "").splitlines()[0])
        for name, run in CASES.items()
    }
    for case in made.values():
        case.add_argument("--repeats", type=_positive, help="turns after one warm-up")
    made["growth"].add_argument(
        "--sizes", type=_positive, nargs="+", default=(10, 30, 100, 300, 1_000)
    )
    made["rounds"].add_argument("--batches", type=_positive, nargs="+", default=(128, 512))
    sums = made["secure-aggregation"]
    shown = " ".join(map(_name, CELLS))
    about = f"clients, neighbours of each, 32-bit values; default: {shown}"
    sums.add_argument("--cells", type=_cell, nargs="+", default=CELLS, metavar="N,K,M", help=about)
    sums.add_argument("--flower-repeats", type=_count, default=3, help="0 leaves Flower out")
    sums.add_argument("--slow", action="store_true", help="run Flower where it takes minutes too")
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
    try:
        n, k, m = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not three whole numbers N,K,M") from None
    try:
        return Cell(n, k, m)
    except SecureFDError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _name(cell: Cell) -> str:
    return f"{cell.clients},{cell.neighbours},{cell.words}"


if __name__ == "__main__":
    try:
        main()
    except SecureFDError as error:
        raise SystemExit(f"run.py: {error}") from None
