"""What Shao, Wu and Zhang print, in percent: mean and deviation over five repetitions; and names.

"Selective Knowledge Sharing for Privacy-Preserving Federated Distillation without A Good Teacher",
Nature Communications, 2024: Table 1 has the strong, the weak and the IID split. An earlier version
(arXiv, 2023) has the same strong and weak numbers in Tables 1 and 2. No figure prints numbers, but
for the two gains of Fig. 4.
"""

from collections.abc import Iterator, Mapping

from experiments.core.rows import Cell
from experiments.report.tables import NONE
from secure_fd.methods.registry import METHODS

Published = tuple[float, float]
_SETS = ("mnist", "fashion_mnist", "cifar10_features")
_SINGLE = ("independent",)
"""Methods without labels have one column an image set."""

# One line a method: hard and soft labels, for each image set in turn.
_TABLE_1 = {
    "independent": "10.00 0.00 10.00 0.00 10.00 0.00",
    "fedmd": "18.89 .30 88.71 .28 16.54 .25 64.63 .37 10.71 .38 15.78 1.39",
    "feded": "11.49 .25 11.92 .41 12.45 .44 12.52 .38 11.83 .26 12.04 .30",
    "ds-fl": "19.72 .32 35.25 .36 17.54 .11 35.98 .43 10.87 .25 12.07 .32",
    "fkd": "10.00 0 10.00 0 10.00 0 10.00 0 10.00 0 10.00 0",
    "pls": "10.00 0 10.00 0 10.00 0 10.00 0 10.00 0 10.00 0",
    "selective-fd": "85.92 .37 94.68 .52 73.41 .98 75.31 .29 80.22 .74 80.98 .39",
}
_TABLE_2 = {
    "independent": "19.96 0 19.82 .01 19.52 .02",
    "fedmd": "26.77 .57 95.16 .52 41.92 .30 74.83 .41 62.14 .22 84.31 .53",
    "feded": "59.95 1.11 60.26 1.80 32.62 1.09 37.12 .85 53.11 .34 56.13 .14",
    "ds-fl": "25.53 1.43 47.87 .31 23.08 .23 39.22 .26 33.22 .54 52.51 .70",
    "fkd": "19.97 .01 19.98 0 19.54 .13 19.71 .07 19.50 .02 19.51 .01",
    "pls": "19.96 .01 19.97 0 19.64 .09 19.70 .03 19.51 .01 19.52 .01",
    "selective-fd": "86.82 .26 96.30 .25 75.57 .61 77.27 .31 81.06 .67 85.38 .35",
}
_IID = {
    "independent": "98.18 .04 86.07 .07 84.06 .03",
    "fedmd": "98.59 .04 98.63 .01 86.88 .02 87.25 .02 86.02 .09 86.31 .06",
    "feded": "98.20 .11 98.26 .06 86.83 .14 86.88 .04 86.54 .07 86.87 .12",
    "ds-fl": "98.22 .14 98.56 .02 86.15 .07 86.62 .09 85.75 .08 85.82 .08",
    "fkd": "98.40 .05 98.44 .01 86.10 .15 86.14 .06 84.03 .02 84.10 .08",
    "pls": "98.45 .02 98.48 .03 86.27 .08 86.52 .05 84.60 .13 84.77 .06",
    "selective-fd": "98.55 .01 98.60 .04 86.92 .08 87.16 .06 85.94 .07 86.06 .16",
}
CITATIONS: Mapping[str, str] = {
    "strong": "Table 1 (Shao, Wu and Zhang, 2024)",
    "weak": "Table 1, weak (Shao, Wu and Zhang, 2024)",
    "iid": "Table 1, IID (Shao, Wu and Zhang, 2024)",
    "hospitals": "Fig. 4 (Shao, Wu and Zhang, 2024) prints no accuracies",
}
GAINS_FIG_4: Mapping[str, float] = {"hard": 19.42, "soft": 4.00}
"""Points of Selective-FD over the best baseline, on chest X-rays, by labels."""


def _columns() -> Iterator[tuple[tuple[str, str, str, str], Published]]:
    for split, table in (("strong", _TABLE_1), ("weak", _TABLE_2), ("iid", _IID)):
        for method, line in table.items():
            labels = ("",) if method in _SINGLE else ("hard", "soft")
            keys = [(image_set, split, method, kind) for image_set in _SETS for kind in labels]
            numbers = list(map(float, line.split()))
            yield from zip(keys, zip(numbers[::2], numbers[1::2], strict=True), strict=True)


ACCURACY: Mapping[tuple[str, str, str, str], Published] = dict(_columns())
"""By image set, split, method and labels: mean and deviation, in percent."""


def accuracy(image_set: str, split: str, method: str, labels: str) -> Published | None:
    """The published accuracy, or None where the paper prints none."""
    return ACCURACY.get((image_set, split, method, labels))


def of_cell(cell: Cell) -> Published | None:
    """What the paper prints of a cell's method; nothing of controls."""
    method = cell.method.removesuffix("-published")
    return None if cell.variant else accuracy(cell.image_set, cell.split, method, cell.labels)


# As tables name methods and show published numbers.

_SELECTORS = {
    "ratio": "ratio to proxies",
    "kulsif": "KuLSIF",
    "confidence": "confidence",
    "energy": "energy",
}


def method_title(method: str, selector: str = "") -> str:
    """A method as a reader names it, with its client selector."""
    return METHODS[method].title + (f", {selector_title(selector)}" if selector else "")


def selector_title(selector: str) -> str:
    """A client selector as a reader names it."""
    return _SELECTORS.get(selector, selector)


def known_percent(known: Published | None) -> str:
    """The same for a published accuracy."""
    return NONE if known is None else f"{known[0]:.2f} ± {known[1]:.2f}"
