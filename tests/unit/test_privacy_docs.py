"""The figures of docs/privacy.md are computed, not remembered."""

import re
from pathlib import Path

import pytest

from secure_fd.privacy.accounting import (
    REPLACE_ONE,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    response_calibration,
    response_epsilon,
)
from secure_fd.privacy.units import figure

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")


def test_the_table_of_noise_multipliers() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \| ([\d.]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    for z, epsilon, replaced in rows:
        exact = gaussian_noise_multiplier(float(epsilon), 1e-5)
        assert f"{exact:.3f}" == z
        assert figure(gaussian_epsilon(exact, 1e-5, REPLACE_ONE)) == replaced


def test_the_costs_at_larger_units() -> None:
    assert f"| 6,000 | {figure(response_epsilon(4, 11, 6000, 1e-5))} |" in PAGE
    assert f"{response_calibration(4, 11, 6000, 1e-5):.3f} an answer" in PAGE
    client = gaussian_epsilon(gaussian_noise_multiplier(4, 1e-5), 1e-5, 5400)
    assert f"about ε = {client / 1e6:.1f} million" in PAGE


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/privacy.md", "exec"), {})  # noqa: S102 - our own page
    shown = capsys.readouterr().out
    assert shown.startswith("1.158 4.0\n")
    assert "deniability of a single answer" in shown
