"""Boundaries and answers of a selector on regions that are known exactly."""

import numpy as np
import pytest
import torch

from attacks.selector import (
    FlipRadius,
    Mask,
    crossings,
)
from attacks.statistics import Claim
from attacks.view import Oracle, Public, server_view
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.transcript import Transcript


@pytest.mark.parametrize("bits", [4, 12])
def test_a_crossing_is_as_precise_as_its_bits(bits: int) -> None:
    starts = np.zeros((50, 1))
    ends = np.ones((50, 1))
    edges = np.random.default_rng(0).uniform(0.2, 0.8, 50)
    found = crossings(lambda x: x[:, 0] <= edges, starts, ends, bits)
    assert np.abs(found - edges).max() <= 2.0 ** -(bits + 1)
    nowhere = crossings(lambda x: np.zeros(len(x), dtype=bool), starts, ends, bits)
    everywhere = crossings(lambda x: np.ones(len(x), dtype=bool), starts, ends, bits)
    assert nowhere.max() <= 2.0**-bits
    assert everywhere.min() >= 1 - 2.0**-bits


def test_the_mask_reads_whether_any_vote_names_the_class() -> None:
    def votes(images: torch.Tensor) -> torch.Tensor:
        answers = torch.zeros(len(images), 2, 3)
        answers[:, 1, 2] = (images.flatten(1).mean(dim=1) > 0.5).float()
        return answers

    points = np.stack([np.full(4, 0.9), np.full(4, 0.1), np.ones(4), np.zeros(4)])
    oracle = Oracle(votes, 100)
    said = [True, False, True, False]
    assert Mask(oracle, (1, 2, 2), 2)(points).tolist() == said
    assert not Mask(oracle, (1, 2, 2), 1)(points).any()
    assert oracle.queries == 4


def test_a_claim_names_what_it_allows() -> None:
    allowed = Claim(4.0, 1e-5, 1.16).bounds()
    assert allowed["auc_bound"] == pytest.approx(0.982, abs=1e-3)
    assert allowed["auc_bound_of_the_noise"] == pytest.approx(0.729, abs=1e-3)
    assert "auc_bound_of_the_noise" not in Claim(4.0, 0.0).bounds()


def public() -> Public:
    images = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return Public(images, 2, 2, lambda _: torch.nn.Identity(), torch.tensor([0, 0, 0, 0, 1, 1]))


def test_without_injection_the_attack_is_refused() -> None:
    view = server_view(Transcript(2), public())
    image = public().proxies[0]
    flip = FlipRadius.prepare(public(), image[None], 0)
    with pytest.raises(MissingCapabilityError, match="injection of proxy images"):
        flip.run(view, 0)


def test_a_class_without_public_images_has_no_control() -> None:
    with pytest.raises(LocalError, match="class 2 has 0 public images"):
        FlipRadius.prepare(public(), public().proxies[:1], 2)
