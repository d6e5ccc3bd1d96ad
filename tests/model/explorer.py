"""Visit every schedule of a world of state machines, breadth first, and replay one of them.

A world has three methods. `first` returns the state in which everything begins, `choices` the steps
from a state, the one without a fault first and none where it ends, `order` a number that grows with
every step. They raise `BrokenError` where a property does not hold. States of one order are merged,
expanded and dropped together: the memory holds the states that are still to be visited, whatever
the number of those that were.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Trail = tuple["Trail", str] | None
"""Faults on the way to a state, the newest outside."""


class Choice(NamedTuple):
    """A step. fault: what goes wrong in it, in a sentence; empty where nothing does."""

    fault: str
    go: Callable[[], Hashable]
    cost: int = 1


class BrokenError(Exception):
    """A property does not hold. The explorer adds the schedule."""

    def __init__(self, what: str, schedule: Sequence[str] = ()) -> None:
        super().__init__("\n".join([*schedule, f"=> {what}"]))
        self.what, self.schedule = what, tuple(schedule)


@dataclass
class Explored:
    """Numbers of what was visited. schedules: paths from the first state to an end."""

    states: int = 0
    edges: int = 0
    schedules: int = 0


@dataclass(slots=True)
class _Seen:
    """A state to be visited. spent, trail: the fewest faults on the way. paths: by faults, ways."""

    spent: int
    trail: Trail
    paths: Counter[int] = field(default_factory=Counter)


def explore(world: Any, faults: int) -> Explored:
    """Visit every state that at most `faults` faults lead to.

    A state that is reached with several numbers of faults is expanded with the smallest: what
    follows on more of them follows on fewer.

    Raises:
        BrokenError: A property does not hold; with the faults that lead there.
    """
    found, first = Explored(), world.first()
    waiting = {world.order(first): {first: _Seen(0, None, Counter({0: 1}))}}
    orders = list(waiting)
    while orders:
        for state, seen in waiting.pop(heapq.heappop(orders)).items():
            found.states += 1
            edges, trail = found.edges, seen.trail
            try:
                for fault, go, cost in world.choices(state, faults=seen.spent < faults):
                    more = cost if fault else 0
                    if seen.spent + more > faults:
                        continue
                    trail = (seen.trail, fault) if fault else seen.trail
                    after = go()
                    found.edges += 1
                    if (order := world.order(after)) not in waiting:
                        waiting[order] = {}
                        heapq.heappush(orders, order)
                    spent = seen.spent + more
                    known = waiting[order].setdefault(after, _Seen(spent, trail))
                    for number, ways in seen.paths.items():
                        if number + more <= faults:
                            known.paths[number + more] += ways
                    if spent < known.spent:
                        known.spent, known.trail = spent, trail
            except BrokenError as broken:
                raise BrokenError(broken.what, _listed(trail)) from broken.__cause__
            if found.edges == edges:
                found.schedules += seen.paths.total()
    return found


def _listed(trail: Trail) -> list[str]:
    listed: list[str] = []
    while trail is not None:
        trail, fault = trail
        listed.insert(0, fault)
    return listed


def shortest(world: Any, faults: int) -> BrokenError | None:
    """Return the violation that fewest faults lead to, None where there is none."""
    for most in range(faults + 1):
        try:
            explore(world, most)
        except BrokenError as broken:
            return broken
    return None


def replay(world: Any, schedule: Sequence[str]) -> Hashable:
    """Run one schedule; return its last state. BrokenError where it breaks a property."""
    state, left = world.first(), list(schedule)
    while choices := list(world.choices(state, faults=bool(left))):
        named = {choice.fault: choice for choice in choices}
        state = (named[left.pop(0)] if left and left[0] in named else choices[0]).go()
    if left:
        raise BrokenError(f"the schedule does not reach: {left[0]}")
    return state
