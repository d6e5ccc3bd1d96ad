"""The front table: every method at equal terms, with its cost, its guarantee and what it leaks.

python experiments/rivals/equal_terms.py --image-sets mnist

One class a client, and the chest X-rays by hospital. Every network takes the same steps (see
`core.equal_steps`); heads take none. CPU seconds are those of all parties, with the public features
that a row uses. Under seed 20 the rows of MNIST and the chest X-rays are attacked as in the main
comparison.
"""

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attacks.core.result import EXCESS
from experiments.compare import comparison
from experiments.compare.leakage import PLAYED, Found, Leakage, keeping
from experiments.core import frames, measures, run_config, study
from experiments.core.equal_steps import QUICK, STEPS, Fields, equal_cell, setting
from experiments.core.frames import Frame, bars, frame, having, percent, table, with_seeds
from experiments.core.grid import HOSPITALS, SEEDS, later
from experiments.core.measures import ACCURACY, BYTES_UP, NETWORK
from experiments.core.run_config import Privacy, RunConfig
from experiments.core.shared_options import StudyOptions
from experiments.report.plots import Bars
from experiments.report.tables import NONE, Table, human_bytes, new_table
from experiments.report.verdict import COLUMNS, Claim, cell, epsilon_of

if TYPE_CHECKING:
    from secure_fd.data.images import Images
    from secure_fd.simulation.federation import Federation

MAJORITY = "accuracy of the most common class"
"""Accuracy of naming the test set's most common class for every image."""
PASSED = "CPU seconds until the paper's best"
"""On MNIST: CPU seconds after the first round in which the mean accuracy reaches `BEST`."""
BEST = 0.9468
"""The paper's best on MNIST with one class a client: Selective-FD with soft labels, Table 1."""
_WATCHED = 2000
"""Test images that tell when the best is passed."""
_SUMS = 6
_PLACES: Mapping[str, str] = {
    "mnist": "strong",
    "fashion_mnist": "strong",
    "cifar10_features": "strong",
    "chest_xray": HOSPITALS,
}
"""Image set -> split."""
_ATTACKED = ("mnist", "chest_xray")
_DELTA = 1e-5


class Row(NamedTuple):
    """One method.

    whom: for whom it is. own: what it sets of a run; without a schedule, its networks take the
    steps. control: no method for use, so that nothing attacks it.
    """

    title: str
    whom: str
    own: Fields
    control: bool = False


def _votes(method: str, **own: object) -> Fields:
    return {"method": method, "labels": "soft", **own}


def _hard(**own: object) -> Fields:
    return {"method": "selective-fd", "labels": "hard", **own}


def _heads(epsilon: float | None = None) -> Fields:
    """Pooled heads under masks; under noise, of as many sums as the unit plans for."""
    own = {"method": "heads", "schedule": run_config.HEADS_ALONE, "secure": "masks"}
    if epsilon is None:
        return {**own, "rounds": _SUMS}
    from secure_fd.privacy.record import sums_for

    noise = Privacy("record", epsilon, _DELTA)
    return {**own, "rounds": sums_for(epsilon, local=False), "privacy": noise}


@cache
def rows() -> Mapping[str, Row]:
    """The rows of the table, in its order."""
    answer = Privacy("label", 4.0, _DELTA)
    counted = {"variant": run_config.COUNTED, "server_threshold": 1.0}
    return {
        "independent": Row(
            "Independent",
            "parties that cannot share anything: the floor of every other row",
            {"method": "independent"},
        ),
        "fedavg": Row(
            "FedAvg",
            "parties that trust the server with parameters and have no public records",
            {"method": "fedavg"},
        ),
        "fedmd": Row(
            "FedMD soft",
            "parties of different networks whose classes are mixed",
            _votes("fedmd"),
        ),
        "ds-fl": Row("DS-FL soft", "the same, where fewer rounds matter", _votes("ds-fl")),
        "edgefd": Row(
            "EdgeFD soft",
            "parties of different networks that trust the server with each prediction",
            _votes(run_config.EDGEFD),
        ),
        "dafkd": Row(
            "DaFKD",
            "parties that share one network and have no public records, only a server's generator",
            {"method": "dafkd"},
        ),
        "selective-fd": Row(
            "Selective-FD hard",
            "parties of different networks and different classes, with public records",
            _hard(),
        ),
        "selective-fd-masks": Row(
            "Selective-FD hard, masks",
            "the same, where the server must not read one party's predictions",
            _hard(secure="masks"),
        ),
        "selective-fd-noise": Row(
            "Selective-FD hard, masks, label noise",
            "the same, where each single answer must be deniable",
            _hard(secure="masks", privacy=answer, **counted),
        ),
        "afl": Row(
            "AFL, one round",
            "parties that trust the server with the second moments of their records",
            {"method": run_config.AFL, "rounds": 1, "schedule": run_config.HEADS_ALONE},
        ),
        "heads": Row(
            "Pooled heads, masks",
            "parties that have public records and need no networks of their own",
            _heads(),
        ),
        **{
            f"heads-{epsilon:g}": Row(
                f"Pooled heads, masks, epsilon {epsilon:g}",
                "the same, with a guarantee for each record",
                _heads(epsilon),
            )
            for epsilon in (4.0, 1.0, 0.25)
        },
        "heads-networks": Row(
            "Networks trained on labels of pooled heads",
            "the same, where the networks are what is deployed",
            {"method": "heads", "rounds": _SUMS},
            control=True,
        ),
        "truth": Row(
            "True labels of the proxies",
            "no one: the networks if every label were right",
            {"method": "heads", "rounds": _SUMS, "variant": run_config.TRUE_LABELS},
            control=True,
        ),
        "centralised": Row(
            "All records at every client",
            "no one: the networks if nothing were private",
            {"method": "independent", "variant": run_config.ALL_RECORDS},
            control=True,
        ),
    }


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. row: of `rows`."""

    row: str
    config: RunConfig

    @property
    def seed(self) -> int:
        """Seed of data and training."""
        return self.config.seed

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.config.place}: {self.row}, seed {self.seed}"

    @property
    def place(self) -> str:
        """Image set and split, as a reader names them."""
        return self.config.place

    @property
    def timed(self) -> bool:
        """True if its CPU seconds are shown: those of one seed, and of all on MNIST."""
        return self.seed == SEEDS[0] or self.config.image_set == "mnist"

    @property
    def attacks(self) -> tuple[str, ...]:
        """Those of the comparison on one seed of two image sets, none on others."""
        from attacks import default_names

        first = self.seed == SEEDS[0] and self.config.image_set in _ATTACKED
        return (*default_names(), *PLAYED) if first and not rows()[self.row].control else ()

    @property
    def attacked(self) -> comparison.Cell:
        """The run as the comparison measures it."""
        return comparison.Cell(self.config, self.attacks)


@dataclass(frozen=True, slots=True)
class Settings(StudyOptions):
    """Every cell is saved when it ends, and a rerun does only what is missing."""

    rows: str | None = None
    """Methods, with commas; by default all of the table."""


def cells(options: Settings) -> tuple[Cell, ...]:
    """The cells that a command line asks for. Raises ConfigurationError for an unknown name."""
    known = rows()
    keys = study.listed("rows", options.rows, tuple(known))
    seeds = study.whole_numbers("seeds", options.seeds, SEEDS)
    sets = study.listed("image_sets", options.image_sets, tuple(_PLACES))
    if options.quick:
        sets, seeds = ("digits",), (0,)
    return tuple(
        _cell(key, known[key], name, seed, quick=options.quick)
        for name in sets
        for seed in seeds
        for key in keys
    )


def _cell(key: str, row: Row, image_set: str, seed: int, *, quick: bool) -> Cell:
    split = _PLACES.get(image_set, "strong")
    chosen = QUICK if quick else setting(_setting_of(row, key), image_set, split)
    config = equal_cell(row.own, chosen, image_set, split, seed, quick=quick)
    return Cell(key, config)


def _setting_of(row: Row, key: str) -> str:
    """The name of a row's chosen setting: those of one method and kind of label share it."""
    labels = row.own.get("labels")
    method = str(row.own["method"]).rpartition(":")[2].lower()
    return key if labels is None else f"{method}-{labels}"


# Measuring.


def needs(cell: Cell) -> Sequence[Hashable]:
    """Warm-ups and prepared attacks, as the comparison shares them."""
    return comparison.needs(cell.attacked)


def measure(data_dir: Path | None, cell: Cell, made: Mapping[Any, Any]) -> study.Result:
    """A run with its cost, its guarantee, and what naming one class would get."""
    import torch

    from experiments.core import runs

    if cell.timed:  # a row pays for its features, whichever came before it
        runs.federated_data.cache_clear()
    data = runs.data_of(cell.config, data_dir)
    labels, watch = data.test.labels, _Watch(cell, runs.spread(data.test, _WATCHED))
    if cell.attacks:
        found = comparison.measured(data_dir, cell.attacked, made, watch)
    else:
        found = runs.run_cell(data_dir, cell.config, made, watch)
    kept = found.only(ACCURACY, BYTES_UP, NETWORK)
    seconds = found.seconds - watch.spent
    if kept.get(NETWORK, 0.0) >= BEST and cell.config.image_set == "mnist":
        kept[PASSED] = seconds  # networks that learn after the last sum
    kept[MAJORITY] = float(torch.bincount(labels).max() / len(labels))
    return study.Result(
        cell,
        {**watch.figures, **kept},
        seconds,
        notes={"privacy": _claim(found.notes["privacy"])},
        attacks={name: _shortened(attack) for name, attack in found.attacks.items()},
    )


class _Watch:
    """Notes after each round whether training diverged, and on MNIST when the best is passed.

    spent: its own CPU seconds, which are none of the run's.
    """

    def __init__(self, cell: Cell, some: "Images") -> None:
        self._config, self._some = cell.config, some
        self._start, self.spent = time.process_time(), 0.0
        self.figures = dict[str, float]()

    def __call__(self, runner: "Federation") -> None:
        now = time.process_time()
        self.figures |= measures.diverged(runner)
        if self._answers and PASSED not in self.figures:
            accuracies = runner.accuracies(self._some)
            if sum(accuracies) / len(accuracies) >= BEST:
                self.figures[PASSED] = now - self._start - self.spent
        self.spent += time.process_time() - now

    @property
    def _answers(self) -> bool:
        """Whether clients answer on MNIST with what the row is about, not with a head before."""
        later = self._config.method == "heads" and self._config.schedule.proxy_steps > 0
        return self._config.image_set == "mnist" and not later


def _claim(claim: Any) -> Claim | None:  # noqa: ANN401 - JSON
    """Keep of a guarantee what the table reads."""
    if claim is None:
        return None
    kept = {name: claim[name] for name in ("unit", "holds", "epsilon")}
    return {**kept, "groups": [*claim.get("groups", [])][:1]}


def _shortened(attack: Found) -> Found:
    """Keep of an attack what the tables read: the figure, and those that pictures compare with."""
    bare = keeping(attack, lambda name: ": " in name or name in ("A", "delta_p_value"))
    if isinstance(bare, str):
        return bare.partition(": ")[0] + ": "  # the table shows no reason
    control = bare.control_name if bare.figure_name.startswith(EXCESS) else ""
    bare = replace(bare, title="", control_name=control, caveats=())
    return replace(bare, queries=0, n_non_members=0)


# Tables and figure.


def _runs(results: study.Results) -> Frame:
    """Results in the order of `rows`; networks replace the heads that they learn from."""
    known = rows()
    columns = {"title": lambda cell: known[cell.row].title, "seed": lambda cell: cell.seed}
    runs = having(frame(results, **columns), NETWORK, PASSED)
    runs[ACCURACY] = runs[NETWORK].fillna(runs[ACCURACY])
    order = list(known)
    places = runs.place.factorize()[0]
    ranked = runs.assign(at=places, rank=runs.row.map(order.index))
    return ranked.sort_values(["at", "rank"], kind="stable")


def tables(results: study.Results) -> list[Table | str]:
    """All places side by side, each place with its costs and leakage, and whom a row is for."""
    runs = _runs(results)
    return [
        _side_by_side(runs),
        *(part for place, of in runs.groupby("place", sort=False) for part in _shown(place, of)),
        *_about_afl(runs),
        _for_whom(set(runs.row)),
    ]


def _for_whom(shown: Set[str]) -> Table:
    table = new_table("For whom a row is", ("method", "for"), left=2)
    for key, row in rows().items():
        if key in shown:
            table.add_row(row.title, row.whom)
    return table


def _side_by_side(runs: Frame) -> Table:
    """Accuracy in all places."""
    texts = runs.pivot_table(ACCURACY, "title", "place", percent)
    texts = texts.reindex(runs.title.unique(), columns=runs.place.unique())
    if runs[PASSED].notna().any():
        watched = runs[[cell.config.image_set == "mnist" for cell in runs.cell]]
        seconds = watched.groupby("title")[PASSED].agg(_until)
        texts[f"CPU s until {100 * BEST:.2f} on MNIST"] = seconds
    made = table(
        f"Test accuracy, %, last round, {STEPS} steps a network", texts.rename_axis("method")
    )
    shares = [100 * runs[runs.place == place][MAJORITY].iloc[0] for place in runs.place.unique()]
    blank = [NONE] * (len(made.columns) - 1 - len(shares))
    made.rows.insert(0, ("The most common class", *(f"{share:.1f}" for share in shares), *blank))
    return made


def _until(passed: Frame) -> str:
    """Mean CPU seconds if all seeds passed; otherwise how many did."""
    seeds = f"{passed.count()} of {len(passed)} seeds"
    return f"{passed.mean():.0f}" if passed.notna().all() else seeds if passed.any() else NONE


def _shown(place: str, runs: Frame) -> Iterator[Table | str]:
    """Accuracy, cost, epsilon and leakage in one place."""
    by_title = runs.groupby("title", sort=False)
    leaks = Leakage.of(
        {title: title for title in runs.title},
        {title: [(r.cell.seed, r.attacks) for r in of.result] for title, of in by_title},
    ).corrected()
    leaky = [column for column in COLUMNS if leaks.cells]
    names = ["method", "accuracy, %", "bytes up a client", "CPU s, all parties", "epsilon: record"]
    made = new_table(f"{place}: cost, epsilon and leakage", names)
    made = replace(made, columns=(*made.columns, *(column.name for column in leaky)))
    for title, of in by_title:
        claims = [result.notes["privacy"] for result in of.result]
        timed = of[[cell.timed for cell in of.cell]]
        made.add_row(
            title,
            percent(of[ACCURACY]),
            human_bytes(of[BYTES_UP].max()),
            f"{(timed if len(timed) else of).seconds.mean():.0f}",
            epsilon_of(next((claim for claim in claims if claim), None)),
            *(cell(leaks, title, column) if leaks.cells else NONE for column in leaky),
        )
    yield made
    yield from frames.diverged(runs, "title")


def _about_afl(runs: Frame) -> Iterator[str]:
    """Where AFL's one round is better, and what it costs and lacks."""
    by_row = runs[runs.row.isin(["afl", "heads"])].pivot_table(ACCURACY, "place", "row")
    if {"afl", "heads"} - set(by_row.columns):
        return
    lead = (100 * (by_row["afl"] - by_row["heads"])).round(1)
    ahead = [f"{place} by {gap:.1f}" for place, gap in lead.items() if gap > 0]
    sent = runs.pivot_table(BYTES_UP, "place", "row", "max")
    times = (sent["afl"] / sent["heads"]).round().astype(int)
    span = " to ".join(dict.fromkeys((f"{times.min()}", f"{times.max()}")))
    where = f"ahead of pooled heads on {', '.join(ahead)} points" if ahead else "ahead nowhere"
    yield (
        f"AFL is {where}, in one round in place of {_SUMS}. It sends "
        f"{span} times the bytes, shows the server the second moments of a client's records, and "
        "has no epsilon."
    )


def panels(results: study.Results) -> list[Bars]:
    """Bars of every method, a panel a place."""
    runs = _runs(results).assign(series="seeds 20 to 22")
    names, columns = ("title", "series"), (ACCURACY, "", "")
    return [
        bars(place, "test accuracy", of, names, columns)
        for place, of in runs.groupby("place", sort=False)
    ]


STUDY = study.Study(
    name="equal_terms",
    folder="rivals",
    about="Every method at equal terms: accuracy, cost, guarantee and leakage.",
    settings=Settings,
    cell=Cell,
    cells=cells,
    needs=needs,
    prepare=later("experiments.compare.comparison:prepared"),
    measure=measure,
    image_set=lambda cell: cell.config.image_set,
    shown=with_seeds(tables),
    panels=panels,
)

if __name__ == "__main__":
    raise SystemExit(study.main("experiments.rivals.equal_terms"))
