import numpy as np
import pytest

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.packing import LaneLayout


def words_of(*numbers: int) -> WordArray:
    return np.array(numbers, dtype=np.uint64)


@pytest.mark.parametrize(
    ("n", "bound", "bits", "lanes"),
    [
        (10, 1, 4, 16),
        (10, 4095, 16, 4),
        (10, 2**28 - 1, 32, 2),
        (10, 2**32, 36, 1),
        (1, 1, 1, 64),
        (3, 1, 2, 32),
        (4, 1, 3, 21),
        (1, 2**64 - 1, 64, 1),
        (5, (2**64 - 1) // 5, 64, 1),
    ],
)
def test_lanes_follow_the_largest_sum(n: int, bound: int, bits: int, lanes: int) -> None:
    layout = LaneLayout(n, bound)
    assert (layout.bits, layout.lanes) == (bits, lanes)


def test_hard_labels_of_ten_clients_cost_half_a_byte_a_class() -> None:
    assert LaneLayout(10, 1).pack(np.ones(512 * 10, np.uint64)).nbytes == 2560


def test_value_i_sits_in_word_i_mod_w_lane_i_div_w() -> None:
    layout = LaneLayout(10, 4095)
    packed = layout.pack(words_of(1, 2, 3, 4, 5))
    assert packed.tolist() == [1 | 3 << 16 | 5 << 32, 2 | 4 << 16]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_pack_then_unpack_gives_the_values(length: int) -> None:
    layout = LaneLayout(10, 7)
    values = np.random.default_rng(length).integers(0, 8, length, dtype=np.uint64)
    assert layout.unpack(layout.pack(values), length).tolist() == values.tolist()


def test_full_lanes_of_all_clients_do_not_carry() -> None:
    for n in range(1, 20):
        layout = LaneLayout(n, 5)
        one = layout.pack(np.full(layout.lanes * 2, 5, np.uint64))
        summed = one * np.uint64(n)
        assert set(layout.unpack(summed, layout.lanes * 2).tolist()) == {5 * n}


def test_a_value_above_the_bound_is_refused_and_not_named() -> None:
    layout = LaneLayout(10, 4095)
    layout.pack(words_of(4095))
    with pytest.raises(LocalError, match="exceeds the agreed bound of 4095") as caught:
        layout.pack(words_of(7, 60001))
    assert "60001" not in str(caught.value)


@pytest.mark.parametrize(
    "values", [np.zeros((2, 2), np.uint64), np.zeros(4, np.int64), np.zeros(4)]
)
def test_only_flat_uint64_is_packed(values: WordArray) -> None:
    with pytest.raises(LocalError, match=r"uint64 \[m\]"):
        LaneLayout(3, 1).pack(values)


def test_a_lane_above_clients_times_bound_voids_the_sum() -> None:
    layout = LaneLayout(10, 1)
    assert layout.unpack(words_of(10), 1).tolist() == [10]
    with pytest.raises(PeerError, match="exceeds 10"):
        layout.unpack(words_of(11), 1)
    with pytest.raises(PeerError, match="exceeds 10"):
        layout.unpack(words_of(11 << 60), 1)


def test_fewer_survivors_lower_what_a_lane_may_hold() -> None:
    layout = LaneLayout(10, 3)
    for limit in (30, 21, 3, 0):
        assert layout.unpack(words_of(limit), 1, limit).tolist() == [limit]
        with pytest.raises(PeerError, match=f"exceeds {limit},"):
            layout.unpack(words_of(limit + 1), 1, limit)


def test_bits_outside_the_lanes_in_use_void_the_sum() -> None:
    with pytest.raises(PeerError, match="outside"):
        LaneLayout(10, 1).unpack(words_of(1 << 4), 1)
    with pytest.raises(PeerError, match="outside"):
        LaneLayout(4, 1).unpack(words_of(1 << 63), 21)


@pytest.mark.parametrize("words", [words_of(), words_of(0, 0), np.zeros((1, 1), np.uint64)])
def test_the_wrong_number_of_words_is_refused(words: WordArray) -> None:
    with pytest.raises(PeerError, match="has 1 words"):
        LaneLayout(10, 1).unpack(words, 16)


@pytest.mark.parametrize(("n", "bound"), [(0, 1), (3, 0), (3, -1), (2, 2**63), (10, 2**62)])
def test_layouts_that_cannot_hold_the_sum_are_refused(n: int, bound: int) -> None:
    with pytest.raises(ConfigurationError):
        LaneLayout(n, bound)
