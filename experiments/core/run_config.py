"""Configuration of one run, of a study or of a row of the comparison.

Names and numbers only: nothing here imports tensors. `experiments.core.runs` makes the run.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

from experiments.core.files import NEVER
from secure_fd.data.columns import Table
from secure_fd.data.image_sets import image_set, is_table
from secure_fd.data.partition import check_clients, parse_split
from secure_fd.errors import ConfigurationError
from secure_fd.methods.registry import METHODS, MethodName
from secure_fd.methods.registry import load as load_method
from secure_fd.training.recipes import SGD, Schedule

Labels = Literal["soft", "hard"]
Secure = Literal["masks", "he", "prio3"]
Unit = Literal["label", "record", "client"]

REPORTED_SEED = 20
"""The comparison's first: later choices were made on seeds 0 to 10."""
SEEDED_NOISE = (
    "This is the epsilon of this mechanism with fresh noise; here the noise is seeded, so that the "
    "run can be repeated."
)
"""Note of a guarantee on a public image set. On the user's own data noise is always fresh."""
IMAGES_PER_PERSON = 3
"""Records of one person at one client, where a table states what they cost together."""
PROXY_LABELS = ("true-labels", "selected-labels")
"""The two trainings of the paper's Fig. 10; what labels the proxies is the method."""
AFL, EDGEFD = "experiments.rivals.afl:AFL", "experiments.rivals.edgefd:EdgeFD"
KNOWN: Mapping[str, MethodName] = {
    **METHODS,
    AFL: MethodName("AFL", AFL, labels=False),
    EDGEFD: MethodName("EdgeFD", EDGEFD),
}
"""Methods that tables name by title: those of the package and rivals of this one."""
LINEAR = "linear"
"""FedAvg's further architecture on tables."""
BY_NETWORK = ("confidence", "energy")
"""Selectors that have no estimator of their own."""
COUNTED = "counted votes"
ALL_RECORDS = "all records"
"""Variant of Independent: every client holds all records, which no federation can have."""
TRUE_LABELS = "true labels"
"""Variant with distilled networks: true labels in the place of those of a head or of votes."""
_OUTSIDE = ("image_set", "split", "seed", "rounds", "schedule", "every", "one_by_one", "own")
"""Fields of a run that its line leaves out."""
WARM_UP = "warm-up"
"""Variant of the run that warms up networks, and does nothing else."""
HEADS = {"heads": 4, AFL: 1}
"""Methods whose clients end with a head if the schedule trains no network: number of sums."""
HEADS_ALONE = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
"""Their schedule in the comparison, under noise too: a row has half a minute of CPU, and networks
trained on their labels have a table of their own (`experiments.privacy.private_rivals`)."""


def unlabelled(method: str) -> bool:
    """Return whether clients share no labels; a user-supplied method chooses its own.

    >>> unlabelled("fedavg"), unlabelled("fedmd"), unlabelled("true-labels")
    (True, False, True)
    """
    return method not in KNOWN or not KNOWN[method].labels


def averages(method: str) -> bool:
    """Return whether clients of a method share parameters; see `MethodName`.

    >>> averages("dafkd"), averages("fedmd")
    (True, False)
    """
    return method in METHODS and METHODS[method].averages


def method_class(kind: str) -> Any:  # noqa: ANN401 - a class of any method
    """The class of a method, by its name or as package.module:Name.

    Raises ConfigurationError where it cannot be loaded or lacks what a federation needs.

    >>> method_class("fedmd").__name__
    'FedMD'
    """
    if kind not in METHODS:
        working_folder()
    return load_method(kind)


def working_folder() -> None:
    """Allow imports of user-supplied modules from the working folder."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def own_function(option: str, place: str) -> Callable[..., object]:
    """The function at package.module:name, in the working folder too.

    option: names the setting in the ConfigurationError that is raised where there is none.
    """
    module, _, name = place.partition(":")
    working_folder()
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        allowed = f"use package.module:name of a function that exists ({error})"
        raise ConfigurationError(option, place, allowed) from error
    if not callable(found):
        raise ConfigurationError(option, place, f"use a function, not {type(found).__name__}")
    return cast(Callable[..., object], found)


@dataclass(frozen=True, slots=True)
class Privacy:
    """unit: label, record or client. epsilon: None is infinite: the unit's votes without noise."""

    unit: str
    epsilon: float | None
    delta: float = 1e-5
    small_fleet: bool = False

    def __post_init__(self) -> None:
        _check("unit", self.unit, ("label", "record", "client"))

    def __str__(self) -> str:
        """Names the unit and its epsilon."""
        epsilon = "inf" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.unit} unit, epsilon {epsilon}"


@dataclass(frozen=True, slots=True)
class OwnData:
    """User-supplied data. digest: of all pixels and labels under the first seed.

    images, proxies, table: files, which stay on this machine. size: pixels a side. factory:
    package.module:name, which makes `FederatedData` of a seed. show_private: keep private images
    and their reconstructions in the results.
    """

    digest: str
    size: int
    factory: str = ""
    images: Path | None = field(default=None, compare=False, metadata=NEVER)
    proxies: Path | None = field(default=None, compare=False, metadata=NEVER)
    table: Table | None = field(default=None, compare=False, metadata=NEVER)
    show_private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run. split: as `parse_split` reads it. method: of `METHODS`, or package.module:Name.

    quantile: tau_client, and None for the selector's own threshold. server_threshold:
    tau_server, and None for the method's own. class_by: who names the class of a weighed vote
    (see `SelectiveFD`). secure: "" sums in clear. drop: chance that a client falls silent in a
    round. releases: how often a client answers one proxy in all; None: once a round. budget:
    most that a client's votes of a round may weigh, in its equal shares of the proxies; None:
    no budget. min_voters: of Selective-FD, fewest clients that answer a proxy; None: one.
    model: FedAvg's architecture, "" for the image set's own. every: rounds between two points
    of the curve; 0 for a few points. alpha: weight of the local loss, where proxies have fixed
    labels (Fig. 10). one_by_one: the warm-up takes batches that rounds would draw, as in the
    comparison, not batches of its own. own: data of the user's, in place of the image set's.
    """

    image_set: str
    split: str
    method: str
    labels: str = ""
    selector: str = ""
    variant: str = ""
    seed: int
    rounds: int
    schedule: Schedule
    clients: int = 10
    quantile: float | None = None
    server_threshold: float | None = None
    class_by: str = "both"
    secure: str = ""
    privacy: Privacy | None = None
    drop: float = 0.0
    releases: int | None = None
    liar: int = 0
    budget: float | None = None
    min_voters: int | None = None
    model: str = ""
    every: int = 0
    alpha: float | None = None
    one_by_one: bool = False
    own: OwnData | None = None

    def __post_init__(self) -> None:
        if ":" not in self.method:
            _check("method", self.method, (*METHODS, *PROXY_LABELS))
        if (self.labels == "") != unlabelled(self.method):
            raise ConfigurationError("labels", self.labels, f"not with the method {self.method}")
        if self.rounds < 1:
            raise ConfigurationError("rounds", self.rounds, "use 1 or more")
        classes = image_set(self.image_set).n_classes
        check_clients(parse_split(self.split), self.clients, classes)

    @property
    def start(self) -> "RunConfig":
        """The warm-up alone, with what of the schedule it depends on: runs share it by that."""
        own = self.schedule.sgd
        alone = Schedule(
            warmup_steps=self.schedule.warmup_steps,
            anneal_warmup=self.schedule.anneal_warmup,
            augment=self.schedule.augment,
            sgd=SGD(own.learning_rate, local_batch=own.local_batch, momentum=own.momentum),
        )
        return replace(self.on_data, schedule=alone, one_by_one=self.one_by_one)

    @property
    def on_data(self) -> "RunConfig":
        """A warm-up of no steps: it identifies what depends on data and seed alone."""
        return RunConfig(
            image_set=self.image_set,
            split=self.split,
            method="independent",
            variant=WARM_UP,
            seed=self.seed,
            rounds=1,
            schedule=Schedule(warmup_steps=0),
            clients=self.clients,
            own=self.own,
        )

    @property
    def of_table(self) -> bool:
        """True if records are rows of a user's own table."""
        return is_table(self.image_set)

    @property
    def unit(self) -> str:
        """Privacy unit whose noise is added; "" for none, and at an infinite epsilon."""
        return "" if self.privacy is None or self.privacy.epsilon is None else self.privacy.unit

    @property
    def row(self) -> "RowSpec":
        """The row of a table that the run is in."""
        labels: Any = self.labels or "hard"
        secure: Any = self.secure or None
        unit: Any = None if self.privacy is None else self.privacy.unit
        model = self.model.partition("@")[0] if self.of_table else ""
        return RowSpec(self.method, labels, secure, unit, self.liar, model)

    @property
    def title(self) -> str:
        """The row's label; at an infinite epsilon no noise is added, as the title states."""
        spec = self.row
        if spec.unit is None or self.unit:
            return spec.label
        return f"{replace(spec, unit=None).label}, {spec.unit} noise off"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return f"{image_set(self.image_set).title}, {self.split}"

    @property
    def line(self) -> str:
        """Settings that stay the same from seed to seed, without the place and the schedule."""
        usual = {f.name: f.default for f in fields(self) if f.name not in _OUTSIDE}
        values = {name: getattr(self, name) for name in usual}
        parts = [
            str(value) if isinstance(value, str | Privacy) else f"{name} {value:g}"
            for name, value in values.items()
            if value != usual[name]
        ]
        if self.method in HEADS:
            learns = self.schedule.proxy_steps > 0
            parts += [f"{self.rounds} sums", "networks" if learns else "head alone"]
        return " ".join(parts)

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.place}: {self.line}, {self.rounds} rounds, seed {self.seed}"


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        shown = ", ".join(map(repr, allowed))
        raise ConfigurationError(name, value, f"use one of {shown}")


@dataclass(frozen=True, slots=True)
class RowSpec:
    """Settings that distinguish a row. kind: of `METHODS`, or package.module:Name.

    secure: how sums are protected. unit: privacy unit, at the table's epsilon. liar: votes of one
    client that lies, in bounds; 0: all are honest. Such a row is about the honest clients alone.
    model: FedAvg's layers, "" for those of the data.

    >>> RowSpec("selective-fd", "hard", "masks", "label").key
    'selective-fd-hard-masks-dp-label'
    >>> RowSpec("heads", "hard", "masks", "record").label
    'Pooled heads + masks + noise'
    """

    kind: str
    labels: Labels = "hard"
    secure: Secure | None = None
    unit: Unit | None = None
    liar: int = 0
    model: str = ""

    @property
    def own(self) -> bool:
        """True if the method is user-supplied."""
        return self.kind not in KNOWN

    @property
    def key(self) -> str:
        """Identifies the row in files."""
        parts: list[str] = [self.kind.rpartition(":")[2].lower() if ":" in self.kind else self.kind]
        if not unlabelled(self.kind):
            parts.append(self.labels)
        if self.secure is not None:
            parts.append(self.secure)
        if self.unit is not None:
            parts.append("dp-sgd" if averages(self.kind) else f"dp-{self.unit}")
        if self.liar:
            parts.append(f"liar-{self.liar}")
        if self.model:
            parts.append(self.model)
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Names what runs to a reader."""
        parts = [self._method]
        if self.secure is not None:
            parts.append({"masks": "masks", "he": "HE", "prio3": "Prio3"}[self.secure])
        if self.unit is not None:
            parts.append("DP-SGD" if averages(self.kind) else self._noise)
        if self.liar:
            parts.append("one liar" if self.liar == 1 else f"one liar at {self.liar} x bound")
        return " + ".join(parts)

    @property
    def _noise(self) -> str:
        if self.unit == "record":
            return "noise" if self.secure else "local noise"
        return "noise on labels" if self.unit == "label" else "noise"

    @property
    def _method(self) -> str:
        if self.own:
            return self.kind.rpartition(":")[2]
        known = KNOWN[self.kind].title + (f" {self.model}" if self.model else "")
        return known if unlabelled(self.kind) else f"{known} {self.labels}"


def row_config(base: RunConfig, spec: RowSpec, noise: Privacy | None = None) -> RunConfig:
    """Return the run of one row of a table.

    The label unit makes one symbol noisy, and the client unit's noise drowns all but whole votes:
    there, and by the paper's selector, votes are counted, and must be unanimous. FedAvg's rate
    falls to zero, as its last round is a matter of luck otherwise; that of DP-SGD does not.

    Args:
        base: what all rows share, as a run of independent learning: data, steps, the selector of
            Selective-FD, faults, the budget of proven votes and the fewest voters.
        spec: the row.
        noise: epsilon and delta of the row's privacy unit; an infinite epsilon adds no noise.

    >>> base = RunConfig(image_set="digits", split="iid", method="independent", selector="ratio",
    ...                  seed=0, rounds=2, schedule=Schedule(), clients=3)
    >>> made = row_config(base, RowSpec("selective-fd", unit="label"), Privacy("label", 4.0))
    >>> made.line
    'selective-fd hard ratio counted votes clients 3 server_threshold 1 label unit, epsilon 4'
    >>> replace(made, privacy=Privacy("label", None)).title
    'Selective-FD hard, label noise off'
    """
    ours = spec.kind == "selective-fd"
    privacy = replace(noise, unit=spec.unit) if noise and spec.unit else None
    epsilon = privacy.epsilon if privacy else None
    noisy = epsilon is not None and spec.unit in ("label", "client")
    counted = ours and (noisy or base.selector == "kulsif")
    rounds, schedule, model = base.rounds, base.schedule, ""
    if spec.model:  # on records of the form that the data's own architectures take
        model = spec.model + "@" + image_set(base.image_set).architectures[0].partition("@")[2]
    if spec.kind == "fedavg" and epsilon is None:
        schedule = replace(schedule, anneal_over=rounds)
    if spec.kind in HEADS:
        rounds, schedule = HEADS[spec.kind], HEADS_ALONE
        if epsilon is not None:
            from secure_fd.privacy.record import sums_for  # it loads SciPy

            rounds = sums_for(epsilon, local=not spec.secure)
    return replace(
        base,
        method=spec.kind,
        labels="" if unlabelled(spec.kind) else spec.labels,
        selector=base.selector if ours else "",
        variant=COUNTED if counted else "",
        rounds=rounds,
        schedule=schedule,
        server_threshold=1.0 if counted else None,
        secure=spec.secure or "",
        privacy=privacy,
        liar=spec.liar,
        model=model,
        budget=base.budget if ours and spec.secure == "prio3" else None,
        min_voters=base.min_voters if ours else None,
    )
