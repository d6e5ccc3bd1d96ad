"""Capabilities follow from the transcript, and what is missing is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacks import ATTACKS, load
from attacks.base import AttackResult
from attacks.view import (
    Capability,
    LabelOracle,
    Oracle,
    Public,
    client_view,
    outsider_view,
    server_view,
)
from experiments.results_page import attack_list
from secure_fd.errors import (
    BudgetError,
    ConfigurationError,
    LocalError,
    MissingCapabilityError,
)
from secure_fd.transcript import ParameterRound, Transcript
from tests.attack_games import add_round

WORDS = {0: np.array([1, 0], dtype=np.uint64), 1: np.array([0, 1], dtype=np.uint64)}


def public(labels: Tensor | None = None) -> Public:
    proxies = torch.zeros(1, 1, 4, 4)
    return Public(proxies, 2, 2, lambda _: nn.Linear(1, 1), labels)


def transcript(*, readable: bool, fedavg: bool = False) -> Transcript:
    run = Transcript(2)
    if fedavg:
        weights = {k: np.full(3, float(k), dtype=np.float32) for k in (0, 1)}
        mean = np.full(3, 0.5, dtype=np.float32)
        run.add_parameters(ParameterRound(0, weights if readable else None, WORDS, mean))
        return run
    seen = {"uploads": WORDS if readable else None, "payloads": WORDS, "survivors": (0, 1)}
    return add_round(run, WORDS[0] + WORDS[1], 2, **seen)


def test_a_server_reads_uploads_only_where_nothing_masks_them():
    clear = server_view(transcript(readable=True), public())
    masked = server_view(transcript(readable=False), public())
    assert clear.capabilities - masked.capabilities == {Capability.READ_UPLOADS}
    assert masked.rounds[0].uploads is None
    with pytest.raises(MissingCapabilityError, match=r"clients' uploads in clear \(server\)"):
        masked.require(Capability.READ_SUMS, Capability.READ_UPLOADS)


def test_client_and_outsider_see_no_upload_payload_or_sum():
    run = transcript(readable=True)
    client = client_view(run, public())
    assert client.capabilities == {Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES}
    seen = client.rounds[0]
    assert (seen.uploads, seen.payloads, seen.total) == (None, None, None)
    assert outsider_view(run, public()).capabilities == {Capability.PUBLIC_PROXIES}
    assert outsider_view(run, public()).rounds == ()


def test_fedavg_parameters():
    run = transcript(readable=True, fedavg=True)
    server = server_view(run, public())
    assert server.uploads_by_round(1)[-1].tolist() == [1.0] * 3
    assert server.global_parameters().tolist() == [0.5] * 3
    masked = server_view(transcript(readable=False, fedavg=True), public())
    for blind in (
        masked,
        client_view(run, public()),
        outsider_view(run, public(), holds_model=True),
    ):
        assert blind.global_parameters().tolist() == [0.5] * 3
        with pytest.raises(MissingCapabilityError, match="client model parameters"):
            blind.uploads_by_round(1)
    with pytest.raises(MissingCapabilityError, match="global model parameters"):
        outsider_view(run, public()).global_parameters()
    with pytest.raises(MissingCapabilityError, match="ensemble predictions"):
        server.ensembles()


def test_an_empty_transcript_gives_no_observation():
    assert server_view(Transcript(2), public()).capabilities == {Capability.PUBLIC_PROXIES}


def test_alternatives_are_named_whole():
    view = outsider_view(Transcript(2), public())
    first = frozenset({Capability.READ_SUMS, Capability.PUBLIC_PROXIES})
    with pytest.raises(MissingCapabilityError, match="missing sums over clients, or label queries"):
        view.require_any(first, frozenset({Capability.QUERY_FINAL_MODEL}))


def test_oracles_are_for_active_capabilities():
    oracle = LabelOracle(lambda x: torch.zeros(len(x), dtype=torch.int64), 5)
    view = outsider_view(Transcript(2), public(), {Capability.QUERY_FINAL_MODEL: oracle})
    assert view.oracle(Capability.QUERY_FINAL_MODEL) is oracle
    with pytest.raises(MissingCapabilityError, match="injection"):
        view.oracle(Capability.INJECT_PROXIES)
    with pytest.raises(LocalError, match="sums over clients"):
        server_view(Transcript(2), public(), {Capability.READ_SUMS: oracle})


def test_labels_are_a_capability():
    with pytest.raises(MissingCapabilityError, match="labels of public"):
        public().require_labels()
    labelled = public(torch.tensor([1]))
    assert Capability.LABELLED_PUBLIC in server_view(Transcript(2), labelled).capabilities
    with pytest.raises(LocalError, match="3 labels for 1"):
        public(torch.tensor([1, 2, 3]))


def test_a_view_shows_no_data_when_printed():
    shown = repr(server_view(transcript(readable=True), public()))
    assert "array" not in shown
    assert "tensor" not in shown


class Parity:
    """Labels by the parity of the pixel total, and how many images it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return images.flatten(1).sum(1).long() % 2


def test_oracle_counts_distinct_images_and_remembers_answers():
    model = Parity()
    oracle = LabelOracle(model, 3)
    images = torch.arange(3.0).view(3, 1, 1, 1)[[0, 1, 1, 0]]
    assert oracle(images).tolist() == [0, 1, 1, 0]
    assert (oracle.queries, model.asked) == (2, 2)
    assert oracle(images).tolist() == [0, 1, 1, 0]
    assert (oracle.queries, model.asked) == (2, 2)


def test_oracle_stops_at_its_budget_before_it_asks():
    model = Parity()
    oracle = LabelOracle(model, 3)
    oracle(torch.arange(2.0).view(2, 1, 1, 1))
    with pytest.raises(BudgetError, match="2 new queries after 2 exceed the budget of 3"):
        oracle(torch.arange(1.0, 4.0).view(3, 1, 1, 1))
    assert (oracle.queries, model.asked) == (2, 2)
    with pytest.raises(ConfigurationError, match="budget"):
        LabelOracle(model, 0)


def test_oracle_never_passes_on_scores():
    with pytest.raises(LocalError, match="one class id an image"):
        LabelOracle(lambda x: torch.rand(len(x)), 5)(torch.zeros(1, 1, 2, 2))
    with pytest.raises(LocalError, match="one class id an image"):
        LabelOracle(lambda x: torch.rand(len(x), 3), 5)(torch.zeros(1, 1, 2, 2))


def test_result_refuses_numbers_that_no_report_can_show():
    with pytest.raises(LocalError, match="figure is nan"):
        AttackResult("n", "t", float("nan"), "AUC", "", (0.4, 0.6), 0.5, "shuffled")


@pytest.mark.parametrize("name", ATTACKS)
def test_every_registered_attack_carries_its_name(name):
    attack: Any = load(name)
    assert attack.name == name
    assert attack.needs
    assert {"prepare", "run", "score", "title", "figure_name"} <= set(dir(attack))


def test_the_documentation_lists_every_attack():
    page = Path(__file__).parents[2] / "docs" / "attacks" / "all.md"
    assert page.read_text(encoding="utf-8") == attack_list()


def test_an_unknown_attack_is_refused():
    with pytest.raises(ConfigurationError, match="use one of label-distribution"):
        load("telepathy")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("no.such.module:Mine", "use a class that exists"),
        ("attacks.base:NoSuchClass", "use a class that exists"),
        ("attacks.base:Labelled", "give the class prepare, run, score, name, title, needs"),
    ],
)
def test_an_attack_of_ones_own_needs_every_part(own, words):
    with pytest.raises(ConfigurationError, match=words):
        load(own)
    assert load("attacks.rounds:Differencing") is load("differencing")


def test_a_server_that_acts_on_the_protocol_is_malicious():
    votes = Oracle(lambda x: torch.zeros(len(x), 1, 2), 5)
    honest = server_view(transcript(readable=True), public())
    active = server_view(transcript(readable=True), public(), {Capability.INJECT_PROXIES: votes})
    assert honest.attacker == "server"
    assert active.attacker == "malicious server"


@pytest.mark.parametrize("acting", [Capability.INJECT_PROXIES, Capability.CHOOSE_INDICES])
def test_no_outsider_acts_as_a_server(acting):
    held = {acting: Oracle(lambda x: torch.zeros(len(x), 1, 2), 5)}
    with pytest.raises(LocalError, match="is not this attacker's to have"):
        outsider_view(transcript(readable=True), public(), held)


def test_an_oracle_of_votes_answers_as_asked_and_remembers():
    asked: list[int] = []

    def votes(images: Tensor) -> Tensor:
        asked.append(len(images))
        return images.mean(dim=(1, 2, 3))[:, None, None].expand(-1, 3, 2)

    oracle = Oracle(votes, 3)
    images = torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 2)
    first = oracle(images)
    assert torch.equal(oracle(images[[2, 0, 2]]), first[[2, 0, 2]])
    assert (asked, oracle.queries) == ([3], 3)
    with pytest.raises(BudgetError):
        oracle(images + 0.5)
    with pytest.raises(LocalError, match="one answer an image"):
        Oracle(lambda x: torch.zeros(len(x) + 1, 2), 5)(images)
