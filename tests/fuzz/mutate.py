"""Changes of bytes, some blind, some that know where a message has numbers, lists and lines."""

import random
from collections.abc import Callable, Sequence
from typing import Final

from secure_fd.wire import HEADER_BYTES as HEADER

Random = random.Random
NUMBERS: Final = (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, 0xFFFE, 0xFFFF, 2**31, 2**32 - 2, 2**32 - 1,
                  2**63, 2**64 - 2, 2**64 - 1)  # fmt: skip
LINES: Final = (1, 8, 16, 32, 64, 68, 80, 96, 112, 1168, 1248)
"""Lengths of what messages are made of."""
MOST: Final = 1 << 16
"""Bytes of the longest input."""


def flip_bits(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    for _bit in range(rng.choice((1, 1, 1, 2, 8))):
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)


def flip_body(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """Past the header, or nothing would get further than that."""
    at = rng.randrange(min(HEADER, len(data) - 1), len(data))
    data[at] ^= rng.randrange(1, 256)


def set_number(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size, value = rng.choice((1, 2, 4, 8)), rng.choice(NUMBERS)
    at = rng.randrange(0, len(data), rng.choice((1, 2, 4)))
    data[at : at + size] = (value % 256**size).to_bytes(size, rng.choice(("big", "little")))


def truncate(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size = rng.choice((1, rng.choice(LINES), rng.randrange(1, len(data) + 1)))
    del data[max(0, len(data) - size) :]


def extend(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size = rng.choice((1, rng.choice(LINES), rng.randrange(1, 4096)))
    data += rng.choice((bytes(size), rng.randbytes(size), bytes(data[-size:])))


def swap_lines(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size, start = rng.choice(LINES), rng.choice((HEADER, HEADER + 1))
    places = range(start, len(data) - size + 1, size)
    if len(places) >= 2:
        one, other = rng.sample(places, 2)
        first = data[one : one + size]
        data[one : one + size] = data[other : other + size]
        if rng.random() < 0.7:
            data[other : other + size] = first


def remove_line(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size = rng.choice(LINES)
    at = rng.randrange(min(HEADER, len(data)), len(data) + 1)
    del data[at : at + size]


def splice(rng: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """The header of one message and the body, or the end, of another."""
    other = rng.choice(seeds)
    at = rng.choice((HEADER, rng.randrange(len(data) + 1)))
    data[at:] = other[at:]


def new_type(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if len(data) > 3:
        data[3] = rng.randrange(14)


CHANGES: Final[list[Callable[[Random, bytearray, Sequence[bytes]], None]]] = [
    *(flip_bits, flip_body, flip_body, set_number, truncate, extend),
    *(swap_lines, remove_line, splice, new_type),
]


def mutated(rng: Random, seeds: Sequence[bytes]) -> bytes:
    """One to four changes of one of the seeds, mostly of the first."""
    data = bytearray(seeds[0] if rng.random() < 0.7 else rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        if data:
            rng.choice(CHANGES)(rng, data, seeds)
    return bytes(data[:MOST])
