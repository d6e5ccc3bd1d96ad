"""DaFKD with few, short sums."""

from dataclasses import dataclass, field

from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.generator import AdversarialSettings


@dataclass(frozen=True, slots=True)
class SmallDaFKD(DaFKD):
    """Two sums of generators a round, and one of votes."""

    generated: int = 64
    steps: int = 5
    adversarial: AdversarialSettings = field(
        default_factory=lambda: AdversarialSettings(hidden=16, discriminator=16, sums=2, steps=2)
    )
