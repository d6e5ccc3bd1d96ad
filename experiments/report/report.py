"""The page of a comparison, its figures, and its arrays of images."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.compare.comparison import (
    ABORTED_ROUNDS,
    BYTES_DOWN,
    INVERSION,
    SUM_SECONDS,
    SURVIVORS,
)
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.study import Results
from experiments.report import plots, verdict
from experiments.report.attack_summary import attack_notes, caveats, matrix, picture_strips
from experiments.report.page import KEYS, SEEDED, Page, Pairs, Part, Picture
from experiments.report.tables import NONE, Table, human_bytes, human_seconds, new_table
from experiments.report.verdict import Comparison, bounded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_SHOWN = (
    "Private images of clients, and reconstructions of them, are in no file of these results; "
    "--show-private adds them."
)
_FRESH = "Seeds drive data and training; noise is fresh in every run, so noisy rows vary."


def write_report(results: Results, folder: Path) -> None:
    """Write the figures and report.html."""
    made = Comparison.of(results)
    pictures = {row.key: row.first.pictures for row in made.rows}
    lines = picture_strips(made.leakage, pictures, INVERSION)
    title = "Reconstructions beside the private originals"
    inverted = plots.strips(lines, title) if lines else None
    accuracy = accuracy_bytes(made)
    plots.save({"accuracy_bytes": accuracy, "reconstructions": inverted}, folder)
    page(made, accuracy, inverted).write(folder)


def page(made: Comparison, accuracy: "Figure", inverted: "Figure | None" = None) -> Page:
    """The page. accuracy: against bytes. inverted: reconstructions, where there are any."""
    found = made.results
    spent = human_seconds(found.cpu_seconds)
    result: list[Part] = [verdict.main_table(made), verdict.legend(made)]
    if not made.shared.of_table:
        result.append(verdict.scores(made))
    result.append(_against_bytes(made, accuracy))
    attacks = {"Attacks": list(_attacks(made, inverted))} if made.leakage.attacks else {}
    return Page(
        "Accuracy, bytes and leakage",
        f"{verdict.heading(made)} · {found.created} · {spent} of CPU time",
        [text for text in (verdict.what_leaks(made), verdict.what_to_use(made)) if text],
        {
            "Result": result,
            **attacks,
            "Guarantees": list(_guarantees(made)),
            "Sums": list(_sums(made)),
            "How it was run": list(_settings(made)),
        },
        found.command,
        f"{SEEDED if made.shared.own is None else _FRESH} {KEYS}",
        verdict.notes(made),
    )


# Figures.

_COLOURS = {"pictures": "#a40e26", "classes or members": "#c98500", "nothing found": "#117733"}


@plots.styled()
def accuracy_bytes(made: Comparison) -> "Figure":
    """Accuracy of every round against a client's bytes until then; the colour is what leaks.

    A row that sends nothing is a level line: a log axis has no zero.
    """
    from matplotlib.ticker import LogLocator  # slow to import

    figure = plots.new_figure(6.4, 4.0 + 0.11 * len(made.rows))
    axes = figure.subplots()
    colours = {row.label: _COLOURS["nothing found"] for row in made.rows}
    for column in made.columns:
        grave = column.kind in (verdict.PICTURES, verdict.ROWS)
        kind = _COLOURS["pictures" if grave else "classes or members"]
        colours |= dict.fromkeys(verdict.leaking(made, column), kind)
    for i, row in enumerate(made.rows):
        look: dict[str, Any] = {"color": colours[row.label], "label": row.label}
        if not row.mean(BYTES_UP):
            axes.axhline(row.mean(ACCURACY), linewidth=1.2, linestyle=(0, (4, 3)), **look)
            continue
        points = [(one.up + one.down, one.accuracy) for one in row.first.curve]
        axes.plot(*zip(*points, strict=True), color=look["color"], linewidth=1, alpha=0.4)
        axes.plot(*points[-1], plots.line_style(i)[1], markersize=7, linestyle="none", **look)
    for kind, colour in _COLOURS.items() if made.columns else ():
        label = f"leaks {kind}" if kind != "nothing found" else kind
        axes.plot([], [], "s", color=colour, label=label)
    axes.set(title="Accuracy, bytes and leakage", xlabel="sent and received by a client")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: human_bytes(value).replace(".0 ", " "))
    axes.minorticks_off()
    plots.percent(axes)
    figure.legend(loc="outside lower left", fontsize=7.5, ncols=2)
    return figure


# Sections.


def _against_bytes(made: Comparison, drawn: "Figure") -> Picture:
    every = (
        f"{row.label} {row.accuracy} %, {human_bytes(row.mean(BYTES_UP))} sent" for row in made.rows
    )
    words = "Accuracy of every round against the bytes of one client until then."
    return Picture("accuracy_bytes", "", words, "; ".join(every), drawn)


def _attacks(made: Comparison, inverted: "Figure | None") -> Iterator[Part]:
    leaks = made.leakage
    yield (
        "The control is the same attack without access. Amber figures exceed their control, "
        "by Holm's correction over all figures; grey ones do not. An attack that finds nothing "
        "proves nothing."
    )
    yield matrix(leaks, verdict.row_names(made))
    one_step, game = "one local step, not this run", verdict.worst_case(leaks)
    other = {
        name: one_step if column.kind in (verdict.PICTURES, verdict.ROWS) else game
        for column in made.columns
        if column.name.endswith("worst")
        for name in column.attacks
    }
    yield list(attack_notes(leaks, other))
    if inverted:
        words = (
            "Right: the figure of the row. A plausible image is no leak where controls match it."
        )
        alt = "Private originals, what each method let out, and controls without access."
        yield Picture("reconstructions", "Reconstructions beside originals", words, alt, inverted)
    elif made.shared.own is not None and leaks.measured(INVERSION):
        yield NOT_SHOWN
    if known := caveats(leaks):
        yield Pairs("Caveats", {where: caveat for caveat, where in known.items()}, folded=True)


def _guarantees(made: Comparison) -> Iterator[Part]:
    """Each private row's epsilon and conditions, and what no epsilon covers."""
    if not made.private:
        yield "No row adds noise, so none has a guarantee of differential privacy."
        return
    excluded = [claim.get("not_covered", []) for claim in made.private.values()]
    common = set.intersection(*map(set, excluded))
    yield "Epsilon is that of the whole run."
    sentences = verdict.guarantees(made)
    for (label, claim), sentence in zip(made.private.items(), sentences, strict=True):
        yield sentence
        values = {name: claim[key] for key, name in _CONDITIONS.items() if claim.get(key)}
        rest = [one for one in claim.get("not_covered", []) if one not in common]
        spent = (
            f"{one['name']}, {one['times']:,} at epsilon {bounded(one['epsilon'])}"
            for one in claim.get("parts", [])
        )
        values |= {"spent on": "; ".join(spent)} | ({"not covered": rest} if rest else {})
        yield Pairs(f"Conditions of {label}", values, folded=True)
    if common:
        yield f"No epsilon of this page covers: {'; '.join(sorted(common))}."


_CONDITIONS = {
    "neighbours": "neighbours differ in",
    "covers": "covers",
    "sampler": "noise",
    "accountant": "accounting",
    "assumptions": "assumes",
    "caveats": "besides",
}
"""Fields of a guarantee, and how the page names them."""


def _sums(made: Comparison) -> Iterator[Part]:
    """Yield the secure sum of each row, its cost, and the clients in it."""
    columns = ["row", "sum", "sent by a client", "received", "CPU a round", "clients in a sum"]
    columns += ["aborted rounds", "clients lost at"]
    chance = made.shared.drop
    drop = f"; clients drop out of a round with chance {chance:g}" if chance else ""
    title = f"Bytes of one client in the whole run, CPU time of all parties{drop}"
    table, summed = new_table(title, columns), [row for row in made.rows if row.sum]
    for row in summed:
        moved = (human_bytes(row.mean(name)) for name in (BYTES_UP, BYTES_DOWN))
        aborted = sum(run.figures[ABORTED_ROUNDS] for run in row.runs)
        lost = ", ".join(f"{stage} {count}" for stage, count in row.missing.items() if count)
        table.add_row(
            *(row.label, str(row.sum), *moved, human_seconds(row.mean(SUM_SECONDS))),
            f"{row.mean(SURVIVORS):.1f} of {len(row.first.per_client)}",
            f"{aborted:.0f} of {row.config.rounds * len(row.runs)}",
            lost or NONE,
        )
    yield table
    yield _releases(made)
    firsts = {row.sum: row.claim["guarantee"] for row in reversed(summed)}
    for name in dict.fromkeys(row.sum for row in summed):
        yield Pairs(f"Guarantee of the sum: {name}", {"": firsts[name]}, folded=True)


def _releases(made: Comparison) -> str:
    """Return the largest number of answers of a client for one proxy."""
    terms = made.shared
    most = terms.rounds if terms.releases is None else terms.releases
    sentence = f"A client answers the same proxy at most {most} {'time' if most == 1 else 'times'}"
    if most == 1 or not terms.drop:
        return f"{sentence}."
    return (
        f"{sentence}, and clients drop out: sums of two rounds whose cohorts differ by one client "
        f"reveal that client's vote on a proxy that both rounds asked about."
    )


def _settings(made: Comparison) -> Iterator[Pairs | Table]:
    found, first = made.results, made.results.cells[0]
    schedule = {k: v for k, v in asdict(made.shared.schedule).items() if v}
    effective = {"rounds": made.shared.rounds, "seeds": found.seeds, "schedule": schedule}
    given = {k: v for k, v in found.settings.items() if v not in (None, "", False)}
    yield Pairs("Run", {**given, **effective})
    data: Any = first.notes["data"]
    yield Pairs("Data", data)
    machine = {**found.machine, "device": first.notes["device"], "versions": found.versions}
    code = f"{found.commit[:7]}{' with changes' if found.dirty else ''}"
    yield Pairs("Machine and versions", {**machine, "code": code})
