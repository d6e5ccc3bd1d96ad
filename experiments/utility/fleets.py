"""A cell of a fleet: records dealt to thousands of clients, one noisy sum, one student."""

import math
import time
from pathlib import Path

import numpy as np

from experiments.runs import Progress, federated_data
from experiments.utility.cells import Cell, FleetTerms
from experiments.utility.results import CellResult
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.data.partition import Split
from secure_fd.errors import LocalError
from secure_fd.fleet import (
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
from secure_fd.knowledge import IntArray
from secure_fd.privacy.calibration import epsilon as price
from secure_fd.privacy.release import ClientShares
from secure_fd.protection.client import ClientUnit
from secure_fd.selection.density import ReferenceSettings, Same, shared_reference
from secure_fd.training import accuracy


def prepare(data_dir: Path | None, cell: Cell, progress: Progress) -> FleetVotes:
    """Every client's votes about all proxies that any epsilon asks about, in a public order."""
    data, terms = _data(data_dir, cell), _terms(cell)
    records = concatenate([part for c in data.clients for part in (c.train, c.validation)])
    rng = np.random.default_rng([cell.seed, cell.clients])
    owners = deal(records.labels.numpy(), _split(cell), cell.clients, data.n_classes, rng)
    indices = rng.permutation(len(data.proxies))[: terms.most]
    reference, _ = shared_reference(Same(data.proxies.pixels), ReferenceSettings())
    return cast_votes(records, owners, reference, indices, progress)


def run_cell(
    data_dir: Path | None, cell: Cell, votes: FleetVotes, progress: Progress
) -> CellResult:
    """Release one noisy sum, train the student on it, test it."""
    start = time.process_time()
    data, terms = _data(data_dir, cell), _terms(cell)
    fleet = Fleet(
        clients=cell.clients,
        n_classes=data.n_classes,
        absent=math.floor(terms.absent * cell.clients),
        corrupt=math.floor(terms.corrupt * cell.clients),
        held=expected_classes(_split(cell), _records(data) / cell.clients, data.n_classes),
    )
    epsilon = math.inf if cell.epsilon is None else cell.epsilon
    plan = planned(fleet, epsilon, cell.delta, min(terms.most, len(votes.indices)))
    unit = ClientUnit(epsilon, cell.delta, plan, small_fleet=True)
    present = _present(cell, fleet.absent)
    sums = released_sums(votes, unit, present, lambda done: progress(done // 2))
    asked = votes.indices[: plan.proxies]
    student = learnt(
        data.proxies.pixels[asked[sums.kept]],
        sums.labels[sums.kept],
        data.n_classes,
        steps=terms.steps,
        seed=cell.seed,
        progress=lambda done: progress(50 + done // 2),
    )
    found = accuracy(student, data.test)
    claim = unit.guarantee()
    return CellResult(
        cell=cell,
        accuracy=found,
        per_client=[found],
        figures=_figures(
            sums, data.proxies.labels.numpy()[asked], unit, votes, present, cell.delta
        ),
        guarantee="No differential privacy: no noise is added."
        if claim is None
        else claim.sentence(),
        privacy=None if claim is None else claim.to_json(),
        seconds=time.process_time() - start,
    )


def _figures(
    sums: NoisySums,
    truth: IntArray,
    unit: ClientUnit,
    votes: FleetVotes,
    present: IntArray,
    delta: float,
) -> dict[str, float]:
    """What a reader needs to judge the noise; truth, and votes in clear, serve evaluation only."""
    plan, layout = unit.plan, sums.layout
    figures = {
        "released proxies": float(plan.proxies),
        "kept proxies": float(sums.kept.mean()),
        "noise multiplier": plan.noise,
        "deviation of the noise, votes": ClientShares(plan).deviation,
        "units in a vote": float(plan.scale),
        "variance of a share, units": plan.share_variance,
        "bits in a lane": float(layout.bits),
        "bytes up a client": 8.0 * layout.words(plan.proxies * plan.classes),
        "right labels without noise": _right_in_clear(votes, present, truth, plan.classes),
    }
    if unit.plan.noise > 0:  # sums are simulated in clear, where no claim holds
        figures["epsilon under masks"] = price(unit.plan, delta)
    if sums.kept.any():
        figures["right labels among kept"] = float((sums.labels == truth)[sums.kept].mean())
    return figures


def _right_in_clear(votes: FleetVotes, present: IntArray, truth: IntArray, n_classes: int) -> float:
    """Share of the asked proxies whose label would be right if all votes counted, without noise."""
    said = votes.labels[present][:, : len(truth)]
    tally = np.stack([(said == c).sum(axis=0) for c in range(n_classes)], axis=1)
    return float((tally.argmax(axis=1) == truth).mean())


def _present(cell: Cell, absent: int) -> IntArray:
    """The clients that are there: as many are missing as the noise provides for."""
    order = np.random.default_rng([cell.seed, cell.clients, 1]).permutation(cell.clients)
    return np.sort(order[absent:])


def _data(data_dir: Path | None, cell: Cell) -> FederatedData:
    """The image set as the other studies divide it; fleets deal its local records anew."""
    return federated_data(cell.image_set, data_dir, Split("strong"), 10, cell.seed)


def _records(data: FederatedData) -> int:
    """How many records there are to deal, which is public."""
    return sum(len(client.train) + len(client.validation) for client in data.clients)


def _split(cell: Cell) -> Dealt:
    return "strong" if cell.split == "strong" else "iid"


def _terms(cell: Cell) -> FleetTerms:
    if cell.fleet is None:
        raise LocalError("a cell of a federation has no fleet")
    return cell.fleet
