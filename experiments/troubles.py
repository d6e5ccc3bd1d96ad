"""Proxies as a federation may find them: images of other sets, of classes that nobody holds, rare.

Made from a balanced federation; which proxies the clients should know is known here alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.grid import our_recipe
from experiments.measures import ACCURACY, RIGHT_OF_ALL, RIGHT_ONCE
from experiments.study import Progress, Result
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.federation import AnyMethod, Federation, participants_of
from secure_fd.methods.base import Labels
from secure_fd.methods.heads import HeadLearner, HeadServer, PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.methods.votes import VoteServer
from secure_fd.recipes import Schedule, one_lesson
from secure_fd.selection.client import ProxyRatioSelector
from secure_fd.simulation import fresh_networks

if TYPE_CHECKING:
    from experiments.foreign_proxies import Cell

FOREIGN = "foreign proxies taught"
"""Of the proxies that are of no class that a client holds: the share that taught somebody."""
OWN = "own proxies taught"
GATED, SHARE = "gate open", "share of own proxies, estimated"
_OTHER = {"mnist5k": "fashion_mnist", "mnist": "fashion_mnist", "fashion_mnist": "mnist"}
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Troubled:
    """A federation, and [P] which of its proxies are of classes that its clients hold.

    data_dir: of the image sets that are not bundled.
    """

    data: FederatedData
    own: BoolArray = field(repr=False)
    data_dir: Path | None

    def chosen(self, indices: NDArray[np.int64]) -> "Troubled":
        """With these proxies alone."""
        kept = self.data.proxies[torch.from_numpy(indices)]
        return replace(self, data=replace(self.data, proxies=kept), own=self.own[indices])

    def with_images(self, indices: NDArray[np.int64], pixels: Tensor) -> "Troubled":
        """With foreign images in the places of these proxies."""
        changed, own = self.data.proxies.pixels.clone(), self.own.copy()
        changed[torch.from_numpy(indices)], own[indices] = pixels, False
        proxies = Images(changed, self.data.proxies.labels)
        return replace(self, data=replace(self.data, proxies=proxies), own=own)


Trouble = Callable[[Troubled, np.random.Generator], Troubled]


def _some(found: Troubled, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    count = len(found.own)
    return np.sort(rng.choice(count, round(share * count), replace=False))


def foreign(share: float, found: Troubled, rng: np.random.Generator) -> Troubled:
    """That share of the proxies from another image set."""
    at = _some(found, share, rng)
    if found.data.name not in _OTHER:
        raise ConfigurationError("image_sets", found.data.name, "it has no other set beside it")
    pool = load(_OTHER[found.data.name], found.data_dir).pool
    drawn = torch.from_numpy(rng.choice(len(pool), len(at), replace=False))
    return found.with_images(at, pool.pixels[drawn])


def rotated(share: float, found: Troubled, rng: np.random.Generator) -> Troubled:
    """That share of the proxies turned by a quarter."""
    at = _some(found, share, rng)
    pixels = found.data.proxies.pixels[torch.from_numpy(at)]
    return found.with_images(at, torch.rot90(pixels, 1, (2, 3)))


def unheld(classes: Sequence[int], found: Troubled, _: np.random.Generator) -> Troubled:
    """The clients that hold one of these classes stay away; their proxies do not."""
    stay = tuple(c for c in found.data.clients if not set(c.classes) & set(classes))
    gone = np.isin(found.data.proxies.labels.numpy(), list(classes))
    return replace(found, data=replace(found.data, clients=stay), own=found.own & ~gone)


def rare(share: float, found: Troubled, rng: np.random.Generator) -> Troubled:
    """Half of the classes, drawn at random, with that share of their proxies."""
    classes = found.data.n_classes
    few = set(rng.permutation(classes)[: classes // 2].tolist())
    return _thinned(found, [share if c in few else 1.0 for c in range(classes)], rng)


def tailed(ratio: float, found: Troubled, rng: np.random.Generator) -> Troubled:
    """Classes in an order drawn at random, each rarer than the last, the first by `ratio`."""
    classes = found.data.n_classes
    rank = rng.permutation(classes)
    return _thinned(found, [ratio ** (-rank[c] / (classes - 1)) for c in range(classes)], rng)


def _thinned(found: Troubled, shares: Sequence[float], rng: np.random.Generator) -> Troubled:
    labels, kept = found.data.proxies.labels.numpy(), []
    for label, share in enumerate(shares):
        own = rng.permutation(np.flatnonzero(labels == label))
        kept.append(own[: max(1, round(share * len(own)))])
    return found.chosen(np.sort(np.concatenate(kept)))


TROUBLES: Mapping[str, Sequence[Trouble]] = {
    "none": (),
    "half foreign": (partial(foreign, 0.5),),
    "a tenth foreign": (partial(foreign, 0.1),),
    "all foreign": (partial(foreign, 1.0),),
    "half rotated": (partial(rotated, 0.5),),
    "8 and 9 unheld": (partial(unheld, (8, 9)),),
    "4 and 6 unheld": (partial(unheld, (4, 6)),),
    "tail of 10 to 1": (partial(tailed, 10.0),),
    "half at a tenth": (partial(rare, 0.1),),
    "half at a fiftieth": (partial(rare, 0.02),),
    "half at a tenth, half foreign": (partial(rare, 0.1), partial(foreign, 0.5)),
}
"""What is done to balanced proxies of the clients' own set, in this order."""
_OPEN: Mapping[str, Any] = {"none_of_mine": False}
_EVEN: Mapping[str, Any] = {"selector": ProxyRatioSelector(prior=0.0), "rare": 0.0}
ROWS: Mapping[str, Callable[[Labels], AnyMethod]] = {
    "survey": SelectiveFD,
    "no survey": partial(SelectiveFD, **_OPEN),
    "even": partial(SelectiveFD, **_EVEN),
    "neither": partial(SelectiveFD, **_OPEN, **_EVEN),
    "heads": lambda _: PooledHeads(),
    "heads, no survey": lambda _: PooledHeads(**_OPEN),
}
"""Selective-FD, its twins, and pooled heads that teach networks."""


def prepare(data_dir: Path | None, cells: Sequence["Cell"], _: Progress) -> Troubled:
    """The federation of a group of cells."""
    cell = cells[0]
    source, split = load(cell.image_set, data_dir), parse_split(cell.split)
    data = federate(source, split, 10, cell.seed)
    found = Troubled(data, np.ones(len(data.proxies), dtype=np.bool_), data_dir)
    rng = np.random.default_rng((cell.seed, 1))
    for step in TROUBLES[cell.trouble]:
        found = step(found, rng)
    return found


def measure(data_dir: Path | None, cell: "Cell", made: Troubled, progress: Progress) -> Result:  # noqa: ARG001 - the data is prepared
    """What is labelled and taught; without students, Selective-FD asks about all proxies once."""
    start, data = time.process_time(), made.data
    rounds, schedule = _steps(cell, len(made.own))
    run = Federation(
        participants_of(fresh_networks(data, cell.seed), data.clients),
        data.proxies.pixels,
        ROWS[cell.row](cell.labels),
        schedule=schedule,
        seed=cell.seed,
    )
    for done, _ in enumerate(run.rounds(rounds), start=1):
        progress(100 * done // rounds)
    figures = taught(run, made)
    per_client: tuple[float, ...] = ()
    if cell.students:
        per_client = tuple(run.accuracies(data.test))
        figures = {ACCURACY: float(np.mean(per_client)), **figures}
    return Result(cell, figures, time.process_time() - start, per_client)


def _steps(cell: "Cell", n_proxies: int) -> tuple[int, Schedule]:
    if cell.row.startswith("heads"):
        recipe = one_lesson(n_proxies, image_set=cell.image_set)
        steps = recipe.schedule.proxy_steps if cell.students else 1
        return recipe.rounds, replace(recipe.schedule, proxy_steps=steps)
    if not cell.students:
        return 1, Schedule(0, 0, 0, n_proxies)
    recipe = our_recipe(cell.image_set, cell.split)
    asked = min(recipe.schedule.proxies_per_round, n_proxies)
    return recipe.rounds, replace(recipe.schedule, proxies_per_round=asked)


def _labels(run: Federation, n_proxies: int) -> NDArray[np.int64]:
    """[P] the class that was last taught of each proxy, -1 of one that never taught."""
    labels, first = np.full(n_proxies, -1), run.clients[0].half
    if isinstance(first, HeadLearner):
        lesson = first.lesson()
        labels[lesson.indices.numpy()] = lesson.targets.argmax(dim=1).numpy()
    for seen in run.transcript.distillation:
        kept = seen.ensemble.indices[seen.ensemble.kept]
        labels[kept] = seen.ensemble.predictions[seen.ensemble.kept].argmax(axis=1)
    return labels


def taught(run: Federation, made: Troubled) -> dict[str, float]:
    """Shares of foreign and own proxies that taught in any round, and how often rightly at last."""
    server, truth = run.server.half, made.data.proxies.labels.numpy()
    if not isinstance(server, VoteServer | HeadServer):
        raise LocalError("this study is about votes and heads")
    labels = _labels(run, len(truth))
    teaches, right = labels >= 0, labels == truth
    shares = {
        FOREIGN: (teaches, ~made.own),
        OWN: (teaches, made.own),
        RIGHT_ONCE: (right, teaches & made.own),
        RIGHT_OF_ALL: (right, made.own),
    }
    figures = {name: float(hit[of].mean()) for name, (hit, of) in shares.items() if of.any()}
    if server.known is not None:
        figures |= {GATED: float(server.known.gated), SHARE: server.known.share}
    return figures
