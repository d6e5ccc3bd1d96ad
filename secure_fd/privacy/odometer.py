"""What has been released so far, event by event: the only place that an epsilon comes from."""

from dataclasses import dataclass
from typing import NoReturn

from secure_fd.errors import LocalError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import Composed, Event, Repeated
from secure_fd.privacy.units import Part


@dataclass(frozen=True, slots=True)
class Bill:
    """What all events together cost, and what each part would cost alone.

    unaccounted: releases that no event stands for; with any, epsilon is infinite.
    """

    epsilon: float
    delta: float
    accountant: str
    parts: tuple[Part, ...]
    unaccounted: tuple[str, ...]


class Odometer:
    """One unit's releases, in the order in which they were first made.

    A noisy release hands over its event; one without noise hands over a reason why no epsilon can
    be named any more. Nothing is ever taken back, so there is no copy.
    """

    __slots__ = ("_spent", "_unaccounted")

    def __init__(self) -> None:
        self._spent: dict[tuple[str, Event], int] = {}
        self._unaccounted: dict[str, None] = {}

    def spend(self, part: str, event: Event, times: int = 1) -> None:
        """Count a release, made `times` times with fresh noise, under the name of its part."""
        if times < 1:
            raise LocalError(f"times: {times} is not allowed; a release happens once or more")
        self._spent[part, event] = self._spent.get((part, event), 0) + times

    def void(self, *reasons: str) -> None:
        """Count releases that no event stands for."""
        self._unaccounted |= dict.fromkeys(reasons)

    def bill(self, delta: float) -> Bill:
        """What has been spent. Raises UnsupportedEventError where no accountant knows the mix."""
        spent = [(part, Repeated(event, times)) for (part, event), times in self._spent.items()]
        whole = Composed(tuple(event for _, event in spent))
        accountant = accountant_for(whole)
        parts = tuple(
            Part(part, event.times, accountant_for(event).epsilon(event, delta))
            for part, event in spent
        )
        epsilon = float("inf") if self._unaccounted else accountant.epsilon(whole, delta)
        return Bill(epsilon, delta, accountant.name, parts, tuple(self._unaccounted))

    def __repr__(self) -> str:
        return f"Odometer({sum(self._spent.values())} releases)"

    def __reduce__(self) -> NoReturn:
        raise LocalError("an odometer is single: it cannot be pickled or copied")
