"""What has been released so far, event by event, beside what was planned."""

from typing import NoReturn

from secure_fd.errors import LocalError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import Event, Repeated
from secure_fd.privacy.units import Part


class Odometer:
    """One unit's releases, in the order in which they were first made.

    A noisy release hands over its event; one that no event stands for hands over the reason why no
    epsilon can be named any more. Nothing is ever taken back, so there is no copy.

    What it reads is for information: an epsilon that holds whenever somebody chooses to stop is
    that of the plan (a filter), not of what was spent until then (Rogers, Roth, Ullman and Vadhan,
    "Privacy Odometers and Filters", NeurIPS 2016).
    """

    __slots__ = ("_spent", "_unaccounted")

    def __init__(self) -> None:
        self._spent: dict[tuple[str, Event], int] = {}
        self._unaccounted: dict[str, None] = {}

    def spend(self, part: str, event: Event) -> None:
        """Count a release under the name of its part."""
        self._spent[part, event] = self._spent.get((part, event), 0) + 1

    def void(self, *reasons: str) -> None:
        """Count what no event stands for, once each."""
        self._unaccounted |= dict.fromkeys(reasons)

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Why there is no epsilon; empty where there is one."""
        return tuple(self._unaccounted)

    def parts(self, delta: float) -> tuple[Part, ...]:
        """How often each part was released, and what that would cost were it all there is.

        Raises UnsupportedEventError for an event that no accountant knows.
        """
        repeated = {part: Repeated(event, times) for (part, event), times in self._spent.items()}
        return tuple(
            Part(name, event.times, accountant_for(event).epsilon(event, delta))
            for name, event in repeated.items()
        )

    def __repr__(self) -> str:
        return f"Odometer({sum(self._spent.values())} releases)"

    def __reduce__(self) -> NoReturn:
        raise LocalError("an odometer is single: it cannot be pickled or copied")
