"""One record behind one update is read off it, and not where noise stands before it."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from attacks.base import AttackResult
from attacks.on_run import OneUpdate, one_update
from attacks.updates_attack import UpdateInversion
from attacks.view import View, client_view
from experiments.privacy_compare import Settings, plan
from experiments.runs import data_of
from secure_fd.errors import MissingCapabilityError
from secure_fd.private_training import PrivateSGD
from secure_fd.transcript import Transcript

PLAN = plan(Settings(dataset="digits", clients=3, quick=True), None).terms
PRIVATE = PrivateSGD(4.0, 1e-5, PLAN.rounds)


@cache
def made(optimiser: PrivateSGD | None = None) -> OneUpdate:
    return one_update(data_of(PLAN, 0), optimiser, 0)


def scored(view: View, of: OneUpdate) -> AttackResult:
    attack = UpdateInversion(of.public)
    return attack.score(attack.run(view, 0), of.records, 0)


def test_one_record_is_read_to_the_last_grey() -> None:
    result = scored(made().view, made())
    assert result.figure > 90
    assert result.details["share_exact"] == 1.0
    assert result.control < 25
    assert result.n_members == 3


def test_the_records_of_other_clients_are_not_what_was_read() -> None:
    swapped = {k: made().records[(k + 1) % 3] for k in range(3)}
    result = scored(made().view, replace(made(), records=swapped))
    assert result.details["share_exact"] == 0.0
    assert result.figure < 25


def test_dp_sgd_leaves_no_more_than_the_control() -> None:
    result = scored(made(PRIVATE).view, made(PRIVATE))
    assert result.details["share_exact"] == 0.0
    assert result.figure < result.control + 1.0
    assert made(PRIVATE).caveats
    assert not made().caveats


def test_noise_on_the_update_hides_the_record() -> None:
    newest, noise = made().view.models[-1], np.random.default_rng(0)
    assert newest.uploads is not None
    uploads = {
        k: (flat + noise.normal(0, 0.1, len(flat))).astype(np.float32)
        for k, flat in newest.uploads.items()
    }
    models = (*made().view.models[:-1], replace(newest, uploads=uploads))
    result = scored(replace(made().view, models=models), made())
    assert result.details["share_exact"] == 0.0
    assert result.figure < result.control + 1.0


def test_whoever_reads_no_update_inverts_none() -> None:
    transcript = Transcript(3)
    for kept in made().view.models:
        transcript.add_parameters(kept)
    with pytest.raises(MissingCapabilityError, match="client model parameters"):
        scored(client_view(transcript, made().public), made())
