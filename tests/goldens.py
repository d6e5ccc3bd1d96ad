"""Golden values of whole runs: what a move of code must not change.

    python -m tests.goldens

writes tests/golden/runs.json anew. Only a commit that says why may do so.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from secure_fd.aggregation.base import SecureSum
from secure_fd.aggregation.homomorphic import HomomorphicSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.aggregation.prio3 import Prio3Sum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.federation import AnyMethod, Federation
from secure_fd.methods.registry import METHODS
from secure_fd.methods.registry import load as load_method
from secure_fd.models import flatten
from secure_fd.recipes import Sizes
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import BRIEF, CPU, participants

FILE = Path(__file__).parent / "golden" / "runs.json"
SEEDS = (0, 1)
ROUNDS = 2
SUMS: Mapping[str, Callable[[], SecureSum | None]] = {
    "plain": lambda: None,
    "masks": lambda: MaskedSum(4, public_seed=0),
    "he": lambda: HomomorphicSum(4),
    "prio3": lambda: Prio3Sum(4),
}
Golden = dict[str, float | list[float]]


def data_of(seed: int) -> FederatedData:
    """Four clients with two or three classes each."""
    sizes = Sizes(proxies=20, test=6, held_out=4, local=24)
    return federate(load("digits"), parse_split("weak"), 4, seed=seed, sizes=sizes)


def methods() -> Iterator[tuple[str, AnyMethod]]:
    """Every method that runs on four small networks, with each kind of labels."""
    for name in METHODS:
        if name == "dafkd":
            yield name, SmallDaFKD()
        elif name not in ("feddf", "feded"):  # the first is DaFKD's code, the other is a long run
            kinds = ("hard", "soft") if METHODS[name].labels else (None,)
            for labels in kinds:
                made = load_method(name)
                yield f"{name} {labels or ''}".strip(), made(labels) if labels else made()


def cases() -> Iterator[tuple[str, AnyMethod, str, int]]:
    """(name, method, sum, seed) of every golden run."""
    for name, method in methods():
        for sum_name in SUMS if name == "selective-fd hard" else ("plain", "masks"):
            for seed in SEEDS if sum_name in ("plain", "masks") else SEEDS[:1]:
                yield f"{name} / {sum_name} / {seed}", method, sum_name, seed


def measured(method: AnyMethod, sum_name: str, seed: int) -> Golden:
    """Figures of a run; sums over all entries of an array stand for the array."""
    data = data_of(seed)
    asks = getattr(method, "needs_proxies", True)
    run = Federation(
        participants(data, seed),
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
        "ensembles": [_summed(r.ensemble.predictions) for r in seen.distillation],
        "parameters": [_summed(r.parameters) for r in rounds],
    }


def _summed(values: np.typing.NDArray[np.generic]) -> float:
    """A weighted sum of squares: a moved or exchanged entry changes it."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return float(flat**2 @ (1 + np.arange(flat.size) % 7))


def main() -> int:
    """Write all golden values."""
    found = {name: measured(method, *rest) for name, method, *rest in cases()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
