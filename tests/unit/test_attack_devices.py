"""Attackers compute where the model is: on the meta device, which refuses tensors of another one.

It has shapes and no numbers. So what stays there is checked whole, and what must come back to the
CPU gets as far as the copy, whose NotImplementedError is not the RuntimeError of mixed devices.
"""

import pytest
import torch
from torch import nn

from attacks.core.fit import QUICK, fit, label_function, on_device
from secure_fd.training import models
from secure_fd.training.trainer import default_device, network_device

META = torch.device("meta")
IMAGES, LABELS = torch.rand(4, 1, 28, 28), torch.zeros(4, dtype=torch.int64)


def shared(seed: int = 0) -> nn.Module:
    return models.build(models.SHARED, 10, seed)


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
