"""Fully linear proofs: shares of a proof convince verifiers that hold shares of a measurement.

A circuit defines which measurements are valid: linear steps, and calls of one gadget, a polynomial
of low degree. On each of the gadget's wires the inputs of all calls, behind a random seed, are
values of a polynomial at the p-th roots of unity; the proof is those seeds and the gadget's output
on the polynomials, at gadget_points of the n-th roots. A verifier reads the calls' outputs off its
share of the proof, and queries wires and output at one random point t. The sum of the answers shows
whether the gadget maps the wires to that output at t, and whether the circuit gives zero; it shows
nothing more of the measurement.

Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai (CRYPTO 2019), theorem 4.3, as in
draft-irtf-cfrg-vdaf-20, section 7.3. Q proofs of one measurement are made and read side by side.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from secure_fd.errors import PeerError
from secure_fd.prio3.field import (
    MODULUS,
    FieldArray,
    add,
    lagrange,
    mul,
    ntt,
    root,
    total,
)


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of field elements that a circuit fixes.

    measurement: of an encoded one. output: of what is summed. joint_rand: of a proof. outputs: that
    must be zero. arity: wires of the gadget. degree, calls: of the gadget.
    """

    measurement: int
    output: int
    joint_rand: int
    outputs: int
    arity: int
    degree: int
    calls: int

    @property
    def wire_points(self) -> int:
        """p: values that give a wire polynomial; the power of two above the calls."""
        return 1 << self.calls.bit_length()

    @property
    def gadget_points(self) -> int:
        """Values that give the gadget polynomial, and are in a proof."""
        return self.degree * (self.wire_points - 1) + 1

    @property
    def points(self) -> int:
        """n: roots of unity at which the gadget polynomial is read."""
        return 1 << (self.gadget_points - 1).bit_length()

    @property
    def proof(self) -> int:
        """Elements of one proof: wire seeds, then the gadget polynomial."""
        return self.arity + self.gadget_points

    @property
    def verifier(self) -> int:
        """Elements of a verifier's answer to one query: output, wires, gadget."""
        return self.arity + 2

    @property
    def query_rand(self) -> int:
        """Random elements of one query: the point t, and a factor for each of several outputs."""
        return 1 + (self.outputs if self.outputs > 1 else 0)


class Circuit(ABC):
    """Valid measurements, and proofs that a measurement is one.

    joint [Q, joint_rand] is a random challenge a proof, agreed once the measurement is fixed. one:
    the constant 1 in this share: 1 of the whole, 1 / shares of a share.
    """

    size: Size

    @abstractmethod
    def encode(self, measurement: Any) -> FieldArray:  # noqa: ANN401 - a type of each circuit
        """[size.measurement]; LocalError for an invalid measurement."""

    @abstractmethod
    def truncate(self, encoded: FieldArray) -> FieldArray:
        """[size.output] of a share [size.measurement]: the part that is summed. Linear."""

    @abstractmethod
    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:
        """[Q or 1, calls, arity] inputs of the gadget. Linear."""

    @abstractmethod
    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:
        """[Q, k] of inputs [Q, k, arity]."""

    @abstractmethod
    def outputs(
        self, encoded: FieldArray, called: FieldArray, joint: FieldArray, one: int
    ) -> FieldArray:
        """[Q, size.outputs] that are zero if the measurement is valid. called: [Q, calls]."""

    def prove(self, encoded: FieldArray, seeds: FieldArray, joint: FieldArray) -> FieldArray:
        """[Q, size.proof] about a measurement. seeds: [Q, arity] at random, of the wires.

        The wires without their seeds are extended once; a seed adds a multiple of one polynomial.
        """
        size = self.size
        wires = self.wires(encoded, joint, 1)
        padded = np.zeros((len(wires), size.wire_points, size.arity), dtype=np.uint64)
        padded[:, 1 : 1 + size.calls] = wires
        extended = self._spread(padded)
        extended = np.broadcast_to(extended, (len(seeds), *extended.shape[1:]))
        first = np.zeros((size.wire_points, 1), dtype=np.uint64)
        first[0] = 1
        weights = self._spread(first)
        values = [
            self.gadget(add(own, mul(weights, seed))[None], challenge[None])
            for own, seed, challenge in zip(extended, seeds, joint, strict=True)
        ]
        return np.concatenate([seeds, np.concatenate(values)], axis=1)

    def query(
        self,
        encoded: FieldArray,
        proof: FieldArray,
        query_rand: FieldArray,
        joint: FieldArray,
        shares: int,
    ) -> FieldArray:
        """[Q, size.verifier] of one share of a measurement and of its proofs [Q, size.proof].

        PeerError for a point t at which a wire's own value would be read.
        """
        size, one = self.size, pow(shares, -1, MODULUS)
        points = query_rand[:, -1]
        if any(pow(int(t), size.wire_points, MODULUS) == 1 for t in points):
            raise PeerError("a proof would be queried where it shows its measurement")
        seeds, kept = proof[:, : size.arity], proof[:, size.arity :]
        gadget = np.concatenate([kept, total(mul(kept[:, None], self._missing))], axis=1)
        step = size.points // size.wire_points
        called = gadget[:, step : step * (size.calls + 1) : step]
        out = self.outputs(encoded, called, joint, one)
        if size.outputs > 1:
            out = total(mul(out, query_rand[:, : size.outputs]))[:, None]
        weights = lagrange(points, size.wire_points)
        wires = self.wires(encoded, joint, one)
        at_point = total(mul(wires, weights[:, 1 : 1 + size.calls, None]), axis=1)
        at_point = add(at_point, mul(seeds, weights[:, :1]))
        value = total(mul(gadget, lagrange(points, size.points)))[:, None]
        return np.concatenate([out, at_point, value], axis=1)

    def decide(self, verifier: FieldArray, joint: FieldArray) -> bool:
        """True if the sum [Q, size.verifier] of all shares' answers is that of valid proofs."""
        given = self.gadget(verifier[:, None, 1:-1], joint)
        return not verifier[:, 0].any() and bool((given == verifier[:, -1:]).all())

    def _spread(self, values: FieldArray) -> FieldArray:
        """Values [..., p, c] of polynomials at the p-th roots -> [..., gadget_points, c]."""
        size = self.size
        padded = np.zeros((*values.shape[:-2], size.points, values.shape[-1]), dtype=np.uint64)
        padded[..., : size.wire_points, :] = ntt(values, inverse=True)
        return ntt(padded)[..., : size.gadget_points, :]

    @cached_property
    def _missing(self) -> FieldArray:
        """Weights from the gadget polynomial in a proof to its values at the other roots."""
        return extrapolation(self.size.points, self.size.gadget_points)


def extrapolation(n: int, known: int) -> FieldArray:
    """[n - known, known] weights: from a polynomial's first values at the n roots to the others.

    Its degree is below `known`. With M the missing roots, and prod_{j != i} (x_i - x_j) = n / x_i
    over all n, Lagrange's basis is -(x_i / x_k) prod_{m in M, m != k} (x_i - x_m) / (x_k - x_m).

    >>> extrapolation(2, 1).tolist()
    [[1]]
    """
    at = [pow(root(n), i, MODULUS) for i in range(n)]
    weights = np.zeros((n - known, known), dtype=np.uint64)
    for row, x in enumerate(at[known:]):
        others = [m for m in at[known:] if m != x]
        scale = -pow(x * prod(x - m for m in others), -1, MODULUS)
        for i in range(known):
            weights[row, i] = scale * at[i] * prod(at[i] - m for m in others) % MODULUS
    return weights
