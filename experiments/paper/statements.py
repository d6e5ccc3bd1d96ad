"""Statements of a paper about a figure that prints no numbers, beside what was measured."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.core.frames import Frame, percent
from experiments.core.measures import ACCURACY
from experiments.report.tables import Table, new_table


class Statement(NamedTuple):
    """A statement of a paper. here: what was measured. holds: whether it agrees, as a truth value.

    why: what differs here, if disagreement would mean that ours is worse; "" otherwise.
    """

    paper: str
    here: str
    holds: object
    why: str = ""


def beside(title: str, statements: Iterable[Statement]) -> Iterator[Table | str]:
    """Yield a table of statements, and a sentence with those in which ours falls short.

    Nothing where statements raise KeyError, as a run of some rows lacks what they compare.

    >>> found = beside("Fig. 9", [Statement("the error falls", "from 9 to 8", True)])
    >>> [part.title if isinstance(part, Table) else part for part in found]
    ['Fig. 9', 'Ours falls short in: none of these.']
    """
    made, short = new_table(title, ("the paper", "here", "holds"), left=2), dict[str, list[str]]()
    try:
        for paper, here, holds, why in statements:
            made.add_row(paper, here, "yes" if holds else "no")
            if why and not holds:
                short.setdefault(why, []).append(f"{paper} (here {here})")
    except KeyError:
        return
    yield made
    reasons = [f"{' and '.join(texts)}; what differs: {why}" for why, texts in short.items()]
    yield f"Ours falls short in: {'. And in: '.join(reasons) or 'none of these'}."


def reaches(name: str, runs: Frame, why: str) -> Statement:
    """State whether runs reach the accuracy that the paper prints for them."""
    here, holds = f"{percent(runs[ACCURACY])} %", runs[ACCURACY].mean() >= runs.known.mean()
    return Statement(f"{name} {runs.published.iloc[0]} %", here, holds, why)


def few_rounds(runs: Frame) -> str:
    """Return the difference in training."""
    return f"the authors' code trains up to 20,000 rounds, and these runs {runs.rounds.max()}"
