"""Two worlds, many trials each: choose an attack on the first part, prove a bound on the rest."""

from dataclasses import dataclass, field

import numpy as np

from attacks.audit.bounds import Errors, Shape, any_shape, separation
from attacks.audit.finding import Proof
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray

PRACTICE = 0.2
"""Share of the trials on which the attack is chosen; they prove nothing."""
_HASTE = 1e-4  # strict, since the best of a hundred candidates is taken
_THRESHOLDS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Worlds:
    """What an observer computes from each trial, where the unit is absent and where it is there.

    without, present: [N, S], one column a statistic. names: [S].
    """

    names: tuple[str, ...]
    without: FloatArray = field(repr=False)
    present: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        width = len(self.names)
        if self.without.shape[1:] != (width,) or self.present.shape[1:] != (width,):
            raise LocalError(f"worlds of {width} statistics need arrays [N, {width}]")


def by_inclusion(name: str, scores: FloatArray, included: FloatArray) -> Worlds:
    """The worlds of canaries that are each a trial: one score [m] and a coin [m] apiece."""
    return Worlds((name,), scores[included == 0, None], scores[included == 1, None])


@dataclass(frozen=True, slots=True)
class Attack:
    """Says "present" where sign * statistic is above sign * threshold."""

    statistic: int
    sign: float
    threshold: float

    def errors(self, worlds: Worlds) -> Errors:
        """How it errs; what lies on the threshold counts as absent."""
        flagged = [
            int(np.count_nonzero(self.sign * part[:, self.statistic] > self.sign * self.threshold))
            for part in (worlds.without, worlds.present)
        ]
        without, present = len(worlds.without), len(worlds.present)
        return Errors(flagged[0], present - flagged[1], without, present)


def prove(worlds: Worlds, shape: Shape, miss: float, choose: Shape = separation) -> Proof:
    """The bound of the attack that did best in practice; wrong with probability at most `miss`.

    Statistic, direction and threshold are chosen on the first part of both worlds, and the bound
    comes from the rest alone: choosing on the data of the proof would prove too much.
    choose: what the choice goes by; any is sound.
    """
    practice, rest = _split(worlds)
    attack = max(_candidates(practice), key=lambda a: _promise(a, practice, choose))
    errors = attack.errors(rest)
    nothing = Errors(0, 0, errors.without, errors.present)
    return Proof(
        bound=shape(*errors.at_most(miss)),
        ceiling=shape(*nothing.at_most(miss)),
        attack=f"{worlds.names[attack.statistic]} {'>' if attack.sign > 0 else '<'} "
        f"{attack.threshold:.3g}",
        trials=errors.without + errors.present,
    )


def prove_shaped(
    worlds: Worlds, shape: Shape, delta: float, miss: float
) -> tuple[Proof, tuple[tuple[str, float]]]:
    """The sharper bound of a claimed shape, and the one that needs no shape to print beside it."""
    plain = prove(worlds, any_shape(delta), miss, any_shape(delta))
    return prove(worlds, shape, miss), (("no shape assumed", plain.bound),)


def _split(worlds: Worlds) -> tuple[Worlds, Worlds]:
    cut = [int(PRACTICE * len(part)) for part in (worlds.without, worlds.present)]
    first = Worlds(worlds.names, worlds.without[: cut[0]], worlds.present[: cut[1]])
    return first, Worlds(worlds.names, worlds.without[cut[0] :], worlds.present[cut[1] :])


def _candidates(practice: Worlds) -> list[Attack]:
    """Every statistic, both directions, thresholds spread over what was seen."""
    spread = np.linspace(0.0, 1.0, _THRESHOLDS)
    found = []
    for statistic in range(len(practice.names)):
        seen = np.concatenate([practice.without[:, statistic], practice.present[:, statistic]])
        for threshold in np.unique(np.quantile(seen, spread)):
            found += [Attack(statistic, sign, float(threshold)) for sign in (1.0, -1.0)]
    return found


def _promise(attack: Attack, practice: Worlds, shape: Shape) -> float:
    """What the attack would prove here; the sharper of equals has fewer errors."""
    errors = attack.errors(practice)
    rates = errors.false_alarms / errors.without + errors.misses / errors.present
    return shape(*errors.at_most(_HASTE)) - 1e-9 * rates
