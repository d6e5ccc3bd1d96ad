"""The vectors on file: the package makes them, and so does another implementation."""

import copy
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from secure_fd.crypto.keys import KEY_BYTES, Purpose
from secure_fd.secagg import graph
from secure_fd.secagg.channel import Channel
from tests.vectors import independent, reader
from tests.vectors.flow import Flow, RefusedError
from tests.vectors.generate import FILE, text
from tests.vectors.parts import PARTS, ratchet
from tests.vectors.records import Json
from tests.vectors.refused import (
    REASONS,
    cases,
    difference,
    entry,
    reason_of,
    refusal_of,
    sent,
    use,
)

CONTENT: Json = json.loads(FILE.read_text())
FLOWS = {made["name"]: made for made in CONTENT["flows"]}
use(CONTENT["flows"])
CASES = {case.name: case for case in cases()}


@pytest.mark.parametrize("part", PARTS)
def test_the_package_makes_every_part_on_file(part):
    found = CONTENT[part]
    made = [PARTS[part](case) for case in found] if isinstance(found, list) else PARTS[part](found)
    assert made == found


@pytest.mark.parametrize("name", FLOWS)
def test_the_package_sends_every_message_on_file(name):
    """All secrets, keys and masks follow from the inputs, and the messages from them."""
    found = FLOWS[name]["steps"]
    made = Flow(FLOWS[name]).steps
    assert made == shown(found, made)


def shown(steps: Sequence[Json], made: Sequence[Json]) -> list[Json]:
    """Return the package's values for the steps of the second implementation."""
    return [{key: step[key] for key in one} for step, one in zip(steps, made, strict=True)]


def test_the_file_is_as_it_is_written():
    assert FILE.read_text() == text(CONTENT)
    assert set(PARTS) | {"comment", "version", "flows", "refused"} == set(CONTENT)


INPUTS = {
    "file": "comment contexts lanes sharing corrections draws graphs groups ratchet flows refused",
    "contexts": "purpose session terms sender receiver",
    "lanes": "clients bound room values",
    "sharing": "seed threshold points",
    "corrections": "threshold points shares",
    "draws": "nonces round population count",
    "graphs": "members degree seed",
    "groups": "members roster session_degree",
    "ratchet": "session epoch low high chain rounds",
    "rounds": "index",
    "flows": "name session clients capsules steps",
    "steps": "kind lost altered compact detail index length bound room least subject values",
    "refused": "name flow step type from to sender head middle tail",
}


def inputs(part: str, value: Any) -> Any:
    """A part of the file without what follows from its inputs."""
    if part not in INPUTS or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [inputs(part, item) for item in value]
    return {name: inputs(name, value[name]) for name in INPUTS[part].split() if name in value}


def test_another_implementation_makes_the_same_file():
    """It receives the inputs alone, so that any other value on file, and any refusal, is found."""
    given = inputs("file", CONTENT)
    assert len(json.dumps(given)) < len(json.dumps(CONTENT)) / 2
    assert reader.made(given) == CONTENT


def test_the_other_implementation_runs_without_this_one():
    loaded = "[m for m in sys.modules if m.startswith('secure_fd')]"
    script = f"import sys, tests.vectors.reader; print({loaded})"
    done = subprocess.run(  # noqa: S603 - a line of this file
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_purpose_has_a_context_on_file():
    assert {case["purpose"] for case in CONTENT["contexts"]} == {p.value for p in Purpose}


GIVEN = [
    ("complete", ("session", "nonce"), "00"),
    ("complete", ("session", "configuration"), "00"),
    ("complete", ("session", "proxies"), "00"),
    ("complete", ("session", "server_private"), "11" * 32),
    ("complete", ("session", "epoch"), 16),
    ("complete", ("clients", 2, "seed"), 5),
    ("complete", ("steps", 1, "subject"), "00"),
    ("complete", ("steps", 1, "values", 0, 3), 7),
    ("complete", ("steps", 2, "bound"), 1001),
    ("complete", ("steps", 2, "room"), 501),
    ("complete", ("steps", 2, "lost"), [["MASKED", 9]]),
    ("complete", ("steps", 3, "altered"), []),
    ("complete", ("steps", 5, "index"), 14),
    ("sparse", ("session", "degree"), 7),
    ("hybrid", ("steps", 1, "index"), 4),
    ("hybrid", ("capsules", 1, "capsule"), "00" * 1168),
]


@pytest.mark.parametrize(("name", "path", "value"), GIVEN)
def test_whatever_is_given_otherwise_gives_something_else(name, path, value):
    """For both implementations, which still agree."""
    case = copy.deepcopy(FLOWS[name])
    place: Any = case
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    try:
        here = Flow(case).steps
    except RefusedError as here:
        with pytest.raises(independent.Refused) as there:
            _ = reader.Replay(case)
        refusal = there.value
        assert (refusal.party, refusal.when) == (here.party, here.when)
        assert refusal.reason == reason_of(here.error)
        return
    assert here == shown(reader.Replay(case).made["steps"], here)
    assert here != shown(FLOWS[name]["steps"], here)


@pytest.mark.parametrize("case", CONTENT["refused"], ids=lambda case: case["name"])
def test_what_must_be_refused_is_refused_for_its_reason(case):
    assert entry(CASES[case["name"]]) == case
    assert case["middle"] or case["head"] or case["sender"] != case["from"]


def test_every_reason_has_a_case_on_file():
    assert [case["name"] for case in CONTENT["refused"]] == list(CASES)
    assert {case["reason"] for case in CONTENT["refused"]} == set(REASONS)


def test_the_same_delivery_unaltered_is_not_refused():
    """Else every case above would pass for nothing."""
    at = ("complete", 1, "COHORT", independent.SERVER, 4)
    message = sent(at)
    with pytest.raises(ValueError, match="the altered message was accepted"):
        refusal_of(at, independent.SERVER, message)
    unaltered = {**CONTENT["refused"][0], **difference(message, message)}
    names = ("flow", "step", "type", "from", "to")
    unaltered |= {**dict(zip(names, at, strict=True)), "sender": independent.SERVER}
    assert reader.refused_case(CONTENT, unaltered)["party"] is None


# Mutants: implementations of which a part was replaced by a weaker one.


def lowest(members: Sequence[int], size: int, seed: bytes) -> tuple[int, ...]:  # noqa: ARG001
    return tuple(sorted(members)[:size])


def test_mutant_with_a_committee_of_the_lowest_numbers_makes_other_vectors(monkeypatch):
    """Such a committee needs no draw: the numbers alone show which clients to corrupt."""
    monkeypatch.setattr(graph, "committee", lowest)
    made = Flow(FLOWS["sparse"]).steps
    assert made[0]["committee"] != FLOWS["sparse"]["steps"][0]["committee"]
    for step in (1, 2):
        assert made[step]["messages"] != FLOWS["sparse"]["steps"][step]["messages"]
    monkeypatch.setattr(
        independent, "committee", lambda seed, members, size: list(lowest(members, size, seed))
    )
    case = next(case for case in CONTENT["graphs"] if case["degree"] < len(case["members"]) - 1)
    assert reader.graph_case(case) != case


def test_mutant_whose_ratchet_does_not_move_makes_other_vectors(monkeypatch):
    """Its channels would give every earlier round of the epoch away with their last state."""

    def stand(self: Channel, index: int) -> None:
        if self._at == -1:
            self._at = index - index % self._session.epoch
            self._chain = self._mixed(Purpose.RATCHET, self._chain, KEY_BYTES)
        self._at = index
        self._derive()

    monkeypatch.setattr(Channel, "_move", stand)
    assert ratchet(CONTENT["ratchet"]) != CONTENT["ratchet"]
    assert (
        ratchet(CONTENT["ratchet"])["rounds"][0] == CONTENT["ratchet"]["rounds"][0]
    )  # the first of an epoch
    found = FLOWS["complete"]["steps"]
    made = Flow(FLOWS["complete"]).steps
    assert made[:1] == shown(found[:1], made[:1])
    assert made[1]["messages"] != found[1]["messages"]
