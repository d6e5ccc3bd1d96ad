"""The figures of docs/privacy.md are computed, not remembered."""

import re
from pathlib import Path

from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.events import Event
from secure_fd.privacy.guarantee import format_epsilon
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def calibrated(claimed: float) -> PooledPlan:
    plan = PooledPlan(clients=1, honest=1, entries=10_000)
    return plan.with_noise(calibrate(claimed, 1e-5, plan))


def cost(event: Event) -> float:
    return accountant_for(event).epsilon(event, 1e-5)


def of_answers(epsilon: float) -> float:
    """Epsilon of a client's 6,000 answers."""
    claim = RandomizedResponse(epsilon, 11).guarantee(releases=6000, delta=1e-5)
    return claim.composes_to[0].epsilon


def test_the_table_of_noise_multipliers():
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \| ([\d.]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    for z, claimed, replaced in rows:
        plan = calibrated(float(claimed))
        assert f"{plan.noise:.3f}" == z
        assert format_epsilon(cost(plan.moved_by(2.0))) == replaced


def test_the_costs_at_larger_units():
    assert f"| 6,000 | {format_epsilon(of_answers(4.0))} |" in PAGE
    (kept,) = re.findall(r"([\d.]+) an answer", PAGE)
    assert of_answers(float(kept) - 5e-4) < 4.0 < of_answers(float(kept) + 5e-4)
    on_paper = cost(calibrated(4.0).moved_by(5400.0)) / 1e6
    assert f"on paper ε would be {on_paper:.1f} million" in " ".join(PAGE.split())


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/privacy.md", "exec"), {})  # noqa: S102 - our own page
    shown = capsys.readouterr().out
    assert shown.startswith(
        "PooledPlan 1.081 4.00\nTrainingPlan 0.710 4.00\nClientPlan 3.419 4.00\n"
    )
    assert "deniability of a single answer" in shown
