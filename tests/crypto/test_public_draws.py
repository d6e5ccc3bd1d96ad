"""The joint draw and the commitment to the proxy set; tests/vectors has draws of both sides."""

import numpy as np
import pytest

from secure_fd.crypto import public_draws as draw
from secure_fd.crypto.public_draws import (
    draw_indices,
    joint_seed,
    merkle_root,
    proxy_commitment,
    public_nonces,
)
from secure_fd.errors import LocalError

SEED = joint_seed(public_nonces(7, 3))


def test_equal_words_are_read_anew(monkeypatch):
    reads = [bytes(8 * 3), np.array([9, 1, 5], dtype="<u8").tobytes()]

    class Repeating:
        def __init__(self, key: bytes) -> None:
            assert len(key) == 32

        def read(self, size: int) -> bytes:
            assert size == 8 * 3
            return reads.pop(0)

    monkeypatch.setattr(draw, "Keystream", Repeating)
    assert draw_indices(SEED, 0, 3, 2).tolist() == [1, 2]
    assert not reads


def test_impossible_draws_and_seeds_without_every_nonce_are_refused():
    for index, population, count in ((0, 5, 6), (0, 5, 0), (-1, 5, 2)):
        with pytest.raises(LocalError):
            draw_indices(SEED, index, population, count)
    for nonces in ([], [b"a" * 32, b""], [b"a" * 15]):
        with pytest.raises(LocalError):
            joint_seed(nonces)


# The commitment to the proxy set.

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


def test_a_node_does_not_pass_for_a_leaf(monkeypatch):
    """Second preimage: two leaves that are the first one's inner nodes. The mutation is fooled."""

    def forgery() -> list[bytes]:
        left, right = ((draw._leaf(a), draw._leaf(b)) for a, b in (four[:2], four[2:]))
        return [b"".join(left), b"".join(right)]

    four = LEAVES[:4]
    assert merkle_root(forgery()) != merkle_root(four)
    monkeypatch.setattr(draw, "_LEAF", b"")
    monkeypatch.setattr(draw, "_NODE", b"")
    assert merkle_root(forgery()) == merkle_root(four)


def test_one_pixel_one_order_or_one_shape_makes_another_commitment():
    pixels = np.random.default_rng(0).integers(256, size=(6, 1, 4, 4), dtype=np.uint8)
    changed = pixels.copy()
    changed[5, 0, 3, 3] ^= 1
    variants = [pixels, changed, pixels[::-1], pixels[:5], pixels.reshape(6, 4, 4)]
    variants += [pixels.reshape(6, 2, 2, 4), pixels.reshape(3, 2, 4, 4)]
    assert len({proxy_commitment(made) for made in variants}) == len(variants)
