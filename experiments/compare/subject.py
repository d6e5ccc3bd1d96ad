"""What a comparison is about, and what masks and epsilon cost and gave, in sentences."""

from collections.abc import Iterator
from dataclasses import replace

from experiments.compare.attackers import kinds
from experiments.compare.compared import Shown
from experiments.compare.comparison import Row
from experiments.compare.promises import short
from experiments.core.measures import ACCURACY, BYTES_UP
from experiments.core.rows import RowSpec
from experiments.report.tables import MINUS, counted, human_bytes
from secure_fd.data.image_sets import IMAGE_SETS
from secure_fd.privacy.guarantee import format_epsilon

_SPLITS = {
    "strong": "one class a client",
    "weak": "two classes a client",
    "iid": "classes spread evenly",
    "own": "divided as it came",
}


def subject(made: Shown) -> str:
    """Data, split, clients, rounds, seeds and epsilon, in one line."""
    cell = made.results.cells[0].cell
    terms = cell.terms
    data = IMAGE_SETS[terms.dataset].title if terms.dataset in IMAGE_SETS else "Own images"
    split = terms.split.name
    divided = _SPLITS.get(terms.split.kind, "classes by Dirichlet shares")
    seeds = ", ".join(map(str, made.seeds))
    noise = "no differential privacy"
    if any(row.claim["privacy"] for row in made.rows) and terms.epsilon is not None:
        noise = f"noisy rows at ε {format_epsilon(terms.epsilon)}, δ {short(terms.delta)}"
    return (
        f"{data}, {terms.clients} clients, split {split} ({divided}), "
        f"{counted(terms.rounds, 'round')}, {'seed' if len(made.seeds) == 1 else 'seeds'} {seeds}; "
        f"{noise}."
    )


def prices(made: Shown) -> Iterator[str]:
    """What each protection cost and gave, against the same row without it.

    A row without such a twin in the run has no sentence.
    """
    by_spec = {row.first.cell.row: row for row in made.rows}
    for spec, row in by_spec.items():
        twin = next((by_spec[plain] for plain in _without(spec) if plain in by_spec), None)
        if twin is not None:
            yield _price(made, row, twin)


def _without(spec: RowSpec) -> Iterator[RowSpec]:
    """The row with one protection less: its noise, or else its masks."""
    if spec.liar:
        return
    if spec.unit is not None:
        yield replace(spec, unit=None)
        if spec.kind == "heads":  # the record unit puts them in the place of Selective-FD
            yield replace(spec, kind="selective-fd", unit=None)
    elif spec.secure is not None:
        yield replace(spec, secure=None)


def _price(made: Shown, row: Row, twin: Row) -> str:
    points = 100 * (row.mean(ACCURACY) - twin.mean(ACCURACY))
    digits = min(row.digits, twin.digits)
    sign = MINUS if points < -0.5 * 10**-digits else "+"
    sent, before = row.mean(BYTES_UP), twin.mean(BYTES_UP)
    return (
        f"{row.label} against {twin.label}: accuracy {sign}{abs(points):.{digits}f} points, "
        f"{human_bytes(sent)} sent for {human_bytes(before)}{_gain(made, row, twin)}."
    )


def _gain(made: Shown, row: Row, twin: Row) -> str:
    now, before = kinds(made.leakage, row.key), kinds(made.leakage, twin.key)
    if now is None or before is None:
        return ""
    gone, new = ([k for k in a if k not in b] for a, b in ((before, now), (now, before)))
    parts = [f"no longer leaks {' and '.join(gone)}"] if gone else []
    parts += [f"leaks {' and '.join(new)} besides"] if new else []
    same = (
        f"leaks the same kinds ({', '.join(now)})"
        if now
        else "no attack on this run tells more than its control of either"
    )
    return f", {'; '.join(parts) or same}"
