"""A server that tells one client something else than all others, so that their sum is its vector.

What a client sends next hangs on what the server sent last (Pasquini, Francati and Ateniese, CCS
2022). Two such lies:

    split ensemble   all but the target are told "everything is class 0" and vote so from then on;
                     the rest of the next sum is the target's
    dead model       all but the target are told a model whose first layer gives zeros and so gets
                     no gradient; they return it as it came, and the rest is the target's update

Every party keeps a running hash of all broadcasts, which is the subject of every sum: inputs of
clients that were told different things are masked differently, and no sum opens with both. The twin
`hash_left_out` is what the attacks do without that.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from attacks.audit.setting import replaced
from attacks.base import Attack, AttackResult, Distributions
from attacks.scoring import score_distributions
from attacks.view import Capability, View
from secure_fd.aggregation.base import SumClient
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.broadcasts import BROADCAST_BYTES, Teller, Told
from secure_fd.crypto.primitives import SERVER, IdentityKey
from secure_fd.exchange import Kind, ServerHalf, ServerTurn, read_header
from secure_fd.knowledge import (
    Ensemble,
    IntArray,
    KnowledgeCodec,
    UnitArray,
    ensemble_message,
    one_hot,
)
from secure_fd.methods.fedavg import ParameterCodec, model_bytes, read_model
from secure_fd.secagg.session import RoundTerms
from secure_fd.server import Outbound, Server

Lie = Callable[[bytes], bytes]
"""What all but the target are told, made of the truth."""
NEEDS: Final = (frozenset({Capability.SPLIT_BROADCASTS, Capability.READ_SUMS}),)


@dataclass(slots=True)
class _Story:
    """A method's server half that lies in round `at`; truth: what it should have said."""

    half: ServerHalf
    at: int
    lie: Lie
    truth: bytes | None = None

    def unopened(self, index: int) -> None:
        """As the method's."""
        self.half.unopened(index)

    def round(self, index: int) -> ServerTurn:
        """As the method's, but for the last message of one round."""
        message = yield from self.half.round(index)
        if index != self.at or message is None:
            return message
        self.truth = message
        return self.lie(message)


class OneStory(Server):
    """A server that tells all clients the same lie in one round: no hash tells it from the truth.

    at: the round, from 0. lie: of its last message.

    >>> from functools import partial
    >>> serve = partial(OneStory, at=0, lie=lambda truth: truth)
    """

    def __init__(
        self,
        clients: tuple[int, ...],
        session: bytes,
        key: IdentityKey,
        half: ServerHalf,
        *rest: Any,  # noqa: ANN401 - as the server's
        at: int,
        lie: Lie,
    ) -> None:
        super().__init__(clients, session, key, _Story(half, at, lie), *rest)


class TwoStories(Server):
    """A server that tells all but one client a lie in one round, and keeps both stories up.

    Its own terms are those of the many, so it opens what they sum. To the target it retells every
    broadcast, with the truth in place of the lie, in a chain of its own under its own signature.
    target: the client that is told the truth. at: the round, from 0. lie: of its last message.

    >>> from functools import partial
    >>> from secure_fd import simulate
    >>> serve = partial(TwoStories, target=0, at=1, lie=lambda truth: truth)
    """

    def __init__(
        self,
        clients: tuple[int, ...],
        session: bytes,
        key: IdentityKey,
        half: ServerHalf,
        *rest: Any,  # noqa: ANN401 - as the server's
        target: int,
        at: int,
        lie: Lie,
    ) -> None:
        self._story = _Story(half, at, lie)
        super().__init__(clients, session, key, self._story, *rest)
        self.target, self._own, self._name = target, Teller(session, key), session

    def begin(self) -> Outbound:
        """As an honest server's, but for what the target hears."""
        return self._retold(super().begin())

    def advance(self) -> Outbound:
        """As an honest server's, but for what the target hears."""
        return self._retold(super().advance())

    def _retold(self, out: Outbound) -> Outbound:
        if self.target in out:
            out[self.target] = [self._retell(data) for data in out[self.target]]
        return out

    def _retell(self, data: bytes) -> bytes:
        kind, index, _ = read_header(data, self._name, SERVER)
        if kind not in (Kind.SUBJECT, Kind.TELL, Kind.VOID):
            return data
        body, truth = data[BROADCAST_BYTES:], self._story.truth
        if kind == Kind.TELL and truth is not None:
            body, self._story.truth = truth, None
        return self._own.write(Kind(kind), index, body)


def hash_left_out() -> AbstractContextManager[None]:
    """The twin: parties whose sums are not bound to what was told before.

    >>> with hash_left_out():
    ...     told = Told(bytes(32))
    ...     told._take(b"anything")
    >>> told.digest == bytes(32)
    True
    """

    def count_only(self: Told, digest: bytes) -> None:  # noqa: ARG001 - the fault
        self.count += 1

    return replaced(Told, "_take", count_only)


class OverheardSum(MaskedSum):
    """A masked sum that writes down what every client puts in, for scoring; the run is the same.

    said: by client and sum, the integers [m].

    >>> OverheardSum(3).said
    {}
    """

    __slots__ = ("said",)

    def __init__(self, n_clients: int, **named: Any) -> None:  # noqa: ANN401 - as MaskedSum's
        self.said: dict[tuple[int, int], IntArray] = {}
        super().__init__(n_clients, **named)

    def client(self, number: int) -> "SumClient":  # type: ignore[override]
        """Its half, overheard."""
        return _Overheard(super().client(number), number, self.said)


@dataclass(frozen=True, slots=True)
class AroundClient:
    """A client's half of a sum that passes everything on; what is around it changes one step."""

    inner: SumClient

    @property
    def gave(self) -> bool:
        """As the half's."""
        return self.inner.gave

    def start(self) -> list[bytes]:
        """As the half's."""
        return self.inner.start()

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """As the half's."""
        return self.inner.load(terms, values)

    def receive(self, data: bytes) -> list[bytes]:
        """As the half's."""
        return self.inner.receive(data)


@dataclass(frozen=True, slots=True)
class _Overheard(AroundClient):
    number: int
    said: dict[tuple[int, int], IntArray] = field(repr=False)

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        self.said[self.number, terms.index] = values.astype(np.int64)
        return self.inner.load(terms, values)


# The split ensemble.


def all_is(decoy: int, codec: KnowledgeCodec, proxies: int, contributors: int) -> Lie:
    """The ensemble that names one class for every proxy.

    >>> from secure_fd.knowledge import read_ensemble
    >>> codec = KnowledgeCodec(10, 1)
    >>> said = read_ensemble(all_is(3, codec, 2, 5)(b""), np.arange(2), codec)
    >>> said.predictions.argmax(axis=1).tolist()
    [3, 3]
    """
    named = one_hot(np.full(proxies, decoy), codec.n_classes)
    total = (named.reshape(-1) * codec.levels * contributors).astype(np.uint64)
    lie = Ensemble(np.arange(proxies), named, np.ones(proxies, np.bool_))
    message = ensemble_message(lie, codec, total, contributors)
    return lambda truth: message  # noqa: ARG005 - whatever it is


@dataclass(frozen=True, slots=True)
class SplitEnsemble(Attack[Distributions, IntArray]):
    """Reads the target's votes in the sum that follows a lie to all others.

    at: the round of the lie. decoy: the class that the others were told. Entries about other
    classes are claimed; where no sum opened, the mean of the last honest one about the same proxies
    is all there is.
    """

    name = "split-ensemble"
    title = "Split ensemble: the target's votes"
    figure_name = "entries of the target's vector read"
    control_name = "the mean of the honest sum before"
    needs = NEEDS

    at: int = 0
    decoy: int = 0

    def run(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - nothing is drawn
        """[m * (C - 1)] integers: the target's vote for every proxy and class but the decoy."""
        view.require_any(*self.needs)
        honest, after = (
            [r for r in view.rounds if r.index == index and r.total is not None]
            for index in (self.at, self.at + 1)
        )
        classes = view.public.n_classes
        guess = np.zeros((len(view.public.proxies), classes))
        for seen in honest:
            votes = np.asarray(seen.total, dtype=np.float64).reshape(-1, classes)
            guess[seen.ensemble.indices] = votes / len(seen.survivors)
        asked = after[0].ensemble.indices if after else np.arange(len(guess))
        control = self.entries(np.rint(guess[asked]).astype(np.int64), classes)
        rows = control
        for seen in after:
            rows = self.entries(np.asarray(seen.total, dtype=np.int64), classes)
        return Distributions(rows, control, details={"void_rounds": float(not after)})

    def entries(self, vector: IntArray, classes: int) -> IntArray:
        """[m * (C - 1)] of a vector [m * C], without the decoy."""
        return np.delete(vector.reshape(-1, classes), self.decoy, axis=1).reshape(-1)

    def score(self, estimate: Distributions, truth: IntArray, seed: int) -> AttackResult:
        """Share of the target's entries above zero that are read. truth: its entries."""
        return _scored(self, estimate, truth, seed, chosen=truth > 0)


# The dead model.


def dead_layer(first: int, biases: int, level: float = 0.25) -> Lie:
    """A model whose first layer gives `-level` whatever comes in: after a ReLU, zero.

    first: parameters of that layer, its `biases` the last of them.

    >>> told = dead_layer(3, 1)(model_bytes(np.ones(5, dtype=np.float32)))
    >>> read_model(told, 5).tolist()
    [0.0, 0.0, -0.25, 1.0, 1.0]
    """

    def lie(truth: bytes) -> bytes:
        model = read_model(truth, len(truth) // 4).copy()
        model[: first - biases] = 0.0
        model[first - biases : first] = -level
        return model_bytes(model)

    return lie


@dataclass(frozen=True, slots=True)
class DeadModel(Attack[Distributions, IntArray]):
    """Reads the target's first layer in the sum that follows a dead one for all others.

    target: the client that was told the truth. dead: [n], what the others were told of that layer.
    codec: the public fixed point, with every client's share. at: the round of the lie.
    """

    name = "dead-model"
    title = "Dead ReLU model: the target's update"
    figure_name = "first-layer parameters of the target read to 1e-6"
    control_name = "the mean of all clients"
    needs = (frozenset({Capability.SPLIT_BROADCASTS, Capability.GLOBAL_PARAMETERS}),)

    target: int
    dead: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]" = field(repr=False)
    codec: ParameterCodec
    at: int = 0

    def run(self, view: View, seed: int) -> Distributions:  # noqa: ARG002 - nothing is drawn
        """[n] of the target's first layer, in the codec's integers."""
        view.require_any(*self.needs)
        read = {r.index: r.parameters for r in view.models}
        shares, n = self.codec.shares, len(self.dead)
        before = read[self.at][:n].astype(np.float64)
        control, own = self._integers(before * shares[self.target]), shares[self.target]
        after = read.get(self.at + 1)
        rows = control
        if after is not None:
            mean = after[:n].astype(np.float64)
            control = self._integers(mean * own)
            rows = self._integers(mean * sum(shares) - self.dead * (sum(shares) - own))
        return Distributions(rows, control, details={"void_rounds": float(after is None)})

    def _integers(self, weighted: "np.ndarray[Any, Any]") -> IntArray:
        steps = np.rint((weighted + self.codec.limit) * self.codec.resolution)
        return np.asarray(steps, dtype=np.int64)

    def score(self, estimate: Distributions, truth: IntArray, seed: int) -> AttackResult:
        """Share of the layer read to 1e-6. truth: [n] integers that the target put in."""
        steps = round(1e-6 * self.codec.resolution)
        near = replace(
            estimate,
            rows=np.where(np.abs(estimate.rows - truth) <= steps, truth, estimate.rows),
            guess=np.where(np.abs(estimate.guess - truth) <= steps, truth, estimate.guess),
        )
        worst = float(np.abs(estimate.rows - truth).max()) / self.codec.resolution
        found = _scored(self, near, truth, seed, chosen=np.ones(len(truth), np.bool_))
        return replace(found, details={**found.details, "largest_error": worst})


def _scored(
    attack: "Attack[Distributions, IntArray]",
    estimate: Distributions,
    truth: IntArray,
    seed: int,
    chosen: "np.ndarray[Any, np.dtype[np.bool_]]",
) -> AttackResult:
    """Share of the chosen entries that are read to the integer, and of those no guess foretells."""
    rows, guess = estimate.rows[chosen], np.asarray(estimate.guess)[chosen]
    known = truth[chosen]
    missed = guess != known
    read = float((rows == known)[missed].mean()) if missed.any() else 0.0
    return score_distributions(
        attack,
        replace(estimate, rows=rows, guess=guess),
        known,
        seed,
        details={"entries": float(chosen.sum()), "read_where_the_control_fails": read},
    )
