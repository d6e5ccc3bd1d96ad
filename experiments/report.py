"""What a comparison leaves behind: tables and sentences, figures, and one HTML page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.attackers import LEGEND, attack_notes, by_attacker, verdict
from experiments.comparison import (
    BYTES_DOWN,
    INVERSION,
    ORIGINALS,
    SUM_SECONDS,
    SURVIVORS,
    VOID,
    Row,
    leakage,
    rows,
)
from experiments.exhibits import (
    attack_parts,
    caveats,
    curves,
    figure_names,
    marks,
    reading,
    styles,
)
from experiments.leakage import BETWEEN, Leakage, Pictures
from experiments.measures import ACCURACY, BYTES_UP
from experiments.page import Pairs, Picture, Section, claimed, data_uri, page, png, write_page
from experiments.page import shown as spelt
from experiments.plots import (
    INK,
    LEFT,
    MUTED,
    PAPER,
    SMALL,
    Forest,
    Strip,
    beside,
    forest,
    headed,
    margins,
    name_rows,
    new_figure,
    plain,
    roc,
    save,
    spread,
    strips,
    titled,
    wrapped,
)
from experiments.promises import below, privacy, voids
from experiments.results import SINGLE
from experiments.rows import IMAGES_PER_PERSON
from experiments.study import Results, save_arrays
from experiments.tables import (
    NONE,
    Table,
    counted,
    human_bytes,
    human_seconds,
    milliseconds,
    new_table,
    number,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMBERSHIP = "label-only"
_PICTURES = "reconstructions.npz"


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
        """Settings that weaken the run."""
        notes: list[Any] = [found.notes["insecure"] for found in self.results.cells]
        return sorted({flag for flags in notes for flag in flags})


# Tables and sentences.


def shown(results: Results) -> list[Table | str]:
    """What a terminal shows: the verdict, what rows cost and leak, and what they guarantee."""
    made = Shown.of(results)
    parts: list[Table | str] = [*_lines(verdict(made.leakage)), overview(made)]
    parts += [table for table in (by_attacker(made.leakage),) if table]
    parts += [table for table in (promises(made),) if table]
    parts += [f"! {sentence}" for sentence in warnings(made)]
    if made.drop > 0:
        parts.append(sums(made))
    if made.leakage.attacks:
        parts += ["", LEGEND, *(f"· {note}" for note in attack_notes(made.leakage))]
    if made.insecure:
        parts += ["\nInsecure settings of this run", *(f"! {flag}" for flag in made.insecure)]
    return parts


def _lines(sentences: Sequence[str]) -> list[str]:
    """As a list, with a line to spare; nothing of none."""
    return [*(f"· {sentence}" for sentence in sentences), *([""] if sentences else [])]


def overview(made: Shown) -> Table:
    """Accuracy, bytes and seconds."""
    columns = ["method", "accuracy, %", "up", "down", "CPU"]
    table = new_table("Accuracy over clients; bytes of a client in the whole run", columns)
    for i, row in enumerate(made.rows, 1):
        moved = (human_bytes(row.mean(name)) for name in (BYTES_UP, BYTES_DOWN))
        seconds = human_seconds(row.seconds)
        table.add_row(f"{i}. {row.label}", percent(row), *moved, seconds)
    return table


def promises(made: Shown) -> Table | None:
    """One line a row: its epsilon by what two worlds differ in."""
    return privacy(_claims(made), made.images_per_person)


def _claims(made: Shown) -> list[tuple[str, Any]]:
    return [(row.label, row.claim["privacy"]) for row in made.rows]


def warnings(made: Shown) -> list[str]:
    """Rows that promise nothing although they were to, and rows that collaboration does not pay."""
    levels = {row.label: row.mean(ACCURACY) for row in made.rows}
    alone = next((row.label for row in made.rows if row.key == "independent"), "")
    worse = below(levels, alone)
    return [
        *voids(_claims(made)),
        *(
            f"{label} ends at {100 * level:.1f} %, below clients that learn alone "
            f"({100 * levels[alone]:.1f} %)."
            for label, level in levels.items()
            if label in worse
        ),
    ]


def percent(row: Row) -> str:
    """Accuracy as mean ± deviation over clients, in percent, without the sign."""
    return f"{100 * row.mean(ACCURACY):.1f} ± {100 * row.spread:.1f}"


def sums(made: Shown) -> Table:
    """How each row's sums were made, what they cost, and who was in them."""
    columns = ["method", "sum", "CPU", "up", "down", "clients in a sum", "void", "silent from"]
    table = new_table(
        "A round's sum: bytes of a client, CPU time of all parties; clients drop out of a round "
        f"with chance {made.drop:g}",
        columns,
    )
    for row in made.rows:
        if row.sum is None:
            continue
        moved = (human_bytes(row.mean(name) / row.rounds) for name in (BYTES_UP, BYTES_DOWN))
        void = sum(run.figures[VOID] for run in row.runs)
        lost = ", ".join(f"{stage} {count}" for stage, count in row.missing.items() if count)
        table.add_row(
            *(row.label, row.sum, milliseconds(row.mean(SUM_SECONDS)), *moved),
            f"{row.mean(SURVIVORS):.1f} of {len(row.first.per_client)}",
            f"{void:.0f} of {row.rounds * len(row.runs)}",
            lost or NONE,
        )
    return table


def diagnostics(made: Shown) -> Table | None:
    """What only an evaluator knows of each row; None where no row has any."""
    names = list(dict.fromkeys(name for row in made.rows for name in row.diagnostics))
    table = new_table("Diagnostics: what only an evaluator knows", ["method", *names])
    for row in made.rows:
        if found := row.diagnostics:
            table.add_row(row.label, *(spelt(found[n]) if n in found else NONE for n in names))
    return table if names else None


def summary(made: Shown) -> list[str]:
    """Sentences computed from the figures: the verdict, ranges, sparse votes, releases."""
    return [
        *verdict(made.leakage),
        _ranges(made),
        *_sparse_votes(made.rows),
        _releases(made),
    ]


def _ranges(made: Shown) -> str:
    least, most = (
        {name: pick(made.rows, key=_by(name)) for name in (ACCURACY, BYTES_UP)}
        for pick in (min, max)
    )
    opening = f"{counted(len(made.rows), 'method')} over {counted(len(made.seeds), 'seed')}"
    low, high = (
        f"{100 * row.mean(ACCURACY):.1f} % ({row.label})"
        for row in (least[ACCURACY], most[ACCURACY])
    )
    few, many = (
        f"{human_bytes(row.mean(BYTES_UP))} ({row.label})"
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


# Figures.


def figures(made: Shown) -> "dict[str, Figure | None]":
    """By file name; None where there is nothing to draw."""
    images = pictures(made)
    return {
        "accuracy_bytes": accuracy_bytes(made),
        "accuracy": accuracy(made),
        "attacks": attacks(made),
        "reconstructions": reconstructions(made, images) if images else None,
        "roc": membership(made),
    }


def accuracy_bytes(made: Shown) -> "Figure":
    """Accuracy of every round against the bytes of a client until then, on a log axis.

    A row that sends nothing is a level line: a log axis has no zero.
    """
    figure = new_figure(8.4, 4.4)
    axes = figure.add_axes((0.085, 0.13, 0.515, 0.76))
    for row in made.rows:
        _draw_curve(axes, row, *styles(made.leakage)[row.label])
    _log_bytes(axes, [x for row in made.rows for x, _ in _sent(row)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.margins(y=0.06)
    plain(axes)
    axes.minorticks_off()
    titled(axes, "Accuracy against communication", "sent and received by a client, cumulative")
    _label_ends(axes, made)
    return figure


def _sent(row: Row) -> list[tuple[float, float]]:
    """Bytes and accuracy of the first seed; nothing of a row that sends nothing."""
    if not row.mean(BYTES_UP):
        return []
    return [(point.up + point.down, point.accuracy) for point in row.first.curve]


def _log_bytes(axes: "Axes", counts: list[float]) -> None:
    """A log axis in bytes, with enough ticks when it spans little; none without bytes."""
    if not counts:
        axes.set_xticks([])
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(value).replace(".0 ", " "))
    if max(counts) < 30 * min(counts):
        axes.set_xticks([d * 10.0**e for e in range(13) for d in (1, 2, 5)])
        axes.set_xlim(0.8 * min(counts), 1.25 * max(counts))


def _draw_curve(axes: "Axes", row: Row, colour: str, marker: str) -> None:
    points = _sent(row)
    if not points:
        axes.axhline(row.mean(ACCURACY), color=colour, linewidth=1.2, linestyle=(0, (4, 3)))
        return
    x, y = zip(*points, strict=True)
    axes.plot(x, y, color=colour, linewidth=1.6, solid_joinstyle="round")
    axes.plot(x[-1], y[-1], marker, color=colour, markersize=7, markeredgecolor=PAPER)


def _label_ends(axes: "Axes", made: Shown) -> None:
    """Names beside the axes, near the height of their end points and never on one another."""
    low, high = axes.get_ylim()
    ends = [row.first.curve[-1].accuracy for row in made.rows]
    heights = spread([(end - low) / (high - low) for end in ends], 0.075, 0.02, 0.98)
    looks = styles(made.leakage)
    for row, end, height in zip(made.rows, ends, heights, strict=True):
        colour, marker = looks[row.label]
        start = (end - low) / (high - low)
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": colour}
        axes.plot([1.01, 1.04], [start, height], linewidth=0.7, **place)
        axes.plot(1.06, height, marker if _sent(row) else "_", **place)
        place["color"] = INK
        axes.text(1.085, height, wrapped(row.label), va="center", fontsize=SMALL, **place)


def accuracy(made: Shown) -> "Figure":
    """Mean accuracy of each row, its deviation over clients, and every client."""
    figure = new_figure(8.4, 1.3 + 0.36 * len(made.rows))
    axes = figure.add_axes(margins(figure, left=LEFT, right=1.0))
    looks = styles(made.leakage)
    for y, row in enumerate(made.rows):
        colour, mean = looks[row.label][0], 100 * row.mean(ACCURACY)
        clients = 100 * np.asarray(row.first.per_client)
        axes.barh(y, mean, height=0.6, color=PAPER)
        axes.barh(y, mean, height=0.6, color=colour, alpha=0.6, linewidth=0)
        axes.errorbar(mean, y, xerr=100 * row.spread, color=INK, elinewidth=1.2, capsize=3)
        axes.plot(clients, np.full(len(clients), y + 0.4), "|", color=MUTED, markersize=3.5)
        beside(axes, y, f"{percent(row)} %")
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    name_rows(axes, [row.label for row in made.rows])
    headed(figure, "Test accuracy: mean ± spread over clients; ticks are single clients")
    return figure


def attacks(made: Shown) -> "Figure | None":
    """Each attack's figure with its interval, joined to its control; None without attacks."""
    leaks, looks = made.leakage, styles(made.leakage)
    panels = [
        Forest(name, figure_names(leaks, name, "\n"), marks(leaks, name, bare=True), looks)
        for name in leaks.attacks
        if leaks.measured(name)
    ]
    key = "attack, with its interval", "control, without access"
    return forest(panels, key) if panels else None


def membership(made: Shown) -> "Figure | None":
    """ROC of membership inference; None where no row has one."""
    drawn, names = curves(made.leakage, MEMBERSHIP), figure_names(made.leakage, MEMBERSHIP)
    return roc(drawn, f"Membership inference ({MEMBERSHIP})", names) if drawn else None


def pictures(made: Shown) -> Pictures:
    """Inverted images of the first seed by row key, the originals first and the controls last."""
    by_row = {row.key: _inverted(row) for row in made.rows}
    every = [named for named in by_row.values() if named]
    if not every:
        return {}
    attack = {key: named["attack"] for key, named in by_row.items() if named}
    controls = {
        f"control: {name}": images
        for named in reversed(every)
        for name, images in named.items()
        if name not in ("attack", ORIGINALS)
    }
    return {ORIGINALS: every[0][ORIGINALS], **attack, **controls}


def _inverted(row: Row) -> Pictures:
    start = INVERSION + BETWEEN
    kept = row.first.pictures.items()
    return {name.removeprefix(start): images for name, images in kept if name.startswith(start)}


def reconstructions(made: Shown, images: Pictures) -> "Figure":
    """Lines of images: the originals, what each method let out, and the controls."""
    labels, found = made.leakage.rows, made.leakage.measured(INVERSION)
    readings = {key: f"{reading(one)} {one.first.unit}" for key, one in found.items()}
    lines = [
        Strip(labels.get(name, name), made_of, readings.get(name, ""))
        for name, made_of in images.items()
    ]
    return strips(lines, "Reconstructions beside the private originals")


# The page.

_FRESH = (
    "Seeds drive data and training. Unless an insecure setting of this page says otherwise, keys "
    "and noise are fresh in every run, so private rows vary within their noise."
)


def write_report(results: Results, folder: Path) -> None:
    """Write the figures, the reconstructions and report.html."""
    made = Shown.of(results)
    drawn = figures(made)
    save(drawn, folder)
    if images := pictures(made):
        save_arrays(folder / _PICTURES, images)
    else:
        (folder / _PICTURES).unlink(missing_ok=True)  # one of an earlier run
    write_page(render(made, {name: png(f) for name, f in drawn.items() if f}), folder)


def render(made: Shown, drawn: Mapping[str, bytes]) -> str:
    """The page as text. drawn: PNG bytes by the names of `figures`."""
    found = made.results
    seconds = human_seconds(sum(cell.seconds for cell in found.cells))
    return page(
        "Accuracy, bytes and leakage, side by side",
        f"{found.schema} · {found.created} · {seconds} of CPU time in all rows",
        summary(made),
        list(_sections(made, drawn)),
        found.command,
        _FRESH,
        made.insecure,
    )


def _sections(made: Shown, drawn: Mapping[str, bytes]) -> Iterator[Section]:
    leaks, seeds = made.leakage, len(made.seeds)
    table = [part for part in (promises(made),) if part]
    yield Section(
        "Comparison", [overview(made), *_learnt(leaks), *table, *warnings(made), sums(made)]
    )
    yield Section("Guarantees", [part for row in made.rows for part in _guarantee(row)])
    yield Section("Figures", [p for p in _embedded(made, drawn) if p.source])
    first = ["The first seed alone is attacked."] if seeds > 1 and leaks.attacks else []
    yield Section("Attacks", [*first, list(attack_notes(leaks))])
    for name in leaks.attacks:
        yield Section(f"Attack {name}", attack_parts(leaks, name, 1), 3)
    known = [f"{caveat} ({where})" for caveat, where in caveats(leaks).items()]
    yield Section("Caveats", [known], 3)
    yield Section("Settings", list(_settings(made)))


def _learnt(leaks: Leakage) -> Iterator[str | Table]:
    """How to read the table by attacker, and the table; nothing without attacks."""
    if table := by_attacker(leaks):
        yield from (LEGEND, table)


def _guarantee(row: Row) -> Iterator[str | Pairs]:
    yield f"{row.label}: {row.claim['guarantee']}"
    if claim := row.claim["privacy"]:
        parts = {name: claimed(value, name) for name, value in claim.items()}
        yield Pairs("The guarantee in parts", parts, folded=True)


def _settings(made: Shown) -> Iterator[Pairs | Table]:
    found, first = made.results, made.results.cells[0]
    terms = first.cell.terms
    effective = {"rounds": terms.rounds, "schedule": asdict(terms.schedule)}
    yield Pairs("Run", {**found.settings, **effective, "seeds": made.seeds})
    data: Any = first.notes["data"]
    yield Pairs("Data", data)
    yield Pairs("Machine", {**found.machine, "device": first.notes["device"]})
    yield Pairs("Versions", found.versions)
    if table := diagnostics(made):
        yield table


def _embedded(made: Shown, drawn: Mapping[str, bytes]) -> Iterator[Picture]:
    aucs = made.leakage.measured(MEMBERSHIP)
    labels = made.leakage.rows
    texts = {
        "accuracy_bytes": (
            "Accuracy against communication",
            "Each line is one method, from its first round to its last; the mark is its end. "
            "A dashed line sends nothing.",
            _listed(made, lambda row: f"{human_bytes(row.mean(BYTES_UP))} sent by a client"),
        ),
        "accuracy": (
            "Accuracy",
            "Mean over clients and seeds; whiskers are one standard deviation over clients.",
            _listed(made, lambda row: f"± {100 * row.spread:.1f}"),
        ),
        "attacks": (
            "Attacks against their controls",
            "A figure says something only by its distance from the control: the same attack "
            "without access.",
            "The figures of every attack, as in the tables of this page.",
        ),
        "reconstructions": (
            "Reconstructions beside originals",
            "Right: the leakage figure of the row. A plausible image is no leak if the controls "
            "look the same.",
            "Private originals, what each method let out, and controls without access.",
        ),
        "roc": (
            "Membership inference",
            "Log-log: what counts is the left, where an accusation is rarely wrong. The axes "
            "start at the smallest rate that the non-members resolve.",
            "Area under the curve: "
            + "; ".join(f"{labels[key]} {number(found.figure)}" for key, found in aucs.items()),
        ),
    }
    for name, (heading, caption, alt) in texts.items():
        yield Picture(name, heading, caption, alt, data_uri(drawn.get(name)))


def _listed(made: Shown, more: Callable[[Row], str]) -> str:
    """Alternative text: every row's accuracy, and one thing more."""
    return "; ".join(
        f"{row.label} {100 * row.mean(ACCURACY):.1f} %, {more(row)}" for row in made.rows
    )
