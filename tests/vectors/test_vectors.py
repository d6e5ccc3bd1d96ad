"""The vectors on file: the code makes them, another implementation agrees, and changes show."""

import ast
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature, InvalidTag

from tests.vectors.generate import FILE, text, vectors
from tests.vectors.independent import SERVER
from tests.vectors.reader import check
from tests.vectors.refused import REASONS, reason_of, refusal_of, sent

CONTENT: dict[str, Any] = json.loads(FILE.read_text())
EVERY = 5
"""One leaf in so many is changed, for the sake of time."""


def test_the_file_is_what_the_code_makes() -> None:
    assert FILE.read_text() == text(vectors())
    assert FILE.stat().st_size < 150_000


def test_another_implementation_agrees_with_every_value() -> None:
    check(CONTENT)


@pytest.mark.parametrize("name", ["independent", "reader", "round_reader"])
def test_the_other_implementation_knows_nothing_of_this_one(name: str) -> None:
    tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text())
    modules = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    modules += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules
    assert not any(module.startswith("secure_fd") for module in modules)
    ours = {module for module in modules if module.startswith("tests")}
    assert ours <= {f"tests.vectors{end}" for end in ("", ".independent", ".round_reader")}


Path_ = tuple[str | int, ...]
SEVERAL = {("lanes", "clients"), ("lanes", "bound"), ("lanes", "room")}


def leaves(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """Where every number and string stands that has one right value.

    Not the comment, nor what is refused; and lanes are the same for several cohorts and bounds.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("comment", "refused") and (*path[:1], key) not in SEVERAL:
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, (*path, at))
    else:
        yield path


def changed(content: dict[str, Any], path: Path_) -> dict[str, Any]:
    """One leaf another: the last hex digit, or a number one higher."""
    result = copy.deepcopy(content)
    *way, last = path
    place: Any = result
    for step in way:
        place = place[step]
    value = place[last]
    if isinstance(value, str):
        place[last] = value[:-1] + ("1" if value[-1] == "0" else "0")
    else:
        place[last] = not value if isinstance(value, bool) else value + 1
    return result


def test_a_change_of_any_value_is_noticed() -> None:
    paths = list(leaves(CONTENT))
    assert len(paths) > 2_000
    for path in paths[::EVERY]:
        with pytest.raises((AssertionError, InvalidSignature, InvalidTag, LookupError, ValueError)):
            check(changed(CONTENT, path))
            pytest.fail(f"a change at {path} passed")


@pytest.mark.parametrize("case", CONTENT["refused"], ids=lambda case: case["name"])
def test_what_must_be_refused_is_refused_for_its_reason(case: dict[str, Any]) -> None:
    at = (case["round"], case["type"], case["from"], case["to"])
    message = bytes.fromhex(case["message"])
    assert (message, case["sender"]) != (sent(*at), case["from"])
    refusal = refusal_of(at, case["sender"], message)
    assert (refusal.party, refusal.when) == (case["party"], case["when"])
    assert type(refusal.error).__name__ == case["error"] == "PeerError"
    assert reason_of(refusal.error) == case["reason"]


def test_every_reason_has_a_case_and_both_parties_refuse() -> None:
    assert {case["reason"] for case in CONTENT["refused"]} == set(REASONS)
    parties = {case["party"] for case in CONTENT["refused"]}
    assert SERVER in parties
    assert len(parties) > 2


def test_the_same_delivery_unaltered_is_not_refused() -> None:
    """Else every case above would pass for nothing."""
    at = (5, "COHORT", SERVER, 4)
    with pytest.raises(ValueError, match="the altered message was accepted"):
        refusal_of(at, SERVER, sent(*at))
