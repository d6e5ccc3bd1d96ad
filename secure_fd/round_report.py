"""What a caller is told of each round while a federation runs."""

from dataclasses import dataclass

from secure_fd.aggregation.base import Stage


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in figures.

    kept: share of the round's proxies that teach. single: share of the answered proxies at which
    one client gives nine tenths of the count or more, whose released vote no sum can hide.
    bytes_up, bytes_down: mean over clients, from the start until now. survivors: the clients in
    the sum. missing: clients and the stage from which on each was silent.
    """

    index: int
    kept: float
    single: float
    bytes_up: float
    bytes_down: float
    survivors: tuple[int, ...]
    missing: tuple[tuple[int, Stage], ...]

    @property
    def void(self) -> bool:
        """Whether too few clients answered: nothing was summed, and nobody was sent anything."""
        return not self.survivors
