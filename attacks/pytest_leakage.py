"""The pytest plugin: budgets of leakage for one's own federation; see docs/leakage_tests.md.

    def test_my_federation(leakage_budget):
        leakage_budget(my_factory, members=0.65)

It costs nothing until a test asks for a fixture: PyTorch is imported by the fixtures alone.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from attacks.base import AttackResult
    from attacks.budgets import Factory, LeakageGame


class BudgetFixture:
    """Plays each factory once a session, however many tests bound it."""

    def __init__(self, game: "LeakageGame") -> None:
        self.game = game
        self._found: dict[Factory, AttackResult] = {}

    def __call__(
        self, factory: "Factory", *, members: float, tolerance: float = 0.0, row: str = ""
    ) -> "AttackResult":
        """Fail the test where members are told with an AUC above members + tolerance.

        row: names the federation in the sentence; by default the factory's own name. A factory
        whose runs show nothing to attack fails too, and so does a limit that chance would exceed.
        """
        from attacks.budgets import LeakageBudget
        from secure_fd.errors import SecureFDError

        try:
            budget = LeakageBudget(row or _name(factory), members, tolerance)
            self.game.check_limit(budget.limit)
            if factory not in self._found:
                self._found[factory] = self.game.play(factory)
            budget.check(self._found[factory])
        except SecureFDError as error:
            pytest.fail(str(error), pytrace=False)
        return self._found[factory]


def _name(factory: object) -> str:
    inner = getattr(factory, "func", factory)
    return str(getattr(inner, "__name__", type(inner).__name__))


@pytest.fixture(scope="session")
def leakage_game() -> "LeakageGame":
    """Eight runs on scikit-learn's digits; override it in conftest.py to use one's own records."""
    from attacks.budgets import LeakageGame, bundled_digits

    return LeakageGame.of(bundled_digits().clients)


@pytest.fixture(scope="session")
def leakage_budget(leakage_game: "LeakageGame") -> BudgetFixture:
    """Callable: factory, members=AUC that is allowed, tolerance=what chance may add."""
    return BudgetFixture(leakage_game)
