"""The record unit by training: DP-SGD (Abadi et al., 2016)."""

from dataclasses import dataclass
from typing import ClassVar, final

from secure_fd.privacy.events import Event, Gaussian, Repeated, SampledGaussian
from secure_fd.privacy.plans.base import Noisy, Sensitivity, check_counts
from secure_fd.privacy.units import PrivacyUnit


@final
@dataclass(frozen=True, slots=True)
class TrainingPlan(Noisy):
    """A network trained by DP-SGD on Poisson batches of one client's records.

    n_records: public. batch: the expected batch; from n_records up there is no sampling.
    steps: of the whole run. noise: on the sum of clipped gradients, over the clip.
    """

    n_records: int
    batch: int
    steps: int

    unit: ClassVar = PrivacyUnit.RECORD
    neighbours: ClassVar = (
        "one record of one client, present or zeroed out, its number of records public"
    )
    sensitivity: ClassVar = Sensitivity("L2", 1.0, "a step's sum of gradients, in clips")
    mechanism: ClassVar = "floating-point Gaussian on clipped gradients"

    def __post_init__(self) -> None:
        check_counts(self, "n_records", "batch", "steps")
        Noisy.__post_init__(self)

    @property
    def sample_rate(self) -> float:
        """Probability of each record to be in a batch."""
        return min(1.0, self.batch / self.n_records)

    def event(self) -> Event:
        """All steps."""
        if self.sample_rate == 1:
            return Repeated(Gaussian(self.noise), self.steps)
        return Repeated(SampledGaussian(self.noise, self.sample_rate), self.steps)
