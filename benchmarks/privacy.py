"""How long privacy takes: a calibration has 2 s, a million samples of noise .5 s, of one core.

Prints each time as a ratio to its limit, and ends with 1 where one is above it. Run it with
`python benchmarks/privacy.py`. Times are CPU seconds; the least of three for the samplers, and the
first and only for a calibration, whose result is remembered. Importing the accountant's library is
not counted.
"""

import os
import sys
from collections.abc import Callable

from cells import Meter
from secure_fd.privacy.calibration import calibrate
from secure_fd.privacy.plans import ClientPlan, LabelPlan, Plan, RecordPlan, TrainingPlan
from secure_fd.privacy.release import UNIT
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.privacy.samplers import discrete_gaussian

CALIBRATION_S = 2.0
SAMPLING_S = 0.5
DELTA = 1e-5
MILLION = 1_000_000
EPSILONS = (1.0, 4.0, 8.0)
PLANS: tuple[tuple[str, Plan], ...] = (
    ("record", RecordPlan(5400)),
    ("label, one answer", LabelPlan(11)),
    ("label, 6,000 answers", LabelPlan(11, releases=6000)),
    ("training, 64 of 300, 330 steps", TrainingPlan(300, 64, 330)),
    ("training, 64 of 5,400, 1,100 steps", TrainingPlan(5400, 64, 1100)),
    ("client, 1,000, 60 rounds", ClientPlan(1000, 512, 60, 10, absent=100)),
)


def samplers() -> dict[str, Callable[[], object]]:
    """A million values each, at the sizes of noise that the plans ask for."""
    answers = RandomizedResponse(4.0, 11)
    truth = discrete_gaussian(1.0, MILLION, os.urandom) % 11
    return {
        "discrete Gaussian, .8": lambda: discrete_gaussian(0.8, MILLION, os.urandom),
        "discrete Gaussian, 2": lambda: discrete_gaussian(2.0, MILLION, os.urandom),
        "discrete Gaussian, 1.158 x 2^16": lambda: discrete_gaussian(
            1.158 * UNIT, MILLION, os.urandom
        ),
        "randomised response": lambda: answers.respond(truth, os.urandom),
    }


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    meter = Meter()
    with meter:
        work()
    return meter.seconds


def report(name: str, took: float, limit: float) -> bool:
    """Print a line; whether the time is within the limit."""
    print(f"{name:45} {took:7.3f} s   {took / limit:6.3f} of the limit")
    return took <= limit


def main() -> int:
    """Time everything once."""
    calibrate(1.0, DELTA, TrainingPlan(10, 5, 2))  # loads the accountant's library
    kept = [
        report(
            f"{name}, epsilon {epsilon:g}",
            seconds(lambda e=epsilon, p=plan: calibrate(e, DELTA, p)),  # type: ignore[misc]
            CALIBRATION_S,
        )
        for name, plan in PLANS
        for epsilon in EPSILONS
    ]
    for name, draw in samplers().items():
        kept.append(report(name, min(seconds(draw) for _ in range(3)), SAMPLING_S))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
