"""Write docs/results/performance.md and performance.svg from performance.json beside them.

python benchmarks/performance_page.py
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.core.provenance import ROOT, Code
from experiments.core.study import Result, Results, load, read_results
from experiments.report.plots import Line, Lines, drawn, save
from experiments.report.tables import (
    NONE,
    human_bytes,
    human_seconds,
    markdown,
    new_table,
    number,
    percent,
)
from experiments.rivals import equal_terms
from experiments.rivals.equal_terms import PASSED
from secure_fd.secagg.graph import COMPLETE_UP_TO, default_degree

Row = Mapping[str, Any]
_NAMES = {"masks": "masks", "prio3": "Prio3 (proofs)", "he": "BFV (encryption)"}
_VOTES = 5_120
_FEW = (10, 100)
"""Clients of the first table; the last has all."""


def performance_page(found: Row, training: str = "") -> str:
    """Return the page of one run. training: the section on CPU seconds beside accuracy."""
    clean, lossy = growth_rows(found["sums"])
    sections = (
        about(found),
        "## A secure sum beside its floor",
        sums_table(found),
        beside_flower(found["sums"]),
        "## A round of training beside a plain loop",
        rounds_table(found["rounds"]),
        why_faster(found["rounds"]),
        training,
        f"## Growth to {clean[-1]['clients']:,} clients",
        growth_table(clean, lossy),
        "![CPU time by clients](performance.svg)",
        growth(clean, lossy),
    )
    return "\n\n".join(filter(None, sections)) + "\n"


def about(found: Row) -> str:
    """Heading and origin; a machine with more processes than cores is named as loaded."""
    load, cpus = found["machine"]["load"], found["machine"]["cpus"]
    loaded = f" **The machine was loaded ({load} processes, {cpus} cores): only ratios count.**"
    return (
        "# Performance\n\nFor readers who plan a federation: what secure sums and training cost."
        f" Times are CPU time. Measured at version {found['versions']['secure-fd']} on"
        f" {found['created'][:10]}, {Code(found['commit'])}{' with changes' * found['dirty']}, in"
        f" {human_seconds(found['cpu_seconds'])} of CPU time by `{' '.join(found['command'])}`."
        f"{loaded * (load > cpus)} `performance_page.py` writes this page from"
        " [performance.json](performance.json)."
    )


def sums_table(found: Row) -> str:
    """Every kind of sum for few clients, none of which drops out."""
    columns = ("sum", "clients, values", "client", "× floor", "server", "× floor")  # noqa: RUF001
    kinds = "votes of 2 bits, or values whose sum has 32 bits"
    title = f"A round in which no client drops out: {kinds}"
    table = new_table(title, (*columns, "sent by a client", "server memory"))
    for row in found["sums"]:
        if row["dropped"] or row["clients"] not in _FEW:
            continue
        floor, memory, times = row.get("floor"), row.get("server_memory_bytes"), list[str]()
        for side in ("client", "server"):
            spent = row[f"{side}_s"]
            times += [human_seconds(spent), number(spent / floor[side]) if floor else ""]
        table.add_row(
            _NAMES.get(row["sum"], f"SecAgg+, Flower {found['versions']['flwr']}"),
            f"{row['clients']}, {row['values']:,} {'values' if row['wide'] else 'votes'}",
            *times,
            human_bytes(row["up_bytes"]),
            human_bytes(memory) if memory else "",
        )
    return markdown([table])


def beside_flower(sums: Iterable[Row]) -> str:
    """Flower's times over those of masks, without and with a set-up in the same round."""
    masks, flower = (row for row in sums if row["wide"] and not row["dropped"])
    bare, whole = (
        [flower[s] / (masks[s] + with_keys * masks["set_up"][s]) for s in ("client_s", "server_s")]
        for with_keys in (False, True)
    )
    return (
        "The floor of masks is the time of the cryptographic primitives and of sharing secrets"
        " alone. Both agree on mask keys in every round; SecAgg+ also on the keys of its channels,"
        " masks in a set-up that serves many rounds. SecAgg+ takes"
        f" {number(bare[0])} times the time of masks at a client and {number(bare[1])} times at the"
        f" server; with a set-up in that round {number(whole[0])} and {number(whole[1])} times."
        " All parties run in one process, without transport. The server of Prio3 includes its"
        " helper. Memory is the most that Python allocates at the server within a round."
    )


def rounds_table(rounds: Iterable[Row]) -> str:
    """Client-rounds of the plain loop, of its other layout, and of the package's trainer."""
    columns = ("networks", "batch", "plain loop", "with channels last", "secure-fd", "÷ plain")
    table = new_table("Client-rounds in a second of CPU time", columns)
    for row in rounds:
        speeds = row["client_rounds_per_s"]
        ratio = speeds["trainer"] / speeds["plain"]
        table.add_row(row["networks"], str(row["batch"]), *map(number, (*speeds.values(), ratio)))
    return markdown([table])


def why_faster(rounds: Iterable[Row]) -> str:
    """The part of the gain that is due to layout, and the rest."""
    speeds = [row["client_rounds_per_s"] for row in rounds]

    def span(one: str, other: str) -> str:
        ratios = [speed[one] / speed[other] for speed in speeds]
        return f"{number(min(ratios))} to {number(max(ratios))}"

    return (
        "A client-round is 512 predictions, a step on private records and ten on proxies. The plain"
        " loop has torch's default layout, and ReLU before pooling as in the paper. Weights with"
        f" channels last, one line of code, make it {span('channels_last', 'plain')} times as fast."
        f" secure-fd is another {span('trainer', 'channels_last')} times as fast: it pools before"
        " ReLU, which gives the same values."
    )


def training(results: Results) -> str:
    """Section on CPU seconds beside accuracy: methods by when they pass the paper's best."""
    known, found = equal_terms.rows(), dict[str, list[Result]]()
    for result in results.cells:
        if result.cell.config.image_set == "mnist" and not known[result.cell.row].control:
            found.setdefault(result.cell.row, []).append(result)
    title = f"MNIST, one class a client: when a method passes {100 * equal_terms.BEST:.2f} %"
    columns = ("method", "CPU s until then", "CPU s in all", "accuracy in the end, %")
    table = new_table(title, columns)
    lines = []
    for row, every in found.items():
        passed = [r.figures[PASSED] for r in every if PASSED in r.figures]
        when = float(np.mean(passed)) if len(passed) == len(every) else np.inf
        timed = float(np.mean([r.seconds for r in every]))
        some = f"{len(passed)} of {len(every)} seeds" if passed else NONE
        text = some if np.isinf(when) else f"{when:.0f}"
        accuracy = percent([r.accuracy for r in every])
        lines.append((when, (known[row].title, text, f"{timed:.0f}", accuracy)))
    if not lines:
        return ""
    for _, line in sorted(lines, key=lambda line: line[0]):
        table.add_row(*line)
    source = (
        f"From [equal_terms.json](equal_terms.json), {Code(results.commit)}: CPU seconds of all"
        " parties, mean of seeds 20 to 22."
    )
    return "\n\n".join(("## CPU time to train beside accuracy", source, markdown([table])))


def growth_rows(sums: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Masked sums of votes by clients: of all of them, and where a tenth drops out."""
    rows = [row for row in sums if row["sum"] == "masks" and row["values"] == _VOTES]
    return [row for row in rows if not row["dropped"]], [row for row in rows if row["dropped"]]


def growth_table(clean: Iterable[Row], lossy: Iterable[Row]) -> str:
    """Time, bytes and memory by clients."""
    columns = ("clients", "neighbours", "client, set-up", "client", "server")
    more = ("server, a tenth drops out", "sent by a client", "server memory")
    table = new_table(f"A masked sum of {_VOTES:,} votes", (*columns, *more))
    for row, lost in zip(clean, lossy, strict=True):
        times = (row["set_up"]["client_s"], row["client_s"], row["server_s"], lost["server_s"])
        sizes = (row["up_bytes"], row["server_memory_bytes"])
        counts = (f"{row['clients']:,}", str(default_degree(row["clients"])))
        table.add_row(*counts, *map(human_seconds, times), *map(human_bytes, sizes))
    return markdown([table])


def growth(clean: list[Row], lossy: list[Row]) -> str:
    """Exponents by least squares on logarithms."""
    clients = [row["clients"] for row in clean]
    neighbours = [default_degree(n) for n in clients]

    def power(across: list[int], rows: list[Row], name: str) -> str:
        logs = np.log(across), np.log([row[name] for row in rows])
        return number(float(np.polyfit(*logs, 1)[0]))

    client, server = power(neighbours, clean, "client_s"), power(clients, clean, "server_s")
    lost = power(clients, lossy, "server_s")
    memory = power(clients, clean, "server_memory_bytes")
    return (
        f"Fitted to these figures, a client's time grows with the power {client} of its neighbours,"
        f" with whom it shares masks: all others up to {COMPLETE_UP_TO} clients,"
        f" {default_degree(1_000)} of 1,000. The server's time grows with the power {server} of the"
        f" clients, and with {lost} if a tenth drops out, since the server then removes the masks"
        f" that each of these shares with its neighbours; its memory with the power {memory}."
    )


def growth_plot(clean: list[Row], lossy: list[Row]) -> Lines:
    """CPU time by clients, on logarithmic scales."""
    clients = tuple(float(row["clients"]) for row in clean)

    def line(rows: list[Row], name: str) -> Line:
        return Line(clients, tuple(1_000 * row[name] for row in rows), (0,) * len(rows))

    lines = {
        "client": line(clean, "client_s"),
        "server": line(clean, "server_s"),
        "server, a tenth drops out": line(lossy, "server_s"),
    }
    ticks = {n: f"{n:,.0f}" for n in clients}
    title, scales = f"A masked sum of {_VOTES:,} votes", ("log", "log")
    return Lines(title, "clients", "CPU ms", lines, share=False, scales=scales, ticks=ticks)


def main(folder: Path = ROOT / "docs" / "results") -> None:
    """Write page and plot."""
    found = json.loads((folder / "performance.json").read_text(encoding="utf-8"))
    path, study = folder / "equal_terms.json", load("experiments.rivals.equal_terms")
    trained = training(read_results(study, path)) if path.exists() else ""
    (folder / "performance.md").write_text(performance_page(found, trained), encoding="utf-8")
    save({"performance": drawn([growth_plot(*growth_rows(found["sums"]))])}, folder, "svg")


if __name__ == "__main__":
    main()
