"""The verdict follows the figures: swapped, it names the other row; without, it is silent."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from attacks import COMPARED, OF_UPDATES, ON_REQUEST, PLAYED
from experiments.compare.attackers import attack_notes, by_attacker, kinds, verdict
from experiments.compare.leakage import AttackFigure, Found, Leakage

ROWS = {"a": "Alpha", "b": "Beta", "c": "Gamma"}


def measured(
    value: float, control: float, name: str = "AUC", unit: str = "", **details: float
) -> AttackFigure:
    ends = value - 0.01, value + 0.01
    return AttackFigure(name, value, name, unit, ends, control, "no access", details=details)


def picture(decibel: float, exact: float = 1.0) -> AttackFigure:
    details = {"A": decibel, "delta": decibel - 10, "share_exact": exact}
    return measured(decibel, 13.0, "PSNR", "dB", **details)


def error(value: float, **details: float) -> AttackFigure:
    return measured(value, 0.9, "TV error (0: known)", **details)


FOUND: Mapping[str, Mapping[str, Found]] = {
    "a": {"inversion": picture(120), "label-distribution": error(0.0)},
    "b": {"label-distribution": error(0.1), "server-members": measured(0.8, 0.5)},
    "c": {
        "inversion": "not applicable: missing an update",
        "label-distribution": error(0.9),
        "server-members": measured(0.505, 0.5),
    },
}


def leakage(found: Mapping[str, Mapping[str, Found]], **labels: str) -> Leakage:
    return Leakage({**ROWS, **labels}, {row: [(0, named)] for row, named in found.items()})


def swapped(one: str, other: str) -> dict[str, Mapping[str, Found]]:
    return {**FOUND, one: FOUND[other], other: FOUND[one]}


def order(sentence: str) -> list[str]:
    return sorted((name for name in ROWS.values() if name in sentence), key=sentence.index)


def test_the_worst_comes_first_with_figure_and_control():
    first, pictures, members, labels, last = verdict(leakage(FOUND))
    assert order(first) == ["Alpha", "Beta"]
    assert order(pictures) == ["Alpha"]
    assert all(part in pictures for part in ("120", "13.0", "100 % exact"))
    assert order(members) == ["Beta"]
    assert all(part in members for part in ("0.80", "0.50"))
    assert order(labels) == ["Alpha", "Beta"]
    assert order(last) == ["Gamma"]


def test_what_an_outsider_asks_is_no_leak_to_the_server():
    asked = {"b": {"label-only": measured(0.8, 0.5)}, "c": {"server-members": measured(0.8, 0.5)}}
    first, members = verdict(leakage(asked))
    assert first.endswith("Gamma: members; Beta: answers of final networks.")
    assert members == "Members: Gamma AUC 0.80 (control 0.50)."


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a", "c"), ("b", "c")])
def test_with_swapped_figures_it_is_the_same_about_the_other_rows(one, other):
    names = {one: ROWS[other], other: ROWS[one]}
    twin = verdict(leakage(swapped(one, other), **names))
    assert sorted(map(sorted, twin)) == sorted(map(sorted, verdict(leakage(FOUND))))
    assert verdict(leakage(swapped(one, other))) != verdict(leakage(FOUND))
    assert order(twin[0]) == order(verdict(leakage(FOUND))[0])


def test_a_figure_that_falls_to_its_control_leaves_the_verdict():
    less = {**FOUND, "a": {**FOUND["a"], "inversion": picture(13.0, 0.0)}}
    first, *rest = verdict(leakage(less))
    assert order(first) == ["Beta", "Alpha"]  # members are worse than labels
    assert not any("dB" in sentence for sentence in rest)


def test_where_nothing_leaks_one_sentence_says_so():
    [only] = verdict(leakage({"c": FOUND["c"]}))
    assert "any of 1 row" in only
    assert verdict(leakage({})) == []
    assert by_attacker(leakage({})) is None


def test_a_blur_beyond_its_control_is_no_picture():
    """Below 20 dB nobody is recognised; a row with only that comes after labels."""
    faint = {**FOUND, "c": {"inversion": measured(2.0, 0.0, "Δ PSNR", "dB", A=14.0)}}
    first = verdict(leakage(faint))[0]
    assert order(first) == ["Alpha", "Beta", "Gamma"]
    clear = {**FOUND, "c": {"inversion": measured(2.0, 0.0, "Δ PSNR", "dB", A=30.0)}}
    assert order(verdict(leakage(clear))[0]) == ["Alpha", "Gamma", "Beta"]


def test_a_blur_within_what_any_image_without_access_reaches_is_none():
    faint = measured(0.3, -0.2, "Δ PSNR", "dB", A=13.0, **{"public mean: delta": 0.2})
    assert "traces" in verdict(leakage({"c": {"inversion": faint}}))[0]
    near = replace(faint, details={"A": 13.0, "public mean: delta": 0.295})
    assert "traces" not in verdict(leakage({"c": {"inversion": near}}))[0]


def test_an_attack_of_ones_own_that_measures_something_else_is_not_ranked():
    own = {**FOUND, "c": {"own:Attack": measured(9.0, 1.0, "keys found")}}
    assert order(verdict(leakage(own))[0]) == ["Alpha", "Beta"]


# Attacks that were not made on the run.


STOOD_IN: Mapping[str, Mapping[str, Found]] = {
    "a": {**FOUND["c"], "update-inversion": picture(120)},
    "b": {"game-server": measured(0.8, 0.5), "game-labels": measured(0.5, 0.5)},
    "c": {"game-server": measured(0.7, 0.5)},
}


def test_stand_ins_have_a_sentence_of_their_own():
    """It names what each was measured on, and no other sentence has their figures or rows."""
    *own, last = verdict(leakage(STOOD_IN))
    assert own == ["No attack on this run tells more than its control in any of 1 row."]
    assert last == (
        "Not measured on this run: "
        "update-inversion (one step of an MLP on 1 record, not this run): "
        "Alpha 120 dB (control 13.0, 100 % exact); "
        "game-server (small federations of digits, not your data): "
        "Beta AUC 0.80, Gamma AUC 0.70 (control 0.50)."
    )
    assert [kinds(leakage(STOOD_IN), row) for row in ROWS] == [(), None, None]


def test_a_stand_in_changes_no_sentence_about_the_run():
    both = {row: {**FOUND[row], "game-lira": measured(0.9, 0.5)} for row in ROWS}
    assert verdict(leakage(both))[:-1] == verdict(leakage(FOUND))


@pytest.mark.parametrize("attack", [*COMPARED, *PLAYED, *ON_REQUEST])
def test_every_column_says_what_it_was_measured_on(attack):
    """In headings for wide and narrow terminals, and in the notes."""
    found = leakage({"a": {attack: measured(0.8, 0.5)}})
    table = by_attacker(found)
    assert table is not None
    assert table.narrow is not None
    [note] = attack_notes(found)
    other = attack in (*OF_UPDATES, *PLAYED)
    words = ["digits, not your data"] if attack in PLAYED else ["not this run"] if other else []
    for heading in (table.columns[1], table.narrow.columns[1], note):
        assert all(word in heading for word in words)
        assert ("not this run" in heading or "not your data" in heading) == other
    assert ("measured on this run" in note) == (not other)


def test_a_positive_control_is_named():
    known = {
        **FOUND["a"],
        "update-inversion": replace(picture(11.0), details={"positive_control": 98.7}),
    }
    notes = list(attack_notes(leakage({"a": known})))
    assert any("98.7" in note for note in notes)
    other = replace(known["update-inversion"], details={"positive_control": 12.3})
    [note] = attack_notes(leakage({"a": {"x": known["update-inversion"]}, "b": {"x": other}}))
    assert "98.7 (Alpha), 12.3 (Beta)" in note
