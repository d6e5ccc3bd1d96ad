"""A fleet's cell: records dealt to thousands of clients, one noisy sum, one student."""

import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from experiments.core.measures import ACCURACY, BYTES_UP, KEPT_ONCE, RIGHT_ONCE
from experiments.core.rows import Cell, Privacy
from experiments.core.runs import federated_data
from experiments.core.study import Result
from experiments.rivals.fleet import (
    Dealt,
    Fleet,
    FleetVotes,
    NoisySums,
    cast_votes,
    deal,
    expected_classes,
    learnt,
    planned,
    released_sums,
)
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.data.partition import Split
from secure_fd.errors import LocalError
from secure_fd.privacy.calibration import epsilon as price
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.selection.density_ratio import ReferenceSettings, shared_reference
from secure_fd.training.trainer import accuracy
from secure_fd.votes.codec import IntArray

CORRUPT = 0.1
"""Share of the clients that give no noise of their own."""


def fleet_votes(data_dir: Path | None, cell: Cell) -> FleetVotes:
    """Every client's votes about all proxies that any epsilon asks about, in a public order."""
    data = _data(data_dir, cell)
    records = concatenate([part for c in data.clients for part in (c.train, c.validation)])
    rng = np.random.default_rng([cell.seed, cell.clients])
    owners = deal(records.labels.numpy(), _split(cell), cell.clients, data.n_classes, rng)
    indices = rng.permutation(len(data.proxies))[: cell.schedule.proxies_per_round]
    reference = shared_reference(data.proxies.pixels, ReferenceSettings())
    return cast_votes(records, owners, reference, indices)


def run_fleet(data_dir: Path | None, cell: Cell, parts: Mapping[Cell, FleetVotes]) -> Result:
    """Release one noisy sum, train the student on it, test it."""
    start, data, (votes,) = time.process_time(), _data(data_dir, cell), parts.values()
    plan, unit = _unit(data_dir, cell, votes)
    present = _present(cell)
    sums = released_sums(votes, plan, unit, present)
    asked = votes.indices[: plan.proxies]
    student = learnt(
        data.proxies.pixels[asked[sums.kept]],
        sums.labels[sums.kept],
        data.n_classes,
        steps=cell.schedule.proxy_steps,
        seed=cell.seed,
    )
    found, claim = accuracy(student, data.test), None if unit is None else unit.guarantee()
    figures = _figures(sums, data.proxies.labels.numpy()[asked], plan, votes, present)
    if unit is not None:  # sums are simulated in clear, where no claim holds
        figures["epsilon under masks"] = price(plan, _privacy(cell).delta)
    sentence = "No differential privacy: no noise is added." if claim is None else claim.sentence()
    return Result(
        cell=cell,
        figures={ACCURACY: found, **figures},
        seconds=time.process_time() - start,
        per_client=(found,),
        notes={"guarantee": sentence, "privacy": None if claim is None else claim.to_json()},
    )


def _unit(
    data_dir: Path | None, cell: Cell, votes: FleetVotes
) -> tuple[ClientPlan, ClientUnit | None]:
    """Plan of the fleet's noise, with some clients away and some corrupt; no unit without noise."""
    data, chosen = _data(data_dir, cell), _privacy(cell)
    records = sum(len(client.train) + len(client.validation) for client in data.clients)
    fleet = Fleet(
        clients=cell.clients,
        n_classes=data.n_classes,
        absent=_absent(cell),
        corrupt=math.floor(CORRUPT * cell.clients),
        held=expected_classes(_split(cell), records / cell.clients, data.n_classes),
    )
    epsilon = math.inf if chosen.epsilon is None else chosen.epsilon
    plan = planned(fleet, epsilon, chosen.delta, len(votes.indices))
    if chosen.epsilon is None:
        return plan, None
    unit = ClientUnit(epsilon, chosen.delta, plan, small_fleet=chosen.small_fleet)
    return unit.plan, unit


def _figures(
    sums: NoisySums, truth: IntArray, plan: ClientPlan, votes: FleetVotes, present: IntArray
) -> dict[str, float]:
    """What a reader needs to judge the noise; truth, and votes in clear, serve evaluation only."""
    layout = sums.layout
    figures = {
        "released proxies": float(plan.proxies),
        KEPT_ONCE: float(sums.kept.mean()),
        "noise multiplier": plan.noise,
        "deviation of the noise, votes": math.sqrt(plan.sum_variance) / plan.scale,
        "units in a vote": float(plan.scale),
        "variance of a share, units": plan.share_variance,
        "bits in a lane": float(layout.bits),
        BYTES_UP: 8.0 * layout.words(plan.proxies * plan.classes),
        "right labels without noise": _right_in_clear(votes, present, truth, plan.classes),
    }
    if sums.kept.any():
        figures[RIGHT_ONCE] = float((sums.labels == truth)[sums.kept].mean())
    return figures


def _right_in_clear(votes: FleetVotes, present: IntArray, truth: IntArray, n_classes: int) -> float:
    """Share of the asked proxies whose label would be right if all votes counted, without noise."""
    said = votes.labels[present][:, : len(truth)]
    tally = np.stack([(said == c).sum(axis=0) for c in range(n_classes)], axis=1)
    return float((tally.argmax(axis=1) == truth).mean())


def _privacy(cell: Cell) -> Privacy:
    if cell.privacy is None:
        raise LocalError("a fleet needs a client unit")
    return cell.privacy


def _absent(cell: Cell) -> int:
    return math.floor(cell.drop * cell.clients)


def _present(cell: Cell) -> IntArray:
    """The clients that are there: as many are missing as the noise provides for."""
    order = np.random.default_rng([cell.seed, cell.clients, 1]).permutation(cell.clients)
    return np.sort(order[_absent(cell) :])


def _data(data_dir: Path | None, cell: Cell) -> FederatedData:
    """The image set as the other studies divide it; fleets deal its local records anew."""
    return federated_data(cell.image_set, data_dir, Split("strong"), 10, cell.seed)


def _split(cell: Cell) -> Dealt:
    return "strong" if cell.split == "strong" else "iid"
