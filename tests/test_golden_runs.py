"""Runs of every method, with faults, masks and momentum, end where they always ended.

Norms of final weights, recorded when one object held all clients and no byte was sent; those of
Selective-FD again when its map became the one of patches, with the code before that. Floating
point differs from machine to machine, so four digits are compared; one step more, or a client that
forgets what it was sent while it was away, moves them further (see the mutants).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from experiments.core.variants import EvenClasses, WithoutSurvey
from secure_fd.data.federated import FederatedData
from secure_fd.methods.base import Method
from secure_fd.methods.ds_fl import DSFL
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pls import PLS
from secure_fd.methods.votes import VoteClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.federation import Federation
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.wire import Stage
from tests.small_federation import BRIEF, faults, participants

Norms = NDArray[np.float64]
PLAN = faults(
    {
        1: {2: Stage.PREPARE},
        2: {3: Stage.UNMASK},
        3: dict.fromkeys(range(3), Stage.PREPARE),  # too few are left: aborted
        4: {0: Stage.INPUT},
    }
)
FAST = replace(
    BRIEF, anneal_over=6, sgd=SGD(0.05, 16, 16, own_batch=4, momentum=0.9, smoothing=0.1)
)
SELECTOR = EvenClasses(reference=ReferenceSettings(n_features=2000))
BEFORE = partial(WithoutSurvey, selector=SELECTOR, bits=6)
"""Selective-FD without a survey, an estimated prior, and weights of rare classes."""
RUNS: Mapping[str, tuple[Method, Schedule]] = {
    "Selective-FD hard": (BEFORE("hard"), FAST),
    "Selective-FD soft": (BEFORE("soft"), BRIEF),
    "Selective-FD counted": (BEFORE("soft", votes="counted"), BRIEF),
    "FedMD": (FedMD("soft"), FAST),
    "DS-FL": (DSFL("soft"), BRIEF),
    "FedAvg": (FedAvg(), BRIEF),
    "FKD": (FKD(), BRIEF),
    "PLS": (PLS("hard"), BRIEF),
    "Independent": (Independent(), FAST),
}
GOLDEN: Mapping[tuple[str, bool], tuple[float, ...]] = {
    ("Selective-FD hard", False): (2.35473, 2.39223, 2.32033, 2.14538),
    ("Selective-FD soft", False): (2.40219, 2.40074, 2.53147, 2.43972),
    ("Selective-FD counted", False): (2.60965, 2.49469, 3.00218, 2.49470),
    ("FedMD", False): (2.30346, 2.33639, 2.20156, 2.26246),
    ("DS-FL", False): (2.25589, 2.06226, 2.44024, 2.32276),
    ("FedAvg", False): (2.09974,),
    ("FKD", False): (2.12477, 2.15898, 2.14993, 2.10858),
    ("PLS", False): (2.12477, 2.15898, 2.14993, 2.10858),
    ("Selective-FD hard", True): (2.35407, 2.39366, 2.32070, 2.08898),
    ("Selective-FD counted", True): (2.60965, 2.49469, 3.00218, 2.49470),
    ("FedMD", True): (2.30403, 2.33302, 2.20184, 2.23486),
    ("FedAvg", True): (2.02852,),
    ("Independent", False): (1.96115, 1.96699, 1.95378, 1.96236),
}
"""Norms by client, by name and whether sums are masked; of the global model for FedAvg."""
CLOSE = 2e-4


def norms(data: FederatedData, name: str, masked: bool, schedule: Schedule | None = None) -> Norms:
    method, steps = RUNS[name]
    apart = name in ("FedAvg", "FKD", "PLS", "Independent")
    made = Federation(
        *participants(data),
        None if apart else data.proxies.pixels,
        method,
        aggregation=MaskedSum(4, public_seed=0) if masked else None,
        schedule=schedule or steps,
        dropouts=PLAN if name in ("Selective-FD hard", "FedMD", "FedAvg") else None,
        device=torch.device("cpu"),
    )
    made.fit(6)
    if made.global_parameters is not None:
        return np.array([np.linalg.norm(made.global_parameters.astype(np.float64))])
    return np.array([float(flatten(model).double().norm()) for model in made.models])


@pytest.mark.parametrize(("name", "masked"), list(GOLDEN))
def test_a_run_ends_where_it_ended(digits, name, masked):
    assert norms(digits, name, masked) == pytest.approx(np.array(GOLDEN[name, masked]), rel=CLOSE)


@pytest.mark.parametrize("name", ["Selective-FD hard", "FedAvg", "DS-FL"])
def test_one_step_more_is_noticed(digits, name):
    steps = RUNS[name][1]
    longer = replace(steps, local_steps=steps.local_steps + 1)
    found, golden = norms(digits, name, False, longer), np.array(GOLDEN[name, False])
    assert np.abs(found / golden - 1).max() > 5 * CLOSE


def test_a_client_that_forgets_what_it_missed_is_noticed(digits, monkeypatch):
    monkeypatch.setattr(VoteClient, "missed", lambda self, begun, _: self._read(begun))
    found, golden = norms(digits, "FedMD", False), np.array(GOLDEN["FedMD", False])
    assert np.abs(found / golden - 1).max() > 5 * CLOSE
