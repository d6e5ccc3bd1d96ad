"""Selectors that read a client's network: scores by hand and thresholds, new in each round."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.rivals.by_network import SelectiveByNetwork, confidence, negative_energy
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from tests.small_federation import federation, run


class Brightness(nn.Module):
    """Logits (brightness, 0): surer where images are brighter."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        bright = pixels.mean(dim=(1, 2, 3)) * 10
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)


def shades(*levels: float) -> Images:
    pixels = torch.tensor(levels)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    return Images(pixels, torch.zeros(len(levels), dtype=torch.long))


def test_scores_on_numbers_by_hand():
    logits = np.array([[0.0, 0.0], [3.0, 0.0], [10.0, 10.0]])
    assert confidence(logits) == pytest.approx([0.5, 1 / (1 + np.exp(-3.0)), 0.5])
    energy = [np.log(2), 3 + np.log1p(np.exp(-3.0)), 10 + np.log(2)]
    assert negative_energy(logits) == pytest.approx(energy)


@pytest.mark.parametrize("selector", ["confidence", "energy"])
@pytest.mark.parametrize(("quantile", "asked"), [(0.5, [0, 0, 1, 1]), (0.0, [0, 1, 1, 1])])
def test_a_client_answers_where_the_score_reaches_the_quantile(selector, quantile, asked):
    held_back = shades(0.2, 0.4, 0.6, 0.8)
    client, proxies = ClientData(held_back, held_back, 2), shades(0.1, 0.45, 0.55, 0.9).pixels
    method = SelectiveByNetwork("hard", selector, quantile=quantile)
    assert method.policy_of_network(client, proxies, Brightness()).weights.tolist() == asked


def test_the_scores_change_with_the_network(digits):
    made = run(federation(digits, SelectiveByNetwork("hard", "energy")), rounds=0)
    before = made.roles[1].scores()
    run(made, rounds=2)
    assert before.shape == (len(digits.proxies),)
    assert not np.allclose(before, made.roles[1].scores())
