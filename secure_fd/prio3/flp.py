"""Fully linear proofs: shares of a proof convince verifiers that hold shares of what it is about.

A circuit says which measurements are valid: linear steps, and calls of one gadget, a polynomial of
low degree. On each of the gadget's wires the inputs of all calls, behind a random seed, are values
of a polynomial at the p-th roots of unity; the proof is those seeds and the gadget's output on the
polynomials, at gadget_points of the n-th roots. A verifier reads the calls' outputs off its share
of the proof, and queries wires and output at one random point t. From the sum of the answers
everybody sees whether the gadget maps the wires to that output at t, and that the circuit gives
zero; of the measurement they say nothing more.

Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai (CRYPTO 2019), theorem 4.3, as in
draft-irtf-cfrg-vdaf-20, section 7.3. Q proofs of one measurement are made and read side by side.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from secure_fd.errors import PeerError
from secure_fd.prio3.field import (
    MODULUS,
    FieldArray,
    add,
    element,
    inverse_ntt,
    lagrange,
    mul,
    ntt,
    root,
    total,
)

Measured_contra = TypeVar("Measured_contra", contravariant=True)
Measured = TypeVar("Measured")


def power_of_two(least: int) -> int:
    """The smallest power of two that is not below `least`.

    >>> power_of_two(5)
    8
    """
    return 1 << (least - 1).bit_length()


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
        """p: values that give a wire polynomial."""
        return power_of_two(1 + self.calls)

    @property
    def gadget_points(self) -> int:
        """Values that give the gadget polynomial, and are in a proof."""
        return self.degree * (self.wire_points - 1) + 1

    @property
    def points(self) -> int:
        """n: roots of unity at which the gadget polynomial is read."""
        return power_of_two(self.gadget_points)

    @property
    def proof(self) -> int:
        """Of one proof: wire seeds, then the gadget polynomial."""
        return self.arity + self.gadget_points

    @property
    def verifier(self) -> int:
        """Of a verifier's answer to one query: output, wires, gadget."""
        return self.arity + 2

    @property
    def query_rand(self) -> int:
        """Of one query: a factor for each output, where they are several, and the point t."""
        return 1 + (self.outputs if self.outputs > 1 else 0)


class Circuit(Protocol[Measured_contra]):
    """Which measurements are valid.

    joint [Q, joint_rand] is a random challenge a proof, agreed once the measurement is fixed. one:
    what the constant 1 is in this share: 1 of the whole, 1 / shares of a share.
    """

    @property
    def size(self) -> Size:
        """The numbers of elements."""

    def encode(self, measurement: Measured_contra) -> FieldArray:
        """[size.measurement]; LocalError for an invalid measurement."""

    def truncate(self, encoded: FieldArray) -> FieldArray:
        """[size.output] of a share [size.measurement]: what is summed. Linear."""

    def wires(self, encoded: FieldArray, joint: FieldArray, one: np.uint64) -> FieldArray:
        """[Q or 1, calls, arity] inputs of the gadget. Linear."""

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:
        """[Q, k] of inputs [Q, k, arity]."""

    def outputs(
        self, encoded: FieldArray, called: FieldArray, joint: FieldArray, one: np.uint64
    ) -> FieldArray:
        """[Q, size.outputs] that are zero if the measurement is valid. called: [Q, calls]."""


@dataclass(frozen=True, slots=True, eq=False)
class ProofSystem(Generic[Measured]):
    """prove, query and decide for one circuit."""

    WHOLE: ClassVar[np.uint64] = np.uint64(1)

    circuit: Circuit[Measured]
    _missing: FieldArray = field(init=False, repr=False)
    _seed_weights: FieldArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        size = self.circuit.size
        object.__setattr__(self, "_missing", extrapolation(size.points, size.gadget_points))
        first = np.zeros((size.wire_points, 1), dtype=np.uint64)
        first[0] = 1
        object.__setattr__(self, "_seed_weights", self._spread(first))

    def prove(self, encoded: FieldArray, seeds: FieldArray, joint: FieldArray) -> FieldArray:
        """[Q, size.proof] about a measurement. seeds: [Q, arity] at random, of the wires.

        The wires without their seeds are extended once; a seed adds a multiple of one polynomial.
        """
        size = self.circuit.size
        wires = self.circuit.wires(encoded, joint, self.WHOLE)
        padded = np.zeros((len(wires), size.wire_points, size.arity), dtype=np.uint64)
        padded[:, 1 : 1 + size.calls] = wires
        extended = self._spread(padded)[:, : size.gadget_points]
        weights = self._seed_weights[: size.gadget_points]
        values = [
            self.circuit.gadget(
                add(own, mul(weights, seeds[q]))[None],
                joint[q : q + 1],
            )
            for q, own in enumerate(np.broadcast_to(extended, (len(seeds), *extended.shape[1:])))
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
        size, one = self.circuit.size, element(pow(shares, -1, MODULUS))
        points = query_rand[:, -1]
        if any(pow(int(t), size.wire_points, MODULUS) == 1 for t in points):
            raise PeerError("a proof would be queried where it shows its measurement")
        seeds, kept = proof[:, : size.arity], proof[:, size.arity :]
        missing = total(mul(kept[:, None], self._missing))
        gadget = np.concatenate([kept, missing], axis=1)
        step = size.points // size.wire_points
        called = gadget[:, step : step * (size.calls + 1) : step]
        out = self.circuit.outputs(encoded, called, joint, one)
        if size.outputs > 1:
            out = total(mul(out, query_rand[:, : size.outputs]))[:, None]
        weights = lagrange(points, size.wire_points)
        wires = self.circuit.wires(encoded, joint, one)
        at_point = total(mul(wires, weights[:, 1 : 1 + size.calls, None]), axis=1)
        at_point = add(at_point, mul(seeds, weights[:, :1]))
        value = total(mul(gadget, lagrange(points, size.points)))[:, None]
        return np.concatenate([out, at_point, value], axis=1)

    def decide(self, verifier: FieldArray, joint: FieldArray) -> bool:
        """Whether the sum [Q, size.verifier] of all shares' answers is that of valid proofs."""
        wires, value = verifier[:, None, 1:-1], verifier[:, -1:]
        given = self.circuit.gadget(wires, joint)
        return not verifier[:, 0].any() and bool((given == value).all())

    def _spread(self, values: FieldArray) -> FieldArray:
        """Values [..., p, c] of polynomials at the p-th roots -> [..., n, c] at the n-th."""
        size = self.circuit.size
        coefficients = inverse_ntt(values)
        padded = np.zeros((*values.shape[:-2], size.points, values.shape[-1]), dtype=np.uint64)
        padded[..., : size.wire_points, :] = coefficients
        return ntt(padded)


def extrapolation(n: int, known: int) -> FieldArray:
    """[n - known, known] weights: from a polynomial's first values at the n roots to the others.

    Its degree is below `known`. With M the missing roots, and prod_{j != i} (x_i - x_j) = n / x_i
    over all n, Lagrange's basis is -(x_i / x_k) prod_{m in M, m != k} (x_i - x_m) / (x_k - x_m).

    >>> extrapolation(2, 1).tolist()
    [[1]]
    """
    base = root(n)
    at = [pow(base, i, MODULUS) for i in range(n)]
    lost = at[known:]
    weights = np.zeros((len(lost), known), dtype=np.uint64)
    for row, x in enumerate(lost):
        others = [m for m in lost if m != x]
        scale = -pow(x * _product(x - m for m in others), -1, MODULUS)
        for i in range(known):
            weights[row, i] = scale * at[i] * _product(at[i] - m for m in others) % MODULUS
    return weights


def _product(factors: Iterable[int]) -> int:
    found = 1
    for factor in factors:
        found = found * factor % MODULUS
    return found
