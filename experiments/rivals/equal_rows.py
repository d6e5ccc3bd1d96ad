"""The rows of the table at equal terms, and the one grid on which each of them is tuned.

Every network takes as many steps, of as many images, through the same views, by Nesterov's momentum
and a rate that falls to zero. What may differ is in a `Setting`, and a row has four to choose from.
Heads take no steps and have nothing to choose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.core import rows
from experiments.core.grid import HOSPITALS, our_recipe
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.training.recipes import SGD, Schedule

STEPS = 200
"""Of every network, in all."""
SETS = ("mnist", "fashion_mnist", "cifar10_features", "chest_xray")
SPLITS = ("strong", "iid", "weak")
"""Of all sets but chest X-rays, which are divided by hospital."""
VIEWS: Mapping[str, str] = {"mnist": "turn", "mnist5k": "turn", "fashion_mnist": "nudge"}
"""Of a set, for all rows; none for any other."""
_BATCH = 128
_SUMS = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What a row may choose. rounds: among which its steps are divided.

    warm_up: the share of the steps that a client takes alone before the first round.

    >>> Setting(0.05, 10, 0.5).shown
    'rate 0.05, 10 rounds, 0.5 alone first'
    """

    rate: float
    rounds: int
    warm_up: float = 0.0

    @property
    def shown(self) -> str:
        """As a table has it."""
        first = f", {self.warm_up:g} alone first" if self.warm_up else ""
        return f"rate {self.rate:g}, {self.rounds} rounds{first}"


_RATES = (0.01, 0.02, 0.05, 0.1)
ALONE = tuple(Setting(rate, 20) for rate in _RATES)
TAUGHT = tuple(Setting(rate, _SUMS) for rate in _RATES)
"""Of networks that learn one lesson, after all sums."""
AVERAGING = tuple(Setting(rate, rounds) for rounds in (20, 50) for rate in (0.02, 0.05))
SHARING = tuple(
    Setting(rate, rounds, first)
    for rounds, first in ((20, 0.0), (10, 0.5))
    for rate in (0.02, 0.05)
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, of one kind of labels. settings: to choose from, () for a head.

    sums: of heads.
    """

    title: str
    method: str
    settings: Sequence[Setting] = ()
    labels: str = ""
    variant: str = ""
    sums: int = 0

    @property
    def key(self) -> str:
        """Names the row on a command line."""
        if self.variant:
            return {rows.TRUE_LABELS: "truth", rows.ALL_RECORDS: "centralised"}[self.variant]
        name = self.method.rpartition(":")[2].lower()
        parts = [name, self.labels, "taught" if self.sums and self.settings else ""]
        parts.append("1" if (self.method, self.sums) == ("heads", 1) else "")
        return "-".join(part for part in parts if part)


def _shared(method: str) -> list[Row]:
    title = rows.KNOWN[method].title
    return [Row(title, method, SHARING, labels) for labels in ("hard", "soft")]


_SHARING_METHODS = (
    *("fedmd", "ds-fl", "feded", "fkd", "pls", rows.EDGEFD),
    *("selective-fd-published", "selective-fd"),
)
_ALL = (
    Row("Independent", "independent", ALONE),
    Row("FedAvg", "fedavg", AVERAGING),
    *(row for method in _SHARING_METHODS for row in _shared(method)),
    Row("AFL, a head", rows.AFL, sums=1),
    Row("Pooled head, one sum", "heads", sums=1),
    Row("Pooled head, 3 residual rounds", "heads", sums=_SUMS),
    Row("Networks that the pooled head teaches", "heads", TAUGHT, sums=_SUMS),
    Row("True labels of the proxies", "heads", TAUGHT, variant=rows.TRUE_LABELS, sums=_SUMS),
    Row("All records at every client", "independent", ALONE, variant=rows.ALL_RECORDS),
)
ROWS: Mapping[str, Row] = {row.key: row for row in _ALL}


def cell_of(
    row: Row, image_set: str, split: str, seed: int, setting: Setting | None, steps: int = STEPS
) -> rows.Cell:
    """One run. setting: None for a head.

    Where clients hold all classes, their networks name the class of a vote of Selective-FD, as in
    its recipe.

    >>> cell_of(ROWS["fedavg"], "mnist", "strong", 0, Setting(0.05, 20)).schedule.local_steps
    10
    """
    rounds = row.sums or (setting.rounds if setting else 1)
    return rows.Cell(
        image_set=image_set,
        split=split,
        method=row.method,
        labels=row.labels,
        selector="ratio" if row.method == "selective-fd" else "",
        variant=row.variant,
        seed=seed,
        rounds=rounds,
        schedule=rows.HEADS_ALONE
        if setting is None
        else _schedule(row, image_set, split, setting, steps),
        clients=4 if split == HOSPITALS else 10,
        class_by="network" if (row.method, split) == ("selective-fd", "iid") else "both",
        every=rounds,
    )


def _schedule(row: Row, image_set: str, split: str, setting: Setting, steps: int) -> Schedule:
    """As many steps for every row: alone, on private records in the rounds, or on proxies."""
    alone = round(setting.warm_up * steps)
    known = our_recipe(image_set, split).schedule
    sgd = SGD(setting.rate, local_batch=_BATCH, distillation_batch=_BATCH, momentum=0.9)
    chosen = Schedule(
        warmup_steps=alone,
        local_steps=0,
        proxy_steps=0,
        proxies_per_round=our_recipe(image_set, "strong").schedule.proxies_per_round,
        anneal_over=setting.rounds,
        anneal_warmup=True,
        augment=VIEWS.get(image_set, "none"),
        sgd=sgd,
    )
    if row.sums:  # one lesson, at the end
        return replace(chosen, proxy_steps=steps, anneal_over=1)
    each = (steps - alone) // setting.rounds
    if rows.unlabelled(row.method):
        return replace(chosen, local_steps=each)
    own = replace(sgd, own_batch=known.sgd.own_batch)
    return replace(chosen, proxy_steps=each, sgd=own)


def row_of(cell: rows.Cell) -> Row:
    """The row that made a cell."""
    return next(row for row in _ALL if _told(row) == _seen(cell))


def _told(row: Row) -> tuple[object, ...]:
    return row.method, row.labels, row.variant, row.sums, bool(row.settings)


def _seen(cell: rows.Cell) -> tuple[object, ...]:
    sums = cell.rounds if cell.method in rows.HEADS else 0
    return cell.method, cell.labels, cell.variant, sums, cell.schedule.fedavg_steps > 0


def setting_of(cell: rows.Cell) -> Setting | None:
    """What its row chose, None for a head."""
    row, steps = row_of(cell), cell.schedule
    found = (
        setting
        for setting in row.settings
        if setting.rate == steps.sgd.learning_rate
        and (row.sums or setting.rounds == cell.rounds)
        and (setting.warm_up > 0) == (steps.warmup_steps > 0)
    )
    return next(found, None)


def places(sets: Sequence[str], splits: Sequence[str]) -> list[tuple[str, str]]:
    """Image sets with their splits, the strong ones first.

    >>> places(("mnist", "chest_xray"), ("strong", "iid"))
    [('mnist', 'strong'), ('chest_xray', 'hospitals'), ('mnist', 'iid')]
    """
    of = {split: [(name, split) for name in sets if name != "chest_xray"] for split in splits}
    chest = [("chest_xray", HOSPITALS)] if "chest_xray" in sets else []
    first = of.pop("strong", [])
    return [*first, *chest, *(place for found in of.values() for place in found)]


def known(image_set: str) -> str:
    """The title of a set."""
    return IMAGE_SETS[image_set].title
