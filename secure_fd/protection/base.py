"""The interface between a client's honest answer and what it lets go."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import Contribution, IntArray, Sums
from secure_fd.privacy.units import Guarantee

Answer = Callable[[IntArray], Contribution]
"""Asks a client's selector and network about proxies; a protection that needs no network must
not call it, so that nothing computed from raw records can leave by mistake."""


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ConfigurationError unless epsilon is above 0, or inf, and delta between 0 and 1."""
    if not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0, or inf")
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number between 0 and 1")


class Protection(Protocol):
    """Decides what a client releases about proxies, and undoes its bias at the server."""

    @property
    def name(self) -> str:
        """The word that the report uses."""

    def levels(self, wanted: int) -> int:
        """Integer units in a vote, where the method would use `wanted`."""

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:
        """Before round one: the public proxies [P, ...] and every client's private records."""

    def release(self, client: int, indices: IntArray, answer: Answer) -> Contribution:
        """What `client` sends about the proxies at `indices` [m]."""

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Unbiased sums at the server, from what these clients released."""

    def guarantee(self) -> Guarantee | None:
        """What has been promised for everything released so far; None where nothing is."""


class NoProtection:
    """Answers leave as they are."""

    name = "none"

    def levels(self, wanted: int) -> int:
        """As the method wants."""
        return wanted

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:
        """Nothing to prepare."""

    def release(self, client: int, indices: IntArray, answer: Answer) -> Contribution:  # noqa: ARG002 - the same for every client
        """The answer itself."""
        return answer(indices)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - no noise, no bias
        """The sums themselves."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """None: nothing is promised."""
        return None
