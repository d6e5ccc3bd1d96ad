"""The commitment to the proxy set: published vectors, and what must not pass for a proxy."""

import hashlib

import numpy as np
import pytest

from secure_fd.crypto import public_draws as commitment
from secure_fd.crypto.public_draws import merkle_root, proxy_commitment
from secure_fd.errors import LocalError

# Leaves and roots of the reference implementation of RFC 6962 (certificate-transparency).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


@pytest.mark.parametrize("count", ROOTS)
def test_roots_are_those_of_the_reference(count):
    assert merkle_root(LEAVES[:count]).hex() == ROOTS[count]


def test_a_leaf_changed_moved_added_or_taken_away_changes_the_root():
    leaves = LEAVES[:5]
    others = [
        [*leaves[:4], b"another"],
        [leaves[1], leaves[0], *leaves[2:]],
        [*leaves, leaves[4]],
        leaves[:4],
        [leaves[0] + leaves[1], *leaves[2:]],
    ]
    roots = {merkle_root(made) for made in (leaves, *others)}
    assert len(roots) == 1 + len(others)


def test_a_node_does_not_pass_for_a_leaf(monkeypatch):
    """Second preimage: two leaves that are the first one's inner nodes. The twin is fooled."""

    def forgery() -> list[bytes]:
        left, right = ((commitment._leaf(a), commitment._leaf(b)) for a, b in (four[:2], four[2:]))
        return [b"".join(left), b"".join(right)]

    four = LEAVES[:4]
    assert merkle_root(forgery()) != merkle_root(four)
    monkeypatch.setattr(commitment, "_LEAF", b"")
    monkeypatch.setattr(commitment, "_NODE", b"")
    assert merkle_root(forgery()) == merkle_root(four)


def test_one_pixel_one_order_or_one_shape_makes_another_commitment():
    pixels = np.random.default_rng(0).integers(256, size=(6, 1, 4, 4), dtype=np.uint8)
    changed = pixels.copy()
    changed[5, 0, 3, 3] ^= 1
    variants = [pixels, changed, pixels[::-1], pixels[:5], pixels.reshape(6, 4, 4)]
    variants += [pixels.reshape(6, 2, 2, 4), pixels.reshape(3, 2, 4, 4)]
    assert len({proxy_commitment(made) for made in variants}) == len(variants)


def test_a_commitment_is_the_same_again_whatever_the_memory_order():
    pixels = np.arange(96, dtype=np.uint8).reshape(6, 1, 4, 4)
    assert proxy_commitment(np.asfortranarray(pixels)) == proxy_commitment(pixels)
    assert len(proxy_commitment(pixels)) == hashlib.sha256().digest_size


@pytest.mark.parametrize(
    "pixels", [np.zeros((2, 4)), np.zeros(4, np.uint8), np.zeros((0, 4), "u1")]
)
def test_what_is_no_set_of_proxies_is_refused(pixels):
    with pytest.raises(LocalError, match="pixels"):
        proxy_commitment(pixels)
