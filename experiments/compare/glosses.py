"""One line on every row, column and control of a comparison, for readers who meet them first."""

from collections.abc import Iterator, Mapping

from experiments.compare.attackers import heading
from experiments.compare.comparison import Row
from experiments.compare.leakage import Leakage
from experiments.core.rows import AFL, EDGEFD, KNOWN, RowSpec, averages, unlabelled
from experiments.report.exhibits import control_names, figure_names

_METHODS: Mapping[str, str] = {
    "fedavg": "clients send parameters of one network, and the server averages them",
    "independent": "every client learns alone and sends nothing: the floor",
    "fedmd": "clients send labels for all proxies, and learn from their mean",
    "selective-fd": "clients send labels for proxies like their own records, and learn from means "
    "that agree",
    "heads": "clients send sums of public features by class, which make one linear head for all",
    "ds-fl": "clients send labels for all proxies, whose sharpened mean they learn from",
    "feded": "clients send labels for all proxies; their mean teaches the server's network, which "
    "teaches the clients",
    "fkd": "clients send mean outputs by class, and learn from the others' mean; no proxies",
    "pls": "clients send mean outputs by class, chosen before they are shared; no proxies",
    EDGEFD: "clients send labels for proxies that are near centroids of their own records",
    "dafkd": "clients send networks and generators, and label generated samples, weighed by "
    "discriminators that stay at home",
    "feddf": "clients send networks and generators, and label generated samples, all weighed alike",
    AFL: "clients send the exact sums of one least-squares head",
    "selective-fd-published": "Selective-FD as its authors run it",
}
_SUMS = {
    "masks": "the server reads sums alone, under masks that cancel",
    "he": "the server reads sums alone, under homomorphic encryption",
    "prio3": "votes prove their range, and the server and a helper read sums alone",
}
_NOISE = {
    "label": "every answer is noisy",
    "record": "no output tells of one record, up to ε",
    "client": "no sum tells of one client, up to ε",
}
_FIGURES = {
    "AUC": "the chance that a member looks more like one than others do: 0.5 guesses, 1 knows",
    "TV error": "distance between a client's true and inferred shares of classes: 0 knows them",
    "PSNR": "likeness of two pictures in dB: from 20 on a digit is recognised, 120 is equal; "
    "Δ is what it gains over the control, or over pictures that nobody trained on",
}
COLUMNS: Mapping[str, str] = {
    "accuracy, %": "share of test images that a client's network, or the head of a row of heads, "
    "names rightly, mean over clients; "
    "± is the deviation over seeds, where there are several, here as in all tables",
    "of clients, %": "least and best client, of the first seed",
    "alone, %": "answered proxies that one client alone answered: a sum is its vote there",
    "up, down": "bytes that one client sends and receives in the whole run",
    "CPU": "time of all parties and rounds, without attacks",
}
PRIVACY: Mapping[str, str] = {
    "unit": "what two worlds differ in that ε does not let anybody tell apart",
    "ε": "the smaller, the less anybody learns: at 0 nothing, above 10 next to no promise",
    "δ": "the chance at which the promise of ε may fail",
    "one record, replaced": "ε where one record is there or not, or another is in its place",
    "person, client": "ε of all records of a person, or of a client, together",
    "no": "nothing is promised",
}
SUM: Mapping[str, str] = {
    "sum": "plain: the server reads each contribution; masks, he, prio3: sums alone",
    "void": "rounds that ended without a sum, as too few clients were left",
    "silent from": "the stage from which clients were not heard, and how often",
}


def gloss(spec: RowSpec) -> str:
    """What a row runs.

    >>> gloss(RowSpec("independent"))
    'every client learns alone and sends nothing: the floor'
    """
    known = _METHODS.get(spec.kind, KNOWN[spec.kind].title if spec.kind in KNOWN else "")
    parts = [known or f"a method of one's own, {spec.kind}"]
    if not unlabelled(spec.kind):
        soft = spec.labels == "soft"
        parts.append("soft labels are probabilities" if soft else "hard labels name one class")
    parts += [_SUMS[spec.secure]] if spec.secure else []
    if spec.unit:
        noisy = "training is DP-SGD: " if averages(spec.kind) else ""
        parts.append(noisy + _NOISE[spec.unit])
    if spec.liar:
        parts.append("one client lies, and accuracy is that of the others")
    return "; ".join(parts)


def of_rows(rows: tuple[Row, ...]) -> dict[str, str]:
    """By the label of each row, what it runs."""
    return {row.label: gloss(row.first.cell.row) for row in rows}


def of_attacks(leaks: Leakage) -> Iterator[tuple[str, str]]:
    """Heading and meaning of each attack's column, with its control; then what figures mean."""
    names: list[str] = []
    for name, title in leaks.attacks.items():
        if not leaks.measured(name):
            continue
        names.append(figure_names(leaks, name))
        said = f"{title}, as {names[-1]}" if title not in names[-1] else names[-1]
        yield (
            f"{heading(name)} ({name})",
            f"{said}; its control: {control_names(leaks, name)}",
        )
    for figure, meaning in _FIGURES.items():
        if any(figure in named for named in names):
            yield figure, meaning
