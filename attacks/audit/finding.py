"""What an audit found, and the verdict."""

from dataclasses import dataclass
from enum import StrEnum

from secure_fd.privacy.units import PrivacyUnit


class Kind(StrEnum):
    """What an audit looks at, from closest to the noise to furthest."""

    MECHANISM = "mechanism"
    ONE_RUN = "one-run"
    END_TO_END = "end-to-end"


class Verdict(StrEnum):
    """What a bound says of a claim; silence is no proof of privacy."""

    HOLDS = "holds"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class Proof:
    """A lower bound on epsilon, the most that the same counts could have shown, and the attack."""

    bound: float
    ceiling: float
    attack: str
    trials: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One cell of the table.

    claimed: the epsilon at `delta` that the software prints for this unit and these neighbours.
    bound: what the attack proved, at least, but for probability `miss`. ceiling: the bound had
    every guess been right. assumes: what the bound needs of the mechanism's shape, in words;
    empty for nothing. also: further figures by name, none of them the verdict's.
    """

    kind: Kind
    unit: PrivacyUnit
    name: str
    claimed: float
    delta: float
    bound: float
    ceiling: float
    miss: float
    attack: str
    trials: int
    assumes: str = ""
    also: tuple[tuple[str, float], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Refuted where the attack proved more than was claimed."""
        return Verdict.REFUTED if self.bound > self.claimed else Verdict.HOLDS
