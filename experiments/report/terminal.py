"""The lines of a comparison in a terminal: one table, guarantees, three sentences, a legend."""

import textwrap
from collections.abc import Iterator

from experiments.core.study import Results
from experiments.report.tables import Table, human_seconds
from experiments.report.verdict import (
    Comparison,
    guarantees,
    heading,
    legend,
    main_table,
    notes,
    what_leaks,
    what_to_use,
)

WIDTH = 100
"""Most columns of a line."""
_INDENT = 14
REPORT = "report.html beside the results: intervals, controls, pictures, every condition."


def shown(results: Results) -> list[Table | str]:
    """Table and sentences of a comparison, at most `WIDTH` columns wide."""
    made = Comparison.of(results)
    spent = f"training {human_seconds(results.cpu_seconds)} of CPU"
    title = textwrap.wrap(f"{heading(made)}; {spent}", WIDTH)
    return [*title, "", main_table(made), "", *_sentences(made)]


def _sentences(made: Comparison) -> Iterator[str]:
    for name, sentences in (
        ("Insecure", notes(made)),
        ("Guarantees", list(guarantees(made))),
        ("What leaks", [what_leaks(made)]),
        ("What to use", [what_to_use(made)]),
        ("Report", [REPORT]),
        ("Legend", legend(made)),
    ):
        for i, sentence in enumerate(filter(None, sentences)):
            start = f"{'' if i else name:<{_INDENT}}"
            yield textwrap.fill(
                sentence, WIDTH, initial_indent=start, subsequent_indent=" " * _INDENT
            )
