"""CPU time of the masked sum beside its floor, as JSON: python benchmarks/secure_aggregation.py

Each cell is one round of n clients over the complete graph, m 64-bit words a client, all
parties in one process on one thread. Reported are the medians over rounds of the CPU seconds of
one client and of the server, and two floors measured on the same vectors in the same process:

  client floor   n - 1 AES-256-CTR keystreams of m words, each added to a vector
  server floor   n vectors of m words added up

A floor has no key agreement, signature, packing or message. client_keys_s is what n - 1 X25519
exchanges and n - 1 Ed25519 verifications take on their own: with short vectors, nearly all.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass

import cryptography
import numpy as np

from secure_fd.crypto.keys import AgreementKey, IdentityKey
from secure_fd.crypto.prg import BLOCK_WORDS, Keystream, scratch_words
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client
from secure_fd.secagg.server import Server
from secure_fd.secagg.session import Roster, RoundTerms, Session

CELLS = ((10, 6_600), (50, 100_000))
BOUND = 2**40
"""One value a word at the sizes above, so that m values are m words."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Seconds of CPU; ratios are to the floor of the same row."""

    clients: int
    words: int
    client_s: float
    client_floor_s: float
    client_ratio: float
    client_keys_s: float
    server_s: float
    server_floor_s: float
    server_ratio: float
    up_bytes: int
    down_bytes: int


@dataclass(slots=True)
class Meter:
    """Adds up the CPU time of the calls made inside it."""

    seconds: float = 0.0
    _start: float = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


@dataclass(frozen=True, slots=True)
class Cohort:
    """The parties of a session."""

    clients: dict[int, Client]
    server: Server


def cohort(n: int) -> Cohort:
    """n clients and a server, keys from a fixed seed."""
    random = insecure_bytes(n)
    identities = {k: IdentityKey.generate(random) for k in range(n)}
    roster = Roster({k: key.public.raw for k, key in identities.items()})
    session = Session(roster, b"benchmark", b"", b"")
    clients = {k: Client(k, key, session, random=random) for k, key in identities.items()}
    return Cohort(clients, Server(session))


def one_round(parties: Cohort, index: int, values: WordArray) -> tuple[float, float, int, int]:
    """CPU seconds of one client and of the server, and the bytes of one client."""
    terms = RoundTerms(index, values.size, BOUND)
    client, server = Meter(), Meter()
    with server:
        collected = parties.server.open_round(terms)
    with client:
        rounds = {k: party.open_round(terms) for k, party in parties.clients.items()}
        for machine in rounds.values():
            machine.load(values)
        outbound = {k: machine.start() for k, machine in rounds.items()}
    up = down = 0
    while not collected.finished:
        up += len(outbound[0])
        with server:
            for k, message in outbound.items():
                collected.receive(k, message)
            inbound = collected.advance()
        down += len(inbound.get(0, b""))
        with client:
            outbound = {k: rounds[k].receive(message) for k, message in inbound.items()}
    if not np.array_equal(collected.total, values * np.uint64(len(rounds))):
        raise SystemExit("the masked sum is wrong")
    return client.seconds / len(rounds), server.seconds, up, down


def client_floor(n: int, values: WordArray) -> float:
    """CPU seconds of n - 1 raw keystreams added to one vector."""
    streams = [Keystream(bytes([k]) * 32) for k in range(n - 1)]
    words, scratch = values.copy(), scratch_words()
    meter = Meter()
    with meter:
        for start in range(0, words.size, BLOCK_WORDS):
            block = words[start : start + BLOCK_WORDS]
            for stream in streams:
                block += stream.read_words(block.size, scratch)
    return meter.seconds


def client_keys(n: int) -> float:
    """CPU seconds of n - 1 key agreements and n - 1 verifications."""
    random = insecure_bytes(n)
    identity, key = IdentityKey.generate(random), AgreementKey.generate(random)
    peer, signature = AgreementKey.generate(random).public, identity.sign(b"advert")
    meter = Meter()
    with meter:
        for _ in range(n - 1):
            identity.public.verify(signature, b"advert", "an advert")
            key.exchange(peer)
    return meter.seconds


def server_floor(n: int, values: WordArray) -> float:
    """CPU seconds of adding n vectors that lie apart in memory."""
    vectors = [values.copy() for _ in range(n)]
    total, meter = np.zeros_like(values), Meter()
    with meter:
        for vector in vectors:
            total += vector
    return meter.seconds


def measure(n: int, m: int, repeats: int) -> Cell:
    """Medians over rounds, the first round left out as a warm-up."""
    parties = cohort(n)
    values = np.random.default_rng(n).integers(0, BOUND, m, dtype=np.uint64)
    rounds = [one_round(parties, index, values) for index in range(repeats + 1)][1:]
    floors = [
        (client_floor(n, values), client_keys(n), server_floor(n, values))
        for _ in range(repeats + 1)
    ][1:]
    client, server = (
        statistics.median(column) for column in zip(*(r[:2] for r in rounds), strict=True)
    )
    floor, keys, added = (statistics.median(column) for column in zip(*floors, strict=True))
    return Cell(
        clients=n,
        words=m,
        client_s=client,
        client_floor_s=floor,
        client_ratio=client / floor,
        client_keys_s=keys,
        server_s=server,
        server_floor_s=added,
        server_ratio=server / added,
        up_bytes=rounds[0][2],
        down_bytes=rounds[0][3],
    )


def main() -> None:
    """Measure every cell and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7, help="rounds a cell, after one warm-up")
    repeats = parser.parse_args().repeats
    if repeats < 1:
        parser.error(f"repeats: {repeats} is not allowed; use 1 or more")
    report = {
        "python": platform.python_version(),
        "cryptography": cryptography.__version__,
        "numpy": np.__version__,
        "graph": "complete",
        "repeats": repeats,
        "cells": [asdict(measure(n, m, repeats)) for n, m in CELLS],
    }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
