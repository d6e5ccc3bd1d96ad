"""CPU time and bytes of the homomorphic sum, as JSON: python benchmarks/homomorphic.py

Each cell is one round of n clients with m values of at most `bound`, all parties in one process
on one thread. Milliseconds are medians over rounds, the first round left out as a warm-up:

  encrypt   one client: pack and encrypt                floor: TenSEAL's encryption alone
  add       the server: check, read and add n inputs    floor: adding n arrays of that size
  decrypt   the key holder: check and decrypt           floor: TenSEAL's decryption alone

Ratios are to the floor of the same row. Bytes are those of a client that holds no key, and of
the key holder that decrypts, which gets one summed input and no client's own.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import tenseal

from secure_fd.aggregation import bfv
from secure_fd.aggregation.homomorphic import HomomorphicSum
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import RoundTerms

CLIENTS = 10
CELLS = ((5_120, 1), (6_600, 1), (6_600, 4095), (100_000, 1), (100_000, 4095))
"""Values and their bound: 512 proxies of 10 classes first; hard labels, and lanes of 16 bits."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One row; times in milliseconds of CPU, the whole round in seconds of CPU."""

    clients: int
    values: int
    bound: int
    ciphertexts: int
    encrypt_ms: float
    encrypt_ratio: float
    add_ms: float
    add_ratio: float
    decrypt_ms: float
    decrypt_ratio: float
    round_s: float
    client_up_bytes: int
    client_down_bytes: int
    holder_up_bytes: int
    holder_down_bytes: int


def one_round(
    sums: HomomorphicSum, terms: RoundTerms, values: WordArray
) -> tuple[list[float], list[int]]:
    """CPU seconds (encrypt for one client, add, decrypt, all) and bytes (up, down, up, down)."""
    server = sums.server()
    server.open(terms)
    marks = [time.process_time()]
    inputs = {k: sums.client(k).load(terms, values)[0] for k in range(CLIENTS)}
    marks.append(time.process_time())
    for k, message in inputs.items():
        server.receive(k, message)
    ((holder, question),) = server.advance().items()
    marks.append(time.process_time())
    (answer,) = sums.client(holder).receive(question)
    marks.append(time.process_time())
    server.receive(holder, answer)
    done = time.process_time()
    if server.result is None or not np.array_equal(
        server.result.total, values * np.uint64(CLIENTS)
    ):
        raise SystemExit("homomorphic: the sum is wrong")
    server.advance()
    up = len(inputs[0])
    seconds = [(marks[1] - marks[0]) / CLIENTS, *np.diff(marks[1:]).tolist(), done - marks[0]]
    return seconds, [up, 0, up + len(answer), len(question)]


def floors(ciphertexts: int) -> list[float]:
    """CPU seconds of TenSEAL's encryption, of n additions, and of TenSEAL's decryption."""
    context = tenseal.context(tenseal.SCHEME_TYPE.BFV, bfv.DEGREE, bfv.PLAIN_MODULUS, n_threads=1)
    slots = list(range(bfv.DEGREE))
    vectors = [tenseal.bfv_vector(context, slots) for _ in range(ciphertexts)]
    arrays = [np.ones((ciphertexts, 4 * bfv.DEGREE), np.uint64) for _ in range(CLIENTS)]
    total = np.zeros_like(arrays[0])
    return [
        seconds(lambda: [tenseal.bfv_vector(context, slots) for _ in range(ciphertexts)]),
        seconds(lambda: [np.add(total, array, out=total) for array in arrays]),
        seconds(lambda: [vector.decrypt() for vector in vectors]),
    ]


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def medians(rows: list[list[float]]) -> list[float]:
    """Column by column, the first row left out."""
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def measure(sums: HomomorphicSum, first: int, m: int, bound: int, repeats: int) -> Cell:
    """One row; its rounds are numbered from `first`."""
    values = np.random.default_rng(m).integers(0, bound, m, np.uint64, endpoint=True)
    terms = [RoundTerms(first + at, m, bound) for at in range(repeats + 1)]
    runs = [one_round(sums, each, values) for each in terms]
    encrypt, add, decrypt, whole = medians([run[0] for run in runs])
    ciphertexts = runs[0][1][0] // bfv.CIPHER_BYTES
    least = medians([floors(ciphertexts) for _ in range(repeats + 1)])
    up, down, holder_up, holder_down = runs[0][1]
    return Cell(
        clients=CLIENTS,
        values=m,
        bound=bound,
        ciphertexts=ciphertexts,
        encrypt_ms=1e3 * encrypt,
        encrypt_ratio=encrypt / least[0],
        add_ms=1e3 * add,
        add_ratio=add / least[1],
        decrypt_ms=1e3 * decrypt,
        decrypt_ratio=decrypt / least[2],
        round_s=whole,
        client_up_bytes=up,
        client_down_bytes=down,
        holder_up_bytes=holder_up,
        holder_down_bytes=holder_down,
    )


def main() -> None:
    """Measure every cell and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7, help="rounds a cell, after one warm-up")
    repeats = parser.parse_args().repeats
    if repeats < 1:
        parser.error(f"repeats: {repeats} is not allowed; use 1 or more")
    sums = HomomorphicSum(CLIENTS)
    cells = [
        asdict(measure(sums, at * (repeats + 1), m, bound, repeats))
        for at, (m, bound) in enumerate(CELLS)
    ]
    report = {
        "python": platform.python_version(),
        "tenseal": tenseal.__version__,
        "numpy": np.__version__,
        "repeats": repeats,
        "cells": cells,
    }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
