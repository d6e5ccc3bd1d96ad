"""Check a federation's leakage of members. Exit status 0: within the limit, 1: above, 2: unknown.

python experiments/check.py --method selective-fd-hard --masks --fail-if "members>0.62"
python experiments/check.py --factory my_module:my_factory --fail-if "members>0.65"

Eight small federations of scikit-learn's digits differ in which half of the candidates took part,
and each is attacked with the others as shadows: see docs/howto/leakage_in_ci.md.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

import tyro

from experiments.core.run_config import own_function
from secure_fd.cli import exit_status
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.membership.budgets import Factory

_CONDITION = re.compile(r"members\s*>\s*(0?\.\d{1,6}|1(?:\.0{1,6})?)")
EXCEEDED = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """Play a membership game of eight runs and compare its figure with a limit."""

    fail_if: str
    """Condition of exit status 1, such as "members>0.65": the AUC of membership inference."""
    method: str = "selective-fd-hard"
    """fedavg, fedmd-soft, selective-fd-soft, selective-fd-hard or pooled-heads."""
    masks: bool = False
    """Sum under masks."""
    dp_eps: float | None = None
    """Epsilon of one answer for methods that vote, of one record for fedavg and pooled-heads."""
    factory: str | None = None
    """module:function that makes a user-supplied federation, in place of a method."""
    seed: int = 0
    """Seed of coins, training and noise."""
    runs: int = 8
    """Number of federations in the game: even, 6 or more."""


def limit_of(condition: str) -> float:
    """The largest AUC that a condition lets pass; ConfigurationError for another condition.

    >>> limit_of("members>0.65")
    0.65
    """
    found = _CONDITION.fullmatch(condition.strip())
    if found is None:
        raise ConfigurationError("fail_if", condition, 'use "members>NUMBER", such as members>0.65')
    return float(found[1])


def name_of(settings: Settings) -> str:
    """The row that was asked for, as the verdict names it.

    >>> name_of(Settings("members>0.6", "fedavg", masks=True, dp_eps=4.0))
    'fedavg + masks + ε = 4'
    """
    epsilon = "" if settings.dp_eps is None else f" + ε = {settings.dp_eps:g}"
    return settings.method + " + masks" * settings.masks + epsilon


def check(settings: Settings) -> int:
    """Play the game, print the figure in one line, and return the exit status."""
    limit = limit_of(settings.fail_if)
    place = settings.factory
    own = cast("Factory", own_function("factory", place)) if place else None

    from attacks.membership.budgets import LeakageBudget, LeakageError
    from experiments.compare import games

    name = place or ""
    if own is None:
        asked = games.asked(settings.method, masks=settings.masks, epsilon=settings.dp_eps)
        own, name = games.factory(asked), name_of(settings)
    game = games.game(settings.seed, settings.runs)
    game.check_limit(limit)
    found = game.play(own)
    try:
        LeakageBudget(name, limit).check(found)
    except LeakageError as exceeded:
        print(exceeded)
        return EXCEEDED
    low, high = found.interval
    print(
        f"{name}: membership inference reaches AUC {found.figure:.3f} "
        f"[{low:.3f}, {high:.3f}] by {found.name}; {limit:.3f} is allowed"
    )
    return 0


def main(arguments: Sequence[str] | None = None, prog: str = "check.py") -> int:
    """Parse and check; returns the exit status."""
    settings = tyro.cli(Settings, args=arguments, prog=prog)
    options = {option.name for option in fields(Settings)}
    return exit_status(lambda: check(settings), interrupted="nothing was decided", options=options)


if __name__ == "__main__":
    raise SystemExit(main())
