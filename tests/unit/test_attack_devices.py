"""Attackers compute where the model is: on the meta device, which refuses tensors of another one.

It has shapes and no numbers. So what stays there is checked whole, and what must come back to the
CPU gets as far as the copy, whose NotImplementedError is not the RuntimeError of mixed devices.
"""

import pytest
import torch
from torch import nn

from attacks.core.base import Labelled
from attacks.core.fit import QUICK, fit, label_function, on_device
from attacks.inversion import gmi as inversion
from attacks.inversion import prior as priors
from attacks.inversion import updates
from attacks.membership import server_members as members
from secure_fd.training import models
from secure_fd.training.trainer import default_device, network_device

META = torch.device("meta")
IMAGES, LABELS = torch.rand(4, 1, 28, 28), torch.zeros(4, dtype=torch.int64)


def shared(seed: int = 0) -> nn.Module:
    return models.build(models.SHARED, 10, seed)


def parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def test_models_are_back_where_they_were():
    model = shared()
    with pytest.raises(ZeroDivisionError), on_device(model) as on:
        assert on == default_device() == network_device(model)
        raise ZeroDivisionError
    assert network_device(model) == torch.device("cpu")
    assert network_device(nn.Flatten()) == torch.device("cpu")


def test_mixed_devices_are_refused_in_another_way():
    with pytest.raises(RuntimeError, match="device") as mixed:
        shared().to(META)(IMAGES)
    assert not isinstance(mixed.value, NotImplementedError)


def test_training_and_answers_use_the_models_device(monkeypatch):
    monkeypatch.setattr("attacks.core.fit.default_device", lambda: META)
    with pytest.raises(NotImplementedError, match="meta"):
        fit(shared, IMAGES, LABELS, QUICK, 0)
    with pytest.raises(NotImplementedError, match="meta"):
        label_function(shared().to(META))(IMAGES)


def test_gradients_of_candidates_are_taken_there():
    model = shared().to(META)
    along = torch.rand(3, parameters(model), device=META)
    with pytest.raises(NotImplementedError, match="meta"):
        members._along(model, Labelled(IMAGES, LABELS), along, 2)


def test_searches_stay_there():
    model, ends = shared().to(META), torch.zeros(2, 1, 1, 1, device=META)
    wanted, asked = torch.rand(2, parameters(model), device=META), LABELS[:2, None].to(META)
    start = torch.rand(2, 1, 1, 28, 28, device=META)
    found = updates._minimise(model, start, asked, wanted, ends, iterations=2)
    assert found.device == META
    sizes = priors.QUICK_PRIOR
    made = priors.Generator(sizes, 28, 1).to(META), priors.Critic(sizes, 28, 1).to(META)
    codes = torch.rand(4, sizes.latent, device=META)
    there = inversion._descend(model, priors.Prior(sizes, *made), codes, LABELS.to(META), 2)
    assert there.device == META


def test_the_prior_learns_there():
    trainer = priors._Trainer(torch.rand(40, 1, 28, 28), priors.QUICK_PRIOR, 0)
    for model in (trainer.generator, trainer.critic):
        model.to(META)
    trainer.step_critic(torch.arange(16))
    trainer.step_generator()
