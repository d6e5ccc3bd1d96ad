"""Prio3: a measurement and the proof of its validity, in shares.

Reference: draft-irtf-cfrg-vdaf-20, wire version 18, section 7.2.

    client       shard                                public share, an input share an aggregator
    aggregators  verify_init, one exchange of bytes   a verifier share each
                 verifier_message                     refuses an invalid measurement
                 verify_next                          an output share, to be summed

The leader, aggregator 0, is sent its share as it is; the shares of the others follow from seeds.
A proof's joint randomness is a hash of all shares of the measurement, each under its aggregator's
blind: a client cannot choose the measurement after the challenge. Randomness is an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
from typing import Final

import numpy as np

from secure_fd.errors import LocalError, PeerError
from secure_fd.prio3.field import ELEMENT_BYTES, FieldArray, add, decode, encode, sub
from secure_fd.prio3.flp import Circuit
from secure_fd.prio3.xof import SEED_BYTES, derive_seed, expand

VERSION: Final = 18
"""The draft's version on the wire."""
DRAFT: Final = "draft-irtf-cfrg-vdaf-20"
NONCE_BYTES: Final = 16
_CLASS: Final = 0
"""The draft's class of algorithms: a VDAF."""


class Usage(IntEnum):
    """Purpose of a stream of the XOF (the draft's table of usages)."""

    MEASUREMENT_SHARE = 1
    PROOF_SHARE = 2
    JOINT_RANDOMNESS = 3
    PROVE_RANDOMNESS = 4
    QUERY_RANDOMNESS = 5
    JOINT_RAND_SEED = 6
    JOINT_RAND_PART = 7


@dataclass(frozen=True, slots=True, eq=False)
class VerifyState:
    """State of an aggregator until a report's proof is decided.

    out: [output] its share for the sum. seed: of the joint randomness that the client claims.
    """

    out: FieldArray = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Prio3:
    """One type of measurement between `shares` aggregators.

    algorithm: the draft's number of the type. proofs: made of each measurement; soundness errors
    multiply. The context of every call names the application, and here round and client too.
    """

    circuit: Circuit
    algorithm: int
    proofs: int = 1
    shares: int = 2

    @property
    def blind_bytes(self) -> int:
        """Bytes of an aggregator's blind: 0 where the circuit takes no joint randomness."""
        return SEED_BYTES if self.circuit.size.joint_rand else 0

    @property
    def rand_bytes(self) -> int:
        """Random bytes that `shard` takes."""
        return self.shares * (SEED_BYTES + self.blind_bytes)

    def shard(
        self, context: bytes, measurement: object, nonce: bytes, rand: bytes
    ) -> tuple[bytes, list[bytes]]:
        """(public share, input shares) of a measurement. rand: [rand_bytes], secret, used once."""
        if len(nonce) != NONCE_BYTES or len(rand) != self.rand_bytes:
            sizes = f"{NONCE_BYTES} bytes of nonce and {self.rand_bytes} of randomness"
            raise LocalError(f"a report takes {sizes}, not {len(nonce)} and {len(rand)}")
        encoded = self.circuit.encode(measurement)
        # A seed and a blind for each helper, the leader's blind, the prover's seed.
        step, end = SEED_BYTES + self.blind_bytes, len(rand) - SEED_BYTES
        helpers = [rand[at : at + step] for at in range(0, end - self.blind_bytes, step)]
        own_blind, last = rand[end - self.blind_bytes : end], rand[end:]
        read = [self._read(context, j, share) for j, share in enumerate(helpers, start=1)]
        leader = reduce(sub, (measured for measured, _, _ in read), encoded)
        shares = [(leader, own_blind), *((measured, blind) for measured, _, blind in read)]
        parts = [self._part(context, j, nonce, *share) for j, share in enumerate(shares)]
        challenge = self._challenge(context, self._joint_seed(context, parts))
        seeds = self._expand(Usage.PROVE_RANDOMNESS, last, context, self.circuit.size.arity)
        proofs = self.circuit.prove(encoded, seeds, challenge)
        proofs = reduce(sub, (proof for _, proof, _ in read), proofs)
        return b"".join(parts), [encode(leader) + encode(proofs) + own_blind, *helpers]

    def check(self, aggregator: int, public: bytes, share: bytes) -> None:
        """PeerError for bytes that are no shares of this aggregator, whatever they prove."""
        self._parts(public)
        self._read(b"", aggregator, share)

    def verify_init(
        self,
        key: bytes,
        context: bytes,
        aggregator: int,
        nonce: bytes,
        public: bytes,
        share: bytes,
    ) -> tuple[VerifyState, bytes]:
        """(state, verifier share) of one report; PeerError for shares of another form.

        key: 32 bytes that all aggregators know, and no client before it has sent its report.
        """
        measured, proof, blind = self._read(context, aggregator, share)
        parts = self._parts(public)
        part = self._part(context, aggregator, nonce, measured, blind)
        parts[aggregator] = part
        seed = self._joint_seed(context, parts)
        count = self.circuit.size.query_rand
        queries = self._expand(Usage.QUERY_RANDOMNESS, key, context, count, nonce)
        challenge = self._challenge(context, seed)
        answer = self.circuit.query(measured, proof, queries, challenge, self.shares)
        return VerifyState(self.circuit.truncate(measured), seed), encode(answer) + part

    def verifier_message(self, context: bytes, shares: Sequence[bytes]) -> bytes:
        """The message to all aggregators, from their verifier shares in order.

        PeerError for a report whose proof does not hold, or shares of another form.
        """
        answer = np.zeros((self.proofs, self.circuit.size.verifier), dtype=np.uint64)
        end = ELEMENT_BYTES * answer.size
        for share in shares:
            if len(share) != end + self.blind_bytes:
                raise PeerError(f"a verifier share has {len(share)} bytes")
            answer = add(answer, decode(share[:end], answer.size).reshape(answer.shape))
        seed = self._joint_seed(context, [share[end:] for share in shares])
        if not self.circuit.decide(answer, self._challenge(context, seed)):
            raise PeerError("a proof does not hold")
        return seed

    def verify_next(self, state: VerifyState, message: bytes) -> FieldArray:
        """[output] share of a valid measurement; PeerError for another joint randomness."""
        if message != state.seed:
            raise PeerError("a proof's joint randomness is not that of its shares")
        return state.out

    # Derivations (section 7.2.6 of the draft).

    def _tag(self, usage: Usage, context: bytes) -> bytes:
        head = bytes([VERSION, _CLASS]) + self.algorithm.to_bytes(4, "big")
        return head + usage.to_bytes(2, "big") + context

    def _expand(
        self, usage: Usage, seed: bytes, context: bytes, count: int, binder: bytes = b""
    ) -> FieldArray:
        """Return [Q, count] elements of a stream."""
        tag, binder = self._tag(usage, context), bytes([self.proofs]) + binder
        return expand(self.proofs * count, seed, tag, binder).reshape(self.proofs, count)

    def _challenge(self, context: bytes, seed: bytes) -> FieldArray:
        """Return the joint randomness, [Q, joint_rand]."""
        return self._expand(Usage.JOINT_RANDOMNESS, seed, context, self.circuit.size.joint_rand)

    def _part(
        self, context: bytes, aggregator: int, nonce: bytes, share: FieldArray, blind: bytes
    ) -> bytes:
        """An aggregator's part of the joint randomness, empty where there is none."""
        tag, binder = self._tag(Usage.JOINT_RAND_PART, context), bytes([aggregator]) + nonce
        return derive_seed(blind, tag, binder, encode(share)) if self.blind_bytes else b""

    def _joint_seed(self, context: bytes, parts: Sequence[bytes]) -> bytes:
        tag = self._tag(Usage.JOINT_RAND_SEED, context)
        return derive_seed(bytes(SEED_BYTES), tag, *parts) if self.blind_bytes else b""

    # Encodings (section 7.2.7).

    def _parts(self, public: bytes) -> list[bytes]:
        """The parts of the joint randomness in a public share."""
        if len(public) != self.shares * self.blind_bytes:
            raise PeerError(f"a public share has {len(public)} bytes")
        return [public[j * self.blind_bytes :][: self.blind_bytes] for j in range(self.shares)]

    def _read(
        self, context: bytes, aggregator: int, share: bytes
    ) -> tuple[FieldArray, FieldArray, bytes]:
        """(measurement [m], proofs [Q, proof], blind) of an aggregator's input share."""
        size, end = self.circuit.size, len(share) - self.blind_bytes
        first = ELEMENT_BYTES * size.measurement
        if end != (SEED_BYTES if aggregator else first + ELEMENT_BYTES * self.proofs * size.proof):
            raise PeerError(f"an input share has {len(share)} bytes")
        seed, blind, binder = share[:end], share[end:], bytes([aggregator])
        if aggregator:
            tag = self._tag(Usage.MEASUREMENT_SHARE, context)
            measured = expand(size.measurement, seed, tag, binder)
            proofs = self._expand(Usage.PROOF_SHARE, seed, context, size.proof, binder)
        else:
            measured = decode(share[:first], size.measurement)
            proofs = decode(share[first:end], self.proofs * size.proof).reshape(self.proofs, -1)
        return measured, proofs, blind
