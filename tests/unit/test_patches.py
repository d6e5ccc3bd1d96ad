"""Patch features: fitted on public proxies alone, and good enough to tell digits apart."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from secure_fd.data.federated import FederatedData
from secure_fd.data.patches import PatchMap, PatchSettings, mapped
from secure_fd.errors import ConfigurationError

SMALL = PatchSettings(rank=20, filters=24, patches=3000, rounds=3)


def test_features_tell_digits_apart(digits: FederatedData) -> None:
    made = mapped(digits, SMALL)
    flat = [part.pixels.flatten(1).numpy() for part in (made.proxies, made.test)]
    assert flat[0].min() >= 0
    assert flat[0].max() <= 1
    assert np.allclose(flat[0].mean(axis=0), 0.5, atol=0.01)
    # Seeded. Pixels themselves reach .83 of these 60 images, the features all.
    fitted = RidgeClassifier(alpha=0.1).fit(flat[0], made.proxies.labels.numpy())
    assert fitted.score(flat[1], made.test.labels.numpy()) > 0.93
    assert [len(c.train) for c in made.clients] == [len(c.train) for c in digits.clients]
    assert made.name == "digits_patches"
    assert made.proxy_message_bytes == digits.proxies.pixels.numel()


def test_private_images_do_not_move_the_map(digits: FederatedData) -> None:
    public = digits.proxies.pixels
    one, other = (PatchMap.fit(public, SMALL) for _ in range(2))
    assert torch.equal(one(public[:5]), other(public[:5]))
    changed = public.clone()
    changed[0] = 1 - changed[0]
    assert not torch.equal(one(public[:5]), PatchMap.fit(changed, SMALL)(public[:5]))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="rank"):
        PatchSettings(rank=99, filters=2, pool=2)
    with pytest.raises(ConfigurationError, match="patches"):
        PatchSettings(patches=0)
    with pytest.raises(ConfigurationError, match="side"):
        PatchMap.fit(torch.zeros(3, 1, 5, 5))
