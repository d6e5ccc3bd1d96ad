"""The joint draw: repeatable, uniform over subsets, and of every client's making."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from secure_fd.crypto import public_draws as draw
from secure_fd.crypto.public_draws import draw_indices, joint_seed, public_nonces
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


def test_a_draw_is_ascending_distinct_and_the_same_again():
    first = draw_indices(SEED, 3, 1000, 100)
    assert first.dtype == np.int64
    assert (np.diff(first) > 0).all()
    assert 0 <= first[0] <= first[-1] < 1000
    assert (draw_indices(SEED, 3, 1000, 100) == first).all()


def test_drawing_everything_gives_everything():
    assert draw_indices(SEED, 0, 5, 5).tolist() == [0, 1, 2, 3, 4]


def test_another_round_or_one_other_nonce_draws_other_numbers():
    nonces = public_nonces(7, 3)
    first = draw_indices(SEED, 0, 1000, 100)
    assert not (draw_indices(SEED, 1, 1000, 100) == first).all()
    for client in range(3):
        changed = [*nonces[:client], bytes(32), *nonces[client + 1 :]]
        assert not (draw_indices(joint_seed(changed), 0, 1000, 100) == first).all()


def test_every_number_and_every_pair_is_drawn_equally_often():
    """False-alarm rate 2e-6 over seeds, by a chi-squared test and a normal one with Bonferroni."""
    singles, pairs = counts_of([draw_indices(SEED, r, POPULATION, COUNT) for r in range(ROUNDS)])
    assert min(singles, pairs) > FALSE_ALARM


def test_a_biased_draw_is_caught():
    """Twins: words modulo too small a range favour low numbers; a window has wrong pairs."""

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


def test_moving_a_byte_from_one_nonce_to_the_next_changes_the_seed():
    assert joint_seed([b"a" * 17, b"a" * 16]) != joint_seed([b"a" * 16, b"a" * 17])
    assert joint_seed([b"a" * 16, b"b" * 16]) != joint_seed([b"b" * 16, b"a" * 16])


def test_public_nonces_differ_by_client_and_seed():
    made = [nonce for seed in range(20) for nonce in public_nonces(seed, 20)]
    assert len(set(made)) == 400
    assert {len(nonce) for nonce in made} == {32}
    assert public_nonces(1, 5) == public_nonces(1, 7)[:5]


@pytest.mark.parametrize(("round_index", "population", "count"), [(0, 5, 6), (0, 5, 0), (-1, 5, 2)])
def test_an_impossible_draw_is_refused(round_index, population, count):
    with pytest.raises(LocalError, match="impossible"):
        draw_indices(SEED, round_index, population, count)


@pytest.mark.parametrize("nonces", [[], [b"a" * 32, b""], [b"a" * 15]])
def test_a_seed_without_every_nonce_is_refused(nonces):
    with pytest.raises(LocalError, match="nonces"):
        joint_seed(nonces)


def test_the_draw_needs_no_torch():
    code = "import sys, secure_fd.crypto.public_draws; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
