"""docs/audit.md names every audit and every mutation, and its example runs."""

import re
from pathlib import Path

import pytest

from attacks.audit.audits import AUDITS, MUTATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def test_the_example_proves_most_of_its_claim(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/audit.md", "exec"), {})  # noqa: S102 - our own page
    (found,) = re.findall(r"at least epsilon ([\d.]+)", capsys.readouterr().out)
    assert 2.4 <= float(found) <= 4.0


def test_every_audit_and_every_mutation_has_a_row() -> None:
    first = re.findall(r"^\| ([^|]+) \|", PAGE, flags=re.MULTILINE)
    assert set(AUDITS) <= set(first)
    assert {mutation.name for mutation in MUTATIONS} <= set(first)
