"""A client unit as it is behind masks, where the auditor itself adds up what clients send."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from attacks.audit.setting import Setting
from secure_fd.aggregation.base import Stage, SumResult
from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray, UnitArray
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.plans import ClientPlan
from secure_fd.protection.client_unit import ClientUnit
from secure_fd.secagg.session import NO_NOISE, NoiseTerms


@dataclass(frozen=True, slots=True)
class StandInForMasks:
    """Says that it hides, as a masked sum does, and sums nothing: masks are not what is audited."""

    n_clients: int
    name: ClassVar[str] = "stand-in"
    guarantee: ClassVar[str] = "none: the auditor adds up what clients send"
    hides: ClassVar[bool] = True
    caveats: ClassVar[tuple[str, ...]] = ()

    def draw(self, round_index: int, population: int, count: int) -> IntArray | None:
        """Clients have no say."""
        del round_index, population, count
        return None

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """Raises LocalError: there are no masks here."""
        del round_index, vectors, bound, subject, dropouts, noise
        raise LocalError("a stand-in for masks sums nothing")


def masked_unit(setting: Setting, plan: ClientPlan, random: Random) -> ClientUnit:
    """A unit of any fleet that was told its votes are summed under masks."""
    unit = ClientUnit(setting.epsilon, setting.delta, plan, small_fleet=True, random=random)
    unit.check_sum(StandInForMasks(plan.clients))
    return unit
