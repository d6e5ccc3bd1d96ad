"""What stands between a client's private data and the wire, and what its type rules out.

A `FromAnswers` protection changes what the client's selector and network answer. A `NetworkFree`
one is never given them: its `release` has no such argument, so nothing computed from a network
that was trained on raw records can leave by mistake. Both make `Released`, the only thing that
the codec turns into integers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from secure_fd.aggregation.base import SumPromise
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import Contribution, IntArray, Released, Sums, UnitArray, WordArray
from secure_fd.privacy.units import Guarantee
from secure_fd.secagg.session import NoiseTerms

Answer = Callable[[IntArray], Contribution]
"""Asks a client's selector and network about proxies."""


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ConfigurationError unless epsilon is above 0, or inf, and delta between 0 and 1."""
    if not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0, or inf")
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number between 0 and 1")


class Protection(ABC):
    """Decides what a client releases about proxies, and undoes its bias at the server."""

    name: ClassVar[str]
    """The word that the report uses."""

    def levels(self, wanted: int) -> int:
        """Integer units in a vote, where the method would use `wanted`."""
        return wanted

    def check_sum(self, aggregation: SumPromise) -> None:  # noqa: B027 - most hold under any
        """Raise ConfigurationError where the protection does not hold under this sum."""

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:  # noqa: B027 - most need nothing
        """Before round one: the public proxies [P, ...] and every client's private records."""

    @property
    def answers_apart(self) -> bool:
        """Whether the claim is about one answer, so that no answer may steer a later one."""
        return False

    @property
    def declared_classes(self) -> Mapping[int, tuple[int, ...]]:
        """By client, the classes that it names in public for the claim to hold; often none."""
        return {}

    @property
    def terms(self) -> bytes:
        """Public settings that all clients must share for the claim to hold; bound into sums."""
        return b""

    @property
    def noise_terms(self) -> NoiseTerms:
        """What noise in the vectors asks of a sum; nothing by default."""
        return NoiseTerms()

    def perturb(self, client: int, units: WordArray) -> UnitArray:  # noqa: ARG002 - no noise
        """The integers [m * C] that `client` hands to the sum, from those of what it released."""
        return units

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:  # noqa: ARG002 - no bias
        """Unbiased sums at the server, from what these clients released."""
        return sums

    def guarantee(self) -> Guarantee | None:
        """What has been promised for everything released so far; None where nothing is."""
        return None


class FromAnswers(Protection):
    """A protection of what the client's selector and network say."""

    @abstractmethod
    def release(self, client: int, indices: IntArray, answer: Answer) -> Released:
        """What `client` sends about the proxies at `indices` [m]."""


class NetworkFree(Protection):
    """A protection whose releases were made before round one, without any network."""

    @abstractmethod
    def release(self, client: int, indices: IntArray) -> Released:
        """What `client` sends about the proxies at `indices` [m]."""


class NoProtection(FromAnswers):
    """Answers leave as they are."""

    name = "none"

    def release(self, client: int, indices: IntArray, answer: Answer) -> Released:  # noqa: ARG002 - the same for every client
        """The answer itself."""
        return Released.of(answer(indices))
