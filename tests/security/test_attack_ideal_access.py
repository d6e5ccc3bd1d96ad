"""IDEAL: what it reads, what it may ask, and what its figures catch; oracles of trained clients."""

from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.core.base import Images
from attacks.core.fit import label_function
from attacks.core.run import attack_view
from attacks.core.view import (
    AnswerFunction,
    Capability,
    Oracle,
    Public,
    View,
    server_view,
)
from attacks.inversion.gmi import InversionSettings
from attacks.inversion.ideal import Ideal, IdealSettings
from experiments.core.run_config import RowSpec, row_config
from experiments.core.runs import Trained, run
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes.extraction import answers
from secure_fd.errors import MissingCapabilityError
from secure_fd.protocol.transcript import Transcript
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble
from secure_fd.votes.codec import one_hot as rows_of
from tests.attack_games import TRAINING, answered, mlp, part, prior, private_network
from tests.attack_games import inverted_truth as truth
from tests.attack_games import known as public

SMALL = IdealSettings(epochs=4, batch=50, generator_steps=6, latent=16, channels=4, passes=4)
SEARCH = InversionSettings(steps=15, restarts=1, per_class=2)


@cache
def ready() -> Ideal:
    return replace(Ideal.prepare(public(), prior(), 0, SEARCH, TRAINING), theft=SMALL)


def votes_of(labels: Tensor) -> Tensor:
    return one_hot(labels, 10).double()[:, None]


def honest(images: Tensor) -> Tensor:
    return votes_of(logits(private_network(), images).argmax(dim=1))


def guessing(images: Tensor) -> Tensor:
    """Says the same of an image every time, and knows nothing."""
    return votes_of((images.sum(dim=(1, 2, 3)) * 1e4).long() % 10)


def round_of(answer: AnswerFunction, known: Public) -> Transcript:
    """A run whose one round asked about the first proxies; a silent ensemble is not kept."""
    votes = answer(known.proxies[:300]).sum(dim=1)
    kept = (votes.sum(dim=1) > 0).numpy()
    return answered(Ensemble(np.arange(300), rows_of(votes.argmax(dim=1).numpy(), 10), kept))


def reading(answer: AnswerFunction, known: Public | None = None) -> View:
    known = known or public()
    return server_view(round_of(answer, known), known)


def asking(answer: AnswerFunction) -> View:
    """A server that has read the same round, and injects proxies."""
    oracles = {Capability.INJECT_PROXIES: Oracle(answer, SMALL.queries)}
    return server_view(round_of(answer, public()), public(), oracles)


def accuracy(found: Images) -> float:
    says = label_function(found.network)(truth().held_out.images)
    return float((says == truth().held_out.labels).double().mean())


def test_a_missing_capability_is_refused():
    with pytest.raises(MissingCapabilityError):
        ready().estimate(server_view(Transcript(3), public()), 0)


@pytest.mark.parametrize("access", [reading, asking])
def test_a_teacher_that_knows_is_stolen_and_one_that_guesses_is_not(access):
    """Power first, by reading and by injecting; then chance, to 4 deviations (1 in 10^4)."""
    chance = 0.1 + 4 * np.sqrt(0.09 / len(truth().held_out))
    assert accuracy(ready().estimate(access(honest), 0)) > 0.6
    null = ready().estimate(access(guessing), 0)
    assert accuracy(null) < chance + 0.04  # classes are a little unequal
    assert ready().with_truth(truth()).score(null, 0).details["delta_p_value"] > 0.001


def test_a_memorising_selector_shows_private_images_among_the_proxies():
    """A mutation: members among the proxies, and clients that answer near their records only."""
    inside = part(600, 700)
    mixed = Public(torch.cat([part(0, 200).images, inside.images]), 3, 10, mlp)

    def remembers(images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), truth().private.images.flatten(1)).min(dim=1).values
        return honest(images) * (near < 0.1)[:, None, None]

    caught, fair = (
        attack_view(ready().with_truth(truth()), reading(answer, mixed), 0).details
        for answer in (remembers, honest)
    )
    assert caught["pool: delta"] > 30
    assert caught["pool: delta_p_value"] < 0.01
    assert caught["answers"] < 0.6 * 300
    assert fair["answers"] == 300
    assert fair["pool: delta"] < caught["pool: delta"] - 10


# What trained clients answer.


@cache
def trained(spec: RowSpec, selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio") -> Trained:
    settings = Settings(
        dataset="digits", clients=4, rounds=1, proxies_per_round=40, quick=True, attacks="none"
    )
    base = plan(replace(settings, selector=selector), None).base
    return run(row_config(replace(base, seed=0), spec), attacked=True)


HARD = RowSpec("selective-fd", "hard")


def test_injected_proxies_get_the_answers_of_a_round():
    """After one more round's training: nothing but networks moved."""
    clear = trained(HARD)
    assert answers(clear)(clear.data.proxies.pixels[:30]).shape == (30, 4, 10)
    found = trained(HARD, "kulsif")  # counts votes: the weight of a weighed one moves
    seen = found.federation.transcript.distillation[0]
    assert seen.uploads is not None
    asked = answers(found)(found.data.proxies.pixels[seen.result.indices])
    for k in range(4):
        sent = seen.uploads[k].reshape(-1, 10).sum(axis=1) / seen.levels
        np.testing.assert_allclose(asked[:, k].sum(dim=1), sent, atol=1 / seen.levels)
