"""The sentences of a comparison, computed from its figures, and how its cells are written."""

from experiments.results import (
    NOT_APPLICABLE,
    SINGLE,
    Aggregation,
    AttackFigure,
    Results,
    Row,
)
from experiments.tables import counted, human_bytes, number, with_unit


def percent(row: Row) -> str:
    """Accuracy as mean ± spread over clients, in percent, without the sign."""
    return f"{100 * row.accuracy.mean:.1f} ± {100 * row.accuracy.std_over_clients:.1f}"


def interval(attack: AttackFigure) -> str:
    """The interval in brackets, or nothing."""
    return "" if attack.interval is None else "[{}, {}]".format(*map(number, attack.interval))


def marked(attack: AttackFigure) -> str:
    """The figure; † where clients declare it, * where it differs from its control."""
    mark = "†" if attack.declared else "*" if attack.differs_from_control else ""
    return number(attack.figure) + mark


def exact(attack: AttackFigure) -> str:
    """The share of exact records, or nothing."""
    return "" if attack.exact is None else f"{100 * attack.exact:.0f} % exact"


def reason(attack: AttackFigure | str | None) -> str:
    """Why an attack has no figure in a row."""
    return attack.removeprefix(NOT_APPLICABLE) if isinstance(attack, str) else "not run"


def absence(row: Row, attack: str) -> str:
    """Why there is no figure, in two words."""
    return "not applicable" if attack in row.attacks else "not run"


def shared_caveats(results: Results, attack: str) -> list[str]:
    """The caveats that every figure of an attack carries."""
    found = [f for row in results.rows if (f := row.figure(attack))]
    return [c for c in found[0].caveats if all(c in f.caveats for f in found)] if found else []


def figure_names(results: Results, attack: str) -> list[str]:
    """The distinct figures, with units, that the rows report for one attack."""
    found = [row.figure(attack) for row in results.rows]
    return list(dict.fromkeys(with_unit(f.figure_name, f.unit) for f in found if f))


def control_names(results: Results, attack: str) -> list[str]:
    """The distinct controls that the rows of one attack are held against."""
    found = [row.figure(attack) for row in results.rows]
    return list(dict.fromkeys(f.control_name for f in found if f))


def without_figure(results: Results, attack: str) -> dict[str, list[str]]:
    """Row labels by the reason that they have no figure for one attack."""
    reasons: dict[str, list[str]] = {}
    for row in results.rows:
        if row.figure(attack) is None:
            reasons.setdefault(reason(row.attacks.get(attack)), []).append(row.label)
    return reasons


def summary(results: Results) -> list[str]:
    """Sentences computed from the figures: ranges, sparse votes, releases, what attacks show."""
    return [
        _ranges(results),
        *_sparse_votes(results),
        *_releases(results),
        *(_attack_sentence(results, name) for name in results.attacks),
    ]


def drop_rate(results: Results) -> float:
    """The chance that a client dropped out of a round; 0 where no faults were simulated."""
    rate = results.settings.get("drop", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def attendance(row: Row, made: Aggregation, seeds: int) -> str:
    """Who was in a row's sums, in one line."""
    clients = len(row.accuracy.per_client)
    rounds = counted(row.rounds * seeds, "round")
    lost = ", ".join(f"{stage} {sum(counts)}" for stage, counts in made.missing.items())
    return (
        f"{made.survivors:.1f} of {clients} clients in a sum, {made.void_rounds} of {rounds} void; "
        f"silent from {lost}"
    )


def _sparse_votes(results: Results) -> list[str]:
    """The sentence on votes that no mask hides, where they are more than half; else nothing."""
    noiseless = [row for row in results.rows if row.privacy is None]
    masked = [row for row in noiseless if row.aggregation and row.aggregation.name == "masks"]
    open_rows = masked or noiseless
    shares = {row.label: row.diagnostics[SINGLE] for row in open_rows if SINGLE in row.diagnostics}
    label = max(shares, key=shares.__getitem__, default="")
    if shares.get(label, 0.0) <= 0.5:
        return []
    return [
        f"{100 * shares[label]:.0f} % of the answered proxies were answered by one client alone "
        f"({label}): masks hide the author there, not the vote; only differential privacy helps."
    ]


def _releases(results: Results) -> list[str]:
    """How often a client answers one proxy, where the run says so."""
    if "releases" not in results.settings:
        return []
    agreed, rounds = results.settings["releases"], results.settings.get("rounds")
    if agreed is None:
        often = f"up to {rounds} times, once a round"
    else:
        often = "once in the whole run" if agreed == 1 else f"up to {agreed} times in the whole run"
    sentence = f"A client answers the same proxy {often}"
    if agreed == 1 or drop_rate(results) == 0:
        return [f"{sentence}."]
    return [
        f"{sentence}, and clients drop out: sums of two rounds whose cohorts differ by one client "
        f"give away about that client's vote on a proxy that both rounds asked about."
    ]


def _ranges(results: Results) -> str:
    rows, seeds = results.rows, len(results.seeds)
    opening = f"{counted(len(rows), 'method')} over {counted(seeds, 'seed')}: accuracy "
    if len(rows) == 1:
        return f"{opening}{percent(rows[0])} %, {human_bytes(rows[0].bytes_up)} sent by a client."
    by_accuracy = sorted(rows, key=lambda row: row.accuracy.mean)
    least = min(rows, key=lambda row: row.bytes_up)
    most = max(rows, key=lambda row: row.bytes_up)
    low, high = (
        f"{100 * r.accuracy.mean:.1f} % ({r.label})" for r in by_accuracy[:: len(rows) - 1]
    )
    return (
        f"{opening}from {low} to {high}; a client sends from {human_bytes(least.bytes_up)} "
        f"({least.label}) to {human_bytes(most.bytes_up)} ({most.label})."
    )


def _attack_sentence(results: Results, attack: str) -> str:
    """In which rows an attack and its control differ, told by the shorter list of names."""
    figures = {row.label: found for row in results.rows if (found := row.figure(attack))}
    comparable = {
        label: f
        for label, f in figures.items()
        if f.interval and f.control is not None and not f.declared
    }
    if not comparable:
        return f"Attack {attack}: no row has an interval and a control to compare."
    apart = [label for label, found in comparable.items() if found.differs_from_control]
    level = [label for label in comparable if label not in apart]
    head = f"Attack {attack}: the figure differs from its control in "
    if not apart or not level:
        return f"{head}{'all' if apart else 'none'} of {counted(len(comparable), 'row')}."
    names = f"all but {', '.join(level)}" if len(level) < len(apart) else ", ".join(apart)
    return f"{head}{len(apart)} of {counted(len(comparable), 'row')} ({names})."
