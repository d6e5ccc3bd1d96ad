"""One interface for every way of summing what clients send: vectors in, their sum out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from secure_fd.knowledge import WordArray


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one secure sum moved, by client, all stages and framing included."""

    up: Mapping[int, int]
    down: Mapping[int, int]
    stages: int


@dataclass(frozen=True, slots=True, eq=False)
class SumResult:
    """What a secure sum gave, and exactly what the server saw on the way.

    total: [m] exact integer sums. payloads: by client, the words its payload held on the wire:
    packed values where nothing is masked, uniform words where they are.
    readable: whether the payloads are the clients' packed values in clear.
    """

    total: WordArray
    traffic: Traffic
    payloads: Mapping[int, WordArray] = field(repr=False)
    readable: bool


class SecureSum(Protocol):
    """Sums integer vectors of a fixed cohort of clients."""

    @property
    def name(self) -> str:
        """The word that the command line and the report use."""

    @property
    def guarantee(self) -> str:
        """What the server learns, whom that trusts and what is assumed, in one sentence."""

    @property
    def caveats(self) -> tuple[str, ...]:
        """Insecure settings in force, for the report; empty by default."""

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, WordArray],
        bound: int,
        *,
        subject: bytes = b"",
    ) -> SumResult:
        """Sum vectors whose entries are integers in [0, bound], one for every client.

        subject: a digest of what the vectors speak of (the round's proxies); clients that were
        given different subjects do not sum.

        Raises LocalError for a value above bound, before anything is sent, and
        MissingClientError where a client of the cohort has no vector.
        """
