"""All cells of an ablation: kept in one file, resumed cell by cell, and shown as tables."""

import json
import queue
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from experiments.ablation.cells import CASES, Case, Cell, grid, measure
from experiments.ablation.choices import CHOICES
from experiments.ablation.quality import Quality
from experiments.codec import decode, encode
from experiments.progress import Event, ProgressBoard
from experiments.results import write_atomically
from secure_fd.errors import ConfigurationError

_TASK = "cells"
_FIGURES = ("right", "hard", "precise", "student")


@dataclass(frozen=True, slots=True)
class Study:
    """What has been measured so far."""

    cells: tuple[Cell, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study in a file; an empty one where there is none."""
        if not path.exists():
            return cls()
        try:
            return decode(cls, json.loads(path.read_text(encoding="utf-8")), str(path))
        except ValueError:
            raise ConfigurationError("out", str(path), "it must be a study or a new file") from None

    def write(self, path: Path) -> None:
        """Replace the file by this study, whole."""
        text = json.dumps(encode(self, "study"), indent=1, ensure_ascii=False) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))


def chosen(datasets: str, seeds: int) -> tuple[Case, ...]:
    """The cases of these image sets. Raises ConfigurationError for an unknown one, or no seed."""
    known = dict.fromkeys(case.dataset for case in CASES)
    names = [name.strip() for name in datasets.split(",")]
    for name in names:
        if name not in known:
            raise ConfigurationError("datasets", name, f"use one or more of {', '.join(known)}")
    if seeds < 1:
        raise ConfigurationError("seeds", seeds, "use 1 or more")
    return tuple(case for case in CASES if case.dataset in names)


def run(cases: tuple[Case, ...], seeds: int, data_dir: Path | None, out: Path) -> Study:
    """Measure what the file lacks, saving every cell; the progress goes to stderr."""
    study = Study.read(out)
    done = {cell.key for cell in study.cells}
    missing = [
        (case, seed, choice)
        for case, seed, choice in grid(cases, seeds)
        if (case.dataset, case.split, case.epsilon, choice.name, seed) not in done
    ]
    events: queue.Queue[Event] = queue.Queue()
    with ProgressBoard(events, expected=1):
        events.put(("start", _TASK, _TASK, len(missing)))
        for count, (case, seed, choice) in enumerate(missing, start=1):
            study = Study((*study.cells, measure(case, seed, choice, data_dir)))
            study.write(out)
            events.put(("advance", _TASK, count))
    return study


def table(study: Study, figure: str, cases: Sequence[Case]) -> str:
    """Markdown: a row a choice, a column a case, mean ± spread over seeds in percent."""
    lines = [f"| {figure}, % | " + " | ".join(case.name for case in cases) + " |"]
    lines.append("|---" * (len(cases) + 1) + "|")
    for choice in CHOICES:
        shown = (_shown(study, figure, case, choice.name) for case in cases)
        lines.append(f"| {choice.name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def tables(study: Study, cases: Sequence[Case]) -> str:
    """One table a figure."""
    return "\n\n".join(table(study, figure, cases) for figure in _FIGURES)


def _shown(study: Study, figure: str, case: Case, choice: str) -> str:
    wanted = (case.dataset, case.split, case.epsilon, choice)
    found = [cell.quality for cell in study.cells if cell.key[:-1] == wanted]
    if not found:
        return "not run"
    values = [100 * _of(quality, figure) for quality in found]
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{mean(values):.1f} ± {spread:.1f}"


def _of(quality: Quality, figure: str) -> float:
    return float(getattr(quality, figure))
