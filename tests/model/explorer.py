"""Visit every schedule of a world of state machines, breadth first, and replay one of them.

A world says what may come next in a state. Its states are tuples, and each step leads to a state of
a higher order, so states of one order are merged, expanded and dropped together: the memory holds
the states that are still to be visited, whatever the number of those that were.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

State = tuple[Hashable, ...]


class Choice(NamedTuple):
    """A step. fault: what goes wrong in it, in a sentence; empty where nothing does."""

    fault: str
    go: Callable[[], State]
    cost: int = 1


class World(Protocol):
    """What is explored. A method raises `BrokenError` where a property does not hold."""

    def first(self) -> State:
        """Return the state in which everything begins."""

    def order(self, state: State) -> int:
        """Return a number that grows with every step."""

    def choices(self, state: State, *, faults: bool) -> Iterable[Choice]:
        """Return the steps from a state: those without a fault first; none where it ends."""


class BrokenError(Exception):
    """A property does not hold. The explorer adds the schedule."""

    def __init__(self, what: str, schedule: Sequence[str] = ()) -> None:
        super().__init__("\n".join([*schedule, f"=> {what}"]))
        self.what, self.schedule = what, tuple(schedule)


@dataclass
class Explored:
    """What was visited. schedules: paths from the first state to an end."""

    states: int = 0
    edges: int = 0
    ends: int = 0
    schedules: int = 0


class _Seen:
    """A state that is still to be visited. trail: the fewest faults on the way to it.

    paths: by number of faults, the ways to it.
    """

    __slots__ = ("paths", "spent", "trail")

    def __init__(self, spent: int, trail: "Trail") -> None:
        self.spent, self.trail, self.paths = spent, trail, Counter[int]()


Trail = tuple["Trail", str] | None
"""The faults on the way to a state, the newest outside."""


def explore(world: World, faults: int) -> Explored:
    """Visit every state that at most so many faults lead to.

    A state that is reached with several numbers of faults is expanded with the smallest: what
    follows on more of them follows on fewer.

    Raises:
        BrokenError: A property does not hold; with the faults that lead there.
    """
    found, waiting = Explored(), dict[int, dict[State, _Seen]]()
    first, start = world.first(), _Seen(0, None)
    start.paths[0] = 1
    waiting[world.order(first)] = {first: start}
    orders = list(waiting)
    while orders:
        here = heapq.heappop(orders)
        for state, seen in waiting.pop(here).items():
            found.states += 1
            edges = found.edges
            for spent, trail, after in _steps(world, state, seen, faults):
                found.edges += 1
                order = world.order(after)
                if order not in waiting:
                    waiting[order] = {}
                    heapq.heappush(orders, order)
                known = waiting[order].setdefault(after, _Seen(spent, trail))
                for number, ways in seen.paths.items():
                    if (number := number + spent - seen.spent) <= faults:
                        known.paths[number] += ways
                if spent < known.spent:
                    known.spent, known.trail = spent, trail
            if found.edges == edges:
                found.ends += 1
                found.schedules += seen.paths.total()
    return found


def _steps(
    world: World, state: State, seen: _Seen, faults: int
) -> Iterator[tuple[int, "Trail", State]]:
    """Take every step from a state: faults spent, the list of them, and the state after."""
    trail = seen.trail
    try:
        for fault, go, cost in world.choices(state, faults=seen.spent < faults):
            trail = (seen.trail, fault) if fault else seen.trail
            yield seen.spent + (cost if fault else 0), trail, go()
    except BrokenError as broken:
        raise BrokenError(broken.what, _listed(trail)) from broken.__cause__


def _listed(trail: Trail) -> list[str]:
    listed = []
    while trail is not None:
        trail, fault = trail
        listed.append(fault)
    return listed[::-1]


def shortest(world: World, faults: int) -> BrokenError | None:
    """Return the violation that fewest faults lead to, None where there is none."""
    for most in range(faults + 1):
        try:
            explore(world, most)
        except BrokenError as broken:
            return broken
    return None


def replay(world: World, schedule: Sequence[str]) -> State:
    """Run one schedule; return its last state. BrokenError where it breaks a property."""
    state, left = world.first(), list(schedule)
    while choices := list(world.choices(state, faults=bool(left))):
        named = {choice.fault: choice for choice in choices}
        state = (named[left.pop(0)] if left and left[0] in named else choices[0]).go()
    if left:
        raise BrokenError(f"the schedule does not reach: {left[0]}")
    return state
