"""Prio3 gives the VDAF draft's own test vectors, byte for byte, and refuses what they refuse.

tests/vectors/vdaf holds the vectors of the types over Field64, from the draft's repository,
test_vec/ (github.com/cfrg/draft-irtf-cfrg-vdaf, commit 5203892, of 24 June 2026).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from secure_fd.errors import PeerError
from secure_fd.prio3.field import MODULUS, FieldArray, add, decode, encode, mul, powers, sub, total
from secure_fd.prio3.flp import Circuit, Size
from secure_fd.prio3.vdaf import Prio3, VerifyState
from secure_fd.prio3.votes import vote_sum
from secure_fd.prio3.xof import derive_seed

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "vdaf"
PRIVATE: Final = 0xFFFFFFFF
Vector = Mapping[str, Any]


# The draft's circuits over Field64 (draft-irtf-cfrg-vdaf-20, section 7.4), and its test circuit.


class DraftCircuit(Circuit):
    """A circuit whose wires are the encoded numbers, and whose gadget's outputs must be zero."""

    def encode(self, measurement: int) -> FieldArray:
        return np.array([measurement], dtype=np.uint64)

    def truncate(self, encoded: FieldArray) -> FieldArray:
        return encoded

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:  # noqa: ARG002 - Circuit's
        return encoded[None, :, None]

    def outputs(self, encoded, called, joint, one) -> FieldArray:  # noqa: ARG002 - Circuit's
        return called


class HigherDegree(DraftCircuit):
    """A gadget of degree 3: x (x - 1) (x - 2) = 0."""

    size = Size(1, 1, joint_rand=0, outputs=1, arity=1, degree=3, calls=1)

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        x = inputs[..., 0]
        one, two = np.full_like(x, 1), np.full_like(x, 2)
        return mul(x, mul(sub(x, one), sub(x, two)))


class Count(DraftCircuit):
    """One bit x: x x - x = 0."""

    size = Size(1, 1, joint_rand=0, outputs=1, arity=2, degree=2, calls=1)

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:  # noqa: ARG002 - Circuit's
        return np.repeat(encoded, 2)[None, None]

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        return mul(inputs[..., 0], inputs[..., 1])

    def outputs(self, encoded, called, joint, one) -> FieldArray:  # noqa: ARG002 - Circuit's
        return sub(called, np.broadcast_to(encoded, called.shape))


@dataclass(frozen=True)
class Sum(DraftCircuit):
    """A number of 0 to `most` as bits b, of weights 1, 2, 4, ... and a last one that makes them
    total `most`: b (b - 1) = 0 for each.
    """

    most: int

    @property
    def size(self) -> Size:
        bits = self.most.bit_length()
        return Size(bits, 1, joint_rand=0, outputs=bits, arity=1, degree=2, calls=bits)

    def encode(self, measurement: int) -> FieldArray:
        return bits_of(measurement, self.most)

    def truncate(self, encoded: FieldArray) -> FieldArray:
        return total(mul(encoded, bit_weights(self.most)))[None]

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:  # noqa: ARG002 - Circuit's
        bits = inputs[..., 0]
        return mul(bits, sub(bits, np.ones_like(bits)))


@dataclass(frozen=True)
class SumVec(DraftCircuit):
    """Numbers of 0 to `most`, as bits in chunks: sum_j r^j b_j (b_j - 1) = 0 for each chunk."""

    length: int
    most: int
    chunk: int

    @property
    def size(self) -> Size:
        bits = self.length * self.most.bit_length()
        calls = -(-bits // self.chunk)
        return Size(
            bits, self.length, calls, outputs=1, arity=2 * self.chunk, degree=2, calls=calls
        )

    def encode(self, measurement: Sequence[int]) -> FieldArray:
        return np.concatenate([bits_of(value, self.most) for value in measurement])

    def truncate(self, encoded: FieldArray) -> FieldArray:
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

    def outputs(self, encoded, called, joint, one) -> FieldArray:  # noqa: ARG002 - Circuit's
        return total(called)[:, None]


def bit_weights(most: int) -> FieldArray:
    """[bits] the weight of each bit of a number of 0 to `most`; of 5: 1, 2, 2."""
    bits = most.bit_length()
    weights = [1 << bit for bit in range(bits - 1)]
    return np.array([*weights, most - sum(weights)], dtype=np.uint64)


def bits_of(value: int, most: int) -> FieldArray:
    """[bits] of a number of 0 to `most`; of 3 with most 5: 1, 1, 0."""
    *_, last = bit_weights(most).tolist()
    top = value > most - last
    rest = value - last * top
    low = [(rest >> bit) & 1 for bit in range(most.bit_length() - 1)]
    return np.array([*low, top], dtype=np.uint64)


# Replays of the vectors.


def prio3_of(name: str, vector: Vector) -> Prio3:
    kind, shares = name.split("_", 1)[0], vector["shares"]
    match kind:
        case "Prio3Count":
            return Prio3(Count(), algorithm=1, shares=shares)
        case "Prio3Sum":
            return Prio3(Sum(vector["max_measurement"]), algorithm=2, shares=shares)
        case "Prio3SumVecWithMultiproof":
            sizes = (vector["length"], vector["max_measurement"], vector["chunk_length"])
            return Prio3(SumVec(*sizes), algorithm=PRIVATE, proofs=3, shares=shares)
    return Prio3(HigherDegree(), algorithm=PRIVATE, shares=shares)


def hexes(values: Iterable[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


@dataclass
class Replay:
    """Runs a vector's operations one by one, and compares what each gives."""

    prio3: Prio3
    vector: Vector

    def __post_init__(self) -> None:
        self.key = bytes.fromhex(self.vector["verify_key"])
        self.context = bytes.fromhex(self.vector["ctx"])
        self.states: dict[tuple[int, int], VerifyState] = {}
        self.outs: dict[tuple[int, int], FieldArray] = {}

    def run(self, operation: Mapping[str, Any]) -> None:
        getattr(self, operation["operation"])(
            **{k: v for k, v in operation.items() if k not in {"operation", "success", "round"}}
        )

    def shard(self, report_index: int) -> None:
        report = self.vector["reports"][report_index]
        nonce, rand = hexes((report["nonce"], report["rand"]))
        public, inputs = self.prio3.shard(self.context, report["measurement"], nonce, rand)
        assert (public.hex(), [one.hex() for one in inputs]) == (
            report["public_share"],
            report["input_shares"],
        )

    def verify_init(self, report_index: int, aggregator_id: int) -> None:
        report = self.vector["reports"][report_index]
        nonce, public, share = hexes(
            (report["nonce"], report["public_share"], report["input_shares"][aggregator_id])
        )
        self.states[report_index, aggregator_id], verifier = self.prio3.verify_init(
            self.key, self.context, aggregator_id, nonce, public, share
        )
        assert verifier.hex() == report["verifier_shares"][0][aggregator_id]

    def verifier_shares_to_message(self, report_index: int) -> None:
        report = self.vector["reports"][report_index]
        message = self.prio3.verifier_message(self.context, hexes(report["verifier_shares"][0]))
        assert message.hex() == report["verifier_messages"][0]

    def verify_next(self, report_index: int, aggregator_id: int) -> None:
        report = self.vector["reports"][report_index]
        at, message = (report_index, aggregator_id), bytes.fromhex(report["verifier_messages"][0])
        self.outs[at] = self.prio3.verify_next(self.states[at], message)
        wanted = "".join(report["out_shares"][aggregator_id])
        assert encode(self.outs[at]).hex() == wanted

    def aggregate(self, aggregator_id: int) -> None:
        share = np.zeros(self.prio3.circuit.size.output, dtype=np.uint64)
        for (_, aggregator), out in self.outs.items():
            if aggregator == aggregator_id:
                share = add(share, out)
        assert encode(share).hex() == self.vector["agg_shares"][aggregator_id]

    def unshard(self) -> None:
        size = self.prio3.circuit.size.output
        total = np.zeros(size, dtype=np.uint64)
        for share in hexes(self.vector["agg_shares"]):
            total = add(total, decode(share, size))
        assert total.tolist() == np.atleast_1d(self.vector["agg_result"]).tolist()


NAMES: Final = sorted(path.stem for path in VECTORS.glob("Prio3*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_of_a_vector_gives_its_bytes_or_fails_as_it_says(name):
    vector = json.loads((VECTORS / f"{name}.json").read_text())
    replay = Replay(prio3_of(name, vector), vector)
    for operation in vector["operations"]:
        if operation["success"]:
            replay.run(operation)
        else:
            with pytest.raises(PeerError):
                replay.run(operation)


def test_products_are_right_where_words_carry():
    edges = (0, 1, 2, 2**32 - 1, 2**32, 2**32 + 1, 2**63, MODULUS - 2, MODULUS - 1)
    pairs = [(a, b) for a in edges for b in edges]
    left, right = np.array(pairs, np.uint64).T
    assert mul(left, right).tolist() == [a * b % MODULUS for a, b in pairs]


FORMS: Final = ((3, 4, 1, 2), (4, 2, 3, 9), (2, 3, 4095, 5000))
"""Rows, classes, most of a row, budget: one, two and many bits a weight."""


def votes_vector(form: tuple[int, int, int, int]) -> Vector:
    """A report of our own type and its verification, all inputs counted up from zero."""
    prio3, (count, classes, most, budget) = vote_sum(*form), form
    votes = np.zeros((count, classes), dtype=np.uint64)
    votes[:2, 1] = min(most, budget // 2)
    context, nonce, key = b"a context", bytes(range(16)), bytes(range(32))
    public, inputs = prio3.shard(
        context, votes.reshape(-1), nonce, bytes(n % 256 for n in range(prio3.rand_bytes))
    )
    checks = [prio3.verify_init(key, context, j, nonce, public, inputs[j]) for j in range(2)]
    message = prio3.verifier_message(context, [verifier for _, verifier in checks])
    outs = [prio3.verify_next(state, message) for state, _ in checks]
    assert add(*outs).tolist() == votes.reshape(-1).tolist()
    return {
        **dict(zip(("rows", "classes", "most", "budget"), form, strict=True)),
        "votes": votes.reshape(-1).tolist(),
        "context": context.hex(),
        "encoded": encode(prio3.circuit.encode(votes.reshape(-1))).hex(),
        "public_share": public.hex(),
        "input_shares": [one.hex() for one in inputs],
        "verifier_shares": [verifier.hex() for _, verifier in checks],
        "verifier_message": message.hex(),
        "out_shares": [encode(out).hex() for out in outs],
    }


def test_our_own_type_gives_the_vectors_on_file():
    """docs/reference/protocol.md specifies it; write the file anew only where that changes."""
    on_file = json.loads((VECTORS.parent / "prio3_votes.json").read_text())
    assert [votes_vector(form) for form in FORMS] == on_file


def test_the_xof_gives_the_draft_s_seed():
    vector = json.loads((VECTORS / "XofTurboShake128.json").read_text())
    seed, tag, binder = hexes((vector["seed"], vector["dst"], vector["binder"]))
    assert derive_seed(seed, tag, binder).hex() == vector["derived_seed"]
    assert MODULUS == 18446744069414584321  # section 6.1.2
