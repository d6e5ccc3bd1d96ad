"""The VDAF draft's circuits over Field64: Count, Sum and SumVec.

Histogram and MultihotCountVec are defined over Field128 there, and are not here; `votes` has the
circuit that this package sums votes with. Source: draft-irtf-cfrg-vdaf-20, section 7.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.prio3.field import FieldArray, mul, powers, sub, total
from secure_fd.prio3.flp import Circuit, Size


@dataclass(frozen=True)
class Count(Circuit):
    """One bit x: x x - x = 0.

    >>> Count().encode(1).tolist()
    [1]
    """

    @property
    def size(self) -> Size:
        """See Circuit."""
        return Size(1, 1, joint_rand=0, outputs=1, arity=2, degree=2, calls=1)

    def encode(self, measurement: int) -> FieldArray:
        """[1]; LocalError for another number than 0 and 1."""
        _check(measurement, 1)
        return np.array([measurement], dtype=np.uint64)

    def truncate(self, encoded: FieldArray) -> FieldArray:
        """The bit."""
        return encoded

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:  # noqa: ARG002 - Circuit's
        """x on both wires."""
        return np.repeat(encoded, 2)[None, None]

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        """The product of the wires."""
        return mul(inputs[..., 0], inputs[..., 1])

    def outputs(
        self,
        encoded: FieldArray,
        called: FieldArray,
        joint: FieldArray,  # noqa: ARG002 - Circuit's
        one: int,  # noqa: ARG002 - Circuit's
    ) -> FieldArray:
        """x x - x."""
        return sub(called, np.broadcast_to(encoded, called.shape))


@dataclass(frozen=True)
class Sum(Circuit):
    """A number of 0 to `most` as bits b, of weights 1, 2, 4, ... and a last one that makes them
    total `most`: b (b - 1) = 0 for each.

    >>> Sum(5).encode(4).tolist()
    [0, 1, 1]
    """

    most: int

    @property
    def size(self) -> Size:
        """See Circuit."""
        bits = self.most.bit_length()
        return Size(bits, 1, joint_rand=0, outputs=bits, arity=1, degree=2, calls=bits)

    def encode(self, measurement: int) -> FieldArray:
        """Its bits; LocalError for a number out of range."""
        return bits_of(measurement, self.most)

    def truncate(self, encoded: FieldArray) -> FieldArray:
        """[1] the number."""
        return total(mul(encoded, bit_weights(self.most)))[None]

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:  # noqa: ARG002 - Circuit's
        """A bit a call."""
        return encoded[None, :, None]

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        """b (b - 1)."""
        bits = inputs[..., 0]
        return mul(bits, sub(bits, np.ones_like(bits)))

    def outputs(
        self,
        encoded: FieldArray,  # noqa: ARG002 - Circuit's
        called: FieldArray,
        joint: FieldArray,  # noqa: ARG002 - Circuit's
        one: int,  # noqa: ARG002 - Circuit's
    ) -> FieldArray:
        """Each of them."""
        return called


@dataclass(frozen=True)
class SumVec(Circuit):
    """So many numbers of 0 to `most`, as bits in chunks: sum_j r^j b_j (b_j - 1) = 0 a chunk.

    >>> SumVec(length=2, most=1, chunk=1).encode([1, 0]).tolist()
    [1, 0]
    """

    length: int
    most: int
    chunk: int

    @property
    def size(self) -> Size:
        """See Circuit."""
        bits = self.length * self.most.bit_length()
        calls = -(-bits // self.chunk)
        return Size(
            bits, self.length, calls, outputs=1, arity=2 * self.chunk, degree=2, calls=calls
        )

    def encode(self, measurement: Sequence[int]) -> FieldArray:
        """The bits of all of them; LocalError for one out of range, or another number of them."""
        if len(measurement) != self.length:
            raise LocalError(f"a measurement has {self.length} numbers, not {len(measurement)}")
        return np.concatenate([bits_of(value, self.most) for value in measurement])

    def truncate(self, encoded: FieldArray) -> FieldArray:
        """[length] the numbers."""
        return total(mul(encoded.reshape(self.length, -1), bit_weights(self.most)))

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:
        """r^j b_j beside b_j - 1, bit by bit."""
        calls = self.size.calls
        padded = np.zeros(calls * self.chunk, dtype=np.uint64)
        padded[: len(encoded)] = encoded
        bits = padded.reshape(calls, self.chunk)
        scaled = mul(mul(powers(joint, self.chunk), joint[..., None]), bits)
        less = np.broadcast_to(sub(bits, np.full_like(bits, one)), scaled.shape)
        return np.stack([scaled, less], axis=-1).reshape(len(joint), calls, -1)

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        """The sum of the products of neighbouring wires."""
        return total(mul(inputs[..., 0::2], inputs[..., 1::2]))

    def outputs(
        self,
        encoded: FieldArray,  # noqa: ARG002 - Circuit's
        called: FieldArray,
        joint: FieldArray,  # noqa: ARG002 - Circuit's
        one: int,  # noqa: ARG002 - Circuit's
    ) -> FieldArray:
        """The sum of all chunks."""
        return total(called)[:, None]


def bit_weights(most: int) -> FieldArray:
    """[bits] what each bit of a number of 0 to `most` stands for.

    >>> bit_weights(5).tolist()
    [1, 2, 2]
    """
    bits = most.bit_length()
    weights = [1 << bit for bit in range(bits - 1)]
    return np.array([*weights, most - sum(weights)], dtype=np.uint64)


def bits_of(value: int, most: int) -> FieldArray:
    """[bits] of a number of 0 to `most`; LocalError for another.

    >>> bits_of(3, 5).tolist()
    [1, 1, 0]
    """
    _check(value, most)
    *_, last = bit_weights(most).tolist()
    top = value > most - last
    rest = value - last * top
    low = [(rest >> bit) & 1 for bit in range(most.bit_length() - 1)]
    return np.array([*low, top], dtype=np.uint64)


def _check(value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise LocalError(f"a measurement of {value} is not from 0 to {most}")
