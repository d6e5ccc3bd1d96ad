"""Record of a run: exactly what each party saw, its bytes and its rounds.

An attack may be built from the transcript alone.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from secure_fd.crypto.keys import WORD
from secure_fd.secagg.session import MessageType, RoundTerms
from secure_fd.votes.codec import Ensemble, IntArray, WordArray
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import HEADER_BYTES, Kind, Stage, Sum

if TYPE_CHECKING:
    from secure_fd.selection.density_ratio import ReferenceSettings

Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round in figures.

    kept: share of the round's proxies that clients distil from (of the classes that they hold,
    where there are no proxies). single: share of the answered proxies at which
    one client gives nine tenths of the count or more, whose released vote no sum can hide.
    bytes_up, bytes_down: mean over clients, from the start until now. survivors: the clients in
    the sum. missing: clients and the stage from which on each was silent. refused: clients that
    sent something bad, or that refused what they were sent, and why, in a sentence.

    >>> RoundReport(0, 1.0, 0.0, 100.0, 200.0, survivors=(0, 1), missing=()).aborted
    False
    """

    index: int
    kept: float
    single: float
    bytes_up: float
    bytes_down: float
    survivors: tuple[int, ...]
    missing: tuple[tuple[int, Stage], ...]
    aborted: bool = False
    """True if too few answered, or what they sent is no sum: no result was sent."""
    why: str = ""
    """Reason of an aborted round, in a sentence."""
    refused: tuple[tuple[int, str], ...] = ()


Result = TypeVar("Result")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True, eq=False)
class ObservedRound(Generic[Result]):
    """One sum of a round as a party observed it; None is what it could not observe.

    index: of the round. result: what the method made of the sum, as it was sent to every client.
    uploads: by client, its integers [m], or what they encode, where they were readable. payloads:
    by client, the words on the wire. total: [m] the sum, or what it encodes. survivors: the clients
    in the sum, which the server and every client that stayed to the end know. levels: units in one
    vote, the largest integer of a client. position: of the sum among those of its round.
    """

    index: int
    result: Result = field(repr=False)
    uploads: Mapping[int, NDArray[Any]] | None = field(default=None, repr=False)
    payloads: Mapping[int, WordArray] | None = field(default=None, repr=False)
    total: NDArray[Any] | None = field(default=None, repr=False)
    survivors: tuple[int, ...] = ()
    levels: int = 0
    position: int = 0

    def giving(self, result: Other, **changes: Any) -> "ObservedRound[Other]":  # noqa: ANN401 - fields
        """Return it with what the method made of the sum, and other fields changed."""
        return replace(cast("ObservedRound[Any]", self), result=result, **changes)

    def broadcast(self) -> "ObservedRound[Result]":
        """Return what a client saw: the result, and who was in the sum."""
        return replace(self, uploads=None, payloads=None, total=None)


ObservedParameters = ObservedRound[Float32Array]
"""A sum whose result is a flat model or head [m]."""
ObservedVotes = ObservedRound[Ensemble]
"""A sum of votes, whose result is the ensemble; its indices are the proxies of the round."""


def observed(
    index: int,
    position: int,
    terms: RoundTerms,
    n_clients: int,
    result: Sum,
    inputs: Mapping[int, bytes],
) -> ObservedRound[None]:
    """Return a sum as the server saw it.

    inputs: by client, its first message; inputs of other sums than those in clear and those under
    masks are no words, and are left out.
    """
    layout = LaneLayout(n_clients, terms.bound, terms.noise.room)
    sent = {k: inputs[k] for k in result.survivors if k in inputs}
    words, readable = {}, False
    for k, data in sent.items():
        kind = int.from_bytes(data[2:4], "big")
        readable = kind == Kind.INPUT
        if readable or kind == MessageType.MASKED:
            start = HEADER_BYTES + (len(terms.subject) if readable else 0)
            part = np.frombuffer(data, WORD, layout.words(terms.length), start)
            words[k] = part.astype(np.uint64, copy=False)
    read = {k: layout.unpack(own, terms.length) for k, own in words.items()} if readable else None
    own = result.total, result.survivors, terms.bound, position
    return ObservedRound(index, None, read, words, *own)


@dataclass(slots=True)
class Transcript:
    """A run's rounds in order, the bytes that each client sent and received, and who was missing.

    survivors: clients in the sum of each round that gave one. aborted_rounds: those that gave none.
    missing: rounds in which a client fell silent, by client and stage, aborted rounds included.
    refused: by client that sent something bad or refused, why it last was so. keep_uploads: whether
    every round of shared parameters keeps what the server read of each client, and not the newest
    alone, or which rounds do beside it: 4 bytes a parameter, client and round.

    >>> made = Transcript(2)
    >>> made.broadcast(10)
    >>> made.down.tolist()
    [10, 10]
    """

    n_clients: int
    keep_uploads: bool | Collection[int] = False
    keep_inputs: bool = True
    """True if the words of inputs are kept at all."""
    proxies_bytes: int | None = None
    """Size of the proxies as they are sent, if clients receive features of them."""
    up: NDArray[np.int64] = field(init=False)
    down: NDArray[np.int64] = field(init=False)
    distillation: list[ObservedVotes] = field(default_factory=list, repr=False)
    parameters: list[ObservedParameters] = field(default_factory=list, repr=False)
    """Rounds of methods that share networks: uploads are parameters, the result is their mean."""
    generated: list[ObservedVotes] = field(default_factory=list, repr=False)
    """Votes about samples of a generator: indices name no proxies, and no ensemble is sent."""
    heads: list[ObservedParameters] = field(default_factory=list, repr=False)
    """Rounds of methods that share statistics of records: uploads, their sum, its head."""
    features: "ReferenceSettings | None" = None
    """Settings of the public map that these heads are on."""
    generator: ObservedParameters | None = field(default=None, repr=False)
    """The newest, of a method that has one: the one that made the samples of the round."""
    survey: ObservedRound[None] | None = field(default=None, repr=False)
    """Survey of a method that asks first which proxies clients know, see `methods.survey`."""
    voters: list[ObservedRound[IntArray]] = field(default_factory=list, repr=False)
    """Rounds in which a method counts the clients that answer each proxy, see `methods.min_voters`:
    bits [m] by client, counts [m], and as the result the proxies that were asked about."""
    survivors: list[int] = field(default_factory=list)
    aborted_rounds: int = 0
    missing: Counter[tuple[int, Stage]] = field(default_factory=Counter)
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.up = np.zeros(self.n_clients, dtype=np.int64)
        self.down = np.zeros(self.n_clients, dtype=np.int64)

    def close(self, survivors: Sequence[int] | None, missing: Mapping[int, Stage]) -> None:
        """Count a round's survivors, None where it was aborted, and who was missing from it."""
        if survivors is None:
            self.aborted_rounds += 1
        else:
            self.survivors.append(len(survivors))
        self.missing.update(missing.items())

    def broadcast(self, size: int) -> None:
        """Add one message of `size` bytes from the server to every client."""
        self.down += size

    def add_parameters(self, record: ObservedParameters) -> None:
        """Keep a FedAvg round; only the newest keeps its words on the wire, which are large.

        Uploads of older rounds stay where they are asked for.
        """
        if self.parameters:
            last = self.parameters[-1]
            uploads = last.uploads if self._keeps(last.index) else None
            self.parameters[-1] = replace(last, uploads=uploads, payloads=None)
        self.parameters.append(record)

    def _keeps(self, index: int) -> bool:
        keep = self.keep_uploads
        return keep if isinstance(keep, bool) else index in keep
