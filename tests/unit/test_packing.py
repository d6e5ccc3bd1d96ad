from itertools import product

import numpy as np
import pytest

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.votes.codec import IntArray, WordArray
from secure_fd.votes.packing import LaneLayout


def words_of(*numbers: int) -> WordArray:
    return np.array(numbers, dtype=np.uint64)


@pytest.mark.parametrize(
    ("n", "bound", "room", "bits", "lanes"),
    [
        (10, 1, 0, 4, 16),  # hard labels of ten clients: half a byte a class
        (10, 4095, 0, 16, 4),
        (10, 2**28 - 1, 0, 32, 2),
        (10, 2**32, 0, 36, 1),
        (1, 1, 0, 1, 64),
        (3, 1, 0, 2, 32),
        (4, 1, 0, 3, 21),
        (1, 2**64 - 1, 0, 64, 1),
        (5, (2**64 - 1) // 5, 0, 64, 1),
        (10, 1, 3, 5, 12),  # with room for noise: twice the room
        (10, 1, 60, 8, 8),
        (1_000, 1, 100, 11, 5),
        (10_000, 1, 300, 14, 4),  # ten times the clients: 3 or 4 bits more
        (10_000, 1, 10_000, 15, 4),
        (10_000, 20, 50_000, 19, 3),
        (1, 1, 2**62 - 1, 63, 1),
    ],
)
def test_lanes_follow_the_largest_sum_and_have_twice_the_room(n, bound, room, bits, lanes):
    layout = LaneLayout(n, bound, room)
    assert (layout.bits, layout.lanes, layout.limit) == (bits, lanes, n * bound)


def test_value_i_sits_in_word_i_mod_w_lane_i_div_w():
    layout = LaneLayout(10, 4095)
    packed = layout.pack(words_of(1, 2, 3, 4, 5))
    assert packed.tolist() == [1 | 3 << 16 | 5 << 32, 2 | 4 << 16]


@pytest.mark.parametrize("room", [0, 1, 7, 1000])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_pack_then_unpack_gives_the_values(length, room):
    layout, kind = LaneLayout(10, 7, room), np.int64 if room else np.uint64
    rng = np.random.default_rng(length)
    values = rng.integers(-room, 7 + room, length, endpoint=True).astype(kind)
    found = layout.unpack(layout.pack(values), length)
    assert found.dtype == kind
    assert found.tolist() == values.tolist()


def test_full_lanes_of_all_clients_do_not_carry():
    for n in range(1, 20):
        layout = LaneLayout(n, 5)
        one = layout.pack(np.full(layout.lanes * 2, 5, np.uint64))
        summed = one * np.uint64(n)
        assert set(layout.unpack(summed, layout.lanes * 2).tolist()) == {5 * n}


def test_a_value_above_the_bound_is_refused_and_not_named():
    layout = LaneLayout(10, 4095)
    layout.pack(words_of(4095))
    with pytest.raises(LocalError, match="exceeds the agreed bound of 4095") as caught:
        layout.pack(words_of(7, 60001))
    assert "60001" not in str(caught.value)


@pytest.mark.parametrize(
    ("room", "kind"), [*((0, kind) for kind in ("i8", "f8", "i4", "?")), (1, "u8"), (1, "f8")]
)
def test_only_integers_are_packed_signed_where_there_is_room(room, kind):
    with pytest.raises(LocalError, match="must be int64" if room else "must be uint64"):
        LaneLayout(3, 1, room).pack(np.zeros(4, kind))


def test_a_lane_above_clients_times_bound_voids_the_sum():
    layout = LaneLayout(10, 1)
    assert layout.unpack(words_of(10), 1).tolist() == [10]
    with pytest.raises(PeerError, match="exceeds 10"):
        layout.unpack(words_of(11), 1)
    with pytest.raises(PeerError, match="exceeds 10"):
        layout.unpack(words_of(11 << 60), 1)


def test_fewer_survivors_lower_what_a_lane_may_hold():
    layout = LaneLayout(10, 3)
    for limit in (30, 21, 3, 0):
        assert layout.unpack(words_of(limit), 1, limit).tolist() == [limit]
        with pytest.raises(PeerError, match=f"exceeds {limit},"):
            layout.unpack(words_of(limit + 1), 1, limit)


def test_bits_outside_the_lanes_in_use_void_the_sum():
    with pytest.raises(PeerError, match="outside"):
        LaneLayout(10, 1).unpack(words_of(1 << 4), 1)
    with pytest.raises(PeerError, match="outside"):
        LaneLayout(4, 1).unpack(words_of(1 << 63), 21)


@pytest.mark.parametrize("words", [words_of(), words_of(0, 0), np.zeros((1, 1), np.uint64)])
def test_the_wrong_number_of_words_is_refused(words):
    with pytest.raises(PeerError, match="has 1 words"):
        LaneLayout(10, 1).unpack(words, 16)


@pytest.mark.parametrize(
    ("n", "bound", "room"),
    [
        *((2, 2**63, 0), (10, 2**62, 0)),
        *((1, 1, 2**62), (2, 2**61, 2**61), (4, 2**61, 1)),
    ],
)
def test_layouts_that_cannot_hold_the_sum_are_refused(n, bound, room):
    with pytest.raises(ConfigurationError, match="room" if room else None):
        LaneLayout(n, bound, room)


# Room for noise.


def signed(*numbers: int) -> IntArray:
    return np.array(numbers, dtype=np.int64)


def test_every_total_of_a_small_layout_comes_back_beside_every_other():
    """Three clients of bound 1 and room 2 reach -2 to 5; all pairs, in neighbouring lanes."""
    layout = LaneLayout(3, 1, 2)
    reach = range(-2, 6)
    assert layout.bits == 3
    for pair in product(reach, reach):
        totals = [*pair, *pair]
        word = sum(total << 3 * lane for lane, total in enumerate(totals)) % 2**64
        assert layout.unpack(words_of(word), 4).tolist() == totals


def sign_extended(layout: LaneLayout, words: WordArray, length: int) -> list[int]:
    """A twin that adds no offset: each lane by itself, its upper half taken as negative."""
    width, size = words.size, 1 << layout.bits
    lanes = [int(words[i % width]) >> i // width * layout.bits & (size - 1) for i in range(length)]
    return [lane - size if lane >= size // 2 else lane for lane in lanes]


def test_twin_without_the_offset_takes_borrows_for_values():
    layout = LaneLayout(3, 1, 2)
    fine, borrowing = signed(1, 0, 1, 2), signed(-1, 0, 1, 2)
    for values, right in ((fine, True), (borrowing, False)):
        words = layout.pack(values)
        assert layout.unpack(words, 4).tolist() == values.tolist()
        assert (sign_extended(layout, words, 4) == values.tolist()) is right
    lanes_of_one_word = layout.pack(signed(-1, *[0] * (layout.lanes - 1)))
    assert sign_extended(layout, lanes_of_one_word, layout.lanes) == [-1] * layout.lanes


@pytest.mark.parametrize(("value", "says"), [(9, "exceeds"), (100, "exceeds"), (-6, "below zero")])
def test_a_value_beyond_the_room_is_refused_and_not_named(value, says):
    layout = LaneLayout(10, 3, 5)
    layout.pack(signed(-5, 8))
    with pytest.raises(LocalError, match=f"{says}.* room of 5") as caught:
        layout.pack(signed(0, value))
    assert str(value) not in str(caught.value)


@pytest.mark.parametrize(("total", "survivors"), [(-6, 3), (15, 3), (12, 2), (9, 1)])
def test_a_total_beyond_survivors_and_room_voids_the_sum(total, survivors):
    layout, limit = LaneLayout(3, 3, 5), 3 * survivors
    for edge in (-5, limit + 5):
        assert layout.unpack(words_of(edge % 2**64), 1, limit).tolist() == [edge]
    with pytest.raises(PeerError):
        layout.unpack(words_of(total % 2**64), 1, limit)


def test_noise_beyond_the_room_costs_its_neighbour_one_and_no_more():
    """What docs/protocol.md says of the sums that a chosen room does not hold."""
    layout = LaneLayout(3, 1, 2)
    totals = [6, 0, -2, 5]  # six is one above what the lane holds
    words = words_of(sum(total << 3 * lane for lane, total in enumerate(totals)) % 2**64)
    assert layout.unpack(words, 4).tolist() == [-2, 1, -2, 5]
