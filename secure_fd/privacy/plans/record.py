"""The record unit by one release: feature sums under discrete Gaussian noise."""

from dataclasses import dataclass
from typing import ClassVar, final

from secure_fd.privacy.events import DiscreteGaussian, Event
from secure_fd.privacy.plans.base import Noisy, Sensitivity, check_counts
from secure_fd.privacy.units import PrivacyUnit


@final
@dataclass(frozen=True, slots=True)
class RecordPlan(Noisy):
    """One noisy release of a client's feature sums; all else is computed from it.

    n_records: of the client, public. noise: sigma over the sensitivity.
    """

    n_records: int

    unit: ClassVar = PrivacyUnit.RECORD
    neighbours: ClassVar = (
        "one record of one client, present or zeroed out, its number of records "
        "and its set of classes public and unchanged"
    )
    sensitivity: ClassVar = Sensitivity("L2", 1.0, "sums of features, each of norm 1 at most")
    mechanism: ClassVar = "discrete Gaussian on integers"

    def __post_init__(self) -> None:
        check_counts(self, "n_records")
        Noisy.__post_init__(self)

    def event(self) -> Event:
        """One discrete Gaussian vector."""
        return DiscreteGaussian(self.noise)

    def replaced(self) -> Event:
        """The same release where the neighbour holds another record in its place."""
        return DiscreteGaussian(self.noise / 2)  # two vectors of norm 1 are at most 2 apart

    def whole_client(self) -> Event:
        """The same release where all records of the client are zeroed out."""
        return DiscreteGaussian(self.noise / self.n_records)
