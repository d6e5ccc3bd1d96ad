"""Model inversion with a public prior: it beats its controls on a leaky target, and only there."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from attacks.core.base import Images
from attacks.core.fit import distil_student
from attacks.core.view import server_view
from attacks.inversion.gmi import PUBLIC_TARGET, InversionSettings, ModelInversion, inversion_truth
from secure_fd.errors import LocalError
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.trainer import logits
from secure_fd.votes.codec import Ensemble, one_hot
from tests.attack_games import TRAINING, answered, client_view, part, prior, private_network
from tests.attack_games import inverted_truth as truth
from tests.attack_games import known as public

SEARCH = InversionSettings(steps=60, restarts=2, per_class=1)


@cache
def attack() -> ModelInversion:
    return ModelInversion.prepare(public(), prior(), 0, SEARCH, TRAINING)


def fedavg(parameters: np.ndarray) -> Transcript:
    run = Transcript(3)
    run.add_parameters(ObservedRound(0, parameters))
    return run


def answer(labels: Tensor, kept: np.ndarray) -> Ensemble:
    return Ensemble(np.arange(len(labels)), one_hot(labels.numpy(), 10), kept)


def flat(model: nn.Module) -> np.ndarray:
    return parameters_to_vector(model.parameters()).detach().numpy()


def test_global_parameters_are_inverted_and_beat_a_random_private_network():
    view = server_view(fedavg(flat(private_network())), public())
    estimate = attack().estimate(view, 0)
    result = attack().with_truth(truth()).score(estimate, 0)
    assert estimate.target == "global model"
    right = result.details["attack_accuracy"]
    assert right >= 0.8
    untrained = attack().against(public().architecture(5), "untrained network", 0)
    blind = attack().with_truth(truth()).score(untrained, 0)
    assert right > blind.details["attack_accuracy"] + 0.4
    # An honest public prior shows classes, not records.
    assert result.details["delta_p_value"] > 0.01
    assert result.control == result.details[f"{PUBLIC_TARGET}: delta"]
    assert result.images is not None
    assert result.images["attack"].shape == (10, 16, 16)


def test_ensembles_are_inverted_through_a_student():
    taught = logits(private_network(), public().proxies).argmax(dim=1)
    view = client_view(answered(answer(taught, np.ones(600, dtype=bool))), public())
    estimate = attack().estimate(view, 0)
    assert estimate.target == "student of ensembles"
    result = attack().with_truth(truth()).score(estimate, 0)
    assert result.details["attack_accuracy"] >= 0.7


def test_a_copy_of_private_images_is_leakage_and_the_class_mean_is_not():
    per_class = [(truth().private.labels == c).nonzero()[0, 0] for c in range(10)]
    copies = Images(truth().private.images[torch.stack(per_class)], torch.arange(10))
    result = attack().with_truth(truth()).score(copies, 0)
    assert result.figure > 50
    assert result.interval[0] > 50
    assert result.details["delta_p_value"] < 0.01
    for name in attack().controls:
        assert abs(result.details[f"{name}: delta"]) < 1.0
    # Blur earns raw PSNR: the class mean, made without access, beats a real image of the class.
    held_out = [(truth().held_out.labels == c).nonzero()[0, 0] for c in range(10)]
    real = Images(truth().held_out.images[torch.stack(held_out)], torch.arange(10))
    honest = attack().with_truth(truth()).score(real, 0)
    assert result.details["public class mean: A"] > honest.details["A"]


def test_the_scorer_refuses_private_images_among_the_held_out():
    with pytest.raises(LocalError):
        inversion_truth(part(0, 100), part(50, 150), public(), TRAINING, 0)


def test_a_student_learns_kept_answers_only_and_the_newest_of_each_proxy():
    right = public().labels
    assert right is not None
    wrong = (right + 1) % 10
    kept = np.arange(600) < 400
    first = answer(wrong, np.ones(600, dtype=bool))
    second = answer(right, kept)
    student = distil_student(client_view(answered(first, second), public()), TRAINING, 0)
    says = logits(student, public().proxies).argmax(dim=1)
    assert (says == right)[:400].float().mean() > 0.6
