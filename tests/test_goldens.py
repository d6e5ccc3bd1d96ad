"""Whole runs give what they gave: methods, sums and seeds, compared to four digits.

So do calibrated noise, what it costs, and the options of each command.

Floating point differs from machine to machine, so that a test image or two may change class.
"""

import json

import pytest

from tests.goldens import FILE, NOISE, OPTIONS, PLANS, cases, measured, noise_of, options_of

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
CASES = list(cases())


def test_every_run_has_a_golden_value():
    assert [name for name, *_ in CASES] == list(GOLDEN)


@pytest.mark.parametrize(
    ("name", "method", "sum_name", "seed"), CASES, ids=[name for name, *_ in CASES]
)
def test_a_run_gives_its_golden_values(name, method, sum_name, seed):
    found, golden = measured(method, sum_name, seed), GOLDEN[name]
    assert found.pop("accuracy") == pytest.approx(golden["accuracy"], abs=0.04)
    assert found.keys() < golden.keys()
    for figure, values in found.items():
        assert values == pytest.approx(golden[figure], rel=2e-4), figure


@pytest.mark.parametrize("name", PLANS)
def test_an_epsilon_gives_its_golden_noise(name):
    golden = json.loads(NOISE.read_text(encoding="utf-8"))[name]
    found = noise_of(*PLANS[name])
    assert found.keys() == golden.keys()
    for epsilon, pair in found.items():
        assert pair == pytest.approx(golden[epsilon], rel=1e-9)


@pytest.mark.parametrize("command", json.loads(OPTIONS.read_text(encoding="utf-8")))
def test_a_command_has_its_golden_options(command):
    golden = json.loads(OPTIONS.read_text(encoding="utf-8"))[command]
    assert golden
    assert options_of(command) == golden
