"""Figures of Shao, Wu and Zhang, in percent: mean and deviation over five repetitions.

"Selective Knowledge Sharing for Privacy-Preserving Federated Distillation without A Good Teacher",
Nature Communications, 2024: Table 1 has the strong, the weak and the IID split. An earlier version
(arXiv, 2023) has the same strong and weak numbers in Tables 1 and 2. No figure prints numbers, but
for the two gains of Fig. 4. `published.json` holds the tables.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from experiments.core.frames import Frame, frame
from experiments.core.run_config import RunConfig
from experiments.core.study import Results
from experiments.report.tables import NONE
from secure_fd.methods.registry import METHODS

Published = Sequence[float]
"""Mean and deviation, in percent."""
CITATIONS: Mapping[str, str] = {
    "strong": "Table 1 (Shao, Wu and Zhang, 2024)",
    "weak": "Table 1, weak (Shao, Wu and Zhang, 2024)",
    "iid": "Table 1, IID (Shao, Wu and Zhang, 2024)",
    "hospitals": "Fig. 4 (Shao, Wu and Zhang, 2024) prints no accuracies",
}
GAINS_FIG_4: Mapping[str, float] = {"hard": 19.42, "soft": 4.00}
"""Points of Selective-FD over the best baseline, on chest X-rays, by labels."""


@cache
def _tables() -> Mapping[str, Mapping[str, Published]]:
    """Mean and deviation, by image set and split, then by method and labels."""
    found: Mapping[str, Mapping[str, Published]] = json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    )
    return found


def accuracy(image_set: str, split: str, method: str, labels: str) -> Published | None:
    """The published accuracy, or None where the paper prints none."""
    return _tables().get(f"{image_set} {split}", {}).get(f"{method} {labels}".strip())


def of_cell(cell: RunConfig) -> Published | None:
    """Return the paper's figure of a cell's method; None for a control."""
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
    """Return a published accuracy with its deviation, as tables show it."""
    return NONE if known is None else f"{known[0]:.2f} ± {known[1]:.2f}"


def beside(
    results: Results, known: Callable[[Any], Published | None], **columns: Callable[[Any], object]
) -> Frame:
    """Return a row a result with what the paper prints: `published` as text, `known` as a share."""
    return frame(
        results,
        published=lambda cell: known_percent(known(cell)),
        known=lambda cell: (known(cell) or (math.nan,))[0] / 100,
        **columns,
    )
