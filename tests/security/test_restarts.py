"""A client that is killed at any message comes back without a second input; so does a server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from secure_fd.errors import LocalError, MissingClientError
from secure_fd.secagg.client import Client
from secure_fd.secagg.memory import Memory
from secure_fd.secagg.server import Server, ServerState
from secure_fd.secagg.session import RoundTerms
from tests.secagg_cohort import Cohort, Round, random_values

Found = list[dict[str, object]]
POINTS = 12
"""Messages to client 0 in set-up (2 to 3), in a round of all stages, and in the next."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Every message, with each way to die; then the twin that forgets which rounds began."""
    folder = tmp_path_factory.mktemp("lives")
    command = [sys.executable, "-m", "tests.sum_crashes", str(folder), str(POINTS)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)  # noqa: S603 - this very interpreter
    return [json.loads(line) for line in done.stdout.splitlines()]


def inputs(outcome: dict[str, object]) -> int:
    """The most different inputs of one round."""
    counted = outcome["inputs"]
    assert isinstance(counted, dict)
    return max(counted.values(), default=0)


def test_no_life_gives_a_second_input_to_a_round(outcomes):
    real = [outcome for outcome in outcomes if not outcome["forgets"]]
    assert len(real) == 3 * POINTS
    assert max(map(inputs, real)) == 1
    assert all(outcome["exact"] for outcome in real)
    assert not any(outcome["again"] == "it answered the cohort" for outcome in real)


def test_a_client_that_forgets_gives_two(outcomes):
    """The twin writes nothing once rounds begin; a server that opens one again reads the rest."""
    twins = [outcome for outcome in outcomes if outcome["forgets"]]
    assert len(twins) == POINTS
    assert sum(inputs(outcome) == 2 for outcome in twins) >= 3
    assert sum(outcome["again"] == "it answered the cohort" for outcome in twins) >= 6


def test_whoever_was_killed_is_in_later_sums(outcomes):
    """At the latest in the next epoch, from round 4 on, for which all set up anew."""
    for outcome in outcomes:
        survivors = outcome["survivors"]
        assert isinstance(survivors, dict)
        assert survivors["5"] == [0, 1, 2, 3, 4], outcome


STAGES = (ServerState.PREPARE, ServerState.INPUT, ServerState.CONSISTENCY, ServerState.UNMASK)


def until(current: Round, stage: ServerState) -> None:
    """A round in which client 3's input is lost, up to this stage."""
    if stage is ServerState.PREPARE:
        return
    inbound = current.prepare()
    lost: tuple[int, ...] = (3,)
    while current.server.state is not stage:
        inbound = current.deliver(current.answer(inbound), without=lost)
        lost = ()


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_restarts_loses_its_round_and_goes_on(stage):
    kept: list[bytes] = []
    cohort = Cohort(5)
    cohort.server = Server(cohort.session, cohort.key, keep=kept.append)
    cohort.enrol()
    terms = [RoundTerms(index, 20, 3) for index in range(4)]
    values = [random_values(cohort, one, one.index) for one in terms]
    until(cohort.open(terms[0], values[0]), stage)
    cohort.server = Server(cohort.session, cohort.key, memory=kept[-1])
    with pytest.raises(LocalError, match="round 0 is spent"):
        cohort.server.open_round(terms[0])
    for one, held in zip(terms[1:], values[1:], strict=True):
        try:
            total = cohort.open(one, held).finish()
        except MissingClientError:
            assert one.index == 1  # clients took what they had prepared to be there
            continue
        assert (total == sum(held.values())).all()
    assert cohort.server.open_round(RoundTerms(9, 20, 3)).waiting == (0, 1, 2, 3, 4)


def test_a_memory_is_of_one_session_and_whole():
    cohort, other = Cohort(4), Cohort(4, nonce=b"m")
    memory = cohort.clients[1].memory()
    known = Memory.decode(memory, cohort.session)
    assert known.group is not None
    assert (known.last, known.used, known.group.members) == (-1, False, (0, 1, 2, 3))
    assert known.group.view == cohort.group.view
    back = Client(1, cohort.identities[1], cohort.session, memory=memory)
    assert back.memory() == memory
    with pytest.raises(LocalError, match="another session"):
        Memory.decode(memory, other.session)
    for damaged in (memory[:-1], memory + b"\0", memory[:40], b""):
        with pytest.raises(LocalError, match=r"damaged|another session"):
            Memory.decode(damaged, cohort.session)
