"""One cell: everything that a trained and tested setting depends on; no tensors here."""

from dataclasses import dataclass, replace

from experiments.papers import recipes
from secure_fd.data.partition import check_clients, parse_split
from secure_fd.errors import ConfigurationError
from secure_fd.recipes import IMAGE_SETS, SGD, Schedule

METHODS = ("independent", "fedmd", "feded", "ds-fl", "fkd", "pls", "fedavg", "selective-fd")
PROXY_LABELS = ("true-labels", "selected-labels")
"""The two trainings of the paper's Fig. 10; what labels the proxies is the method."""
UNLABELLED = ("independent", "fedavg", *PROXY_LABELS)
"""Methods in which nobody shares a label."""
LABELS = ("", "soft", "hard")
BY_NETWORK = ("confidence", "energy")
"""Selectors that have no estimator of their own."""
SELECTORS = ("", "ratio", "kulsif", *BY_NETWORK)
CLASS_BY = ("both", "network")
VARIANTS = (
    *("", "counted votes", "counted votes of all classes", "quantile threshold", "sharpness 1"),
    *("server threshold 1", "ratio alone", "newest round only", "no views", "constant rate"),
    *("no momentum", "warm-up", "no warm-up", "records apart", "the baselines' schedule"),
    *("classes by both", "many rounds", "constant warm-up", "no smoothing", "no selector"),
    *("selector refitted", "true labels"),
)
"""What an ablation changes; "" is the default. `build` and `ablation` give the names meaning."""
POINTS = 6
"""Points of a curve where a cell does not say how many rounds lie between them."""


@dataclass(frozen=True, slots=True)
class Group:
    """What cells share: data, warm-up, and the selectors that are fitted once a process."""

    image_set: str
    split: str
    seed: int
    clients: int
    warm_up: Schedule

    @property
    def steps(self) -> int:
        """Of the warm-up, those of every network counted."""
        return self.clients * self.warm_up.warmup_steps

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{IMAGE_SETS[self.image_set].title}, {self.split}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. split: as `parse_split` reads it.

    quantile: tau_client, and None for the selector's own threshold. server_threshold: tau_server,
    and None for the method's own. class_by: who names the class of a weighed vote (see
    `SelectiveFD`). masked: sums under masks. model: FedAvg's architecture, ""
    for the image set's own. every: rounds between two points of the curve; 0 for a few points.
    alpha: weight of the local loss, where proxies have fixed labels (Fig. 10).
    """

    image_set: str
    split: str
    method: str
    labels: str
    selector: str
    variant: str
    seed: int
    rounds: int
    schedule: Schedule
    clients: int
    quantile: float | None = None
    server_threshold: float | None = None
    class_by: str = "both"
    masked: bool = False
    model: str = ""
    every: int = 0
    alpha: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("image_set", tuple(IMAGE_SETS)),
            ("method", METHODS + PROXY_LABELS),
            ("labels", LABELS),
            ("selector", SELECTORS),
            ("variant", VARIANTS),
            ("class_by", CLASS_BY),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigurationError(
                    name, getattr(self, name), f"use one of {', '.join(map(repr, allowed))}"
                )
        if (self.labels == "") != (self.method in UNLABELLED):
            raise ConfigurationError("labels", self.labels, f"not with the method {self.method}")
        if (self.selector == "") == (self.method in ("selective-fd", "selected-labels")):
            raise ConfigurationError("selector", self.selector, "it goes with Selective-FD alone")
        if (self.alpha is None) == (self.method in PROXY_LABELS):
            raise ConfigurationError("alpha", self.alpha, "it goes with fixed proxy labels alone")
        if self.rounds < 1:
            raise ConfigurationError("rounds", self.rounds, "use 1 or more")
        check_clients(parse_split(self.split), self.clients, IMAGE_SETS[self.image_set].n_classes)

    @property
    def group(self) -> Group:
        """What the warm-up depends on: of the schedule, its steps, views and local optimiser."""
        chosen, own = self.schedule, self.schedule.sgd
        momentum = own.momentum if chosen.warmup_steps else 0.0
        sgd = SGD(own.learning_rate, local_batch=own.local_batch, momentum=momentum)
        alone = Schedule(
            warmup_steps=chosen.warmup_steps,
            anneal_warmup=chosen.anneal_warmup,
            augment=chosen.augment,
            sgd=sgd,
        )
        return Group(self.image_set, self.split, self.seed, self.clients, alone)

    @property
    def steps(self) -> int:
        """Of all rounds, those of every network counted."""
        each = self.schedule.local_steps + self.schedule.proxy_steps
        return self.clients * self.rounds * each

    @property
    def line(self) -> str:
        """What stays the same from seed to seed, apart from the place."""
        parts = [self.method, self.labels, self.selector, self.variant, self.model]
        if self.quantile is not None:
            parts.append(f"tau client {self.quantile:g}")
        if self.server_threshold is not None:
            parts.append(f"tau server {self.server_threshold:g}")
        if self.alpha is not None:
            parts.append(f"alpha {self.alpha:g}")
        return " ".join(part for part in [*parts, "masked" if self.masked else ""] if part)

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.group.place}: {self.line}, seed {self.seed}"


_QUICK_ROUNDS = 2
_QUICK_STEPS = 20
_QUICK_CLIENTS = 3
_ONE_CLASS = ("strong", "hospitals")
WARMUP = 200
"""Steps of the paper's warm-up."""
_CLIENTS = {"chest_xray": 4}
_MOST_CLIENTS = 10


def default_cell(
    image_set: str, split: str, seed: int, rounds: int | None = None, *, quick: bool = False
) -> Cell:
    """Independent learning at Selective-FD's schedule: what a study's cells vary."""
    count = rounds or (_QUICK_ROUNDS if quick else recipes.rounds(image_set, split))
    steps = recipes.ours(image_set, split, count)
    clients = _CLIENTS.get(image_set, _MOST_CLIENTS)
    if quick:
        alone, taught = min(_QUICK_STEPS, steps.warmup_steps), min(_QUICK_STEPS, steps.proxy_steps)
        steps = replace(steps, warmup_steps=alone, proxy_steps=taught)
        clients = clients if split == "hospitals" else _QUICK_CLIENTS
    return Cell(
        image_set=image_set,
        split=split,
        method="independent",
        labels="",
        selector="",
        variant="",
        seed=seed,
        rounds=count,
        schedule=steps,
        clients=clients,
    )


def on_its_recipe(cell: Cell, *, quick: bool, rounds: int | None) -> Cell:
    """The cell on the schedule of its method, the paper's for baselines, and their rounds.

    Selectors that read a network, and votes that a network alone divides between a client's
    classes, need one that has learnt something.
    """
    divides = cell.selector == "kulsif" and parse_split(cell.split).kind not in _ONE_CLASS
    if not cell.schedule.warmup_steps and (cell.selector in BY_NETWORK or divides):
        count = _QUICK_STEPS if quick else WARMUP
        return replace(cell, schedule=replace(cell.schedule, warmup_steps=count))
    if cell.variant:
        return cell
    if cell.method == "selective-fd":
        return replace(cell, class_by="network") if _networks_name_classes(cell) else cell
    steps = recipes.baselines(cell.image_set, cell.split)
    if quick:
        return replace(cell, schedule=replace(steps, warmup_steps=_QUICK_STEPS))
    if cell.every:  # bytes are compared over all rounds
        return replace(cell, schedule=steps)
    theirs = rounds or recipes.baseline_rounds(cell.image_set)
    return replace(cell, schedule=steps, rounds=theirs)


def _networks_name_classes(cell: Cell) -> bool:
    """Whether networks alone name classes: where all are held, and votes weigh."""
    weighed = cell.selector == "ratio" and cell.quantile is None
    return weighed and parse_split(cell.split).kind == "iid"
