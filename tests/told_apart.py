"""A server that tells one client something else than all others, so that their sum is its vector.

What a client sends next hangs on what the server sent last (Pasquini, Francati and Ateniese, CCS
2022). Every party keeps a running hash of all broadcasts, which is the subject of every sum: inputs
of clients that were told different things are masked differently, and no sum opens with both. The
twin `hash_left_out` is what the attacks do without that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from attacks.inversion.one_update import Lie, Story
from secure_fd.crypto.keys import SERVER
from secure_fd.methods.fedavg import model_bytes, read_model
from secure_fd.protocol.broadcasts import BROADCAST_BYTES, BroadcastChain, BroadcastSigner
from secure_fd.protocol.server import Outbound, Server
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.base import SumClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import (
    Ensemble,
    IntArray,
    KnowledgeCodec,
    UnitArray,
    one_hot,
)
from secure_fd.wire import Kind, read_header


class TwoStories(Server):
    """A server that tells all but one client a lie in one round, and keeps both stories up.

    Its own terms are those of the many, so it opens what they sum. To the target it retells every
    broadcast, with the truth in place of the lie, in a chain of its own under its own signature.
    target: the client that is told the truth.
    """

    target: int
    own: BroadcastSigner

    @classmethod
    def install(cls, server: Server, *, target: int, at: int, lie: Lie) -> None:
        """Replace an honest server. at: the round, from 0. lie: of its last message."""
        server.role, server.__class__ = Story(server.role, at, lie), cls
        server.target, server.own = target, BroadcastSigner(server._session, server._chain._key)

    def begin(self) -> Outbound:
        return self._retold(super().begin())

    def advance(self) -> Outbound:
        return self._retold(super().advance())

    def _retold(self, out: Outbound) -> Outbound:
        if self.target in out:
            out[self.target] = [self._retell(data) for data in out[self.target]]
        return out

    def _retell(self, data: bytes) -> bytes:
        kind, index, _ = read_header(data, self._session, SERVER)
        if kind not in (Kind.ROUND_START, Kind.RESULT, Kind.ABORTED):
            return data
        body, truth = data[BROADCAST_BYTES:], self.role.truth
        if kind == Kind.RESULT and truth is not None:
            body, self.role.truth = truth, None
        return self.own.write(Kind(kind), index, body)


def hash_left_out() -> AbstractContextManager[None]:
    """The twin: parties whose sums are not bound to what was told before."""

    def count_only(self: BroadcastChain, digest: bytes) -> None:  # noqa: ARG001 - the fault
        self.count += 1

    return patch.object(BroadcastChain, "_take", count_only)


class OverheardSum(MaskedSum):
    """A masked sum that writes down what every client puts in; the run is the same.

    said: by client and sum, the integers [m].
    """

    __slots__ = ("said",)

    def __init__(self, n_clients: int, **named: Any) -> None:
        self.said: dict[tuple[int, int], IntArray] = {}
        super().__init__(n_clients, **named)

    def client(self, number: int) -> Any:
        return _Overheard(super().client(number), number, self.said)


@dataclass(frozen=True, slots=True)
class _Overheard:
    inner: SumClient
    number: int
    said: dict[tuple[int, int], IntArray] = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        self.said[self.number, terms.index] = values.astype(np.int64)
        return self.inner.load(terms, values)


def all_is(decoy: int, codec: KnowledgeCodec, proxies: int, contributors: int) -> Lie:
    """The ensemble that names one class for every proxy: clients vote so from then on."""
    named = one_hot(np.full(proxies, decoy), codec.n_classes)
    total = (named.reshape(-1) * codec.levels * contributors).astype(np.uint64)
    lie = Ensemble(np.arange(proxies), named, np.ones(proxies, np.bool_))
    message = codec.write(lie, lie.indices, total, contributors)
    return lambda truth: message  # noqa: ARG005 - whatever it is


def dead_layer(first: int, biases: int, level: float = 0.25) -> Callable[[bytes], bytes]:
    """A model whose first layer gives `-level` whatever comes in: after a ReLU, zero.

    It gets no gradient, so clients return it as it came. first: parameters of that layer, its
    `biases` the last of them.
    """

    def lie(truth: bytes) -> bytes:
        model = read_model(truth, len(truth) // 4).copy()
        model[: first - biases] = 0.0
        model[first - biases : first] = -level
        return model_bytes(model)

    return lie
