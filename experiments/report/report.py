"""What a comparison leaves behind: tables and sentences, figures, and one HTML page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.compare import attackers, compared, glosses
from experiments.compare.comparison import INVERSION, ORIGINALS, Row
from experiments.compare.leakage import BETWEEN, Leakage, Pictures
from experiments.compare.promises import short
from experiments.compare.subject import prices, subject
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.study import Results, save_arrays
from experiments.report import exhibits, plots
from experiments.report.page import (
    Pairs,
    Part,
    Picture,
    Section,
    claimed,
    data_uri,
    page,
    png,
    write_page,
)
from experiments.report.tables import (
    NONE,
    Table,
    counted,
    human_bytes,
    human_seconds,
    new_table,
    number,
)
from secure_fd.privacy.guarantee import format_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMBERSHIP = ("game-server", "label-only")
"""Attacks whose curves are drawn: the first that was run."""
_PICTURES = "reconstructions.npz"


# The terminal.


def shown(results: Results) -> list[Table | str]:
    """What a terminal shows: subject, verdict, what rows cost, leak and guarantee."""
    made = compared.Shown.of(results)
    opening = [subject(made), *attackers.verdict(made.leakage), *prices(made)]
    parts: list[Table | str] = [*_lines(opening), compared.overview(made)]
    parts += [table for table in (attackers.by_attacker(made.leakage),) if table]
    parts += [table for table in (compared.promises(made),) if table]
    parts += [f"! {sentence}" for sentence in compared.warnings(made)]
    if made.drop > 0:
        parts.append(compared.sums(made))
    if made.leakage.attacks:
        parts += ["", attackers.LEGEND, *_first_alone(made)]
        parts += [f"· {note}" for note in attackers.attack_notes(made.leakage)]
    if made.insecure:
        parts += ["\nInsecure settings of this run", *(f"! {flag}" for flag in made.insecure)]
    return parts


def _first_alone(made: compared.Shown) -> list[str]:
    """The sentence on seeds that were not attacked, where there are any."""
    return ["The first seed alone is attacked."] if len(made.seeds) > 1 else []


def _lines(sentences: Sequence[str]) -> list[str]:
    """As a list, with a line to spare; nothing of none."""
    return [*(f"· {sentence}" for sentence in sentences), *([""] if sentences else [])]


# Figures.


def figures(made: compared.Shown) -> "dict[str, Figure | None]":
    """By file name; None where there is nothing to draw."""
    images = pictures(made)
    return {
        "accuracy_bytes": accuracy_bytes(made),
        "accuracy": accuracy(made),
        "attacks": attacks(made),
        "reconstructions": reconstructions(made, images) if images else None,
        "roc": membership(made),
    }


def accuracy_bytes(made: compared.Shown) -> "Figure":
    """Accuracy of every round against the bytes of a client until then, on a log axis.

    A row that sends nothing is a level line: a log axis has no zero.
    """
    figure = plots.new_figure(8.4, 4.4)
    axes = figure.add_axes((0.085, 0.13, 0.515, 0.76))
    for row in made.rows:
        _draw_curve(axes, row, *exhibits.styles(made.leakage)[row.label])
    _log_bytes(axes, [x for row in made.rows for x, _ in _sent(row)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.margins(y=0.06)
    plots.plain(axes)
    axes.minorticks_off()
    plots.titled(axes, "Accuracy, bytes and leakage", "sent and received by a client, cumulative")
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
    axes.plot(x[-1], y[-1], marker, color=colour, markersize=7, markeredgecolor=plots.PAPER)


def _label_ends(axes: "Axes", made: compared.Shown) -> None:
    """Names beside the axes, near the height of their end points and never on one another."""
    low, high = axes.get_ylim()
    ends = [row.first.curve[-1].accuracy for row in made.rows]
    heights = plots.spread([(end - low) / (high - low) for end in ends], 0.075, 0.02, 0.98)
    looks = exhibits.styles(made.leakage)
    for row, end, height in zip(made.rows, ends, heights, strict=True):
        colour, marker = looks[row.label]
        start = (end - low) / (high - low)
        place: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": colour}
        axes.plot([1.01, 1.04], [start, height], linewidth=0.7, **place)
        axes.plot(1.06, height, marker if _sent(row) else "_", **place)
        place["color"] = plots.INK
        name = f"{row.label}{_initials(made, row)}"
        axes.text(1.085, height, plots.wrapped(name), va="center", fontsize=plots.SMALL, **place)


def _initials(made: compared.Shown, row: Row) -> str:
    """Initials of what attackers learn of a row; "none"; "" where it was not attacked."""
    found = attackers.kinds(made.leakage, row.key)
    if found is None:
        return ""
    return f" · {' '.join(kind[0].upper() for kind in found) or 'none'}"


def accuracy(made: compared.Shown) -> "Figure":
    """Mean accuracy of each row, its deviation over seeds, and every client."""
    figure = plots.new_figure(8.4, 1.3 + 0.36 * len(made.rows))
    axes = figure.add_axes(plots.margins(figure, left=plots.LEFT, right=1.0))
    looks = exhibits.styles(made.leakage)
    for y, row in enumerate(made.rows):
        colour, mean = looks[row.label][0], 100 * row.mean(ACCURACY)
        clients = 100 * np.asarray(row.first.per_client)
        axes.barh(y, mean, height=0.6, color=plots.PAPER)
        axes.barh(y, mean, height=0.6, color=colour, alpha=0.6, linewidth=0)
        if len(row.runs) > 1:
            axes.errorbar(
                mean, y, xerr=100 * row.deviation, color=plots.INK, elinewidth=1.2, capsize=3
            )
        axes.plot(clients, np.full(len(clients), y + 0.4), "|", color=plots.MUTED, markersize=3.5)
        plots.beside(axes, y, f"{compared.percent(row)} %")
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    plots.name_rows(axes, [row.label for row in made.rows])
    plots.headed(figure, "Test accuracy, mean over clients; ticks are single clients")
    return figure


def attacks(made: compared.Shown) -> "Figure | None":
    """Each attack's figure with its interval, joined to its control; None without attacks."""
    leaks, looks = made.leakage, exhibits.styles(made.leakage)
    panels = [
        plots.Forest(
            attackers.short_heading(name).replace(", ", "\n", 1),
            exhibits.figure_names(leaks, name, "\n"),
            exhibits.marks(leaks, name),
            looks,
        )
        for name in leaks.attacks
        if leaks.measured(name)
    ]
    key = "attack, with its interval", "control, without access"
    return plots.forest(panels, key) if panels else None


def membership(made: compared.Shown) -> "Figure | None":
    """ROC of membership inference; None where no row has one."""
    attack = ranked(made.leakage)
    drawn, where = exhibits.curves(made.leakage, attack), attackers.STAND_INS.get(attack)
    title = f"Membership inference ({attack}), measured on {where or 'this run'}"
    return plots.roc(drawn, title, exhibits.figure_names(made.leakage, attack)) if drawn else None


def ranked(leaks: Leakage) -> str:
    """The attack on members whose curves are drawn."""
    return next((name for name in MEMBERSHIP if leaks.measured(name)), MEMBERSHIP[0])


def pictures(made: compared.Shown) -> Pictures:
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


def reconstructions(made: compared.Shown, images: Pictures) -> "Figure":
    """Lines of images: the originals, what each method let out, and the controls."""
    labels, found = made.leakage.rows, made.leakage.measured(INVERSION)
    readings = {key: f"{exhibits.reading(one)} {one.first.unit}" for key, one in found.items()}
    lines = [
        plots.Strip(labels.get(name, name), made_of, readings.get(name, ""))
        for name, made_of in images.items()
    ]
    return plots.strips(lines, "Reconstructions beside the private originals")


# The page.

_SEEDED = (
    "Seeds drive data, training and noise, so that every figure can be repeated. Unless an "
    "insecure setting of this page says otherwise, keys are fresh in every run."
)
_FRESH = (
    "Seeds drive data and training. Unless an insecure setting of this page says otherwise, keys "
    "and noise are fresh in every run, so private rows vary within their noise."
)


def write_report(results: Results, folder: Path) -> None:
    """Write the figures, the reconstructions and report.html."""
    made = compared.Shown.of(results)
    drawn = figures(made)
    plots.save(drawn, folder)
    if images := pictures(made):
        save_arrays(folder / _PICTURES, images)
    else:
        (folder / _PICTURES).unlink(missing_ok=True)  # one of an earlier run
    write_page(render(made, {name: png(f) for name, f in drawn.items() if f}), folder)


def render(made: compared.Shown, drawn: Mapping[str, bytes]) -> str:
    """The page as text. drawn: PNG bytes by the names of `figures`."""
    found = made.results
    seconds = human_seconds(sum(cell.seconds for cell in found.cells))
    return page(
        "Accuracy, bytes and leakage, side by side",
        f"{found.schema} · {found.created} · {seconds} of CPU time in all rows",
        [subject(made), *attackers.verdict(made.leakage), *prices(made)],
        list(_sections(made, drawn)),
        found.command,
        _SEEDED if made.own is None else _FRESH,
        made.insecure,
    )


def _sections(made: compared.Shown, drawn: Mapping[str, bytes]) -> Iterator[Section]:
    leaks = made.leakage
    yield Section("Table", list(_tables(made)))
    embedded = {picture.name: picture for picture in _embedded(made, drawn) if picture.source}
    copies = embedded.pop("reconstructions", None)
    if embedded:
        yield Section("Picture", list(embedded.values()))
    if copies:
        yield Section("Reconstructions", [copies])
    elif made.own is not None and leaks.measured(INVERSION):
        yield Section("Reconstructions", [compared.NOT_SHOWN])
    yield Section("Rows and columns", list(_words(made)))
    yield Section("Guarantees", [guarantees(made), *map(_guarantee, made.rows)])
    if leaks.attacks:
        yield Section("Attacks", [*_first_alone(made), list(attackers.attack_notes(leaks))])
        for name in leaks.attacks:
            other = f", {attackers.STAND_INS[name]}" if name in attackers.STAND_INS else ""
            yield Section(f"Attack {name}{other}", exhibits.attack_parts(leaks, name, 1), 3)
        if known := [f"{caveat} ({where})" for caveat, where in exhibits.caveats(leaks).items()]:
            yield Section("Caveats", [known], 3)
    yield Section("Settings", list(_settings(made)))


def _tables(made: compared.Shown) -> Iterator[Part]:
    """What rows cost, what they leak and promise, and how they were summed."""
    yield compared.overview(made)
    if alarms := compared.warnings(made):
        yield alarms
    if learnt := attackers.by_attacker(made.leakage):
        yield from (attackers.LEGEND, learnt)
    if table := compared.promises(made):
        yield table
    yield from (compared.sums(made), compared.summary(made))


def _words(made: compared.Shown) -> Iterator[Pairs]:
    """One line on everything that the tables name."""
    yield Pairs("Rows", glosses.of_rows(made.rows))
    yield Pairs("Columns of accuracy and bytes", glosses.COLUMNS)
    if learnt := dict(glosses.of_attacks(made.leakage)):
        yield Pairs("Attackers and their controls", learnt)
    if compared.promises(made):
        yield Pairs("Columns of privacy", glosses.PRIVACY)
    yield Pairs("Columns of sums", glosses.SUM)


def guarantees(made: compared.Shown) -> Table:
    """What each row promises, in a line."""
    columns = ["method", "the server reads", "noise at each", "ε", "δ", "holds"]
    table = new_table("Promises of the protocols; unfold a row below for the words", columns)
    for i, row in enumerate(made.rows, 1):
        claim = row.claim["privacy"]
        noise = [NONE] * 4
        if claim:
            epsilon = format_epsilon(claim["epsilon"]) if claim["holds"] else NONE
            holds = "yes" if claim["holds"] else "no"
            noise = [claim.get("unit", NONE), epsilon, short(claim.get("delta", 0.0)), holds]
        reads = {None: "no sum", "plain": "each contribution"}.get(row.sum, "sums alone")
        table.add_row(f"{i}. {row.label}", reads, *noise)
    return table


def _guarantee(row: Row) -> Pairs:
    """The prose, behind the row's name."""
    claim: Mapping[str, Any] = row.claim["privacy"] or {}
    parts = {name: claimed(value, name) for name, value in claim.items()}
    if groups := claim.get("groups"):
        each = (f"{counted(n, 'record')}: {claimed(known, 'epsilon')}" for n, known in groups)
        parts["groups"] = ", ".join(each)
    return Pairs(row.label, {"in words": row.claim["guarantee"], **parts}, folded=True)


def _settings(made: compared.Shown) -> Iterator[Pairs | Table]:
    found, first = made.results, made.results.cells[0]
    terms = first.cell.terms
    effective = {"rounds": terms.rounds, "schedule": asdict(terms.schedule)}
    yield Pairs("Run", {**found.settings, **effective, "seeds": made.seeds})
    data: Any = first.notes["data"]
    yield Pairs("Data", data)
    yield Pairs("Machine", {**found.machine, "device": first.notes["device"]})
    yield Pairs("Versions", found.versions)
    if table := compared.diagnostics(made):
        yield table


def _embedded(made: compared.Shown, drawn: Mapping[str, bytes]) -> Iterator[Picture]:
    members = ranked(made.leakage)
    aucs = made.leakage.measured(members)
    labels = made.leakage.rows
    texts = {
        "accuracy_bytes": (
            "Accuracy, bytes and leakage",
            "Each line is one method, from its first round to its last; the mark is its end. "
            "A dashed line sends nothing. After a name, what attacks on this run learn: "
            "P pictures, M who is a member, L how many records of a class, A who is a member by "
            "the answers of final networks, T traces of pictures.",
            _listed(made, lambda row: f"{human_bytes(row.mean(BYTES_UP))} sent by a client"),
        ),
        "accuracy": (
            "Accuracy",
            "Mean over clients and seeds; ticks are the clients of the first seed, whiskers one "
            "deviation over seeds, where there are several.",
            _listed(
                made,
                lambda row: "clients from {} % to {} %".format(*map(row.percent, row.ends)),
            ),
        ),
        "attacks": (
            "Attacks against their controls",
            "A figure says something only by its distance from the control: the same attack "
            "without access. A panel says so where it was not measured on this run.",
            "The figures of every attack, as in the tables of this page.",
        ),
        "reconstructions": (
            "Reconstructions beside originals",
            "Right: the leakage figure of the row. A plausible image is no leak if the controls "
            "look the same.",
            "Private originals, what each method let out, and controls without access.",
        ),
        "roc": (
            f"Membership inference, measured on {attackers.STAND_INS.get(members, 'this run')}",
            "Log-log: what counts is the left, where an accusation is rarely wrong. The axes "
            "start at the smallest rate that the non-members resolve.",
            "Area under the curve: "
            + "; ".join(f"{labels[key]} {number(found.figure)}" for key, found in aucs.items()),
        ),
    }
    for name, (heading, caption, alt) in texts.items():
        yield Picture(name, heading, caption, alt, data_uri(drawn.get(name)))


def _listed(made: compared.Shown, more: Callable[[Row], str]) -> str:
    """Alternative text: every row's accuracy, and one thing more."""
    return "; ".join(
        f"{row.label} {row.percent(row.mean(ACCURACY))} %, {more(row)}" for row in made.rows
    )
