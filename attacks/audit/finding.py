"""What an audit found, and the verdict."""

import math
from dataclasses import dataclass
from enum import StrEnum

from secure_fd.errors import LocalError
from secure_fd.privacy.units import Guarantee, PrivacyUnit


class Kind(StrEnum):
    """What an audit looks at, from closest to the noise to furthest."""

    MECHANISM = "mechanism"
    ONE_RUN = "one-run"
    END_TO_END = "end-to-end"


class Verdict(StrEnum):
    """What a bound says of a claim; silence is no proof of privacy."""

    HOLDS = "holds"
    REFUTED = "refuted"
    CANNOT_TELL = "cannot tell"


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

    claimed: the epsilon at `delta` that the software prints for this unit and these neighbours;
    LocalError where it is not finite, for then there is nothing to audit.
    bound: what the attack proved, at least, but for probability `miss`. ceiling: the bound had
    every guess been right. assumes: what the bound needs of the mechanism's shape, in words;
    empty for nothing. also: further figures by name, none of them the verdict's. blind: whether
    this attack would miss a mechanism without any noise.
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
    blind: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.claimed):
            raise LocalError(f"{self.name}: a claim of {self.claimed} cannot be audited")

    @classmethod
    def of(
        cls,
        proof: Proof,
        kind: Kind,
        unit: PrivacyUnit,
        name: str,
        claimed: float,
        delta: float,
        miss: float,
        assumes: str = "",
        also: tuple[tuple[str, float], ...] = (),
    ) -> "Finding":
        """What a proof says of a claim."""
        return cls(
            kind,
            unit,
            name,
            claimed,
            delta,
            proof.bound,
            proof.ceiling,
            miss,
            proof.attack,
            proof.trials,
            assumes,
            also,
        )

    @property
    def verdict(self) -> Verdict:
        """Refuted where more was proved than claimed; no verdict where that could not have been."""
        if self.bound > self.claimed:
            return Verdict.REFUTED
        able = self.ceiling > self.claimed and not self.blind
        return Verdict.HOLDS if able else Verdict.CANNOT_TELL


def printed(guarantee: Guarantee | None) -> Guarantee:
    """What the software claims. Raises LocalError where it claims nothing."""
    if guarantee is None or not guarantee.holds:
        why = "no guarantee was made" if guarantee is None else guarantee.sentence()
        raise LocalError(f"there is no epsilon to audit: {why}")
    return guarantee
