"""The joint draw, repeatable and uniform over subsets, and the commitment to the proxy set."""

import numpy as np
import pytest
from scipy import stats

from secure_fd.crypto import public_draws as draw
from secure_fd.crypto.public_draws import (
    draw_indices,
    joint_seed,
    merkle_root,
    proxy_commitment,
    public_nonces,
)
from secure_fd.errors import LocalError
from secure_fd.votes.codec import IntArray

SEED = joint_seed(public_nonces(7, 3))
POPULATION, COUNT, ROUNDS = 12, 4, 6_000
FALSE_ALARM = 1e-6


def counts_of(rounds: list[IntArray]) -> tuple[float, float]:
    """p-values that each number, and each pair, is drawn as often as any other."""
    drawn = np.zeros((len(rounds), POPULATION))
    for row, indices in zip(drawn, rounds, strict=True):
        row[indices] = 1
    singles = drawn.sum(axis=0)
    expected = len(rounds) * COUNT / POPULATION
    # A round's indicators are exchangeable with fixed total, which makes the plain chi-squared
    # statistic (P - c) / (P - 1) times a chi-squared variable of P - 1 degrees.
    scale = (POPULATION - COUNT) / (POPULATION - 1)
    chi = ((singles - expected) ** 2 / expected).sum() / scale
    pairs = (drawn.T @ drawn)[np.triu_indices(POPULATION, 1)]
    share = COUNT * (COUNT - 1) / (POPULATION * (POPULATION - 1))
    worst = np.abs(pairs - len(rounds) * share).max()
    spread = np.sqrt(len(rounds) * share * (1 - share))
    bonferroni = len(pairs) * 2 * stats.norm.sf(worst / spread)
    return float(stats.chi2.sf(chi, POPULATION - 1)), float(bonferroni)


def test_every_number_and_every_pair_is_drawn_equally_often():
    """False-alarm rate 2e-6 over seeds, by a chi-squared test and a normal one with Bonferroni."""
    singles, pairs = counts_of([draw_indices(SEED, r, POPULATION, COUNT) for r in range(ROUNDS)])
    assert min(singles, pairs) > FALSE_ALARM


def test_a_biased_draw_is_caught():
    """Mutations: words modulo too small a range favour low numbers; a window has wrong pairs."""

    def biased(r: int) -> IntArray:
        rng = np.random.default_rng(r)
        ties = np.argsort(rng.integers(0, 16, POPULATION), kind="stable")
        return np.asarray(np.sort(ties[:COUNT]))

    def window(r: int) -> IntArray:
        start = draw_indices(SEED, r, POPULATION, 1)[0]
        return np.asarray(np.sort((start + np.arange(COUNT)) % POPULATION))

    assert counts_of([biased(r) for r in range(ROUNDS)])[0] < FALSE_ALARM
    assert counts_of([window(r) for r in range(ROUNDS)])[1] < FALSE_ALARM


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
