"""One round of any secure sum over its own halves, with clients that fall silent on the way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from secure_fd.errors import MissingClientError
from secure_fd.protocol.transcript import ObservedRound, observed
from secure_fd.secagg.session import NO_NOISE, NoiseTerms, RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.votes.codec import UnitArray, WordArray
from secure_fd.wire import Stage

ORDER = list(Stage)


@dataclass
class Summed:
    """End of a round. aborted: why there is no sum. missing: as the server noticed it.

    up, down: bytes by client. stages: in which any message arrived that was asked for.
    """

    server: SumServer
    clients: dict[int, SumClient]
    silent: Mapping[int, Stage]
    n_clients: int
    aborted: str = ""
    stages: int = 0
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    inputs: dict[int, bytes] = field(default_factory=dict)

    @property
    def total(self) -> UnitArray:
        assert self.server.result is not None, self.aborted
        return self.server.result.total

    @property
    def survivors(self) -> tuple[int, ...]:
        assert self.server.result is not None, self.aborted
        return self.server.result.survivors

    @property
    def missing(self) -> dict[int, Stage]:
        return dict(sorted(self.server.missing.items()))

    @property
    def seen(self) -> ObservedRound[None]:
        """The sum as the server saw it."""
        assert self.server.result is not None, self.aborted
        return observed(0, 0, self.terms, self.n_clients, self.server.result, self.inputs)

    @property
    def payloads(self) -> dict[int, WordArray]:
        """Words of each client's input."""
        return dict(self.seen.payloads or {})

    def run(self, terms: RoundTerms, vectors: Mapping[int, UnitArray]) -> None:
        self.terms = terms
        outbound = {k: client.load(terms, vectors[k]) for k, client in self.clients.items()}
        relayed = self.server.open(terms)
        self._deliver({k: sent for k, sent in outbound.items() if self._answers(k)})
        while self.server.busy:
            self._hand(relayed)
            try:
                relayed = self.server.advance()
            except MissingClientError as error:
                self.aborted = str(error)

    def _answers(self, client: int) -> bool:
        limit = self.silent.get(client)
        return limit is None or ORDER.index(self.server.stage) < ORDER.index(limit)

    def _hand(self, relayed: Mapping[int, bytes]) -> None:
        for k, message in relayed.items():
            self.down[k] = self.down.get(k, 0) + len(message)
        there = {k: data for k, data in relayed.items() if k in self.clients and self._answers(k)}
        self._deliver({k: self.clients[k].receive(data) for k, data in there.items()})

    def _deliver(self, outbound: Mapping[int, list[bytes]]) -> None:
        before = self.server.waiting
        for k, sent in sorted(outbound.items()):
            for message in sent:
                self.up[k] = self.up.get(k, 0) + len(message)
                if self.server.stage is Stage.INPUT and k in self.server.waiting:
                    self.inputs[k] = message
                self.server.receive(k, message)
        self.stages += self.server.waiting != before


def total_of(vectors: Mapping[int, UnitArray], clients: Iterable[int]) -> list[int]:
    """Without words, in Python's integers."""
    return [sum(column) for column in zip(*(vectors[k].tolist() for k in clients), strict=True)]


def summed(
    method: SecureSum,
    index: int,
    vectors: Mapping[int, UnitArray],
    bound: int,
    *,
    subject: bytes = b"",
    dropouts: Mapping[int, Stage] | None = None,
    noise: NoiseTerms = NO_NOISE,
) -> Summed:
    """A client without a vector never begins. dropouts: the stage from which on one is silent."""
    clients = {k: method.client(k) for k in vectors}
    made = Summed(method.server(), clients, dropouts or {}, method.n_clients)
    length = next((len(vector) for vector in vectors.values()), 1)
    made.run(RoundTerms(index, length, bound, subject, noise), vectors)
    return made
