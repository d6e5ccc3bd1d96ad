"""One cell: everything that a trained and tested setting depends on; and the cells of a study."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS, Schedule, schedule

UNITS = ("none", "record", "label", "client")
ALPHABETS = ("", "full", "declared")
DELTA = 1e-5
_CLIENTS = 10
_MOST_ROUNDS = 40
_QUICK_ROUNDS = 4
_QUICK_WARMUP = 25
_FLEETS = (100, 1_000, 10_000)
_QUICK_FLEETS = (100, 300)
_FEW = (4.0, None)
"""The epsilons of the studies that ask one question of several image sets or splits."""


@dataclass(frozen=True, slots=True)
class FleetTerms:
    """A fleet's one round. absent, corrupt: shares of the clients that its noise provides for.

    sample_rate: below 1 in stored cells that sampled clients; every new cell asks all. most:
    proxies asked at most. steps: of the student.
    """

    absent: float = 0.1
    corrupt: float = 0.1
    sample_rate: float = 1.0
    most: int = 2048
    steps: int = 1500


@dataclass(frozen=True, slots=True)
class Cell:
    """epsilon: None is infinite. fleet: None for a federation of few clients, which has a schedule.

    unit "none" is hard labels without protection; a record unit without noise keeps its own,
    network-free votes, so that the price of noise and that of asking no network stand apart.
    """

    image_set: str
    split: str
    unit: str
    alphabet: str
    epsilon: float | None
    delta: float
    clients: int
    seed: int
    rounds: int
    schedule: Schedule | None
    fleet: FleetTerms | None

    def __post_init__(self) -> None:
        if self.image_set not in IMAGE_SETS:
            raise ConfigurationError("image_set", self.image_set, f"use {', '.join(IMAGE_SETS)}")
        for name, value, allowed in (
            ("unit", self.unit, UNITS),
            ("alphabet", self.alphabet, ALPHABETS),
        ):
            if value not in allowed:
                raise ConfigurationError(name, value, f"use one of {', '.join(allowed)}")
        if (self.schedule is None) == (self.fleet is None):
            raise ConfigurationError("fleet", self.fleet, "a cell has a schedule or a fleet")

    @property
    def group(self) -> "Cell":
        """What its preparation depends on: the warm-up, or the votes, that cells share."""
        fleet = None if self.fleet is None else replace(self.fleet, sample_rate=1.0)
        return replace(self, unit="none", alphabet="", epsilon=None, fleet=fleet)

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"

    @property
    def line(self) -> str:
        """What stays the same while epsilon and the seed change."""
        if self.fleet is not None:
            coin = f", sampled at {self.fleet.sample_rate:g}" if self.fleet.sample_rate < 1 else ""
            return f"client unit, {self.clients:,} clients{coin}"
        classes = {"": "", "full": ", all classes", "declared": ", declared classes"}
        if self.unit == "none":
            return "no protection"
        return f"{self.unit} unit{classes[self.alphabet]}"

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        epsilon = "inf" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.place}: {self.line}, epsilon {epsilon}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Grid:
    """What the command line chose, of which studies make cells."""

    epsilons: tuple[float | None, ...]
    seeds: tuple[int, ...]
    rounds: int | None
    quick: bool


def cells(study: str, grid: Grid) -> tuple[Cell, ...]:
    """The cells of a study, or of all of them; what two studies share is there once.

    Raises ConfigurationError where a study has none of the epsilons.
    """
    if study != "all" and study not in STUDIES:
        raise ConfigurationError("study", study, f"use one of {', '.join(STUDIES)}, all")
    chosen = list(STUDIES) if study == "all" else [study]
    made = [cell for name in chosen for cell in STUDIES[name](grid)]
    if not made:
        raise ConfigurationError("epsilons", _shown(grid.epsilons), f"study {study} has 4 and inf")
    return tuple(dict.fromkeys(made))


def _strong(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _federated(grid, seed, "mnist", "strong", grid.epsilons)


def _small(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _federated(grid, seed, "mnist5k", "strong", grid.epsilons)
        base = _base(grid, seed, "mnist5k", "strong")
        if None in grid.epsilons:  # the price of asking no network, told apart from that of noise
            yield replace(base, unit="record", epsilon=None)
        if 4.0 in grid.epsilons:
            yield replace(base, unit="label", alphabet="full", epsilon=4.0)


def _splits(grid: Grid) -> Iterator[Cell]:
    for split in ("weak", "iid"):
        for seed in grid.seeds:
            yield from _record(grid, seed, "mnist", split, _few(grid))


def _fashion(grid: Grid) -> Iterator[Cell]:
    for seed in grid.seeds:
        yield from _record(grid, seed, "fashion_mnist", "strong", _few(grid))


def _fleet(grid: Grid) -> Iterator[Cell]:
    """Fleets of every size, the largest under every seed."""
    sizes = _QUICK_FLEETS if grid.quick else _FLEETS
    terms = FleetTerms(most=256, steps=100) if grid.quick else FleetTerms()
    for split in ("strong", "iid"):
        for seed in grid.seeds:
            for clients in sizes if seed == grid.seeds[0] else sizes[-1:]:
                base = Cell(
                    image_set="mnist5k" if grid.quick else "mnist",
                    split=split,
                    unit="client",
                    alphabet="",
                    epsilon=None,
                    delta=DELTA,
                    clients=clients,
                    seed=seed,
                    rounds=1,
                    schedule=None,
                    fleet=terms,
                )
                yield from (replace(base, epsilon=epsilon) for epsilon in grid.epsilons)


STUDIES = {
    "strong": _strong,
    "splits": _splits,
    "small": _small,
    "fashion": _fashion,
    "fleet": _fleet,
}
"""By name; each makes its cells of a grid."""


def _federated(
    grid: Grid, seed: int, image_set: str, split: str, epsilons: Sequence[float | None]
) -> Iterator[Cell]:
    """No protection and the record unit, and the label unit over declared classes."""
    yield from _record(grid, seed, image_set, split, epsilons)
    base = _base(grid, seed, image_set, split)
    for epsilon in epsilons:
        if epsilon is not None:  # without noise it is the row without protection
            yield replace(base, unit="label", alphabet="declared", epsilon=epsilon)


def _record(
    grid: Grid, seed: int, image_set: str, split: str, epsilons: Sequence[float | None]
) -> Iterator[Cell]:
    base = _base(grid, seed, image_set, split)
    if None in epsilons:
        yield base
    for epsilon in epsilons:
        if epsilon is not None:
            yield replace(base, unit="record", epsilon=epsilon)


def _base(grid: Grid, seed: int, image_set: str, split: str) -> Cell:
    steps = schedule(image_set, split)
    rounds = min(_MOST_ROUNDS, IMAGE_SETS[image_set].rounds)
    if grid.quick:
        steps, rounds = replace(steps, warmup_steps=_QUICK_WARMUP), _QUICK_ROUNDS
    return Cell(
        image_set=image_set,
        split=split,
        unit="none",
        alphabet="",
        epsilon=None,
        delta=DELTA,
        clients=_CLIENTS,
        seed=seed,
        rounds=grid.rounds or rounds,
        schedule=steps,
        fleet=None,
    )


def _few(grid: Grid) -> tuple[float | None, ...]:
    return tuple(epsilon for epsilon in grid.epsilons if epsilon in _FEW)


def _shown(epsilons: Sequence[float | None]) -> str:
    return ",".join("inf" if epsilon is None else f"{epsilon:g}" for epsilon in epsilons)
