"""Proven votes once more, from docs/reference/protocol.md and the VDAF draft; nothing of secure_fd.

Field elements are Python integers, and polynomials are read by Lagrange's formula wherever they are
wanted: no transform, no array. Slow and plain: what the package computes is held against it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

from Crypto.Hash import TurboSHAKE128

P = 2**64 - 2**32 + 1
GENERATOR, ORDER = pow(7, 2**32 - 1, P), 2**32
PROOFS, SHARES = 3, 2
HALF = pow(2, -1, P)
MEASUREMENT, PROOF, JOINT, PROVE, QUERY, SEED, PART = range(1, 8)


def root(order: int, power: int) -> int:
    return pow(GENERATOR, ORDER // order * power, P)


def product(factors: Sequence[int]) -> int:
    return reduce(lambda a, b: a * b % P, factors, 1)


def at(values: Sequence[int], order: int, x: int) -> int:
    """The polynomial of degree below len(values) with these values at the first roots, at x."""
    known = [root(order, k) for k in range(len(values))]
    if x in known:
        return values[known.index(x)]
    below = [product([a - b for b in known if b != a]) for a in known]
    whole = product([x - a for a in known])
    found = (
        v * whole * pow((x - a) * b, -1, P) for v, a, b in zip(values, known, below, strict=True)
    )
    return sum(found) % P


def stream(seed: bytes, usage: int, context: bytes, binder: bytes) -> TurboSHAKE128.TurboSHAKE:
    tag = bytes([18, 0]) + bytes.fromhex("ffff5fd1") + usage.to_bytes(2, "big") + context
    absorbed = TurboSHAKE128.new(domain=1)
    absorbed.update(len(tag).to_bytes(2, "little") + tag + bytes([len(seed)]) + seed + binder)
    return absorbed


def elements(count: int, seed: bytes, usage: int, context: bytes, binder: bytes) -> list[int]:
    source, found = stream(seed, usage, context, binder), list[int]()
    while len(found) < count:
        word = int.from_bytes(source.read(8), "little")
        found += [word] if word < P else []
    return found


def packed(values: Sequence[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def rows_of(values: Sequence[int], width: int) -> list[list[int]]:
    return [list(values[k : k + width]) for k in range(0, len(values), width)]


@dataclass(frozen=True)
class Votes:
    """The type: rows of classes, `most` a row, a budget."""

    rows: int
    classes: int
    most: int
    budget: int

    @cached_property
    def base(self) -> int:
        return next((d for d in (2, 4) if d > self.most), 16)

    @cached_property
    def digits(self) -> int:
        return self._digits(self.most)

    @cached_property
    def rest(self) -> int:
        """Digits of what is left of the budget."""
        return self._digits(self.budget)

    @cached_property
    def checked(self) -> int:
        return self.rows * (self.classes + 1) * self.digits + self.rest

    @cached_property
    def sent(self) -> int:
        return self.checked - self.rows

    @cached_property
    def calls(self) -> int:
        costs = [
            (-(-self.checked // k) + self.base * k, k) for k in (2**e - 1 for e in range(1, 12))
        ]
        return min(costs)[1]

    @cached_property
    def arity(self) -> int:
        return -(-self.checked // self.calls)

    @cached_property
    def gadget_points(self) -> int:
        return self.base * self.calls + 1

    @cached_property
    def order(self) -> int:
        return 1 << (self.gadget_points - 1).bit_length()

    def _digits(self, largest: int) -> int:
        count = 1
        while self.base**count <= largest:
            count += 1
        return count

    def numbers(self, votes: Sequence[int], one: int) -> list[int]:
        found = list[int]()
        for row in rows_of(votes, self.classes):
            found += [*row, (self.most * one - sum(row)) % P]
        return found

    def encode(self, votes: Sequence[int]) -> list[int]:
        numbers, left = self.numbers(votes, 1), self.budget - sum(votes)
        upper = [n // self.base**k % self.base for k in range(1, self.digits) for n in numbers]
        return [*votes, *upper, *(left // self.base**k % self.base for k in range(self.rest))]

    def wires(self, encoded: Sequence[int], one: int) -> list[list[int]]:
        """[calls][arity]"""
        votes = encoded[: self.rows * self.classes]
        upper = encoded[len(votes) : len(encoded) - self.rest]
        numbers = self.numbers(votes, one)
        layers = list(enumerate(rows_of(upper, len(numbers)), start=1))
        lowest = [
            (n - sum(self.base**k * layer[i] for k, layer in layers)) % P
            for i, n in enumerate(numbers)
        ]
        checked = [*lowest, *upper, *encoded[len(encoded) - self.rest :]]
        checked += [0] * (self.calls * self.arity - len(checked))
        return rows_of(checked, self.arity)

    def gadget(self, inputs: Sequence[int], rho: int) -> int:
        vanishing = (product([y - k for k in range(self.base)]) for y in inputs)
        return sum(pow(rho, j, P) * value for j, value in enumerate(vanishing)) % P

    def prove(
        self, encoded: Sequence[int], seeds: Sequence[int], joint: Sequence[int]
    ) -> list[int]:
        columns = zip(seeds, *self.wires(encoded, 1), strict=True)
        wires = list(zip(*columns, strict=True))
        polynomials = [[line[j] for line in wires] for j in range(self.arity)]
        points = [root(self.order, k) for k in range(self.gadget_points)]
        inputs = ([at(values, self.calls + 1, x) for values in polynomials] for x in points)
        return [*seeds, *(self.gadget(one, joint[0]) for one in inputs)]

    def query(
        self,
        encoded: Sequence[int],
        proof: Sequence[int],
        rand: Sequence[int],
        joint: Sequence[int],
    ) -> list[int]:
        seeds, values = proof[: self.arity], proof[self.arity :]
        own, points = self.wires(encoded, HALF), range(1, self.calls + 1)
        called = [at(values, self.order, root(self.calls + 1, k)) for k in points]
        checked = sum(s * value for s, value in zip(joint[1:], called, strict=True))
        left = encoded[len(encoded) - self.rest :]
        counted = sum(encoded[: self.rows * self.classes])
        counted += sum(self.base**k * digit for k, digit in enumerate(left))
        out = rand[0] * checked + rand[1] * (self.budget * HALF - counted)
        wires = zip(seeds, *own, strict=True)
        at_point = [at(list(wire), self.calls + 1, rand[2]) for wire in wires]
        return [out % P, *at_point, at(values, self.order, rand[2])]

    def decide(self, answer: Sequence[int], joint: Sequence[int]) -> bool:
        return answer[0] == 0 and self.gadget(answer[1:-1], joint[0]) == answer[-1]


@dataclass(frozen=True)
class Report:
    """Return a client's messages: to all parties, to the leader, to the helper."""

    public: bytes
    leader: bytes
    helper: bytes


@dataclass(frozen=True)
class Session:
    """Prio3 of one type in one context."""

    votes: Votes
    context: bytes

    def part(self, blind: bytes, who: int, nonce: bytes, share: Sequence[int]) -> bytes:
        return stream(blind, PART, self.context, bytes([who]) + nonce + packed(share)).read(32)

    def seed(self, parts: bytes) -> bytes:
        return stream(bytes(32), SEED, self.context, parts).read(32)

    def joint(self, seed: bytes) -> list[list[int]]:
        each = 1 + self.votes.calls
        found = elements(PROOFS * each, seed, JOINT, self.context, bytes([PROOFS]))
        return rows_of(found, each)

    def helper_share(self, seed: bytes) -> tuple[list[int], list[int]]:
        size = PROOFS * (self.votes.arity + self.votes.gadget_points)
        return (
            elements(self.votes.sent, seed, MEASUREMENT, self.context, b"\1"),
            elements(size, seed, PROOF, self.context, bytes([PROOFS, 1])),
        )

    def shard(self, votes: Sequence[int], nonce: bytes, rand: bytes) -> Report:
        seed, helper_blind, blind, prover = (rand[k : k + 32] for k in range(0, 128, 32))
        encoded, (helped, masks) = self.votes.encode(votes), self.helper_share(seed)
        own = [(a - b) % P for a, b in zip(encoded, helped, strict=True)]
        public = self.part(blind, 0, nonce, own) + self.part(helper_blind, 1, nonce, helped)
        size = PROOFS * self.votes.arity
        seeds = rows_of(
            elements(size, prover, PROVE, self.context, bytes([PROOFS])), self.votes.arity
        )
        joint, proofs = self.joint(self.seed(public)), list[int]()
        for chosen, challenge in zip(seeds, joint, strict=True):
            proofs += self.votes.prove(encoded, chosen, challenge)
        hidden = [(a - b) % P for a, b in zip(proofs, masks, strict=True)]
        return Report(public, packed([*own, *hidden]) + blind, seed + helper_blind)

    def verifier(
        self, key: bytes, who: int, nonce: bytes, public: bytes, shares: Sequence[Sequence[int]],
        blind: bytes,
    ) -> bytes:  # fmt: skip
        """The verifier share. shares: of measurement and proofs."""
        encoded, proofs = shares
        mine = self.part(blind, who, nonce, encoded)
        parts = mine + public[32:] if who == 0 else public[:32] + mine
        joint = self.joint(self.seed(parts))
        binder = bytes([PROOFS]) + nonce
        rand = rows_of(elements(PROOFS * 3, key, QUERY, self.context, binder), 3)
        each = rows_of(proofs, self.votes.arity + self.votes.gadget_points)
        answers = list[int]()
        for proof, chosen, challenge in zip(each, rand, joint, strict=True):
            answers += self.votes.query(encoded, proof, chosen, challenge)
        return packed(answers) + mine
