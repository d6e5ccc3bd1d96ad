"""The build fails if membership inference on the federation exceeds the limit."""

from collections.abc import Callable

import pytest
from federation import protected, unprotected

LIMIT = 0.62
"""Mean AUC of five other seeds, 0.57, and the tolerance of the how-to."""


def test_members_stay_hidden(leakage_budget: Callable[..., object]) -> None:
    """The federation that runs in production stays below the limit."""
    leakage_budget(protected, members=LIMIT)


def test_the_game_sees_a_leak(leakage_budget: Callable[..., object]) -> None:
    """The same federation without protection exceeds it: the game can detect a leak."""
    with pytest.raises(pytest.fail.Exception, match="AUC"):
        leakage_budget(unprotected, members=LIMIT)
