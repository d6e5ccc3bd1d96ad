"""Capabilities follow from the transcript, and what is missing is refused."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks.core.base import Labelled, draw_challenge
from attacks.core.view import Capability, LabelOracle, Oracle, Public, outsider_view, server_view
from secure_fd.errors import BudgetError, LocalError, MissingCapabilityError
from secure_fd.protocol.transcript import ObservedRound, Transcript
from tests.attack_games import add_round, client_view
from tests.refusals import refused

WORDS = {0: np.array([1, 0], dtype=np.uint64), 1: np.array([0, 1], dtype=np.uint64)}


def public(labels: Tensor | None = None) -> Public:
    proxies = torch.zeros(1, 1, 4, 4)
    return Public(proxies, 2, 2, lambda _: nn.Linear(1, 1), labels)


def transcript(*, readable: bool, fedavg: bool = False) -> Transcript:
    run = Transcript(2)
    if fedavg:
        weights = {k: np.full(3, float(k), dtype=np.float32) for k in (0, 1)}
        mean = np.full(3, 0.5, dtype=np.float32)
        run.add_parameters(ObservedRound(0, mean, weights if readable else None, WORDS))
        return run
    seen = {"uploads": WORDS if readable else None, "payloads": WORDS, "survivors": (0, 1)}
    return add_round(run, WORDS[0] + WORDS[1], 2, **seen)


PUBLIC, ENSEMBLES = Capability.PUBLIC_PROXIES, Capability.READ_ENSEMBLES
GLOBAL, CLIENTS = Capability.GLOBAL_PARAMETERS, Capability.CLIENT_PARAMETERS
UPLOADS, PAYLOADS = Capability.READ_UPLOADS, Capability.READ_PAYLOADS
MASKED_VOTES = {PUBLIC, ENSEMBLES, Capability.READ_SUMS, PAYLOADS}
MASKED_MODEL = {PUBLIC, GLOBAL, PAYLOADS}


@pytest.mark.parametrize(
    ("attacker", "fedavg", "readable", "expected"),
    [
        (server_view, False, True, MASKED_VOTES | {UPLOADS}),
        (server_view, False, False, MASKED_VOTES),
        (client_view, False, True, {PUBLIC, ENSEMBLES}),
        (server_view, True, True, MASKED_MODEL | {CLIENTS}),
        (server_view, True, False, MASKED_MODEL),
        (client_view, True, True, {PUBLIC, GLOBAL}),
    ],
)
def test_what_an_attacker_can_read(attacker, fedavg, readable, expected):
    """A view lacks what its attacker may not read, and refuses to be asked for it."""
    view = attacker(transcript(readable=readable, fedavg=fedavg), public())
    assert view.capabilities == expected
    for seen in view.rounds:
        assert (seen.uploads is not None) == (UPLOADS in expected)
        assert (seen.payloads is not None) == (seen.total is not None) == (PAYLOADS in expected)
    assert bool(view.rounds) == (ENSEMBLES in expected)
    asked = {
        UPLOADS: lambda: view.require(UPLOADS),
        ENSEMBLES: lambda: len(view.ensembles()) == 1,
        CLIENTS: lambda: view.uploads_by_round(1)[-1].tolist() == [1.0] * 3,
        GLOBAL: lambda: view.global_parameters().tolist() == [0.5] * 3,
    }
    for capability, ask in asked.items():
        if capability in expected:
            assert ask() in (True, None)
        else:
            with pytest.raises(MissingCapabilityError, match=capability.value):
                ask()


def test_labels_and_oracles_are_capabilities():
    oracle = LabelOracle(lambda x: torch.zeros(len(x), dtype=torch.int64), 5)
    view = outsider_view(public(), {Capability.QUERY_FINAL_MODEL: oracle})
    assert view.oracle(Capability.QUERY_FINAL_MODEL) is oracle
    labelled = server_view(Transcript(2), public(torch.tensor([1])))
    assert labelled.capabilities == {PUBLIC, Capability.LABELLED_PUBLIC}
    assert outsider_view(public()).capabilities == {PUBLIC}
    for missing in (lambda: view.oracle(Capability.INJECT_PROXIES), public().require_labels):
        with pytest.raises(MissingCapabilityError):
            missing()
    with pytest.raises(LocalError):  # reading is a capability that no oracle gives
        server_view(Transcript(2), public(), {Capability.READ_SUMS: oracle})


def test_a_server_that_acts_on_the_protocol_is_malicious_and_no_outsider_does():
    held = {Capability.INJECT_PROXIES: Oracle(lambda x: torch.zeros(len(x), 1, 2), 5)}
    assert server_view(Transcript(2), public()).attacker == "server"
    assert server_view(Transcript(2), public(), held).attacker == "malicious server"
    with pytest.raises(LocalError):
        outsider_view(public(), held)


def test_candidates_must_be_matched_and_disjoint():
    some, other, few = (Labelled(torch.rand(n, 1), torch.arange(n)) for n in (20, 20, 19))
    draw_challenge(some, other, 0)
    for others in (few, some):
        with pytest.raises(LocalError):
            draw_challenge(some, others, 0)


def test_a_view_shows_no_data_when_printed():
    shown = repr(server_view(transcript(readable=True), public()))
    assert "array" not in shown
    assert "tensor" not in shown


@pytest.mark.parametrize("kind", [LabelOracle, Oracle])
def test_an_oracle_counts_distinct_images_remembers_answers_and_keeps_its_budget(kind):
    asked: list[int] = []

    def parity(images: Tensor) -> Tensor:
        asked.append(len(images))
        return images.flatten(1).sum(1).long() % 2

    oracle, images = kind(parity, 3), torch.arange(5.0).view(5, 1, 1, 1)
    for _ in range(2):
        assert oracle(images[[0, 1, 1, 0]]).tolist() == [0, 1, 1, 0]
    with pytest.raises(BudgetError):
        oracle(images[1:4])
    assert (oracle.queries, asked) == (2, [2])
    with refused("budget"):
        kind(parity, 0)
    for scores in (lambda x: torch.rand(len(x)), lambda x: torch.rand(len(x), 3)):
        with pytest.raises(LocalError):  # a label oracle never passes scores on
            LabelOracle(scores, 5)(images)
