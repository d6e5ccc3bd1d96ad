"""Explore the protocol within larger bounds: `python -m tests.model.run [NAME ...]`."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from secure_fd.secagg.session import NoiseTerms
from tests.model.corrupt import CorruptWorld
from tests.model.explorer import World, explore
from tests.model.federation import FederationWorld
from tests.model.lying import ROUND, SETUP, LyingWorld
from tests.model.masked import MaskedWorld


class Setting(NamedTuple):
    """What is explored. least: states that it has at least."""

    name: str
    world: Callable[[], World]
    faults: int
    least: int = 1


AGAIN = ("COHORT", "INVITATION", *SETUP, *ROUND)
POOLED = NoiseTerms(2**16, 4)
SHORT = [
    Setting("4 clients, 1 round, 2 faults", lambda: MaskedWorld(4, 1, tail=0), 2, 40_000),
    Setting("4 clients, 2 rounds, 1 fault, then 2 sums", lambda: MaskedWorld(4), 1, 3_000),
    Setting("3 clients, 2 rounds, 1 fault, then 2 sums", lambda: MaskedWorld(3), 1, 1_500),
    Setting("4 clients, noise of all", lambda: MaskedWorld(4, 1, noise=POOLED), 1, 1_000),
    Setting("4 clients, a corrupt one", lambda: CorruptWorld(4), 1, 1_000),
    Setting("4 clients, a lying server", lambda: LyingWorld(4), 0, 10_000),
    Setting(
        "3 clients, a server that lies in the set-up", lambda: LyingWorld(3, setup=True), 1, 500
    ),
    Setting("a federation's client, 3 broadcasts", lambda: FederationWorld(3), 1, 500),
    Setting("the same with a survey", lambda: FederationWorld(3, survey=True), 1, 500),
]
"""What `make test` explores."""
LONG = [
    Setting("4 clients, 2 rounds, 2 faults, then 2 sums", lambda: MaskedWorld(4), 2),
    Setting("3 clients, 2 rounds, 2 faults, then 2 sums", lambda: MaskedWorld(3), 2),
    Setting("3 clients, epochs of 2, 3 rounds", lambda: MaskedWorld(3, 3, epoch=2), 2),
    Setting("4 clients, epochs of 2, 3 rounds", lambda: MaskedWorld(4, 3, epoch=2), 1),
    Setting("4 clients, noise of all, 2 faults", lambda: MaskedWorld(4, 1, noise=POOLED), 2),
    Setting("4 clients, a corrupt one, 2 faults", lambda: CorruptWorld(4), 2),
    Setting("4 clients, a server that lies, 1 fault", lambda: LyingWorld(4), 1),
    Setting("4 clients, lies in the set-up", lambda: LyingWorld(4, setup=True), 0),
    Setting("3 clients, lies, two set-ups", lambda: LyingWorld(3, stages=AGAIN), 2),
    Setting("a federation's client, 4 broadcasts", lambda: FederationWorld(4), 1),
    Setting("the same with a survey, long", lambda: FederationWorld(4, survey=True), 1),
    Setting("4 clients, 1 round, 3 faults", lambda: MaskedWorld(4, 1, tail=0), 3),
    Setting("4 clients, 2 rounds, 3 faults", lambda: MaskedWorld(4, 2, tail=0), 3),
]
"""What `make test-long` explores beside it."""


def main(names: list[str]) -> None:
    """Explore the settings of these names, by default all; stop at the first violation."""
    total = 0
    for setting in (*SHORT, *LONG):
        if not names or setting.name in names:
            start = time.process_time()
            found = explore(setting.world(), setting.faults)
            total += found.states
            seconds = time.process_time() - start
            print(
                f"{setting.name}: {found.states:,} states, {found.edges:,} edges, "
                f"{found.schedules:,} schedules, {seconds:.0f} s",
                flush=True,
            )
    print(f"{total:,} states, and every property holds in all of them")


if __name__ == "__main__":
    main(sys.argv[1:])
