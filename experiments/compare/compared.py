"""A comparison as it is shown: its rows over seeds, their tables, and sentences about them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.compare.comparison import (
    BYTES_DOWN,
    SUM_SECONDS,
    SURVIVORS,
    VOID,
    Row,
    leakage,
    rows,
)
from experiments.compare.leakage import Leakage
from experiments.compare.promises import below, privacy, voids
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.results import SINGLE
from experiments.core.rows import IMAGES_PER_PERSON, OwnData
from experiments.core.study import Results
from experiments.report import tables
from experiments.report.page import shown as spelt

SHOWN_PRIVATE = (
    "--show-private: the results hold private images of clients, and reconstructions of them"
)
WHOLE = "; whole percents where one run with fresh noise shows no spread"
NOT_SHOWN = (
    "Private images of clients, and reconstructions of them, are in no file of these results; "
    "--show-private adds them."
)


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A comparison as it is shown."""

    results: Results
    rows: tuple[Row, ...]
    leakage: Leakage

    @classmethod
    def of(cls, results: Results) -> "Shown":
        """Rows over seeds, and what attacks learn from them."""
        made = rows(results)
        return cls(results, tuple(made), leakage(made))

    @property
    def seeds(self) -> list[int]:
        """Of all rows."""
        return sorted({found.cell.seed for found in self.results.cells})

    @property
    def drop(self) -> float:
        """The chance that a client drops out of a round; 0 where no faults were simulated."""
        return float(self.results.cells[0].cell.terms.drop)

    @property
    def images_per_person(self) -> int:
        """Records that one person has at one client."""
        found = self.results.settings.get("images_per_person")
        return found if isinstance(found, int) else IMAGES_PER_PERSON

    @property
    def insecure(self) -> list[str]:
        """Settings that weaken the run, or show what is private."""
        notes: list[Any] = [found.notes["insecure"] for found in self.results.cells]
        shown = [SHOWN_PRIVATE] if self.own is not None and self.own.show_private else []
        return [*shown, *sorted({flag for flags in notes for flag in flags})]

    @property
    def own(self) -> OwnData | None:
        """The user's own data; None of a public image set."""
        own: OwnData | None = self.results.cells[0].cell.terms.own
        return own


# Tables and sentences.


def overview(made: Shown) -> tables.Table:
    """Accuracy, bytes and seconds."""
    columns = ["method", "accuracy, %", "of clients, %", "alone, %", "up", "down", "CPU"]
    whole = WHOLE if any(row.digits == 0 for row in made.rows) else ""
    table = tables.new_table(
        "Accuracy; proxies that one client alone answered; bytes of a client in the whole run"
        f"{whole}",
        columns,
    )
    for i, row in enumerate(made.rows, 1):
        ends = " to ".join(map(row.percent, row.ends))
        alone = row.diagnostics.get(SINGLE)
        share = tables.NONE if alone is None else f"{100 * alone:.0f}"
        moved = (tables.human_bytes(row.mean(name)) for name in (BYTES_UP, BYTES_DOWN))
        seconds = tables.human_seconds(row.seconds)
        table.add_row(f"{i}. {row.label}", percent(row), ends, share, *moved, seconds)
    return replace(table, narrow=_without(table, "of clients, %", "down"))


def _without(table: tables.Table, *columns: str) -> tables.Table:
    """A table without some columns."""
    kept = [i for i, name in enumerate(table.columns) if name not in columns]
    made = tables.new_table(table.title, [table.columns[i] for i in kept], table.left)
    for row in table.rows:
        made.add_row(*(row[i] for i in kept))
    return made


def promises(made: Shown) -> tables.Table | None:
    """One line a row: its epsilon by what two worlds differ in."""
    seeded = any(row.first.notes.get("noise") == "seeded" for row in made.rows)
    return privacy(_claims(made), made.images_per_person, seeded=seeded)


def _claims(made: Shown) -> list[tuple[str, Any]]:
    return [(row.label, row.claim["privacy"]) for row in made.rows]


def warnings(made: Shown) -> list[str]:
    """Rows that promise nothing although they were to, and rows that collaboration does not pay."""
    levels = {row.label: row.mean(ACCURACY) for row in made.rows}
    alone = next((row.label for row in made.rows if row.key == "independent"), "")
    worse = below(levels, alone)
    return [
        *_sparse_votes(made.rows),
        *voids(_claims(made)),
        *(
            f"{row.label} ends at {row.percent(row.mean(ACCURACY))} %, below clients that learn "
            f"alone ({100 * levels[alone]:.1f} %)."
            for row in made.rows
            if row.label in worse
        ),
    ]


def percent(row: Row) -> str:
    """Accuracy, with its deviation over seeds where there are several, without the sign."""
    mean = row.percent(row.mean(ACCURACY))
    return f"{mean} ± {100 * row.deviation:.1f}" if len(row.runs) > 1 else mean


def sums(made: Shown) -> tables.Table:
    """How each row's sums were made, what they cost, and who was in them."""
    columns = ["method", "sum", "CPU", "up", "down", "clients in a sum", "void", "silent from"]
    table = tables.new_table(
        "A round's sum: bytes of a client, CPU time of all parties; clients drop out of a round "
        f"with chance {made.drop:g}",
        columns,
    )
    for i, row in enumerate(made.rows, 1):
        if row.sum is None:
            continue
        moved = (tables.human_bytes(row.mean(name) / row.rounds) for name in (BYTES_UP, BYTES_DOWN))
        void = sum(run.figures[VOID] for run in row.runs)
        lost = ", ".join(f"{stage} {count}" for stage, count in row.missing.items() if count)
        table.add_row(
            *(f"{i}. {row.label}", row.sum, tables.milliseconds(row.mean(SUM_SECONDS)), *moved),
            f"{row.mean(SURVIVORS):.1f} of {len(row.first.per_client)}",
            f"{void:.0f} of {row.rounds * len(row.runs)}",
            lost or tables.NONE,
        )
    return table


def diagnostics(made: Shown) -> tables.Table | None:
    """What only an evaluator knows of each row; None where no row has any."""
    names = list(dict.fromkeys(name for row in made.rows for name in row.diagnostics))
    table = tables.new_table("Diagnostics: what only an evaluator knows", ["method", *names])
    for row in made.rows:
        if found := row.diagnostics:
            table.add_row(
                row.label, *(spelt(found[n]) if n in found else tables.NONE for n in names)
            )
    return table if names else None


def summary(made: Shown) -> list[str]:
    """Sentences computed from the figures: ranges, and how often a proxy is answered."""
    return [_ranges(made), _releases(made)]


def _ranges(made: Shown) -> str:
    least, most = (
        {name: pick(made.rows, key=_by(name)) for name in (ACCURACY, BYTES_UP)}
        for pick in (min, max)
    )
    opening = (
        f"{tables.counted(len(made.rows), 'method')} over {tables.counted(len(made.seeds), 'seed')}"
    )
    low, high = (
        f"{row.percent(row.mean(ACCURACY))} % ({row.label})"
        for row in (least[ACCURACY], most[ACCURACY])
    )
    few, many = (
        f"{tables.human_bytes(row.mean(BYTES_UP))} ({row.label})"
        for row in (least[BYTES_UP], most[BYTES_UP])
    )
    return f"{opening}: accuracy from {low} to {high}; a client sends from {few} to {many}."


def _by(name: str) -> Callable[[Row], float]:
    return lambda row: row.mean(name)


def _sparse_votes(made: Sequence[Row]) -> list[str]:
    """The sentence on votes that no mask hides, where they are more than half; else nothing."""
    noiseless = [row for row in made if row.claim["privacy"] is None]
    open_rows = [row for row in noiseless if row.sum == "masks"] or noiseless
    shares = {row.label: row.diagnostics[SINGLE] for row in open_rows if SINGLE in row.diagnostics}
    label = max(shares, key=shares.__getitem__, default="")
    if shares.get(label, 0.0) <= 0.5:
        return []
    return [
        f"{100 * shares[label]:.0f} % of the answered proxies were answered by one client alone "
        f"({label}): masks hide the author there, not the vote; only differential privacy helps."
    ]


def _releases(made: Shown) -> str:
    """How often a client answers one proxy."""
    terms = made.results.cells[0].cell.terms
    agreed = terms.releases
    if agreed is None:
        often = f"up to {terms.rounds} times, once a round"
    else:
        often = "once in the whole run" if agreed == 1 else f"up to {agreed} times in the whole run"
    sentence = f"A client answers the same proxy {often}"
    if agreed == 1 or made.drop == 0:
        return f"{sentence}."
    return (
        f"{sentence}, and clients drop out: sums of two rounds whose cohorts differ by one client "
        f"give away that client's vote on a proxy that both rounds asked about."
    )
