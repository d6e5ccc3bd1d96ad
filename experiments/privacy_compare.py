"""Comparison of accuracy, cost and leakage of collaboration: one run, one table, one report.

python experiments/privacy_compare.py --secure-agg --dp-eps 4
secure-fd compare --secure-agg --dp-eps 4
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Literal

import tyro

from attacks import default_names, load, registry
from experiments.cli import data_folder, one_of
from experiments.compare.comparison import Cell, measured, needs, prepared
from experiments.compare.leakage import PLAYED
from experiments.core import study
from experiments.core.grid import later, paper_recipe
from experiments.core.provenance import dated
from experiments.core.run_config import (
    HEADS,
    IMAGES_PER_PERSON,
    LINEAR,
    REPORTED_SEED,
    Labels,
    OwnData,
    Privacy,
    RowSpec,
    RunConfig,
    averages,
    method_class,
    row_config,
    working_folder,
)
from experiments.core.study import Study, at_least, listed
from secure_fd.data.columns import Table
from secure_fd.data.image_sets import ImageSet, check_there, image_set
from secure_fd.data.partition import Split, check_clients, parse_split
from secure_fd.errors import ConfigurationError
from secure_fd.methods.min_voters import check_min_voters
from secure_fd.optional import extra
from secure_fd.privacy.guarantee import GROUP_SIZES, LEAST_CLIENTS, LEAST_EPSILON, MOST_EPSILON
from secure_fd.votes.codec import check_budget

DATASETS = ("mnist5k", "digits", "mnist", "fashion_mnist")
"""Image sets of 28 x 28 grey pixels, which every row and attack of the comparison takes."""
_UNITS = ("label", "record", "client")
_LIBRARIES = {"masks": "secure_fd", "he": "tenseal", "prio3": "Crypto"}
_OF_TABLE = ("label", "site", "columns", "public")
"""Settings that a table needs."""
_NOT_OF_TABLE = (*PLAYED, "inversion", "update-inversion-cnn")
"""Attacks that a table's row does without where none is named: they need images, or other runs."""
_QUICK_ROUNDS = 4
_QUICK_WARMUP = 25


@dataclass(frozen=True, slots=True)
class Settings:
    """Compare what collaborating costs and leaks, on real images, in one run.

    Rows: FedAvg, independent learning, FedMD, Selective-FD; with --secure-agg FedAvg and
    Selective-FD also under masks (with --aggregation he also under homomorphic encryption, with
    --aggregation prio3 also with votes that prove their range); with --dp-eps under differential
    privacy as well, beside FedAvg with DP-SGD.
    """

    dataset: str = "mnist5k"
    """Image set: mnist5k and digits are bundled; mnist and fashion_mnist come from --data-dir."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds mnist/ or fashion_mnist/ with IDX .gz files."""
    images: Path | None = None
    """Use your own images instead: one folder for each client, with one folder for each class in
    it; or one folder for each class, whose images --split and --clients divide."""
    proxies: Path | None = None
    """With --images: a folder of public images; by default a fifth of --images is made public."""
    image_size: int = 32
    """With --images: pixels a side to which every image is scaled, from 16 to 256."""
    table: Path | None = None
    """Use your own table instead, CSV or Parquet; --label, --site, --columns and --public go with
    it."""
    label: str = ""
    """With --table: the column of the classes."""
    site: str = ""
    """With --table: the column that names the site of a row; each site is a client."""
    columns: Path | None = None
    """With --table: a TOML file that describes the columns; `secure-fd columns` drafts it."""
    public: Path | None = None
    """With --table: public rows of the same columns, CSV or Parquet: the proxies."""
    person: str = ""
    """With --table: the column that names the person of a row. The first row of each person is
    used, so that a record is a person."""
    federation: str = ""
    """Use your own data instead, package.module:name of a function: seed -> FederatedData."""
    show_private: bool = False
    """With --images or --federation: keep private images, and reconstructions of them, in the
    results and the report. Without it they hold figures alone."""
    split: str = "strong"
    """Strong (one class a client), weak (two), iid, or dirichlet:BETA."""
    clients: int = 10
    """Number of clients."""
    rounds: int | None = None
    """Rounds of every method; by default those of the image set's recipe."""
    proxies_per_round: int | None = None
    """Proxies that clients answer in a round; by default those of the image set's recipe."""
    labels: Literal["soft", "hard", "both"] = "both"
    """Labels that Selective-FD and FedMD share; with both, protected rows share hard labels."""
    selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio"
    """Client selector of Selective-FD: the density ratio to the proxies, or the paper's KuLSIF."""
    secure_agg: bool = False
    """Sum under pairwise masks, so that the server sees sums only."""
    aggregation: Literal["masks", "he", "prio3"] = "masks"
    """With --secure-agg: masks alone; or also a row under homomorphic encryption (he), or a row of
    votes that prove their range to a server and a helper that do not collude (prio3)."""
    vote_budget: float | None = None
    """With --aggregation prio3: most weight of a client's votes in a round, in multiples of its
    equal share of the round's proxies; by default no limit."""
    min_voters: int = 1
    """Selective-FD: fewest clients that must answer a proxy before their predictions are summed.
    From 2 on, a first sum counts them."""
    liars: bool = False
    """With --secure-agg: also Selective-FD with one client that lies, by the bound of a vote and by
    three times it; accuracy is that of the honest clients. With prio3 also its row with liars."""
    drop: float = 0.0
    """Chance that a client drops out of a round, at any stage of it: a simulation of faults."""
    releases: int | None = None
    """Most answers of a client about one proxy, the survey included; 1 leaves out the survey. By
    default one answer in every round."""
    dp_eps: float | None = None
    """Epsilon of differential privacy, from 0.01 to 50; inf switches every noise off."""
    dp_delta: float | None = None
    """Delta of the record and client units, and of all answers together under the label unit; by
    default 1 / (10 x records of the largest client), at most 1e-5."""
    dp_unit: str = "label,record"
    """Units to show, with commas: label, record, client (which needs --secure-agg and a fleet)."""
    images_per_person: int = IMAGES_PER_PERSON
    """Records of one person at one client: the table states their epsilon together."""
    dp_small_fleet: bool = False
    """Client unit: allow fewer than 300 clients, whose votes are smaller than the noise."""
    methods: str = ""
    """User-supplied methods, package.module:Name with commas: each adds its rows."""
    rows: str = "all"
    """Rows to run: all, or their keys with commas (fedavg, selective-fd-hard-masks, ...)."""
    attacks: str = "all"
    """Attacks to run: all, none, or names with commas, package.module:Name for your own."""
    seed: int = REPORTED_SEED
    """Seed of data and training in the first repetition; each later one takes the next seed."""
    seeds: int = 1
    """Number of repetitions; attacks run on the first."""
    out: Path | None = None
    """Folder of the results; by default runs/DATASET-SPLIT-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""
    scheduler: str | None = None
    """Use the workers of a running Dask cluster instead: the address of its scheduler,
    tcp://HOST:8786."""
    quick: bool = False
    """A first look in one to two minutes: some rows, few rounds, small attacks; --rows adds others.
    Figures are not comparable with a full run."""

    def __post_init__(self) -> None:
        if (self.images or self.table or self.federation) and self.dataset == _usual("dataset"):
            object.__setattr__(self, "dataset", "own")  # the results say so too


def _usual(name: str) -> object:
    """A setting where nothing was typed."""
    return Settings.__dataclass_fields__[name].default


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed, with everything that follows from them.

    base: what all rows share, under the first seed.
    """

    settings: Settings
    data_dir: Path | None
    base: RunConfig
    units: tuple[str, ...]
    methods: tuple[str, ...]
    attacks: tuple[str, ...]


def plan(settings: Settings, environment_dir: str | None) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    split, own = parse_split(settings.split), None
    at_least(0, seed=settings.seed)
    at_least(1, seeds=settings.seeds, rounds=settings.rounds, releases=settings.releases)
    units = listed("dp_unit", settings.dp_unit, _UNITS, ())
    client = "client" in units and settings.dp_eps is not None
    _check(settings, _together(settings, client=client))
    with extra(settings.aggregation):  # before any work
        import_module(_LIBRARIES[settings.aggregation])
    if settings.dataset == "own":
        settings, own, split = _with_own(settings, split)
    else:
        one_of("dataset", settings.dataset, DATASETS)
    known, folder = image_set(settings.dataset), data_folder(settings.data_dir, environment_dir)
    if own is None:
        check_there(settings.dataset, folder)
    check_clients(split, settings.clients, known.n_classes)
    check_min_voters(settings.min_voters, settings.clients)
    if settings.vote_budget is not None:
        check_budget(settings.vote_budget)
    if settings.secure_agg:
        from secure_fd.crypto.keys import check_capsules  # loads cryptography

        check_capsules()
    recipe = paper_recipe(settings.dataset, split.kind)
    rounds, steps = settings.rounds or recipe.rounds, recipe.schedule
    if settings.quick:
        steps = replace(steps, warmup_steps=_QUICK_WARMUP)
        rounds = settings.rounds or _QUICK_ROUNDS
    if settings.proxies_per_round is not None:
        steps = replace(steps, proxies_per_round=settings.proxies_per_round)
    _check(settings, _numbers(settings, known, rounds * steps.proxies_per_round, client=client))
    base = RunConfig(
        image_set=settings.dataset,
        split=split.name,
        method="independent",
        selector="kulsif" if settings.selector == "kulsif" else "ratio",
        seed=settings.seed,
        rounds=rounds,
        schedule=steps,
        clients=settings.clients,
        drop=settings.drop,
        releases=settings.releases,
        budget=settings.vote_budget,
        min_voters=settings.min_voters if settings.min_voters > 1 else None,
        one_by_one=True,
        own=own,
    )
    attacks, methods = _attacks(settings.attacks), _methods(settings.methods)
    if base.of_table and settings.attacks == "all":
        attacks = tuple(name for name in attacks if name not in _NOT_OF_TABLE)
    return Plan(settings, folder, base, units, methods, attacks)


def noise(made: Plan) -> Privacy | None:
    """Epsilon and delta of the rows with a privacy unit; by default the delta of the records.

    Raises ConfigurationError where delta exceeds one over a client's records: it would allow to
    publish one of them outright.
    """
    epsilon, delta = made.settings.dp_eps, made.settings.dp_delta
    if epsilon is None:
        return None
    if epsilon == math.inf:
        return Privacy("record", None)
    from experiments.core.runs import data_of  # heavy: other mistakes answer at once
    from secure_fd.simulation.build import default_delta

    clients = data_of(made.base, made.data_dir).clients
    if delta is None:
        delta = default_delta([len(client.train) for client in clients])
    largest = max(len(client.train) + len(client.validation) for client in clients)
    if delta * largest >= 1:
        allowed = f"use less than 1 / {largest}, one over the records"
        raise ConfigurationError("dp_delta", delta, allowed)
    return Privacy("record", epsilon, delta, made.settings.dp_small_fleet)


Rule = tuple[bool, str, str]
"""Rule: whether a setting is wrong, its name, and what is allowed."""


def _check(settings: Settings, rules: Sequence[Rule]) -> None:
    for wrong, name, allowed in rules:
        if wrong:
            value = getattr(settings, name)
            shown = str(value) if isinstance(value, Path) else value
            raise ConfigurationError(name, shown, allowed)


def _together(settings: Settings, *, client: bool) -> list[Rule]:
    """Options that do not go together. client: whether there is a row of the client unit."""
    images, masks, proofs = settings.images, settings.secure_agg, settings.aggregation == "prio3"
    other = settings.aggregation != "masks"
    table = settings.table
    sources = [source for source in (images, table, settings.federation) if source]
    brought, own = bool(sources), settings.dataset == "own"
    private = settings.show_private and not brought
    voters = settings.min_voters > 1 and (proofs or settings.liars or client)
    size = 16 <= settings.image_size <= 256
    lacking = settings.dp_eps is None
    units = lacking and settings.dp_unit != _usual("dp_unit")
    return [
        (lacking and settings.dp_delta is not None, "dp_delta", "add --dp-eps"),
        (units, "dp_unit", "add --dp-eps"),
        (settings.split == "own", "split", "folders of clients need no --split"),
        (bool(settings.proxies and not images), "proxies", "it goes with --images"),
        (len(sources) > 1, "dataset", "use one of --images, --table and --federation"),
        *(
            (bool(getattr(settings, name)) and not table, name, "it goes with --table")
            for name in (*_OF_TABLE, "person")
        ),
        *(
            (bool(table) and not getattr(settings, name), name, "--table needs it")
            for name in _OF_TABLE
        ),
        (brought and not own, "dataset", "leave it out"),
        (own and not brought, "dataset", "use --images, --table or --federation with it"),
        (brought and bool(settings.scheduler), "scheduler", "your own data stays on this machine"),
        (private, "show_private", "use it with your own data: other sets are public"),
        (other and not masks, "aggregation", "use it together with --secure-agg"),
        (settings.vote_budget is not None and not proofs, "vote_budget", "add --aggregation prio3"),
        (settings.liars and not masks, "liars", "they hide in the sum: add --secure-agg"),
        (client and not masks, "dp_unit", "client hides in the sum: add --secure-agg"),
        (voters, "min_voters", "not with --aggregation prio3, --liars or --dp-unit client"),
        (not size, "image_size", "use 16 to 256"),
    ]


def _numbers(settings: Settings, known: ImageSet, answers: int, *, client: bool) -> list[Rule]:
    """Numbers out of range. answers: asked of every client in the whole run."""
    epsilon, delta, asked = settings.dp_eps, settings.dp_delta, settings.proxies_per_round
    lone = settings.secure_agg and settings.clients < 3
    few = client and not settings.dp_small_fleet and settings.clients < LEAST_CLIENTS
    fleet = f"the client unit needs {LEAST_CLIENTS} or more for its noise to leave a signal"
    more = asked is not None and not 1 <= asked <= known.proxies
    fit = epsilon is None or epsilon == math.inf or LEAST_EPSILON <= epsilon <= MOST_EPSILON
    sizes = ", ".join(map(str, GROUP_SIZES))
    # A client's ledger would end the run; with one release no known proxies are surveyed.
    survey = answers > known.proxies
    least = math.ceil(answers / known.proxies) + survey
    spent = settings.releases is not None and settings.releases < least
    needed = f"{answers:,} answers about {known.proxies:,} proxies{' and the survey' * survey}"
    fewer = f"take {least} or more, fewer rounds or fewer --proxies-per-round"
    return [
        (lone, "clients", "--secure-agg needs 3 or more: a sum of two hides neither"),
        (few, "clients", f"{fleet}; add --dp-small-fleet to go on all the same"),
        (not 0 <= settings.drop < 1, "drop", "use a number from 0 to less than 1"),
        (more, "proxies_per_round", f"use 1 to {known.proxies:,}, all proxies of {known.title}"),
        (not fit, "dp_eps", f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf"),
        (delta is not None and not 0 < delta < 1, "dp_delta", "use a number between 0 and 1"),
        (settings.images_per_person not in GROUP_SIZES, "images_per_person", f"use one of {sizes}"),
        (spent, "releases", f"{needed} {fewer}"),
    ]


def _with_own(settings: Settings, split: Split) -> tuple[Settings, OwnData, Split]:
    """Return the settings that follow from user-supplied data, after reading the data."""
    from experiments.core.own_data import digest, own_federation  # loads tensors
    from secure_fd.data.own_images import client_folders

    images = None if settings.images is None else settings.images.absolute()
    proxies = None if settings.proxies is None else settings.proxies.absolute()
    if images is None or client_folders(images):
        if settings.split != "strong":
            raise ConfigurationError("split", settings.split, "the data is divided already")
        split = Split("own")
    own = OwnData("", settings.image_size, settings.federation, images, proxies, _table(settings))
    data = own_federation(own, split, settings.clients, settings.seed)
    own = replace(own, digest=digest(data), show_private=settings.show_private)
    count = len(data.clients)
    if settings.clients not in (count, _usual("clients")):
        raise ConfigurationError("clients", settings.clients, f"the data has {count}")
    return replace(settings, dataset=data.name, clients=count), own, split


def _table(settings: Settings) -> Table | None:
    if settings.table is None or settings.columns is None or settings.public is None:
        return None
    return Table(
        settings.table.absolute(),
        settings.columns.absolute(),
        settings.public.absolute(),
        settings.label,
        settings.site,
        settings.person,
    )


def row_specs(plan: Plan) -> tuple[RowSpec, ...]:
    """The rows in the order of the table.

    Raises ConfigurationError where a row is asked for by a key that these settings do not have.
    """
    rows = [*every_row(plan), *_own_rows(plan)]
    every = {spec.key: spec for spec in rows}
    if len(every) < len(rows):
        keys = [spec.key for spec in rows]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigurationError("methods", twice, "use class names that differ from all others")
    if plan.settings.rows == "all":
        quick = plan.settings.quick
        return tuple(row for row in rows if not quick or _in_a_look(row, plan.settings))
    wanted = _names(plan.settings.rows)
    for key in wanted:
        if key not in every:
            raise ConfigurationError("rows", key, f"use all, or some of {', '.join(every)}")
    return tuple(spec for key, spec in every.items() if key in wanted)


def every_row(plan: Plan) -> list[RowSpec]:
    """The rows that these settings have without user-supplied methods, in the table's order."""
    chosen = plan.settings
    labels: tuple[Labels, ...] = ("soft", "hard") if chosen.labels == "both" else (chosen.labels,)
    hard = labels[-1]
    masks: Literal["masks"] | None = "masks" if chosen.secure_agg else None
    units = plan.units if chosen.dp_eps is not None else ()
    lies = (1, 3) if chosen.liars else ()
    other = chosen.aggregation
    rows = [RowSpec("fedavg"), RowSpec("selective-fd", hard)]
    if masks:
        rows.insert(1, RowSpec("fedavg", secure=masks))
        rows += [RowSpec("selective-fd", hard, masks, liar=lie) for lie in (0, *lies)]
    if other != "masks":
        proven = lies if other == "prio3" else ()
        rows += [RowSpec("selective-fd", hard, other, liar=lie) for lie in (0, *proven)]
    noisy = [unit for unit in ("label", "client") if unit in units]
    rows += [RowSpec("selective-fd", hard, masks, unit) for unit in noisy]
    rows += [RowSpec("fedmd", labels[0])]
    rows += [RowSpec("selective-fd", kind) for kind in labels[:-1]]
    if plan.base.of_table:
        rows = [RowSpec("heads", hard, masks), *rows]
        rows.insert(2, RowSpec("fedavg", model=LINEAR))
    if "record" in units:
        rows += [RowSpec("fedavg", unit="record"), RowSpec("heads", hard, masks, "record")]
    return [*rows, RowSpec("independent")]


def _in_a_look(row: RowSpec, settings: Settings) -> bool:
    """Return whether --quick keeps a row: FedAvg, FedMD, and the usual rows of Selective-FD."""
    if row.kind == "fedavg":
        return row.secure is None and row.unit is None
    protected = row.secure is not None or row.unit is not None
    return row.kind != "independent" and (
        row.kind != "selective-fd" or protected or not settings.secure_agg
    )


def _own_rows(plan: Plan) -> list[RowSpec]:
    """Return the rows of user-supplied methods: in clear, and under masks if these are on.

    No unit but DP-SGD, where clients share parameters: the label unit is made for hard votes of
    one class, and votes carry no record's epsilon.
    """
    rows = [RowSpec(kind) for kind in plan.methods]
    if plan.settings.secure_agg:
        rows += [RowSpec(kind, secure="masks") for kind in plan.methods]
    if plan.settings.dp_eps is not None and "record" in plan.units:
        masks: Literal["masks"] | None = "masks" if plan.settings.secure_agg else None
        rows += [RowSpec(kind, "hard", masks, "record") for kind in plan.methods if averages(kind)]
    return rows


def _attacks(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return (*default_names(), *PLAYED) if text == "all" else ()
    chosen = _names(text)
    for name in chosen:
        if ":" in name:
            working_folder()
            load(name, "attacks")
        elif name not in (*registry(), *PLAYED):
            known = ", ".join((*registry(), *PLAYED))
            allowed = f"use all, none, or one or more of {known}, or package.module:Name"
            raise ConfigurationError("attacks", name, allowed)
    return chosen


def _methods(text: str) -> tuple[str, ...]:
    chosen = _names(text) if text else ()
    for name in chosen:
        method_class(name)
    return chosen


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",")))


def _default_out(settings: Settings) -> Path:
    split = "" if settings.dataset == "own" else f"-{settings.split.replace(':', '')}"
    return dated(f"{settings.dataset}{split}")


# The study.


def cells(settings: Settings) -> tuple[Cell, ...]:
    """Return all rows for all seeds. Only the first seed is attacked, and no row with a liar.

    Raises ConfigurationError, one sentence, for the first setting that is not allowed.
    """
    made = plan(settings, os.environ.get("SECURE_FD_DATA"))
    specs, own, private = row_specs(made), _digest(made), noise(made)
    return tuple(
        Cell(
            row_config(replace(made.base, seed=seed), spec, private),
            made.attacks if seed == settings.seed and not spec.liar else (),
            settings.quick,
            own,
        )
        for seed in range(settings.seed, settings.seed + settings.seeds)
        for spec in specs
    )


def _cost(cell: Cell) -> int:
    """Rank of a row by its time: DP-SGD takes the longest, and heads train no network."""
    if averages(cell.config.method):
        return 3 if cell.config.unit else 1
    return 0 if cell.config.method in HEADS else 2


def _digest(made: Plan) -> str:
    """Return a hash of the user-supplied files, which no commit contains; "" without any."""
    own = [name for name in (*made.methods, *made.attacks) if ":" in name]
    files = [Path(str(find_spec(name.partition(":")[0]).origin)) for name in own]  # type: ignore[union-attr]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest() if own else ""


STUDY = Study(
    name="privacy_compare",
    folder="",
    about=cleandoc(Settings.__doc__ or ""),
    settings=Settings,
    cell=Cell,
    cells=cells,
    prepare=prepared,
    measure=measured,
    shown=later("experiments.report.verdict:shown"),  # plots and pages are slow to import
    image_set=lambda cell: None if cell.config.own else cell.config.image_set,
    out=lambda settings: settings.out or _default_out(settings),
    report=later("experiments.report.report:write_report"),
    needs=needs,
    cost=_cost,
    alone=True,
    reads=("per_client", "curve"),
)


def main(arguments: Sequence[str] | None = None, prog: str = "privacy_compare.py") -> int:
    """Parse, run what is missing, save, show; returns the exit status."""
    return study.main("experiments.privacy_compare", arguments, prog)


if __name__ == "__main__":
    raise SystemExit(main())
