"""The scene of the literature's attacks, small: what each row meets, and what masks leave of it."""

from functools import cache

import pytest

from attacks.base import AttackResult
from experiments.scenes import ASKED_FOR, Job, Turn, attacked, load

JOB, SEED = Job(quick=True), 0
PEERS = ["coop", "coop-lira", "distillation-lira"]


@cache
def made() -> object:
    return load("literature").prepare(JOB, SEED, lambda _: None)


def found(row: str) -> dict[str, AttackResult | str]:
    return dict(attacked(load("literature"), Turn(JOB, row, SEED, made())))


def test_it_runs_where_it_is_named() -> None:
    assert "literature" in ASKED_FOR
    labels = load("literature").rows(JOB)
    assert labels["fedmd-masks"] == "FedMD soft + masks"
    assert labels["fedavg-dp-sgd"].endswith("ε = 4")


def test_a_masked_row_has_no_peers_and_still_its_label_shares() -> None:
    masked = found("fedmd-masks")
    assert list(masked) == [*PEERS, "label-distribution"]
    for name in PEERS:
        assert "clients' uploads in clear" in str(masked[name])
    shares = masked["label-distribution"]
    assert isinstance(shares, AttackResult)
    assert shares.figure == pytest.approx(shares.control, abs=0.1)
    assert shares.details["kl_divergence"] > 0


def test_updates_are_asked_about_every_candidate_and_a_lying_model_reads_the_sum() -> None:
    """An honest model of the same network, under the same masks, shows no record."""
    asked = found("fedavg")["fedmia"]
    assert isinstance(asked, AttackResult)
    assert asked.control == pytest.approx(0.5, abs=0.01)
    assert asked.n_members == asked.n_non_members > 0
    imprinted = found("imprint")["imprint"]
    assert isinstance(imprinted, AttackResult)
    assert imprinted.figure > 60 > imprinted.details["honest_model_psnr"]
