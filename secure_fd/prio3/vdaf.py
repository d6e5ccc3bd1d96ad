"""Prio3: a measurement and the proof of its validity, in shares (draft-irtf-cfrg-vdaf-20, wire
version 18, section 7.2).

    client       shard                                public share, an input share an aggregator
    aggregators  verify_init, one exchange of bytes   a verifier share each
                 verifier_message                     refuses an invalid measurement
                 verify_next                          an output share, to be summed

The leader, aggregator 0, is sent its share as it is; the shares of the others follow from seeds.
A proof's joint randomness is a hash of all shares of the measurement, each under its aggregator's
blind: nobody can choose the measurement after the challenge. Randomness is an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Generic

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.prio3.field import ELEMENT_BYTES, FieldArray, add, decode, encode, sub
from secure_fd.prio3.flp import Circuit, Measured, ProofSystem
from secure_fd.prio3.xof import SEED_BYTES, derive_seed, expand

VERSION: Final = 18
"""Of the draft, on the wire."""
DRAFT: Final = "draft-irtf-cfrg-vdaf-20"
NONCE_BYTES: Final = 16
_CLASS: Final = 0
"""Of algorithms: a VDAF."""


class Usage(IntEnum):
    """What a stream of the XOF is for (the draft's table of usages)."""

    MEASUREMENT_SHARE = 1
    PROOF_SHARE = 2
    JOINT_RANDOMNESS = 3
    PROVE_RANDOMNESS = 4
    QUERY_RANDOMNESS = 5
    JOINT_RAND_SEED = 6
    JOINT_RAND_PART = 7


@dataclass(frozen=True, slots=True, eq=False)
class VerifyState:
    """What an aggregator keeps of a report until its proof is decided.

    out: [output] its share of what is summed. seed: of the joint randomness that the client claims.
    """

    out: FieldArray = field(repr=False)
    seed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class _InputShare:
    """measurement [m], proofs [Q, size.proof] and the blind of one aggregator."""

    measurement: FieldArray = field(repr=False)
    proofs: FieldArray = field(repr=False)
    blind: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Prio3(Generic[Measured]):
    """One type of measurement between `shares` aggregators.

    algorithm: the draft's number of the type. proofs: made of each measurement; soundness errors
    multiply. The context of every call names the application, and here round and client too.
    """

    circuit: Circuit[Measured]
    algorithm: int
    proofs: int = 1
    shares: int = 2
    _system: ProofSystem[Measured] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("proofs", 1), ("shares", 2)):
            if not least <= getattr(self, name) < 256:
                raise ConfigurationError(name, getattr(self, name), f"use {least} to 255")
        object.__setattr__(self, "_system", ProofSystem(self.circuit))

    @property
    def joint(self) -> bool:
        """Whether proofs take joint randomness, and aggregators blinds."""
        return self.circuit.size.joint_rand > 0

    @property
    def rand_bytes(self) -> int:
        """Random bytes that `shard` takes."""
        return SEED_BYTES * self.shares * (2 if self.joint else 1)

    @property
    def public_bytes(self) -> int:
        """Of a public share."""
        return SEED_BYTES * self.shares if self.joint else 0

    def input_bytes(self, aggregator: int) -> int:
        """Of an input share."""
        size, blind = self.circuit.size, SEED_BYTES if self.joint else 0
        if aggregator:
            return SEED_BYTES + blind
        return ELEMENT_BYTES * (size.measurement + self.proofs * size.proof) + blind

    @property
    def verifier_bytes(self) -> int:
        """Of a verifier share."""
        size = self.circuit.size
        return ELEMENT_BYTES * self.proofs * size.verifier + (SEED_BYTES if self.joint else 0)

    def shard(
        self, context: bytes, measurement: Measured, nonce: bytes, rand: bytes
    ) -> tuple[bytes, list[bytes]]:
        """(public share, input shares) of a measurement. rand: [rand_bytes], secret, used once."""
        return self.shard_encoded(context, self.circuit.encode(measurement), nonce, rand)

    def shard_encoded(
        self, context: bytes, encoded: FieldArray, nonce: bytes, rand: bytes
    ) -> tuple[bytes, list[bytes]]:
        """The same of field elements [measurement], which nobody has checked."""
        if len(nonce) != NONCE_BYTES or len(rand) != self.rand_bytes:
            sizes = f"{NONCE_BYTES} bytes of nonce and {self.rand_bytes} of randomness"
            raise LocalError(f"a report takes {sizes}, not {len(nonce)} and {len(rand)}")
        *inputs, last = _seeds(rand)
        seeds, blinds = inputs, [b""] * self.shares
        if self.joint:  # a seed and a blind a helper, the leader's blind, the prover's seed
            seeds, blinds = inputs[:-1:2], [inputs[-1], *inputs[1:-1:2]]
        leader, parts = encoded, []
        for helper, seed in enumerate(seeds, start=1):
            share = self._measurement_share(context, helper, seed)
            leader = sub(leader, share)
            parts.append(self._part(context, helper, blinds[helper], share, nonce))
        parts.insert(0, self._part(context, 0, blinds[0], leader, nonce))
        challenge = self._challenge(context, self._joint_seed(context, parts))
        proofs = self._system.prove(encoded, self._wire_seeds(context, last), challenge)
        for helper, seed in enumerate(seeds, start=1):
            proofs = sub(proofs, self._proof_share(context, helper, seed))
        own = encode(leader) + encode(proofs) + blinds[0]
        helpers = [seed + blind for seed, blind in zip(seeds, blinds[1:], strict=True)]
        return b"".join(parts), [own, *helpers]

    def check_input(self, share: bytes) -> None:
        """PeerError for bytes that are no input share of the leader, whatever they prove."""
        self._read(b"", 0, share)

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
        mine = self._read(context, aggregator, share)
        parts = self._parts(public)
        if self.joint:
            part = self._part(context, aggregator, mine.blind, mine.measurement, nonce)
            parts[aggregator] = part
        seed = self._joint_seed(context, parts)
        challenge = self._challenge(context, seed)
        answer = self._system.query(
            *(mine.measurement, mine.proofs, self._queries(key, context, nonce), challenge),
            self.shares,
        )
        message = encode(answer) + (parts[aggregator] if self.joint else b"")
        return VerifyState(self.circuit.truncate(mine.measurement), seed), message

    def verifier_message(self, context: bytes, shares: Sequence[bytes]) -> bytes:
        """What all aggregators are to see, from their verifier shares in order.

        PeerError for a report whose proof does not hold, or shares of another form.
        """
        size, tail = self.circuit.size, SEED_BYTES if self.joint else 0
        answer = np.zeros((self.proofs, size.verifier), dtype=np.uint64)
        parts = []
        for share in shares:
            if len(share) != self.verifier_bytes:
                raise PeerError(f"a verifier share has {len(share)} bytes")
            elements = decode(share[: len(share) - tail], answer.size)
            answer = add(answer, elements.reshape(answer.shape))
            parts.append(share[len(share) - tail :])
        seed = self._joint_seed(context, parts)
        if not self._system.decide(answer, self._challenge(context, seed)):
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
        self, count: int, seed: bytes, usage: Usage, context: bytes, binder: bytes
    ) -> FieldArray:
        """[Q, count]"""
        found = expand(self.proofs * count, seed, self._tag(usage, context), binder)
        return found.reshape(self.proofs, count)

    def _measurement_share(self, context: bytes, aggregator: int, seed: bytes) -> FieldArray:
        tag = self._tag(Usage.MEASUREMENT_SHARE, context)
        return expand(self.circuit.size.measurement, seed, tag, bytes([aggregator]))

    def _proof_share(self, context: bytes, aggregator: int, seed: bytes) -> FieldArray:
        binder = bytes([self.proofs, aggregator])
        return self._expand(self.circuit.size.proof, seed, Usage.PROOF_SHARE, context, binder)

    def _wire_seeds(self, context: bytes, seed: bytes) -> FieldArray:
        binder = bytes([self.proofs])
        return self._expand(self.circuit.size.arity, seed, Usage.PROVE_RANDOMNESS, context, binder)

    def _queries(self, key: bytes, context: bytes, nonce: bytes) -> FieldArray:
        count, binder = self.circuit.size.query_rand, bytes([self.proofs]) + nonce
        return self._expand(count, key, Usage.QUERY_RANDOMNESS, context, binder)

    def _challenge(self, context: bytes, seed: bytes) -> FieldArray:
        """[Q, joint_rand]"""
        count, binder = self.circuit.size.joint_rand, bytes([self.proofs])
        return self._expand(count, seed, Usage.JOINT_RANDOMNESS, context, binder)

    def _part(
        self, context: bytes, aggregator: int, blind: bytes, share: FieldArray, nonce: bytes
    ) -> bytes:
        if not self.joint:
            return b""
        tag = self._tag(Usage.JOINT_RAND_PART, context)
        return derive_seed(blind, tag, bytes([aggregator]), nonce, encode(share))

    def _joint_seed(self, context: bytes, parts: Sequence[bytes]) -> bytes:
        if not self.joint:
            return b""
        tag = self._tag(Usage.JOINT_RAND_SEED, context)
        return derive_seed(bytes(SEED_BYTES), tag, *parts)

    # Encodings (section 7.2.7).

    def _parts(self, public: bytes) -> list[bytes]:
        if len(public) != self.public_bytes:
            raise PeerError(f"a public share has {len(public)} bytes, not {self.public_bytes}")
        return _seeds(public)

    def _read(self, context: bytes, aggregator: int, share: bytes) -> _InputShare:
        if len(share) != self.input_bytes(aggregator):
            wanted = self.input_bytes(aggregator)
            raise PeerError(f"an input share has {len(share)} bytes, not {wanted}")
        if aggregator:
            seed, blind = share[:SEED_BYTES], share[SEED_BYTES:]
            measurement = self._measurement_share(context, aggregator, seed)
            return _InputShare(measurement, self._proof_share(context, aggregator, seed), blind)
        size = self.circuit.size
        first, end = ELEMENT_BYTES * size.measurement, len(share) - SEED_BYTES * self.joint
        proofs = decode(share[first:end], self.proofs * size.proof)
        return _InputShare(
            decode(share[:first], size.measurement), proofs.reshape(self.proofs, -1), share[end:]
        )


def _seeds(data: bytes) -> list[bytes]:
    return [data[at : at + SEED_BYTES] for at in range(0, len(data), SEED_BYTES)]
