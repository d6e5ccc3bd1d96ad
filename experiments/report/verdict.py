"""The main table of a comparison, the sentences that follow from it, and both in a terminal."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from attacks import registry
from attacks.core.result import EXCESS
from experiments.compare.comparison import Row, leakage, rows
from experiments.compare.leakage import NOT_APPLICABLE, PLAYED, Leakage, Measured, is_error
from experiments.core.measures import ACCURACY, AREA, BALANCED, SINGLE
from experiments.core.run_config import HEADS, IMAGES_PER_PERSON, RunConfig, averages
from experiments.core.study import Results
from experiments.report.tables import QUIET, Table, Toned, counted, human_seconds, new_table, number
from secure_fd.data.image_sets import image_set
from secure_fd.privacy.guarantee import format_epsilon

Claim = Mapping[str, Any]
"""A guarantee as `Guarantee.to_json` gives it."""
COPY, RECOGNISED = 40.0, 20.0
"""dB from which a reconstruction is a copy, and from which a digit is recognised."""
KNOWN = 0.02
"""Error of class shares below which they are known."""
USEFUL = 10.0
"""Largest epsilon of one record that the advice calls a guarantee."""
MISSING = "-"
SHOWN_PRIVATE = (
    "--show-private: the results hold private images of clients, and reconstructions of them"
)
_FEW = 4
"""Rows from which a sentence counts them."""
_WIDEST = 25
"""Most columns of a row's name."""
_GAME = {
    "game_clients": "clients",
    "game_members_of_a_class": "members of a class at most",
    "game_runs": "runs",
}
"""Details of a membership game that the legend states, with their units."""


KINDS = (
    "Pictures of training records",
    "Columns of training rows",
    "Classes of a client",
    "Members, by the server",
    "Members, by the final model",
)
"""Kinds of leakage, graver kinds first."""
PICTURES, ROWS, CLASSES, SERVER, MODEL = KINDS


@dataclass(frozen=True, slots=True)
class Column:
    """One column of leakage: the sharpest of the attacks that state its name.

    games: of small federations, which belong to it too. absent: text where no attack applies.
    pictures: name of the column for images, in whose place it stands for a table.
    """

    name: str
    kind: str
    games: tuple[str, ...] = ()
    absent: str = MISSING
    pictures: str = ""

    @property
    def attacks(self) -> tuple[str, ...]:
        """Return the names of its attacks."""
        stated_name = self.pictures or self.name
        stated = [name for name, entry in registry().items() if entry.shown_in == stated_name]
        return (*stated, *self.games)


LABELS = Column("labels: error", CLASSES)
COLUMNS = (
    LABELS,
    Column("members, server: this run", SERVER),
    Column("members, server: worst", SERVER, PLAYED[:1]),
    Column("members, model: this run", MODEL),
    Column("members, model: worst", MODEL, PLAYED[1:]),
    Column("picture, dB: this run", PICTURES),
    Column("picture, dB: worst", PICTURES, absent="none"),
)
TABLE_COLUMNS = (
    *(column for column in COLUMNS[:5] if not column.games),
    Column("columns, error: this run", ROWS, pictures="picture, dB: this run"),
    Column("columns, error: worst", ROWS, absent="none", pictures="picture, dB: worst"),
)
"""Where records are rows of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A comparison as it is shown: rows over seeds in the order of the table, and what leaks."""

    results: Results
    rows: tuple[Row, ...]
    leakage: Leakage

    @classmethod
    def of(cls, results: Results) -> "Comparison":
        """Rows over seeds, and what attacks learn from them."""
        made = tuple(rows(results))
        return cls(results, made, leakage(made))

    @property
    def shared(self) -> RunConfig:
        """A run on the rounds and steps that all rows share, but for heads and averages."""
        every = [row.config for row in self.rows]
        return next(
            (c for c in every if not averages(c.method) and c.method not in HEADS), every[0]
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of leakage; none where nothing was attacked."""
        if not self.leakage.attacks:
            return ()
        return TABLE_COLUMNS if self.shared.of_table else COLUMNS

    @property
    def private(self) -> dict[str, Claim]:
        """Claim of each row that claims differential privacy, by the row's label."""
        return {row.label: row.claim["privacy"] for row in self.rows if row.claim["privacy"]}


# The table.


def main_table(made: Comparison) -> Table:
    """One row a method: accuracy, epsilon of one record, and what each attacker learns."""
    further = _SCORES if made.shared.of_table else {}
    names = ["row", "test: acc, %", *further, "epsilon: record"]
    names += [column.name for column in made.columns]
    table = replace(new_table("Accuracy, guarantee and leakage", names), grouped=True)
    for row, name in zip(made.rows, row_names(made), strict=True):
        epsilon = epsilon_of(row.claim["privacy"])
        leaks = (cell(made.leakage, row.key, column) for column in made.columns)
        more = (_percent(row, score) for score in further.values())
        table.add_row(name, row.accuracy, *more, epsilon, *leaks)
    guess = []
    for column in made.columns:
        found = (best(made.leakage, row.key, column) for row in made.rows)
        known = [one.control for one in found if one]
        guess.append(number(median(known)) if known else MISSING)
    if guess:
        table.add_row("guess / no access", MISSING, *[MISSING] * len(further), MISSING, *guess)
    return table


_SCORES = {"test: bal, %": BALANCED, "test: AUC, %": AREA}
"""Further figures of the test set, where classes of a table are seldom equally many."""


def scores(made: Comparison) -> Table:
    """Further figures of the test set, for a page whose main table has no room for them."""
    table = new_table("Balanced accuracy and AUC, mean over clients", ["row", *_SCORES])
    for row, name in zip(made.rows, row_names(made), strict=True):
        table.add_row(name, *(_percent(row, score) for score in _SCORES.values()))
    return table


def _percent(row: Row, score: str) -> str:
    having = any(score in run.figures for run in row.runs)
    return f"{100 * row.mean(score):.1f}" if having else MISSING


def row_names(made: Comparison) -> list[str]:
    """Short names without epsilon; Selective-FD's later rows are indented below its first."""
    names: list[str] = []
    above = None
    for row in made.rows:
        plain = replace(row.spec, secure=None, unit=None, liar=0)
        name = row.label.replace("noise on labels", "label noise")
        if row.spec.kind == "heads":  # its epsilon stands beside it
            name = name.replace(" + noise", "")
        if row.spec.kind == "selective-fd" and plain == above:
            name = "  " + name.removeprefix(plain.label).removeprefix(" ").removeprefix(", ")
        above = plain
        names.append(name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…")
    return names


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure as the table shows it: of a gain in dB the PSNR itself, which compares with others.

    tells: whether it exceeds its control, and a gain in dB also that of any image without access.
    """

    value: float
    control: float
    tells: bool
    picture: bool
    error: bool

    @classmethod
    def of(cls, found: Measured) -> "Shown":
        """Read a figure."""
        first, known = found.first, found.details
        value, control, tells = found.figure, found.control, found.leaks
        if first.figure_name.startswith(EXCESS):
            without = first.control_name.removeprefix(f"{EXCESS} of the ")
            value, control = known.get("A", value), known.get(f"{without}: A", control)
            low = found.interval[0] if found.interval else found.figure
            others = (gain for name, gain in known.items() if name.endswith(": delta"))
            tells = tells and all(low > other for other in others)
        return cls(value, control, tells, first.unit == "dB", is_error(first.figure_name))

    @property
    def sharpness(self) -> tuple[bool, float]:
        """Order of figures."""
        return self.tells, -self.value if self.error else self.value

    @property
    def text(self) -> Toned:
        """Return the figure, quiet if it does not differ from its control."""
        full = self.value >= COPY if self.picture else self.error and self.value <= KNOWN
        copy = " copy" if full and self.picture else ""
        tone = "quiet" if not self.tells else "full" if full else "leak"
        return Toned(f"{number(self.value)}{copy}", tone)


def best(leaks: Leakage, row: str, column: Column) -> Shown | None:
    """The sharpest figure of a column's attacks on a row."""
    found = (leaks.figure(row, name) for name in column.attacks)
    shown = [Shown.of(one) for one in found if one]
    return max(shown, key=lambda one: one.sharpness, default=None)


def cell(leaks: Leakage, row: str, column: Column) -> str:
    """The text of a row under a column."""
    if found := best(leaks, row, column):
        return found.text
    why = [leaks.absence(row, name) for name in column.attacks if (row, name) in leaks.cells]
    inapplicable = bool(why) and all(one.startswith(NOT_APPLICABLE) for one in why)
    return column.absent if inapplicable else MISSING


# Guarantees.


def epsilon_of(claim: Claim | None, records: int = 1) -> str:
    """Epsilon of records of one client that belong together, over the whole run.

    "none" where nothing bounds it, or where an assumption failed.

    >>> epsilon_of({"unit": "record", "holds": True, "epsilon": 4.0, "groups": [[1, 3.991]]})
    '4'
    >>> epsilon_of({"unit": "record", "holds": False, "epsilon": None}), epsilon_of(None)
    ('none', '-')
    """
    if claim is None:
        return MISSING
    if not claim["holds"]:
        return bounded(None)
    whole = claim["epsilon"] if claim["unit"] == "client" else None
    return bounded(dict(claim.get("groups", [])).get(records, whole))


def bounded(epsilon: float | None) -> str:
    """An epsilon, rounded up; "none" without a bound."""
    return "none" if epsilon is None else format_epsilon(epsilon)


def guarantees(made: Comparison) -> Iterator[str]:
    """Yield for each private row its guarantee, or why it has none, in one sentence."""
    persons: Any = made.results.settings.get("images_per_person", IMAGES_PER_PERSON)
    for label, claim in made.private.items():
        if not claim["holds"]:
            why = "; ".join(claim.get("unmet", [])) or "no noise is added"
            yield f"{label}: no guarantee: {why}."
            continue
        unit = "answer" if claim["unit"] == "label" else claim["unit"]
        parts = [f"epsilon {format_epsilon(claim['epsilon'])} for one {unit}"]
        larger = {one["unit"]: one["epsilon"] for one in claim["composes_to"]}
        if claim.get("epsilon_replace_one"):
            parts.append(f"{bounded(claim['epsilon_replace_one'])} if replaced")
        if unit == "record" and made.results.settings.get("person"):
            parts.append("a record is a person, as one row of each is used")
        elif unit == "record":
            parts.append(f"{epsilon_of(claim, persons)} for {persons} of one person")
        parts += [f"{bounded(cost)} for one {name}" for name, cost in larger.items()]
        deltas = [claim["delta"], *(one["delta"] for one in claim["composes_to"])]
        parts.append(f"delta {max(deltas):.2g}".replace("e-0", "e-"))
        needed = [one for one in claim.get("assumptions", []) if "clients in a sum" in one]
        condition = f", if {needed[0]}" if needed else ""
        yield f"{label}: {', '.join(parts)}{condition}."


# Sentences.

_SPLITS = {
    "strong": "one class each",
    "weak": "two classes each",
    "iid": "all classes each",
    "own": "divided as it came",
}


def heading(made: Comparison) -> str:
    """Data, clients, split, rounds, seeds and noise."""
    shared = made.shared
    data = image_set(shared.image_set).title
    split = _SPLITS.get(shared.split, shared.split)
    kinds = {row.first.notes.get("noise") for row in made.rows} & {"seeded", "fresh"}
    noise = [f"noise {' and '.join(sorted(map(str, kinds)))}"] if kinds else []
    every = made.results.seeds
    seeds = f"{'seed' if len(every) == 1 else 'seeds'} {' '.join(map(str, every))}"
    clients = counted(shared.clients, "client")
    return ", ".join([data, clients, split, counted(shared.rounds, "round"), seeds, *noise])


def leaking(made: Comparison, column: Column) -> list[str]:
    """Labels of the rows in which a column exceeds a guess; a blur is no picture."""
    found = [(row.label, best(made.leakage, row.key, column)) for row in made.rows]
    leaky = [(label, one) for label, one in found if one and one.tells]
    return [label for label, one in leaky if not (one.picture and one.value < RECOGNISED)]


def what_leaks(made: Comparison) -> str:
    """Rows by what attackers learn from them, graver kinds first; "" without attacks."""
    parts = []
    for kind in KINDS:
        every = [leaking(made, column) for column in made.columns if column.kind == kind]
        if not every:
            continue
        shown, *worst = every
        beyond = [label for labels in worst for label in labels if label not in shown]
        text = [_listed(made, shown)] if shown else []
        text += [f"in the worst case {_listed(made, beyond)}"] if beyond else []
        parts += [f"{kind}: {'; '.join(text)}."] if text else []
    attacked = any(made.leakage.measured(name) for name in made.leakage.attacks)
    return " ".join(parts) or ("No attack exceeds a guess in any row." if attacked else "")


def _listed(made: Comparison, labels: Sequence[str]) -> str:
    few = len(labels) < _FEW
    return ", ".join(labels) if few else f"{len(labels)} of {len(made.rows)} rows"


def what_to_use(made: Comparison) -> str:
    """The most accurate row with a guarantee for a record, and without one that hides most."""
    guarded = [row for row in made.rows if _guarded(row)]
    what = "columns" if made.shared.of_table else "pictures"
    leaks = [(c.kind, label) for c in made.columns for label in leaking(made, c)]
    grave = {label for kind, label in leaks if kind in (PICTURES, ROWS, CLASSES)}
    members = {label for kind, label in leaks if kind in (SERVER, MODEL)}
    read = [row for row in made.rows if best(made.leakage, row.key, LABELS)]
    plain = [row for row in read if not row.claim["privacy"] and row.label not in grave]
    parts = []
    if guarded:
        top = max(guarded, key=lambda row: row.mean(ACCURACY))
        cost = f"epsilon {epsilon_of(top.claim['privacy'])}"
        parts.append(f"With a guarantee for a record: {top.label} ({top.accuracy} %, {cost}).")
    if plain:
        top = max(plain, key=lambda row: row.mean(ACCURACY))
        but = ", but not who is a member" if top.label in members else ""
        parts.append(f"Without: {top.label} ({top.accuracy} %) hides {what} and classes{but}.")
    nothing = f"No row hides {what} and classes, and none has a useful guarantee."
    return " ".join(parts) or (nothing if made.columns else "")


_ON_TABLES = (
    "On tables: filtering is for sites of different classes and for unlike networks; elsewhere "
    "FedAvg is as accurate. Proxies must be real public rows. A network that a site trains alone "
    "on few rows shows more of its members than FedAvg's.",
)


def _guarded(row: Row) -> bool:
    claim = row.claim["privacy"]
    known = dict(claim.get("groups", [])).get(1) if claim and claim["holds"] else None
    return known is not None and known <= USEFUL


def notes(made: Comparison) -> list[str]:
    """Insecure settings, and votes that one client alone decides."""
    own = made.shared.own
    found = [SHOWN_PRIVATE] if own is not None and own.show_private else []
    flags: list[Any] = [run.notes["insecure"] for run in made.results.cells]
    found += sorted(set().union(*flags))
    masked = [row for row in made.rows if row.sum == "masks" and not row.claim["privacy"]]
    having = [row for row in masked if any(SINGLE in run.figures for run in row.runs)]
    share, label = max(((row.mean(SINGLE), row.label) for row in having), default=(0.0, ""))
    if share > 0.5:
        found.append(
            f"{label}: one client alone answered {100 * share:.0f} % of the answered "
            "proxies; masks hide which client, not its vote. Only noise hides that."
        )
    return found


_BEST = "of the best reconstruction of a training"
_PICTURE = f"picture: PSNR {_BEST} record, from 20 dB recognisable, from 40 dB a copy"
_COLUMN = f"columns: error {_BEST} row, in public deviations of a column, 0 is exact"


def legend(made: Comparison) -> list[str]:
    """Units of the columns, what each was measured on, and what a quiet figure is."""
    count = sum(len(made.leakage.measured(name)) for name in made.leakage.attacks)
    table = made.shared.of_table
    every = [
        "acc: mean test accuracy of clients. "
        + ("bal: balanced accuracy. " if table else "")
        + "epsilon: of one record, whole run; none: no bound.",
        "labels: error of the server's estimate of a client's class shares, 0 is exact. members: "
        "AUC, 0.5 is a guess, 1 certain. "
        + (_COLUMN if table else _PICTURE)
        + "; none: no update is sent.",
        "this run: measured on this run. worst: "
        + ("columns" if table else f"members in {worst_case(made.leakage)}; pictures")
        + " from one local step on 1 or 8 records. guess: median of the controls.",
        f"{QUIET} or dim: no difference from its control at 95 %, by Holm's correction over all "
        f"{count} figures. Red: known exactly.",
    ]
    return every if made.columns else every[:1]


def worst_case(leaks: Leakage) -> str:
    """Federations on which the worst case of membership was measured, as their results state."""
    found = [one for name in PLAYED for one in leaks.measured(name).values()]
    details = found[0].details if found else {}
    parts = [f"{details[name]:g} {unit}" for name, unit in _GAME.items() if name in details]
    return f"federations drawn from the same data ({', '.join(parts)})" if parts else "small games"


# The terminal.

WIDTH = 100
"""Most columns of a line."""
_INDENT = 14
_REPORT = "report.html beside the results: intervals, controls, pictures, every condition."


def shown(results: Results) -> list[Table | str]:
    """Return table and sentences of a comparison, at most `WIDTH` columns wide."""
    made = Comparison.of(results)
    spent = f"{human_seconds(results.cpu_seconds)} of CPU"
    title = textwrap.wrap(f"{heading(made)}; {spent}", WIDTH)
    return [*title, "", main_table(made), "", *_sentences(made)]


def _sentences(made: Comparison) -> Iterator[str]:
    for name, sentences in (
        ("Insecure", notes(made)),
        ("Guarantees", guarantees(made)),
        ("What leaks", [what_leaks(made)]),
        ("What to use", [what_to_use(made), *(_ON_TABLES if made.shared.of_table else ())]),
        ("Report", [_REPORT]),
        ("Legend", legend(made)),
    ):
        for i, sentence in enumerate(filter(None, sentences)):
            start, later = f"{'' if i else name:<{_INDENT}}", " " * _INDENT
            yield textwrap.fill(sentence, WIDTH, initial_indent=start, subsequent_indent=later)
