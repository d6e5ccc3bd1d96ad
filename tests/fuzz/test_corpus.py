"""The fuzz targets over a small corpus, and over a little of what the fuzzer makes.

The corpus has one input for each outcome of each target; `python -m tests.fuzz.run` explores.
"""

import json
import random
import tracemalloc

import pytest

from secure_fd.errors import LocalError
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.server import ServerRound
from secure_fd.secagg.session import decode_set, encode_set
from secure_fd.wire import HEADER_BYTES as HEADER
from tests.fuzz.decoders import Target, decoder
from tests.fuzz.machines import CLIENT_STATES, SERVER_STATES, client_state, server_state
from tests.fuzz.mutate import mutated
from tests.fuzz.run import CORPUS, Findings, fuzz, write_crashes
from tests.fuzz.targets import targets
from tests.secagg.test_bad_messages import ends_the_round

TARGETS = {target.name: target for target in targets()}
INPUTS: dict[str, dict[str, str]] = json.loads(CORPUS.read_text())
ROUNDS = 150
LARGE = 1 << 20


def test_the_corpus_is_small_and_covers_every_target_both_ways():
    assert CORPUS.stat().st_size < 150_000
    assert set(INPUTS) == set(TARGETS)
    assert len(TARGETS) == 58
    for name, found in INPUTS.items():
        assert any(not outcome.startswith("accepted") for outcome in found), name


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_has_the_outcome_that_it_had(name):
    """Taken or refused, and with what state; sentences may be worded anew."""
    for outcome, data in INPUTS[name].items():
        now = TARGETS[name].run(bytes.fromhex(data))
        assert now.startswith("accepted") is outcome.startswith("accepted"), (outcome, now)


@pytest.mark.parametrize("name", TARGETS)
def test_honest_messages_are_taken_and_altered_ones_break_nothing(name):
    target = TARGETS[name]
    rng = random.Random(0)  # noqa: S311 - chooses tests, not keys
    assert target.run(target.seeds[0]).startswith("accepted")
    findings = Findings()
    for _ in range(ROUNDS):
        findings.add(target, mutated(rng, target.seeds))
    assert findings.crashes == {}
    assert findings.executions == ROUNDS
    assert findings.outcomes > 1


@pytest.mark.parametrize("name", TARGETS)
def test_a_long_message_takes_no_more_memory_than_its_own_size(name):
    """An honest header, then a mebibyte of zeros: nothing is built from a length that it claims."""
    target = TARGETS[name]
    data = target.seeds[0][:HEADER] + bytes(LARGE)
    target.run(target.seeds[0])
    tracemalloc.start()
    try:
        outcome = target.run(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * LARGE
    assert not outcome.startswith("accepted")


# The fuzzer finds what is there to find.


def test_mutants_of_decoders_are_found():
    members = range(11)
    honest = encode_set([1, 5], members)

    def careless(data: bytes) -> tuple[int, ...]:
        return decode_set(data[:2], members)

    def crashing(data: bytes) -> tuple[int, ...]:
        return () if data[1] < 8 else decode_set(data, members)

    for broken, error in ((careless, "BrokenPropertyError"), (crashing, "IndexError")):
        target = decoder("mutant", broken, lambda chosen: encode_set(chosen, members), honest)
        assert any(error in kind for kind in found(target).crashes)


def blame(*_: object) -> None:
    raise LocalError("the cohort is too small")


@pytest.mark.parametrize(
    ("method", "mutant", "finding"),
    [
        ("_take", lambda self: (self.state, self._held), "BrokenPropertyError"),
        ("_mask", lambda *_: None, "words in clear"),
        ("_check_reach", blame, "LocalError"),
    ],
    ids=["survives a failure", "sends its words", "blames itself"],
)
def test_mutants_of_a_client_are_found(monkeypatch, method, mutant, finding):
    monkeypatch.setattr(ClientRound, method, mutant)
    (stop,) = (stop for stop in CLIENT_STATES if stop.name == "PREPARED")
    crashes = found(client_state(stop)).crashes  # a new machine, whose class is broken by now
    assert any(finding in kind or finding in trace for kind, (_, _, trace) in crashes.items())


def test_mutant_of_a_server_that_ends_the_round_is_found(monkeypatch):
    monkeypatch.setattr(ServerRound, "receive", ends_the_round)
    (stop,) = (stop for stop in SERVER_STATES if stop.name == "INPUT")
    assert any("BrokenPropertyError" in kind for kind in found(server_state(stop)).crashes)


def found(target: Target) -> Findings:
    """After one turn."""
    return next(fuzz([target], 60, seed=0))


def test_a_crash_is_written_once(tmp_path):
    def crash(data: bytes) -> str:
        raise ValueError(len(data))

    findings = Findings()
    for data in (b"one", b"two"):
        findings.add(Target("mutant", crash, ()), data)
    assert len(write_crashes(findings, tmp_path)) == 1
    assert write_crashes(findings, tmp_path) == []
    (stored,) = tmp_path.iterdir()
    assert json.loads(stored.read_text())["input"] == b"one".hex()


def test_a_machine_is_put_back_as_it_was():
    """Else an input would be judged by what came before it."""
    target = TARGETS["client SENT"]
    honest, bad = target.seeds[0], b""
    words = [target.run(data) for data in (honest, honest, bad, honest, bad)]
    assert words[0] == words[1] == words[3] == f"accepted, then {ClientState.DONE.name}"
    assert words[2] == words[4] != words[0]
