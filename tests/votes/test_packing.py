"""Integers in lanes of words: exact sums, room for noise, and totals out of range."""

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
        *((10, 4095, 0, 16, 4), (10, 2**32, 0, 36, 1), (1, 1, 0, 1, 64), (4, 1, 0, 3, 21)),
        *((1, 2**64 - 1, 0, 64, 1), (5, (2**64 - 1) // 5, 0, 64, 1)),
        *((10, 1, 3, 5, 12), (10_000, 1, 300, 14, 4)),  # twice the room for noise
        (1, 1, 2**62 - 1, 63, 1),
    ],
)
def test_lanes_follow_the_largest_sum_and_have_twice_the_room(n, bound, room, bits, lanes):
    layout = LaneLayout(n, bound, room)
    assert (layout.bits, layout.lanes, layout.limit) == (bits, lanes, n * bound)


def test_value_i_sits_in_word_i_mod_w_lane_i_div_w():
    packed = LaneLayout(10, 4095).pack(words_of(1, 2, 3, 4, 5))
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


@pytest.mark.parametrize(
    ("bound", "room", "value"), [(4095, 0, 60001), (3, 5, 9), (3, 5, 100), (3, 5, -6)]
)
def test_a_value_out_of_range_is_refused_and_not_named(bound, room, value):
    layout, kind = LaneLayout(10, bound, room), np.int64 if room else np.uint64
    layout.pack(np.array([bound + room, -room], dtype=kind))
    with pytest.raises(LocalError) as caught:
        layout.pack(np.array([0, value], dtype=kind))
    assert str(value) not in str(caught.value)


@pytest.mark.parametrize(
    ("room", "kind"), [*((0, kind) for kind in ("i8", "f8", "i4", "?")), (1, "u8"), (1, "f8")]
)
def test_only_integers_are_packed_signed_where_there_is_room(room, kind):
    with pytest.raises(LocalError):
        LaneLayout(3, 1, room).pack(np.zeros(4, kind))


@pytest.mark.parametrize(
    ("n", "words", "length", "limit"),
    [
        *((10, [11], 1, None), (10, [11 << 60], 1, None)),  # above clients times bound
        *((10, [limit + 1], 1, limit) for limit in (7, 3, 0)),  # fewer survivors
        *((10, [1 << 4], 1, None), (4, [1 << 63], 21, None)),  # outside the lanes in use
        *((10, [], 16, None), (10, [0, 0], 16, None), (10, [[0]], 16, None)),
    ],
)
def test_words_that_no_sum_gives_are_refused(n, words, length, limit):
    layout, rest = LaneLayout(n, 1), () if limit is None else (limit,)
    good = words_of(n if limit is None else limit)
    assert layout.unpack(good, 1, *rest).tolist() == good.tolist()
    with pytest.raises(PeerError):
        layout.unpack(np.array(words, dtype=np.uint64), length, *rest)


@pytest.mark.parametrize(
    ("n", "bound", "room"),
    [(2, 2**63, 0), (10, 2**62, 0), (1, 1, 2**62), (2, 2**61, 2**61), (4, 2**61, 1)],
)
def test_layouts_that_cannot_hold_the_sum_are_refused(n, bound, room):
    with pytest.raises(ConfigurationError):
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
    """Mutant without an offset: each lane by itself, its upper values taken as negative."""
    width, size = words.size, 1 << layout.bits
    lanes = [int(words[i % width]) >> i // width * layout.bits & (size - 1) for i in range(length)]
    return [lane - size if lane >= size // 2 else lane for lane in lanes]


def test_mutant_without_the_offset_takes_borrows_for_values():
    layout = LaneLayout(3, 1, 2)
    fine, borrowing = signed(1, 0, 1, 2), signed(-1, 0, 1, 2)
    for values, right in ((fine, True), (borrowing, False)):
        words = layout.pack(values)
        assert layout.unpack(words, 4).tolist() == values.tolist()
        assert (sign_extended(layout, words, 4) == values.tolist()) is right


@pytest.mark.parametrize(("total", "survivors"), [(-6, 3), (15, 3), (12, 2), (9, 1)])
def test_a_total_beyond_survivors_and_room_aborts_the_sum(total, survivors):
    layout, limit = LaneLayout(3, 3, 5), 3 * survivors
    for edge in (-5, limit + 5):
        assert layout.unpack(words_of(edge % 2**64), 1, limit).tolist() == [edge]
    with pytest.raises(PeerError):
        layout.unpack(words_of(total % 2**64), 1, limit)
