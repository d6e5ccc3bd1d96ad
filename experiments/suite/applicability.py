"""What a scene reports where an attacker lacks what an attack needs."""

from collections.abc import Callable

from attacks.base import AttackResult
from experiments.results import NOT_APPLICABLE
from secure_fd.errors import MissingCapabilityError


def unless_missing(attack: Callable[[], AttackResult], also: str = "") -> AttackResult | str:
    """An attack's result, or which capability it lacks; `also` ends that sentence."""
    try:
        return attack()
    except MissingCapabilityError as missing:
        return f"{NOT_APPLICABLE}{missing}{also}"
