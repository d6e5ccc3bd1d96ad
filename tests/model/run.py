"""Explore the protocol within larger bounds: `python -m tests.model.run [NAME ...]`."""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from secure_fd.secagg.session import NoiseTerms
from tests.model.explorer import explore
from tests.model.lying import AGAIN, ROUND, SETUP, CorruptWorld, LyingWorld, StoryWorld
from tests.model.world import World


class Setting(NamedTuple):
    """A world, and faults. least: states that it has at least."""

    name: str
    world: Callable[[], Any]
    faults: int
    least: int = 1


POOLED, FROM_START = NoiseTerms(2**16, 4), ("ROUND_START", *ROUND)
SHORT = [
    Setting("4 clients, 1 round, 2 faults", partial(World, 4, 1, tail=0), 2, 55_000),
    Setting("4 clients, 1 round, 1 fault, then 2 sums", partial(World, 4, 1), 1, 1_900),
    Setting("3 clients, 2 rounds, 1 fault, then 2 sums", partial(World, 3), 1, 2_500),
    Setting("3 clients, hybrid keys", partial(World, 3, 1, hybrid=True, tail=0), 1, 1_500),
    Setting("3 clients, a survey", partial(World, 3, 1, survey=True, tail=0), 1, 1_500),
    Setting("4 clients, noise of all", partial(World, 4, 1, noise=POOLED, tail=0), 1, 1_500),
    Setting("4 clients, a corrupt one", partial(CorruptWorld, 4, 1), 1, 3_500),
    Setting("4 clients, lies", LyingWorld, 0, 8_000),
    Setting(
        "3 clients, lies in the set-up", partial(LyingWorld, 3, stages=SETUP + ROUND), 1, 4_000
    ),
    Setting("a story of 3 messages", StoryWorld, 1, 900),
]
"""Settings that `make test` explores."""
LONG = [
    Setting("4 clients, 2 rounds, 1 fault, then 2 sums", partial(World, 4), 1),
    Setting("4 clients, 2 rounds, 2 faults, then 3 sums", partial(World, 4, tail=3), 2),
    Setting("3 clients, 2 rounds, 2 faults, then 3 sums", partial(World, 3, tail=3), 2),
    Setting("3 clients, epochs of 2, 3 rounds", partial(World, 3, 3, epoch=2, tail=3), 2),
    Setting("4 clients, epochs of 2, 3 rounds", partial(World, 4, 3, epoch=2), 1),
    Setting("4 clients, hybrid keys, 2 faults", partial(World, 4, 1, hybrid=True, tail=3), 2),
    Setting("4 clients, a survey, 2 faults", partial(World, 4, 1, survey=True, tail=3), 2),
    Setting("4 clients, noise of all, 2 faults", partial(World, 4, 1, noise=POOLED, tail=3), 2),
    Setting("4 clients, a corrupt one, 2 faults", partial(CorruptWorld, 4, 1, tail=3), 2),
    Setting("4 clients, lies, 1 fault", LyingWorld, 1),
    Setting("4 clients, lies in the set-up", partial(LyingWorld, 4, stages=SETUP + ROUND), 0),
    Setting("3 clients, lies, other rounds", partial(LyingWorld, 3, stages=FROM_START), 2),
    Setting("3 clients, lies, two set-ups", partial(LyingWorld, 3, stages=AGAIN), 2),
    Setting("a story of 4 messages", partial(StoryWorld, 4), 1),
    Setting("a story of 4 messages with a survey", partial(StoryWorld, 4, survey=True), 1),
    Setting("4 clients, 1 round, 3 faults", partial(World, 4, 1, tail=0), 3),
]
"""Further settings that `make test-long` explores."""


def main(names: list[str]) -> None:
    """Explore the settings of these names, by default all; stop at the first violation."""
    settings = (*SHORT, *LONG)
    if unknown := set(names) - {setting.name for setting in settings}:
        raise SystemExit(f"no setting is named {', '.join(sorted(unknown))}")
    total = 0
    for setting in settings:
        if not names or setting.name in names:
            start = time.process_time()
            found = explore(setting.world(), setting.faults)
            total += found.states
            print(
                f"{setting.name}: {found.states:,} states, {found.edges:,} edges, "
                f"{found.schedules:,} schedules, {time.process_time() - start:.0f} s",
                flush=True,
            )
    print(f"{total:,} states, and every property holds in all of them")


if __name__ == "__main__":
    main(sys.argv[1:])
