"""Whole runs give what they gave: methods, sums and seeds, compared to four digits.

Floating point differs from machine to machine, so that a test image or two may change class.
"""

import json

import pytest

from secure_fd.federation import AnyMethod
from tests.goldens import FILE, cases, measured

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
CASES = list(cases())


def test_every_run_has_a_golden_value() -> None:
    assert [name for name, *_ in CASES] == list(GOLDEN)


@pytest.mark.parametrize(
    ("name", "method", "sum_name", "seed"), CASES, ids=[name for name, *_ in CASES]
)
def test_a_run_gives_its_golden_values(
    name: str, method: AnyMethod, sum_name: str, seed: int
) -> None:
    found, golden = measured(method, sum_name, seed), GOLDEN[name]
    assert found.pop("accuracy") == pytest.approx(golden["accuracy"], abs=0.04)
    assert found.keys() < golden.keys()
    for figure, values in found.items():
        assert values == pytest.approx(golden[figure], rel=2e-4), figure
