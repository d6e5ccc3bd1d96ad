"""DaFKD's theory with every term measured, where all densities are known.

Of Wang et al. (CVPR 2023), by the numbers of its supplement. p is the mean of K clients' p_k.

Theorem 1: discriminators come to f*_k = p_k / (p_k + p), and the generator to p. Discriminators are
trained against exact samples of p, and against generators that learn to deceive them all: one
generator, whose gradient is the mean over clients, and no class to make. A generator rests where
mean_k h(p_k / (p_k + q)) is the same at every x, h being its loss of f_k. For that to be so at
q = p whatever the p_k, h must be linear in the density ratio f / (1 - f) = p_k / q. Equation 13's
log(1 - f) is not: the proof takes the mean for the centroid of Jensen-Shannon divergences, but it
is that of Kullback-Leibler divergences to q. Nor is -log f. -f / (1 - f) is: the loss of maximum
likelihood (Goodfellow, "On distinguishability criteria", 2014).

Theorem 2: the loss is half the squared distance of a prediction in the simplex to the class's
corner. It is convex in the prediction and lies in [0, 1], so sigma = 1 in Hoeffding's inequality:
the mean of m independent values that lie in an interval of length sigma leaves its expectation by
epsilon with a probability of 2 exp(-2 m epsilon^2 / sigma^2) at most. Two steps of the proof ask
for more than trained networks give, so both are figures here:

- (22) puts a trained network's loss on its own m records into Hoeffding's inequality, which holds
  for networks that were fixed before the records were drawn.
- (25) takes each h_k for a minimiser over its records. A search may end elsewhere.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from experiments.dafkd_theory import (
    ALONG,
    AWAY,
    BOUND,
    DELTA,
    DEVIATION,
    EXCESS,
    F_STAR,
    FROM_P,
    LOCAL,
    LOCAL_EMPIRICAL,
    LOSS,
    MAXIMUM_LIKELIHOOD,
    MINIMAX,
    NON_SATURATING,
    NOT_ONE,
    OVERFIT,
    OVERLAP,
    POOLED,
    REST,
    TO_P,
    TO_REST,
    UNIFORM,
    UNTRAINED,
    VIOLATED,
    WORSE,
    of,
)
from experiments.known_densities import (
    N_CLASSES,
    Mixture,
    classes,
    density,
    draw,
    mean_of,
    random_mixtures,
    tile_masses,
    tile_shares,
    variation,
)
from experiments.study import Progress, Result
from secure_fd.adversarial import LOSSES, AdversarialSettings, Adversary, Generator
from secure_fd.data.images import Images
from secure_fd.knowledge import FloatArray, IntArray, one_hot
from secure_fd.training import predict

if TYPE_CHECKING:
    from experiments.dafkd_theory import Cell

SETTINGS: Final = AdversarialSettings(
    latent=8, hidden=128, judge=256, batch=64, rate=2e-3, class_weight=0.0, spread=0.5, blur=0.0
)
_JUDGE_STEPS, _SLOWER = 3, 0.1
"""Of discriminators, a step of the generator; its rate, as a share of theirs."""
_SHAPE: Final = (1, 1, 2)
"""Of a point, as networks take it: an image of two pixels."""
_FRESH: Final = 20_000
"""Points of p that expectations are means over."""
_SIDE, _FINE, _TILED = 16, 64, 50_000
"""Tiles a side, finer ones, and points, that tell p_g from p."""
_HALVINGS: Final = 60
_ROUNDING: Final = 1e-9
_HIDDEN, _BATCH, _RATE = 64, 256, 1e-2
"""Of the networks h, and of their training."""
_LINE: Final = 25
"""Points of the diagonal at which f is kept."""

HOW: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    NON_SATURATING: LOSSES["non-saturating"],
    MINIMAX: LOSSES["minimax"],
    MAXIMUM_LIKELIHOOD: LOSSES["likelihood"],
}
"""A generator's loss of f, by its name, from the logits log(f / (1 - f))."""


# What the theorems say.


def optimal(densities: FloatArray) -> FloatArray:
    """f* [K, n] = p_k / (p_k + p) (Theorem 1), from p_k [K, n]; p is their mean.

    >>> optimal(np.array([[3.0], [1.0]])).round(2).tolist()
    [[0.6], [0.33]]
    """
    return np.asarray(densities / (densities + densities.mean(axis=0)))


def alphas(f: FloatArray) -> FloatArray:
    """[K, n] f_k over the sum over clients, from f [K, n].

    >>> alphas(np.array([[0.6], [0.2]])).round(2).tolist()
    [[0.75], [0.25]]
    """
    return np.asarray(f / f.sum(axis=0))


def excess(alpha: FloatArray, densities: FloatArray) -> FloatArray:
    """[K, n] alpha_k - (K + 1) / K p_k / p; equation 19 says that none is above 0 at f*.

    >>> p = np.array([[3.0], [1.0]])
    >>> bool((excess(alphas(optimal(p)), p) <= 0).all())
    True
    """
    count = len(densities)
    return np.asarray(alpha - (count + 1) / count * densities / densities.mean(axis=0))


def half_squared(said: FloatArray, truth: IntArray) -> FloatArray:
    """[n] in [0, 1]: half the squared distance of said [n, C], in the simplex, to truth [n].

    >>> half_squared(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 1])).tolist()
    [1.0, 0.25]
    """
    return np.asarray(((said - one_hot(truth, said.shape[1])) ** 2).sum(axis=1) / 2)


def deviation(clients: int, records: int, delta: float) -> float:
    """(K + 1) sqrt(log(2 K / delta) / (2 m)), the last term of Theorem 2 at sigma = 1.

    >>> round(deviation(4, 1600, 0.05), 3)
    0.199
    """
    return (clients + 1) * math.sqrt(math.log(2 * clients / delta) / (2 * records))


# One mixture and its clients.


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """mixtures: p_k. mean: p. records: [m, 2] of each client. fresh: [n, 2] of p."""

    mixtures: tuple[Mixture, ...]
    mean: Mixture
    records: tuple[FloatArray, ...] = field(repr=False)
    fresh: FloatArray = field(repr=False)

    @classmethod
    def of(cls, clients: int, records: int, seed: int) -> "World":
        """A seed's mixtures; their records differ with their number."""
        mixtures = random_mixtures(clients, np.random.default_rng(seed))
        rng = np.random.default_rng([seed, records])
        mean = mean_of(mixtures)
        drawn = tuple(draw(each, records, rng) for each in mixtures)
        return cls(mixtures, mean, drawn, draw(mean, _FRESH, rng))

    def densities(self, x: FloatArray) -> FloatArray:
        """p_k [K, n] at x [n, 2]."""
        return np.stack([density(each, x) for each in self.mixtures])


def as_images(x: FloatArray) -> Tensor:
    """[n, 1, 1, 2] float32, as networks take points [n, 2]."""
    return torch.from_numpy(x).float().view(-1, *_SHAPE)


# Theorem 1: where generators rest, and what training reaches.


def rest(densities: FloatArray, how: str) -> FloatArray:
    """q [T] at which a generator with this loss rests, from p_k [K, T] on equal tiles; mean 1.

    There mean_k h(p_k / (p_k + q)) is one number for all tiles: two bisections, of q and of it.

    >>> p = np.array([[1.9, 0.1], [0.1, 1.9]])
    >>> rest(p, MAXIMUM_LIKELIHOOD).round(6).tolist()
    [1.0, 1.0]
    """
    logs = torch.from_numpy(densities).clamp(min=1e-300).log()

    def at(level: Tensor) -> Tensor:
        return _root(lambda q: HOW[how](logs - q).mean(dim=0), level.expand(logs.shape[1]), 40.0)

    middle = logs.exp().mean().log()
    ends = [HOW[how](logs - (middle + shift)).mean(dim=0) for shift in (-8.0, 8.0)]
    low, high = ends[0].min(), ends[1].max()
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        low, high = (level, high) if at(level).exp().mean() < 1 else (low, level)
    return np.asarray(at((low + high) / 2).exp().numpy())


def _root(rising: Callable[[Tensor], Tensor], level: Tensor, most: float) -> Tensor:
    """Where a rising function of each element reaches its level, between -most and most."""
    low, high = torch.full_like(level, -most), torch.full_like(level, most)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = rising(middle) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def new_judges(world: World, settings: AdversarialSettings, seed: int) -> list[Adversary]:
    """One discriminator a client, on its records."""
    return [
        Adversary(
            Generator(_SHAPE, 1, settings, seed),
            nn.Identity(),  # stands for the classifier, which is not asked
            Images(as_images(records), torch.zeros(len(records), dtype=torch.int64)),
            settings,
            1000 * seed + k,
            torch.device("cpu"),
        )
        for k, records in enumerate(world.records)
    ]


def judge_against_p(
    judges: Sequence[Adversary], world: World, steps: int, rng: np.random.Generator
) -> None:
    """So many steps of every discriminator, on its client's records and fresh points of p."""
    batch = judges[0].settings.batch
    for judge, records in zip(judges, world.records, strict=True):
        own = as_images(records)[rng.integers(len(records), size=(steps, batch))]
        made = as_images(draw(world.mean, steps * batch, rng)).view(steps, batch, *_SHAPE)
        for drawn, others in zip(own, made, strict=True):
            judge.judge_step(drawn, others)


def judge_against_generator(
    judges: Sequence[Adversary], world: World, how: str, steps: int, seed: int
) -> Generator:
    """So many steps of a generator by the mean of its losses, and of the discriminators ahead."""
    settings = judges[0].settings
    generator = Generator(_SHAPE, 1, settings, seed)
    rate = _SLOWER * settings.rate
    optimizer = torch.optim.Adam(generator.parameters(), rate, (0.5, 0.999))
    random = torch.Generator().manual_seed(seed)
    records = [as_images(each) for each in world.records]
    for _ in range(steps):
        for _ in range(_JUDGE_STEPS):
            with torch.no_grad():
                made = generator(*generator.sample(settings.batch, random))
            for judge, own in zip(judges, records, strict=True):
                drawn = torch.randint(len(own), (settings.batch,), generator=random)
                judge.judge_step(own[drawn], made)
        made = generator(*generator.sample(settings.batch, random))
        logits = torch.stack([judge.judge(made) for judge in judges])
        optimizer.zero_grad()
        HOW[how](logits).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return generator


def weighed(judges: Sequence[Adversary], x: FloatArray) -> FloatArray:
    """f [K, n] in (0, 1) at x [n, 2]."""
    return np.stack([judge.weigh(as_images(x)).double().numpy() for judge in judges])


@torch.no_grad()
def generated(generator: Generator, count: int, seed: int) -> FloatArray:
    """[count, 2] points that a generator makes."""
    made = generator(*generator.sample(count, torch.Generator().manual_seed(seed)))
    return np.asarray(made.double().numpy().reshape(-1, 2))


def distance(f: FloatArray, densities: FloatArray) -> float:
    """Mean of |f_k - f*_k| over clients and points, from f and p_k [K, n].

    >>> distance(np.full((2, 1), 0.5), np.array([[3.0], [1.0]])).__round__(3)
    0.133
    """
    return float(np.abs(f - optimal(densities)).mean())


def _of_rest(world: World, how: str) -> tuple[dict[str, float], FloatArray]:
    """How far from p a generator rests and what f is there; the masses of tiles [side, side]."""
    at = (np.arange(_FINE) + 0.5) / _FINE
    x = np.stack(np.meshgrid(at, at, indexing="ij"), axis=-1).reshape(-1, 2)
    densities = world.densities(x)
    p, q = densities.mean(axis=0), rest(densities, how)
    p = p / p.mean()  # q has the mass of one on these tiles, so p has to
    away = np.abs(densities / (densities + q) - optimal(densities)).mean(axis=0)
    figures = {
        of(how, TO_P + REST): variation(q, p) / len(q),
        of(how, AWAY + REST): float((away * p).mean()),
    }
    parts = q.reshape(_SIDE, _FINE // _SIDE, _SIDE, _FINE // _SIDE)
    return figures, parts.mean(axis=(1, 3)) / _SIDE**2


def _of_generator(
    world: World, how: str, steps: int, seed: int
) -> tuple[dict[str, float], list[Adversary]]:
    """Figures of one loss of a generator, and the discriminators that it met."""
    figures, resting = _of_rest(world, how)
    judges = new_judges(world, SETTINGS, seed)
    generator = judge_against_generator(judges, world, how, steps, seed)
    shares = tile_shares(generated(generator, _TILED, seed), _SIDE)
    figures[of(how, TO_P)] = variation(shares, tile_masses(world.mean, _SIDE))
    figures[of(how, TO_REST)] = variation(shares, resting)
    return figures, judges


# Theorem 2: networks and losses.


def fitted(x: FloatArray, steps: int, seed: int) -> nn.Module:
    """A network of N_CLASSES logits that makes the loss on points x [m, 2] small."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Flatten(),
            nn.Linear(2, _HIDDEN),
            nn.Tanh(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.Tanh(),
            nn.Linear(_HIDDEN, N_CLASSES),
        )
    points, truth = as_images(x), torch.from_numpy(one_hot(classes(x), N_CLASSES)).float()
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), _RATE)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for _ in range(steps):
        drawn = torch.randint(len(x), (min(len(x), _BATCH),), generator=random)
        said = network(points[drawn]).softmax(dim=1)
        optimizer.zero_grad()
        ((said - truth[drawn]) ** 2).sum(dim=1).mean().backward()
        optimizer.step()
        falling.step()
    return network.eval()


def risk(network: nn.Module, x: FloatArray) -> float:
    """Mean loss of a network at points x [n, 2]."""
    return float(half_squared(predict(network, as_images(x)), classes(x)).mean())


def ensemble_risk(alpha: FloatArray, said: FloatArray, x: FloatArray) -> float:
    """Mean loss of sum_k alpha_k(x) h_k(x), from alpha [K, n] and said [K, n, C]."""
    return float(half_squared(np.einsum("kn,knc->nc", alpha, said), classes(x)).mean())


def _of_bound(
    world: World, networks: Sequence[nn.Module], pooled: nn.Module, rng: np.random.Generator
) -> dict[str, float]:
    """Every term of (20) to (26), and what steps (22) and (25) need."""
    count, records = len(networks), len(world.records[0])
    pairs = list(zip(networks, world.records, strict=True))
    fresh = [draw(each, _FRESH, rng) for each in world.mixtures]
    true = np.array([risk(h, x) for h, x in zip(networks, fresh, strict=True)])
    own = np.array([risk(h, x) for h, x in pairs])
    theirs = np.array([risk(pooled, x) for _, x in pairs])
    moved, everyone = deviation(count, records, DELTA), (count + 1) * float(theirs.mean())
    return {
        LOCAL: (count + 1) * float(true.mean()),
        LOCAL_EMPIRICAL: (count + 1) * float(own.mean()),
        POOLED: everyone,
        DEVIATION: moved,
        BOUND: everyone + moved,
        OVERFIT: float((true - own).max()),
        WORSE: float((own - theirs).max()),
    }


# One cell.


def _of_weights(f: FloatArray, name: str, densities: FloatArray) -> dict[str, float]:
    """Figures of alpha from f and p_k [K, n] at points of p."""
    alpha = alphas(f)
    over = excess(alpha, densities)
    return {
        of(name, NOT_ONE): float(np.abs(alpha.sum(axis=0) - 1).max()),
        of(name, VIOLATED): float((over > _ROUNDING).mean()),
        of(name, EXCESS): float(over.max()),
    }


def _overlap(world: World) -> dict[str, float]:
    """How far clients are from p, and a sample of p."""
    tiles = tile_masses(world.mean, _SIDE)
    apart = [variation(tile_masses(each, _SIDE), tiles) for each in world.mixtures]
    sample = draw(world.mean, _TILED, np.random.default_rng(_TILED))
    return {
        OVERLAP: float(np.mean(apart)),
        of(FROM_P, TO_P): variation(tile_shares(sample, _SIDE), tiles),
    }


def measure_cell(_data_dir: Path | None, cell: "Cell", _made: None, progress: Progress) -> Result:
    """Train everything from one draw of densities and records, and measure every term."""
    start = time.process_time()
    world = World.of(cell.clients, cell.records, cell.seed)
    rng = np.random.default_rng([cell.seed, cell.records, 1])
    figures = _overlap(world)
    against: dict[str, Sequence[Adversary]] = {UNTRAINED: new_judges(world, SETTINGS, cell.seed)}
    against[FROM_P] = new_judges(world, SETTINGS, cell.seed)
    judge_against_p(against[FROM_P], world, cell.steps, rng)
    progress(20)
    for how in cell.generators:
        found, against[how] = _of_generator(world, how, cell.rounds, cell.seed)
        figures |= found
        progress(20 + 60 * (len(against) - 2) // len(cell.generators))
    networks = [
        fitted(records, cell.local_steps, 1000 * cell.seed + k)
        for k, records in enumerate(world.records)
    ]
    pooled = fitted(np.concatenate(world.records), cell.local_steps, 1000 * cell.seed)
    progress(95)
    figures |= _of_bound(world, networks, pooled, rng)
    figures |= _of_ensembles(world, against, networks)
    note = {ALONG: _along(world, against)}
    return Result(cell, figures, time.process_time() - start, notes=dict(note))


def _of_ensembles(
    world: World, against: Mapping[str, Sequence[Adversary]], networks: Sequence[nn.Module]
) -> dict[str, float]:
    """Figures of every f, of f*, and of uniform weights, at fresh points of p."""
    x, densities = world.fresh, world.densities(world.fresh)
    f = {name: weighed(judges, x) for name, judges in against.items()}
    figures = {of(name, AWAY): distance(each, densities) for name, each in f.items()}
    f |= {F_STAR: optimal(densities), UNIFORM: np.ones_like(densities)}
    said = np.stack([predict(network, as_images(x)) for network in networks])
    for name, each in f.items():
        figures |= _of_weights(each, name, densities)
        figures[of(name, LOSS)] = ensemble_risk(alphas(each), said, x)
    return figures


def _along(world: World, against: Mapping[str, Sequence[Adversary]]) -> dict[str, list[float]]:
    """f of the first client at points (t, t), t evenly from 0 to 1, by the name of f."""
    x = np.repeat(np.linspace(0, 1, _LINE)[:, None], 2, axis=1)
    shown = {name: weighed(judges[:1], x)[0] for name, judges in against.items()}
    shown = {F_STAR: optimal(world.densities(x))[0]} | shown
    return {name: values.round(4).tolist() for name, values in shown.items()}
