"""Inverting real rounds of FedAvg: what a batch, masks and DP-SGD hide, and their broken twins."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from torch import nn

from attacks.base import AttackResult, Labelled
from attacks.base import Images as Guesses
from attacks.updates import Recipe, Search, check_explained, client_updates, newest_draw
from attacks.updates_attack import (
    AnalyticInversion,
    MeanInversion,
    OptimisedInversion,
    UpdateTruth,
    distinct,
    references,
)
from attacks.view import Public, View, client_view, server_view
from experiments import scenes
from experiments.scenes import Job, Turn
from experiments.scenes.updates import SCENE
from secure_fd import models, private_training
from secure_fd.aggregation.base import PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.errors import MissingCapabilityError
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.private_training import PrivateSGD
from secure_fd.recipes import SGD, Sizes
from secure_fd.transcript import Transcript
from tests.attack_games import perceptron

MLP, CNN = "mlp-512", models.SHARED
CLIENTS, SEED = 4, 3


def made(model: str, seed: int) -> nn.Module:
    if model == CNN:
        return models.build(model, 10, seed)
    return nn.Sequential(models.Standardise(), *perceptron(784, 512, 10, seed))


@cache
def data() -> FederatedData:
    sizes = Sizes(proxies=60, test=0, held_out=140, local=260)
    return federate(load("mnist5k"), Split("strong"), CLIENTS, SEED, sizes)


@cache
def public(model: str = MLP) -> Public:
    proxies = data().proxies
    return Public(proxies.pixels, CLIENTS, 10, partial(made, model), proxies.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Two rounds of FedAvg, and the records behind the second."""

    transcript: Transcript
    trained: dict[int, Labelled]

    @property
    def view(self) -> View:
        return server_view(self.transcript, public())


def fedavg(
    recipe: Recipe,
    *,
    aggregation: SecureSum | None = None,
    private: bool = False,
    held_out: bool = False,
    model: str = MLP,
) -> Run:
    """private: DP-SGD, one batch a client. held_out: trained on records that are no references."""
    clients = [_records(k, recipe, private=private, held_out=held_out) for k in range(CLIENTS)]
    optimiser: SGD | PrivateSGD = SGD(recipe.learning_rate, recipe.batch)
    if private:
        optimiser = PrivateSGD(4.0, 1e-5, 2, recipe.learning_rate, recipe.batch)
    own = [ClientData(c, c[torch.arange(0)], data().n_classes) for c in clients]
    run = Federation(
        participants_of([made(model, SEED) for _ in clients], own),
        None,
        FedAvg(optimiser, recipe.steps),
        aggregation=aggregation,
        seed=SEED,
    )
    list(run.rounds(2))
    drawn = [newest_draw(1000 * SEED + k, len(c), recipe, 2) for k, c in enumerate(clients)]
    trained = {k: _labelled(c[i]) for k, (c, i) in enumerate(zip(clients, drawn, strict=True))}
    return Run(run.transcript, trained)


def _records(client: int, recipe: Recipe, *, private: bool, held_out: bool) -> Images:
    own = _others(client)[1] if held_out else data().clients[client].train
    return own[torch.arange(recipe.batch)] if private else own


def _others(client: int) -> tuple[Images, Images]:
    found = (data().held_out.labels == client).nonzero()[:, 0]
    return data().held_out[found[:70]], data().held_out[found[70:]]


def _labelled(images: Images) -> Labelled:
    return Labelled(images.pixels, images.labels)


@cache
def control(recipe: Recipe) -> Run:
    return fedavg(recipe, held_out=True)


Attack = AnalyticInversion | MeanInversion


def score(attack: Attack, estimate: Guesses, run: Run) -> AttackResult:
    private = {k: distinct(records) for k, records in run.trained.items()}
    held_out = {k: references(own, _labelled(_others(k)[0]), k) for k, own in private.items()}
    without = attack.run(control(attack.recipe).view, 0)
    return attack.score(estimate, UpdateTruth(private, held_out, without), 0)


def attacked(kind: Callable[[Public, Recipe], Attack], recipe: Recipe, run: Run) -> AttackResult:
    attack = kind(public(), recipe)
    return score(attack, attack.run(run.view, 0), run)


@cache
def masked(batch: int) -> Run:
    return fedavg(Recipe(batch), aggregation=MaskedSum(CLIENTS))


@cache
def bare(batch: int) -> Run:
    return fedavg(Recipe(batch), aggregation=PlainSum(CLIENTS))


# A batch


def test_a_single_record_is_recovered_to_the_last_bit():
    run = bare(1)
    check_explained(public(), client_updates(run.view, Recipe(1)), Recipe(1), run.trained)
    result = attacked(AnalyticInversion, Recipe(1), run)
    assert result.details["share_exact"] == 1.0
    assert result.details["max_abs_error"] == 0.0
    assert result.details["certain_and_right"] == CLIENTS
    assert result.figure > 100
    assert abs(result.control) < 3


def test_of_eight_records_nearly_all_are_exact_and_the_attacker_knows_which():
    result = attacked(AnalyticInversion, Recipe(8), bare(8))
    assert result.details["share_exact"] > 0.8
    assert result.details["certain"] == result.details["certain_and_right"]
    assert result.details["A"] > 93
    assert abs(result.control) < 3


def test_updates_of_other_records_show_nothing_of_these():
    """The null: the attack on the control's own updates, against the true run's records."""
    attack = AnalyticInversion(public(), Recipe(8))
    result = score(attack, attack.run(control(Recipe(8)).view, 0), bare(8))
    assert result.details["share_exact"] == 0
    assert result.details["certain"] > 8
    assert result.details["certain_and_right"] == 0
    assert abs(result.figure) < 1


# Masks


def test_masks_hide_the_clients_update_and_a_large_cohort_batch():
    recipe = Recipe(64)
    for attack in (AnalyticInversion(public(), recipe), OptimisedInversion(public(), recipe)):
        with pytest.raises(MissingCapabilityError, match="client model parameters in clear"):
            attack.run(masked(64).view, 0)
    together = attacked(MeanInversion, recipe, masked(64))
    assert abs(together.figure - together.control) < 1
    assert together.details["share_exact"] == 0


def test_masks_that_are_not_applied_are_caught_in_the_words_sent(monkeypatch):
    """The twin: the transcript still says that nothing was readable."""
    monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
    monkeypatch.setattr("secure_fd.secagg.unmasking.mask_words", lambda *_: None)
    run = fedavg(Recipe(64), aggregation=MaskedSum(CLIENTS))
    assert run.view.models[-1].uploads is None
    result = attacked(AnalyticInversion, Recipe(64), run)
    assert result.figure > result.control + 5
    assert result.details["share_above_20_dB"] > 0.15


def test_masks_do_not_hide_the_records_of_a_cohort_of_tiny_batches():
    """Not a failure of the masks: the mean itself shows them, to every client as well."""
    run = masked(1)
    attack = MeanInversion(public(), Recipe(1))
    curious = attack.run(client_view(run.transcript, public()), 0)
    result = score(attack, curious, run)
    assert result.details["share_exact"] >= 0.75
    assert result.details["certain"] == result.details["certain_and_right"]
    assert result.n_members == CLIENTS


# DP-SGD


def test_dp_sgd_leaves_the_control():
    result = attacked(AnalyticInversion, Recipe(1), fedavg(Recipe(1), private=True))
    assert result.details["share_exact"] == 0
    assert result.details["certain"] == 0
    assert result.details["share_above_20_dB"] == 0
    assert abs(result.figure - result.control) < 3


def test_dp_sgd_that_only_clips_is_caught(monkeypatch):
    """A clip scales weights and biases alike, so their ratio stays what it was."""
    monkeypatch.setattr(private_training, "calibrate", lambda _epsilon, _delta, _plan: 0.0)
    result = attacked(AnalyticInversion, Recipe(1), fedavg(Recipe(1), private=True))
    assert result.details["share_exact"] == 1.0
    assert result.details["certain_and_right"] == CLIENTS


# Gradient matching


def test_gradient_matching_beats_its_control_on_a_convolutional_network():
    recipe = Recipe(1)
    run, other = (fedavg(recipe, model=CNN, held_out=aside) for aside in (False, True))
    attack = OptimisedInversion.prepare(public(CNN), recipe, Search(iterations=80, restarts=1))
    views = [server_view(each.transcript, public(CNN)) for each in (run, other)]
    found, without = (attack.run(view, 0) for view in views)
    private = {k: distinct(records) for k, records in run.trained.items()}
    held_out = {k: references(own, _labelled(_others(k)[0]), k) for k, own in private.items()}
    result = attack.score(found, UpdateTruth(private, held_out, without), 0)
    assert result.interval[0] > 2
    assert result.control < 2
    assert result.figure > result.control + 3
    with pytest.raises(MissingCapabilityError, match="fully connected first layer"):
        AnalyticInversion(public(CNN), recipe).run(views[0], 0)


# The scene


def test_where_no_parameters_cross_the_scene_says_so():
    job = Job(quick=True)
    prepared = SCENE.prepare(job, 0, lambda _: None)
    found = scenes.attacked(SCENE, Turn(job, "selective-fd", 0, prepared))
    assert set(found) == {AnalyticInversion.name, MeanInversion.name, OptimisedInversion.name}
    assert all(str(said).startswith("not applicable: missing ") for said in found.values())


def test_rows_whose_batches_cannot_be_matched_are_left_out():
    assert "mlp-b64" in SCENE.rows(Job())
    assert "mlp-b64" not in SCENE.rows(Job(dataset="digits"))


def test_the_scene_reads_a_masked_sum_by_a_model_of_the_servers_choice():
    """An honest model of the same network, under the same masks, shows no record."""
    turn = Turn(Job(quick=True), "imprint", 0, None)
    imprinted = scenes.attacked(SCENE, turn)["imprint"]
    assert isinstance(imprinted, AttackResult)
    assert imprinted.figure > 60 > imprinted.details["honest_model_psnr"]
