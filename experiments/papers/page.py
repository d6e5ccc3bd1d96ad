"""The tables of all studies in the results page, between markers, from the committed JSON."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.papers import (
    ablation,
    accuracy,
    alpha,
    communication,
    heterogeneity,
    selectors,
    thresholds,
)
from experiments.papers.results import load
from experiments.papers.study import Study
from experiments.papers.tables import markdown
from secure_fd.errors import ConfigurationError

STUDIES: tuple[Study, ...] = tuple(
    module.STUDY
    for module in (
        *(accuracy, selectors, thresholds, communication),
        *(heterogeneity, alpha, ablation),
    )
)


def sections(folder: Path) -> Mapping[str, str]:
    """By name of a study that the folder has results of: its tables as Markdown."""
    return dict(_sections(folder))


def _sections(folder: Path) -> Iterator[tuple[str, str]]:
    for study in STUDIES:
        path = folder / f"{study.name}.json"
        if path.exists():
            found = load(path)
            source = f"`{' '.join(found.command)}` ([{path.name}]({folder.name}/{path.name}))"
            yield study.name, f"{source}\n\n{markdown(study.shown(found))}"


def updated(page: str, made: Mapping[str, str]) -> str:
    """The page with these sections between their markers, and all else as it was.

    Raises ConfigurationError where the page has not exactly one pair of markers of a section.
    """
    for name, content in made.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ConfigurationError("page", name, f"there must be one {start} with one {end}")
        block = f"{start}\n\n{content}\n\n{end}"
        page = pattern.sub(lambda _, block=block: block, page)  # type: ignore[misc]
    return page
