"""What a privacy unit costs: a federation of few clients, or one noisy sum over a fleet."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments import runs
from experiments.definitions import dispatched
from experiments.measures import (
    ACCURACY,
    AUROC_CLASS,
    BYTES_UP,
    KEPT_LAST,
    KEPT_ONCE,
    RIGHT_LAST,
    RIGHT_ONCE,
)
from experiments.rows import RowSpec, Terms
from experiments.runs import federated_data
from experiments.study import Progress, Result
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.data.partition import Split, parse_split
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
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.client import ClientUnit
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.selection.density import ReferenceSettings, Same, shared_reference
from secure_fd.training import accuracy

if TYPE_CHECKING:
    from experiments.dp_utility import Cell, FleetTerms

_HARD = RowSpec("selective-fd", "hard")
_LAST_ROUND = {
    "kept proxies": KEPT_LAST,
    "right labels among kept": RIGHT_LAST,
    "selector AUROC": AUROC_CLASS,
}
"""Names of a row's diagnostics, where the study has more exact ones."""


# Few clients.


def warm_up(data_dir: Path | None, cell: "Cell", progress: Progress) -> runs.WarmUp:
    """The warm-up that all units and epsilons of a place and seed share."""
    share = 100 / cell.clients
    return runs.warm_up(_row(data_dir, cell), cell.seed, lambda done: progress(int(share * done)))


def run_federation(
    data_dir: Path | None, cell: "Cell", warm: runs.WarmUp, progress: Progress
) -> Result:
    """Train and test one cell. Sums are in clear: masks change no bit of them."""
    share = 100 / cell.rounds
    made = runs.run_row(
        _row(data_dir, cell),
        _HARD,
        cell.seed,
        warm,
        lambda done: progress(int(share * done)),
        chosen=_protection(cell),
    )
    return Result(
        cell=cell,
        figures={
            ACCURACY: float(np.mean(made.accuracies)),
            **{_LAST_ROUND.get(name, name): v for name, v in made.diagnostics.items()},
            BYTES_UP: float(made.transcript.up.mean()),
        },
        seconds=made.seconds - warm.seconds,
        per_client=tuple(made.accuracies),
        notes={
            "guarantee": made.guarantee,
            "privacy": None if made.privacy is None else made.privacy.to_json(),
        },
    )


def _row(data_dir: Path | None, cell: "Cell") -> Terms:
    """The terms of a row of the comparison, with the cell's own schedule."""
    if cell.schedule is None:
        raise LocalError("a cell of a fleet has no federation")
    return Terms(
        dataset=cell.image_set,
        split=parse_split(cell.split),
        clients=cell.clients,
        rounds=cell.rounds,
        schedule=cell.schedule,
        data_dir=data_dir,
        delta=cell.delta,
    )


@dispatched
def _protection(cell: "Cell") -> Protection:
    epsilon = math.inf if cell.epsilon is None else cell.epsilon
    if cell.unit == "record":
        return RecordUnit(epsilon, cell.delta)
    if cell.unit == "label":
        return LabelUnit(epsilon, cell.delta, "declared" if cell.alphabet == "declared" else "full")
    return NoProtection()


# Fleets: records dealt to thousands of clients, one noisy sum, one student.


def fleet_votes(data_dir: Path | None, cell: "Cell", progress: Progress) -> FleetVotes:
    """Every client's votes about all proxies that any epsilon asks about, in a public order."""
    data, terms = _data(data_dir, cell), _terms(cell)
    records = concatenate([part for c in data.clients for part in (c.train, c.validation)])
    rng = np.random.default_rng([cell.seed, cell.clients])
    owners = deal(records.labels.numpy(), _split(cell), cell.clients, data.n_classes, rng)
    indices = rng.permutation(len(data.proxies))[: terms.most]
    reference, _ = shared_reference(Same(data.proxies.pixels), ReferenceSettings())
    return cast_votes(records, owners, reference, indices, progress)


def run_fleet(data_dir: Path | None, cell: "Cell", votes: FleetVotes, progress: Progress) -> Result:
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
    figures = _figures(sums, data.proxies.labels.numpy()[asked], unit, votes, present, cell.delta)
    sentence = "No differential privacy: no noise is added." if claim is None else claim.sentence()
    return Result(
        cell=cell,
        figures={ACCURACY: found, **figures},
        seconds=time.process_time() - start,
        per_client=(found,),
        notes={"guarantee": sentence, "privacy": None if claim is None else claim.to_json()},
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
        KEPT_ONCE: float(sums.kept.mean()),
        "noise multiplier": plan.noise,
        "deviation of the noise, votes": ClientShares(plan).deviation,
        "units in a vote": float(plan.scale),
        "variance of a share, units": plan.share_variance,
        "bits in a lane": float(layout.bits),
        BYTES_UP: 8.0 * layout.words(plan.proxies * plan.classes),
        "right labels without noise": _right_in_clear(votes, present, truth, plan.classes),
    }
    if unit.plan.noise > 0:  # sums are simulated in clear, where no claim holds
        figures["epsilon under masks"] = price(unit.plan, delta)
    if sums.kept.any():
        figures[RIGHT_ONCE] = float((sums.labels == truth)[sums.kept].mean())
    return figures


def _right_in_clear(votes: FleetVotes, present: IntArray, truth: IntArray, n_classes: int) -> float:
    """Share of the asked proxies whose label would be right if all votes counted, without noise."""
    said = votes.labels[present][:, : len(truth)]
    tally = np.stack([(said == c).sum(axis=0) for c in range(n_classes)], axis=1)
    return float((tally.argmax(axis=1) == truth).mean())


def _present(cell: "Cell", absent: int) -> IntArray:
    """The clients that are there: as many are missing as the noise provides for."""
    order = np.random.default_rng([cell.seed, cell.clients, 1]).permutation(cell.clients)
    return np.sort(order[absent:])


def _data(data_dir: Path | None, cell: "Cell") -> FederatedData:
    """The image set as the other studies divide it; fleets deal its local records anew."""
    return federated_data(cell.image_set, data_dir, Split("strong"), 10, cell.seed)


def _records(data: FederatedData) -> int:
    """How many records there are to deal, which is public."""
    return sum(len(client.train) + len(client.validation) for client in data.clients)


def _split(cell: "Cell") -> Dealt:
    return "strong" if cell.split == "strong" else "iid"


def _terms(cell: "Cell") -> "FleetTerms":
    if cell.fleet is None:
        raise LocalError("a cell of a federation has no fleet")
    return cell.fleet
