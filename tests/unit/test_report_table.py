"""The terminal table and the words that it shares with the page."""

import dataclasses
import io
import re

import pytest
from report_sample import sample, with_row
from rich.console import Console

from experiments import sentences as told
from experiments import tables
from experiments.report import print_table
from experiments.results import Results
from experiments.tables import NO_TERMINAL, stdout_console


def _printed(results: Results, width: int, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_table(results, Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def _squeezed(printed: str) -> str:
    return re.sub(r"\s+", " ", printed)


@pytest.mark.parametrize("width", [100, 120, 160])
def test_every_row_figure_and_guarantee_is_printed(width: int) -> None:
    results = sample()
    printed = _printed(results, width)
    squeezed = _squeezed(printed)
    assert max(map(len, printed.splitlines())) <= width
    for i, row in enumerate(results.rows, 1):
        assert f"{i} {row.label}: {row.guarantee}" in squeezed
        assert told.percent(row) in printed
        assert tables.human_bytes(row.bytes_up) in printed
        for name in results.attacks:
            found = row.figure(name)
            shown = f"({tables.number(found.control)})" if found and found.control else "n/a"
            assert shown in printed
    assert "…" not in printed


def test_one_row_is_one_line_when_there_is_room() -> None:
    results = sample(6)
    lines = [line.rstrip() for line in _printed(results, 160).splitlines()]
    pattern = re.compile(r"^ *\d+  (\S.*?)  +\d+\.\d ± ")
    named = [match.group(1) for line in lines if (match := pattern.match(line))]
    assert named == [row.label for row in results.rows]


def test_intervals_need_room() -> None:
    assert "[1.79, 2.01]" in _printed(sample(), 160)
    assert "[1.79, 2.01]" not in _printed(sample(), 100)


def test_star_marks_an_interval_that_excludes_the_control() -> None:
    printed = _printed(sample(2), 120)
    assert "1.90* (0.02)" in printed
    assert "0.10 (0.10)" in printed


def test_a_declared_figure_is_marked_and_exact_records_are_counted() -> None:
    results = sample(1)
    found = results.rows[0].figure("inversion")
    assert found is not None
    details = {"declared_clients": 3.0, "share_exact": 0.25}
    changed = {"inversion": dataclasses.replace(found, details=details)}
    printed = _squeezed(_printed(with_row(results, 0, attacks=changed), 160))
    assert "1.90† " in printed
    assert "25 % exact" in printed
    assert "exact" not in _printed(results, 160)


def test_what_is_missing_is_explained() -> None:
    printed = _squeezed(_printed(sample(), 100))
    assert "n/a for Independent: missing a model or predictions to query" in printed
    without = with_row(sample(2), 1, attacks={})
    assert "n/a for Independent: not run" in _squeezed(_printed(without, 100))


def test_insecure_settings_are_printed_only_if_there_are_any() -> None:
    assert "trusted on first use" in _printed(sample(1), 100)
    secure = dataclasses.replace(sample(1), insecure=[])
    assert "Insecure" not in _printed(secure, 100)


def test_without_any_attack() -> None:
    printed = _printed(with_row(sample(1), 0, attacks={}), 100)
    assert "FedAvg" in printed
    assert "attacks" not in printed


def test_markup_in_a_label_is_text() -> None:
    printed = _printed(with_row(sample(1), 0, label="[red]x[/red] [/]"), 160)
    assert "[red]x[/red] [/]" in printed


def test_colour_only_on_a_terminal() -> None:
    assert "\x1b[" not in _printed(sample(1), 100)
    assert "\x1b[" in _printed(sample(1), 100, terminal=True)


def test_width_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stdout_console().width == NO_TERMINAL
    monkeypatch.setenv("COLUMNS", "160")
    assert stdout_console().width == 160


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9949, "9.9 kB"), (9999, "10 kB"),
        (999_600, "1.0 MB"), (34e6, "34 MB"), (2.5e9, "2.5 GB"), (3e12, "3.0 TB"),
    ],
)  # fmt: skip
def test_human_bytes(count: float, expected: str) -> None:
    assert tables.human_bytes(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (725, "12 min 05 s"),
    ],
)
def test_human_seconds(seconds: float, expected: str) -> None:
    assert tables.human_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.123, "0.12"), (-0.001, "0.00"), (-1.5, "−1.50"), (46.52, "46.5"), (1234.5, "1234")],  # noqa: RUF001 - a real minus sign
)
def test_number(value: float, expected: str) -> None:
    assert tables.number(value) == expected


def test_summary_says_where_attacks_beat_their_controls() -> None:
    opening, *sentences = told.summary(sample())
    assert "19.9 % (Independent) to 96.8 % (FedAvg)" in opening
    assert "0 B (Independent) to 66 MB (FedAvg)" in opening
    assert sentences == [
        "Attack label-distribution: the figure differs from its control in 7 of 9 rows "
        "(all but Independent, FedAvg + DP-SGD).",
        "Attack inversion: the figure differs from its control in 1 of 8 rows (FedAvg).",
        "Attack label-only: the figure differs from its control in 6 of 9 rows "
        "(all but Selective-FD hard + masks + DP label unit, "
        "Selective-FD hard + masks + DP record unit, FedAvg + DP-SGD).",
    ]


SINGLE = "single-contributor proxies"


def test_summary_names_the_share_of_votes_that_no_mask_hides() -> None:
    """Only above one half, and never from a row whose answers carry noise."""
    results = sample()
    sparse = with_row(results, 5, diagnostics={SINGLE: 0.617})
    sentences = [s for s in told.summary(sparse) if "one client alone" in s]
    assert sentences == [
        "62 % of the answered proxies were answered by one client alone (Selective-FD hard + "
        "masks): masks hide the author there, not the vote; only differential privacy helps."
    ]
    both = with_row(sparse, 4, diagnostics={SINGLE: 0.9})
    assert told.summary(both) == told.summary(sparse)
    clear = with_row(sample(5), 4, diagnostics={SINGLE: 0.9})
    assert any("90 % of" in s and "(Selective-FD hard)" in s for s in told.summary(clear))
    private = with_row(results, 6, diagnostics={SINGLE: 0.9})
    for quiet in (results, private, with_row(results, 5, diagnostics={SINGLE: 0.5})):
        assert not [s for s in told.summary(quiet) if "alone" in s]


@pytest.mark.parametrize(
    ("releases", "drop", "said", "caveat"),
    [
        (None, 0.0, "up to 30 times, once a round", False),
        (None, 0.1, "up to 30 times, once a round", True),
        (1, 0.1, "once in the whole run", False),
        (3, 0.0, "up to 3 times in the whole run", False),
        (3, 0.1, "up to 3 times in the whole run", True),
    ],
)
def test_summary_says_how_often_a_client_answers(
    releases: int | None, drop: float, said: str, caveat: bool
) -> None:
    settings = {"rounds": 30, "releases": releases, "drop": drop}
    results = dataclasses.replace(sample(), settings=settings)
    [sentence] = [s for s in told.summary(results) if "answers the same proxy" in s]
    assert sentence.startswith(f"A client answers the same proxy {said}")
    assert ("whose cohorts differ by one client give away" in sentence) is caveat


def test_dropouts_are_printed_where_there_are_any() -> None:
    apart = dataclasses.replace(sample().rows[5].aggregation, void_rounds=2)  # type: ignore[type-var]
    results = with_row(sample(), 5, aggregation=apart)
    results = dataclasses.replace(results, settings={"drop": 0.1})
    printed = _squeezed(_printed(results, 160))
    assert "Clients that drop out of a round with chance 0.1" in printed
    lost = "silent from prepare 0, input 2, consistency 10, unmask 0"
    several = "1, 3, 4, 5, 7, 8, 9 9.8 of 10 clients in a sum, 1 of 90 rounds void;"
    assert f"{several} {lost} 6 9.8 of 10 clients in a sum, 2 of 90 rounds void; {lost}" in printed
    assert "drop out" not in _printed(sample(), 160)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0.0 ms"), (0.0042, "4.2 ms"), (0.01, "10 ms"), (0.6, "600 ms"), (1.0, "1.0 s")],
)
def test_milliseconds(seconds: float, expected: str) -> None:
    assert tables.milliseconds(seconds) == expected


def test_summary_of_one_row_and_of_an_attack_that_fails_everywhere() -> None:
    opening, *_ = told.summary(sample(1))
    assert opening == "1 method over 3 seeds: accuracy 96.8 ± 0.8 %, 66 MB sent by a client."
    unapplied = with_row(sample(1), 0, attacks={"inversion": "not applicable: missing a model"})
    assert "no row has" in told.summary(unapplied)[1]
