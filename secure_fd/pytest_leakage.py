"""Pytest plugin: leakage budgets for a user's own federation (docs/howto/leakage_in_ci.md).

    def test_my_federation(leakage_budget):
        leakage_budget(my_factory, members=0.65)

PyTorch and `attacks` are imported by the fixtures alone. In a project with another package
`attacks` the fixtures fail, and its other tests run.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from secure_fd.errors import SecureFDError
from secure_fd.optional import import_ours


class BudgetFixture:
    """Run each factory once a session, for any number of tests."""

    def __init__(self, game: Any) -> None:  # noqa: ANN401 - an `attacks.membership.budgets.LeakageGame`
        self.game = game
        self._found: dict[Callable[..., Any], Any] = {}

    def __call__(
        self, factory: Callable[..., Any], *, members: float, tolerance: float = 0.0, row: str = ""
    ) -> Any:  # noqa: ANN401 - an `attacks.core.base.AttackResult`
        """Fail the test where membership inference has an AUC above members + tolerance.

        A factory whose runs show nothing to attack fails too, and so does a limit that chance would
        exceed.

        Args:
            factory: makes the federation.
            members: the AUC that is allowed.
            tolerance: what chance may add.
            row: name of the federation in the message; by default the factory's own.
        """
        try:
            budget = _budgets().LeakageBudget(row or _name(factory), members, tolerance)
            self.game.check_limit(budget.limit)
            if factory not in self._found:
                self._found[factory] = self.game.play(factory)
            budget.check(self._found[factory])
        except SecureFDError as error:
            pytest.fail(str(error), pytrace=False)
        return self._found[factory]


def _budgets() -> ModuleType:
    """The leakage budgets; the test fails where another package `attacks` comes first."""
    try:
        return import_ours("attacks.membership.budgets")
    except SecureFDError as error:
        pytest.fail(str(error), pytrace=False)


def _name(factory: object) -> str:
    inner = getattr(factory, "func", factory)
    return str(getattr(inner, "__name__", type(inner).__name__))


@pytest.fixture(scope="session")
def leakage_game() -> Any:  # noqa: ANN401 - an `attacks.membership.budgets.LeakageGame`
    """Eight runs on scikit-learn's digits; override it in conftest.py to use other records."""
    budgets = _budgets()
    return budgets.LeakageGame.of(budgets.bundled_digits().clients)


@pytest.fixture(scope="session")
def leakage_budget(leakage_game: Any) -> BudgetFixture:  # noqa: ANN401 - of `leakage_game`
    """Callable: factory, members=AUC that is allowed, tolerance=what chance may add."""
    return BudgetFixture(leakage_game)
