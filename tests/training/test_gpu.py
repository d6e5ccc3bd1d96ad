"""Networks on a GPU, where there is one: images, predictions and targets are moved to it."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_fd import simulate
from secure_fd.methods.registry import METHODS
from secure_fd.training.trainer import predict

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class OnMeta(nn.Module):
    """A network whose weights are on another device than the images."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, device="meta"))

    def forward(self, pixels: Tensor) -> Tensor:
        assert pixels.device.type == "meta"
        return torch.zeros(len(pixels), 2)


def test_images_are_moved_to_the_device_of_the_network():
    predictions = predict(OnMeta(), torch.zeros(3, 1, 4, 4))
    assert np.array_equal(predictions, np.full((3, 2), 0.5))


@needs_gpu
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in METHODS),
        *((name, {"unit": "record", "epsilon": 8.0}) for name in ("selective-fd", "fedavg")),
    ],
)
def test_a_method_trains_on_a_gpu(method, options):
    run = simulate("digits", clients=3, method=method, seed=0, **options)
    run.fit(1)
    weights = [p for model in run.federation.models for p in model.parameters()]
    assert {p.device.type for p in weights} == {"cuda"}
    assert all(torch.isfinite(p).all() for p in weights)
