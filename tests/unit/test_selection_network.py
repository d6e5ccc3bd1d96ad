"""Selectors that read a client's network: scores, thresholds, and one mind a round."""

import numpy as np
import pytest
import torch
from torch import nn

from experiments.rivals.by_network import (
    SelectiveByNetwork,
    confidence,
    negative_energy,
)
from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError
from tests.small_federation import ensembles, federation, run

LOGITS = np.array([[0.0, 0.0], [3.0, 0.0], [10.0, 10.0]])


class Brightness(nn.Module):
    """Logits (brightness, 0): surer where images are brighter."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        bright = pixels.mean(dim=(1, 2, 3)) * 10
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)


def shades(*levels: float) -> Images:
    pixels = torch.tensor(levels)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    return Images(pixels, torch.zeros(len(levels), dtype=torch.long))


def test_scores_on_numbers_by_hand():
    assert confidence(LOGITS) == pytest.approx([0.5, 1 / (1 + np.exp(-3.0)), 0.5])
    assert negative_energy(LOGITS) == pytest.approx(
        [np.log(2), 3 + np.log1p(np.exp(-3.0)), 10 + np.log(2)]
    )


@pytest.mark.parametrize("selector", ["confidence", "energy"])
def test_a_client_answers_where_the_score_reaches_the_quantile(selector):
    held_back = shades(0.2, 0.4, 0.6, 0.8)
    client = ClientData(held_back, held_back, 2)
    method = SelectiveByNetwork("hard", selector, quantile=0.5)
    proxies = shades(0.1, 0.45, 0.55, 0.9).pixels
    votes = method.policy_of_network(client, proxies, Brightness())
    assert votes.weights.tolist() == [0.0, 0.0, 1.0, 1.0]
    everything = SelectiveByNetwork("hard", selector, quantile=0.0)
    all_asked = everything.policy_of_network(client, proxies, Brightness())
    assert all_asked.weights.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_the_selector_changes_its_mind_with_the_network(digits):
    made = federation(digits, SelectiveByNetwork("hard", "energy"))
    list(made.rounds(0))
    before = made.roles[1].scores()
    run(made, rounds=2)
    after = made.roles[1].scores()
    assert before.shape == (len(digits.proxies),)
    assert not np.allclose(before, after)
    assert len(ensembles(made)) == 2


def test_there_is_no_opinion_without_the_network(digits):
    with pytest.raises(LocalError, match="network"):
        SelectiveByNetwork().policy(digits.clients[0], digits.proxies.pixels)
    with pytest.raises(ConfigurationError, match="score"):
        SelectiveByNetwork(selector="guess")
