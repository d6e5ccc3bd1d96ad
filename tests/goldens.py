"""Golden values of runs, of noise and of command lines: what a move of code must not change.

    python -m tests.goldens

writes tests/golden/runs.json, noise.json and options.json anew. Only a commit that says why may do
so.
"""

import contextlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np

from experiments.core.run_config import KNOWN
from secure_fd import cli
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.base import Method
from secure_fd.methods.registry import load as load_method
from secure_fd.privacy.accountants import cost
from secure_fd.privacy.calibration import Plan, calibrate, least_noise
from secure_fd.privacy.calibration import epsilon as cost_of
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import TrainingPlan
from secure_fd.privacy.events import Repeated, Response
from secure_fd.privacy.record import PooledPlan
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.homomorphic import HomomorphicSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import BRIEF, CPU, participants

FOLDER = Path(__file__).parent / "golden"
FILE, NOISE, OPTIONS = (FOLDER / f"{name}.json" for name in ("runs", "noise", "options"))
SEEDS = (0, 1)
ROUNDS = 2
SUMS: Mapping[str, Callable[[], SecureSum | None]] = {
    "plain": lambda: None,
    "masks": lambda: MaskedSum(4, public_seed=0),
    "he": lambda: HomomorphicSum(4),
    "prio3": lambda: Prio3Sum(4),
}
DELTA = 1e-5
EPSILONS = (0.5, 1.0, 4.0, 8.0)
PLANS: Mapping[str, tuple[Plan | int, float]] = {
    "label": (1, 0.0),
    "label, 200 answers": (200, DELTA),
    "client": (ClientPlan(clients=20, proxies=8, rounds=2, classes=10, absent=4, corrupt=2), DELTA),
    "pooled record": (PooledPlan(clients=10, honest=4, corrupt=3, entries=10_000), DELTA),
    "pooled record, 4 sums": (PooledPlan(clients=10, honest=4, entries=10_000, sums=4), DELTA),
    "local record": (PooledPlan(clients=10, honest=1, entries=10_000, sums=2), DELTA),
    "dp-sgd": (TrainingPlan(n_records=300, batch=30, steps=100), DELTA),
}
"""Privacy unit -> its plan, or the number of noisy answers, and the delta of its claim."""
SYMBOLS = 11
HELP = ("", "compare", "audit", "suite", "check", "serve", "join")
HELP_OF_SITE = ("site init", "site roster", "site check")
Golden = dict[str, float | list[float]]


@cache
def data_of(seed: int) -> FederatedData:
    """Four clients with two or three classes each."""
    sizes = Sizes(proxies=20, test=6, held_out=4, local=24)
    return federate(load("digits"), parse_split("weak"), 4, seed=seed, sizes=sizes)


def methods() -> Iterator[tuple[str, Method]]:
    """Every method that runs on four small networks, with each kind of labels."""
    for name in KNOWN:
        if name == "dafkd":
            yield name, SmallDaFKD()
        elif name not in ("feddf", "feded"):  # the first is DaFKD's code, the other is a long run
            kinds = ("hard", "soft") if KNOWN[name].labels else (None,)
            for labels in kinds:
                made = load_method(name)
                yield f"{name} {labels or ''}".strip(), made(labels) if labels else made()


def cases() -> Iterator[tuple[str, Method, str, int]]:
    """(name, method, sum, seed) of every golden run."""
    for name, method in methods():
        for sum_name in SUMS if name == "selective-fd hard" else ("plain", "masks"):
            for seed in SEEDS if sum_name in ("plain", "masks") else SEEDS[:1]:
                yield f"{name} / {sum_name} / {seed}", method, sum_name, seed


def measured(method: Method, sum_name: str, seed: int) -> Golden:
    """Figures of a run; sums over all entries of an array stand for the array."""
    data = data_of(seed)
    asks = getattr(method, "needs_proxies", True)
    run = Federation(
        *participants(data, seed),
        data.proxies.pixels if asks else None,
        method,
        aggregation=SUMS[sum_name](),
        schedule=BRIEF,
        seed=seed,
        device=CPU,
    )
    reports = run.fit(ROUNDS)
    seen = run.transcript
    rounds = [*seen.parameters, *seen.heads]
    return {
        "accuracy": run.accuracies(data.test),
        "kept": [report.kept for report in reports],
        "networks": [_summed(flatten(network).numpy()) for network in run.models],
        "ensembles": [_summed(r.result.predictions) for r in seen.distillation],
        "parameters": [_summed(r.result) for r in rounds],
    }


def _summed(values: np.typing.NDArray[np.generic]) -> float:
    """A weighted sum of squares: a moved or exchanged entry changes it."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return float(flat**2 @ (1 + np.arange(flat.size) % 7))


def noise_of(plan: Plan | int, delta: float) -> dict[str, list[float]]:
    """Epsilon -> its noise, and what that noise costs; of answers, how many are not the truth."""
    found, blind = {}, 1 - 1 / SYMBOLS

    def price(wrong: float) -> float:
        odds = max(0.0, math.log((SYMBOLS - 1) * (1 - wrong) / wrong))
        return cost(Repeated(Response(odds, SYMBOLS), cast("int", plan)), delta)

    for epsilon in EPSILONS:
        if isinstance(plan, Plan):
            noise = calibrate(epsilon, delta, plan)
            found[str(epsilon)] = [noise, cost_of(plan.with_noise(noise), delta)]
        else:
            noise = least_noise(price, epsilon, blind / 2, slack=1e-9, most=blind)
            found[str(epsilon)] = [noise, price(noise)]
    return found


def options_of(command: str) -> list[str]:
    """The options that the help of a command lists, or the commands where there is none."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        cli.main([*command.split(), "--help"])
    pattern = r"(?<![\w-])--[a-z][\w-]*" if command else r"^  (\w+)"
    return sorted(set(re.findall(pattern, shown.getvalue(), re.MULTILINE)))


def main() -> int:
    """Write all golden values."""
    runs = {name: measured(method, *rest) for name, method, *rest in cases()}
    noise = {name: noise_of(*plan) for name, plan in PLANS.items()}
    options = {command: options_of(command) for command in (*HELP, *HELP_OF_SITE)}
    for file, found in ((FILE, runs), (NOISE, noise), (OPTIONS, options)):
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{file.name}: {len(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
