"""The budget of one data set: what was ever released of it, paid for before noise is drawn.

Order of one release: book the event and wait for the disk; draw; store the answer and wait for the
disk; let it leave. A process that dies
- before the booking is on the disk has drawn nothing;
- between booking and stored answer has let nothing leave. Nobody can tell whether noise was drawn,
  so the event stays spent, and asking again books a further one, refused beyond the total: each
  draw has a booking of its own, and all bookings are priced together;
- after that gives the same bytes when it is asked again.

A price is the epsilon of all bookings composed, for one record, at the total's delta. That holds
whenever somebody chooses to stop, for noise that was planned. Where earlier answers choose the
noise of later ones it is proved for Renyi divergences (Feldman and Zrnic, "Individual Privacy
Accounting via a Renyi Filter", NeurIPS 2021), and not for numerical composition.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Final, Self

import numpy as np
from msgspec import Struct

from secure_fd.codec import Codec
from secure_fd.crypto.keys import SecretHolder, fields
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.privacy.accountants import sampled_cost
from secure_fd.privacy.events import Composed, Event, Repeated, check_least
from secure_fd.privacy.guarantee import figure
from secure_fd.storage import Entry, Store
from secure_fd.votes.codec import IntArray

SIMULATION: Final = "simulation"
"""The name of a ledger that is for no real data."""

_LEAST_KEY = 16
_LONGEST_NAME = 200


def data_set_name(records: Iterable[bytes], key: bytes) -> str:
    """Name a data set by a keyed hash of its records, in whatever order they come.

    key: 16 bytes or more that stay with the client. Without it nobody can tell which records were
    hashed; a plain hash would let anyone try. Another record, or one more, makes another name.

    >>> key = bytes(range(16))
    >>> data_set_name([b"one", b"two"], key) == data_set_name([b"two", b"one"], key)
    True
    >>> data_set_name([b"one", b"three"], key)[:14]
    'records:9ff668'
    """
    if not _LEAST_KEY <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ConfigurationError("key", f"{len(key)} bytes", "use 16 to 64 that nobody can guess")
    hashes = sorted(hashlib.blake2b(r, key=key, digest_size=32).digest() for r in records)
    # Of another length, so that no record's hash can be taken for that of a data set.
    return "records:" + hashlib.blake2b(b"".join(hashes), key=key, digest_size=24).hexdigest()


class Booking(Struct, frozen=True):
    """A release that was paid for. draws: samples of its noise, where they are within 2^-110.

    >>> from secure_fd.privacy.events import Gaussian
    >>> Booking("means", Gaussian(2.0)).draws
    0
    """

    name: str
    event: Event
    draws: int = 0

    def __post_init__(self) -> None:
        check_least("draws", self.draws, 0)


class Budget(Struct, frozen=True):
    """Of what, and how much: the total for one record of a data set, for good.

    >>> Budget("ward 7", 4.0, 1e-5).epsilon
    4.0
    """

    data: str
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < len(self.data) <= _LONGEST_NAME or not self.data.isprintable():
            allowed = f"use 1 to {_LONGEST_NAME} printable characters"
            raise ConfigurationError("data", self.data, allowed)
        if not self.epsilon > 0:
            raise ConfigurationError("epsilon", self.epsilon, "use a number above 0")
        if not 0 < self.delta < 1:
            raise ConfigurationError("delta", self.delta, "use a number between 0 and 1")

    def check_real(self) -> None:
        """Refuse what only a simulation may have."""
        if self.data == SIMULATION:
            raise ConfigurationError("data", self.data, "use another: it is for no real data")
        if math.isinf(self.epsilon):
            raise ConfigurationError("epsilon", self.epsilon, "use a finite number")


_BOOKINGS: Final = Codec[Booking](Booking, "a booking of a ledger", LocalError)
_BUDGETS: Final = Codec[Budget](Budget, "the total of a ledger", LocalError)


class BudgetLedger(SecretHolder):
    """All releases of one data set against a total of epsilon and delta for one record.

    A release under the same name, event and request gives its stored answer again. Make one with
    `create`, `open` or `simulation`; one process holds a file at a time. An answer may be as
    private as the records, so it is in no text, and the file is for its owner alone.

    >>> import os, tempfile
    >>> from secure_fd.privacy.events import Gaussian
    >>> path = os.path.join(tempfile.mkdtemp(), "ward7.ledger")
    >>> with BudgetLedger.create(path, "ward 7", epsilon=4.0, delta=1e-5) as ledger:
    ...     first = ledger.release("means", Gaussian(1.2), b"round 1", lambda: os.urandom(4))
    >>> with BudgetLedger.open(path, "ward 7") as ledger:
    ...     again = ledger.release("means", Gaussian(1.2), b"round 1", lambda: os.urandom(4))
    ...     ledger.describe()
    "budget ledger of data set 'ward 7': 1 release, epsilon 3.55 of 4 at delta 1e-05 for one record"
    >>> first == again
    True
    >>> with BudgetLedger.open(path, "ward 7") as ledger:
    ...     ledger.book("means", Gaussian(1.2))
    Traceback (most recent call last):
    ...
    secure_fd.errors.BudgetError: means: with it data set 'ward 7' would be at ...
    """

    __slots__ = ("_answers", "_bookings", "_log", "_lost", "_turn", "budget")

    def __init__(self, log: Store, budget: Budget) -> None:
        self._log, self.budget, self._turn = log, budget, RLock()
        self._bookings: list[Booking] = []
        self._answers: dict[bytes, int] = {}
        self._lost: set[bytes] = set()

    @classmethod
    def create(
        cls, path: str | PathLike[str], data: str, *, epsilon: float, delta: float
    ) -> "BudgetLedger":
        """Start the ledger of a data set, in a new file of mode 0600.

        data: its name, or what `data_set_name` makes. epsilon, delta: the total, for good.
        Raises ConfigurationError for a file that exists, and for a total that is none.
        """
        budget = Budget(data, epsilon, delta)
        budget.check_real()
        return cls(Store.create(_resolved(path), "ledger", _BUDGETS.encode(budget)), budget)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        data: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> "BudgetLedger":
        """Go on with the ledger of a data set; epsilon and delta, where given, must be its own.

        Raises ConfigurationError for another data set, another total and a file that a process has
        open; LocalError for a file that is damaged.
        """
        log = Store.open(_resolved(path), "ledger")
        try:
            made = cls._read(log)
        except LocalError:
            log.close()
            raise
        own = made.budget
        for field, given, kept in (
            ("data", data, own.data),
            ("epsilon", epsilon, own.epsilon),
            ("delta", delta, own.delta),
        ):
            if given is not None and given != kept:
                log.close()
                raise ConfigurationError(field, given, f"the ledger was made for {kept!r}")
        return made

    @classmethod
    def simulation(cls, epsilon: float = math.inf, delta: float = 1e-5) -> "BudgetLedger":
        """A ledger for no real data, in memory: it is lost with this process.

        >>> BudgetLedger.simulation().describe()
        'budget ledger "simulation", in memory and for no real data: no releases, epsilon 0 ...'
        """
        return cls(Store.in_memory(), Budget(SIMULATION, epsilon, delta))

    @classmethod
    def _read(cls, log: Store) -> "BudgetLedger":
        entries = log.entries()
        first = next(entries, Entry(0, "", b"", b""))
        if first.kind != "opened":
            raise LocalError("the total of a ledger is damaged")
        made = cls(log, _BUDGETS.decode(first.body))
        for entry in entries:
            made._take(entry)
        return made

    def _take(self, entry: Entry) -> None:
        """Recall an entry of the file."""
        if entry.kind == "booked":
            self._bookings.append(_BOOKINGS.decode(entry.body))
            self._lost |= {entry.request} - {b""}  # what `book` paid for has no answer to lose
        elif entry.kind == "answered" and entry.request in self._lost:
            self._lost.remove(entry.request)
            self._answers[entry.request] = entry.number
        else:
            raise LocalError(f"entry {entry.number} of a ledger belongs to nothing")

    @property
    def bookings(self) -> tuple[Booking, ...]:
        """Everything that was paid for, in order, whether or not it left."""
        return tuple(self._bookings)

    @property
    def spent(self) -> float:
        """Epsilon of all bookings, at the total's delta."""
        return self.price()

    @property
    def is_simulation(self) -> bool:
        """Whether it is for no real data."""
        return self.budget.data == SIMULATION

    def price(self, *further: Booking) -> float:
        """Epsilon of all bookings and some further ones, at the total's delta; books nothing.

        Infinite where the samplers' distance from ideal noise exceeds a hundredth of delta.
        """
        booked = (*self._bookings, *further)
        counted = Counter(booking.event for booking in booked)
        event = Composed(tuple(Repeated(each, times) for each, times in counted.items()))
        return sampled_cost(event, self.budget.delta, sum(booking.draws for booking in booked))[0]

    def book(self, name: str, event: Event, *, draws: int = 0, unmet: Iterable[str] = ()) -> None:
        """Pay for a release that is about to be drawn, and whose answer is not to be kept.

        It is on the disk when this returns. unmet: why its noise is worth nothing (`unmet_by`);
        only a simulation takes such. Raises BudgetError beyond the total, and books nothing then.
        """
        with self._turn:
            self._book(Booking(name, event, draws), b"", tuple(unmet))

    def release(
        self,
        name: str,
        event: Event,
        request: bytes,
        draw: Callable[[], bytes],
        *,
        draws: int = 0,
        unmet: Iterable[str] = (),
    ) -> bytes:
        """Give the stored answer to a request, or book its event, draw the answer and store it.

        name: of the release, for people. request: all that was asked, in public terms, so that
        only the same question has the same bytes. draw: makes the noisy answer; it must touch
        nothing else that leaves. draws, unmet: as in `book`. Raises BudgetError beyond the total,
        before anything is drawn. What was booked stays spent, even where `draw` raises.
        """
        booking, unmet = Booking(name, event, draws), tuple(unmet)
        asked = fields(_BOOKINGS.encode(booking), request, *(reason.encode() for reason in unmet))
        key = hashlib.blake2b(asked, digest_size=32).digest()
        with self._turn:
            if key in self._answers:
                return self._log.body(self._answers[key])
            self._book(booking, key, unmet)
            answer = draw()
            self._answers[key] = self._log.append("answered", key, answer)
            self._lost.discard(key)
            return answer

    def release_integers(
        self,
        name: str,
        event: Event,
        request: bytes,
        draw: Callable[[], IntArray],
        *,
        size: int,
        unmet: Iterable[str] = (),
    ) -> IntArray:
        """The same for [size] integers, each with a sample of noise.

        >>> from secure_fd.privacy.events import DiscreteGaussian
        >>> ledger, noisy = BudgetLedger.simulation(), np.array([3, -1])
        >>> event = DiscreteGaussian(1.0)
        >>> ledger.release_integers("sums", event, b"round 1", lambda: noisy, size=2)
        array([ 3, -1])
        """

        def packed() -> bytes:
            drawn = draw()
            if drawn.dtype != np.int64 or drawn.shape != (size,):
                raise LocalError(f"{name}: {drawn.dtype} {drawn.shape} is no [{size}] of int64")
            return drawn.astype("<i8").tobytes()

        answer = self.release(name, event, request, packed, draws=size, unmet=unmet)
        return np.frombuffer(answer, dtype="<i8").astype(np.int64)

    def describe(self) -> str:
        """What it is for and what is spent, in one line.

        >>> BudgetLedger.simulation().describe()
        'budget ledger "simulation", in memory and for no real data: no releases, epsilon 0 ...'
        """
        count, total = len(self._bookings), self.budget
        kind = (
            'budget ledger "simulation", in memory and for no real data'
            if self.is_simulation
            else f"budget ledger of data set {total.data!r}"
        )
        releases = "1 release" if count == 1 else f"{count or 'no'} releases"
        return (
            f"{kind}: {releases}, epsilon {figure(self.spent)} of {figure(total.epsilon)} "
            f"at delta {total.delta:g} for one record"
        )

    def close(self) -> None:
        """Let another process open the file."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BudgetLedger({len(self._bookings)} bookings)"

    def _book(self, booking: Booking, request: bytes, unmet: tuple[str, ...]) -> None:
        if unmet and not self.is_simulation:
            raise ConfigurationError("random", unmet[0], "use os.urandom for real data")
        body, price = _BOOKINGS.encode(booking), self.price(booking)
        if not price <= self.budget.epsilon:
            raise BudgetError(self._refusal(booking.name, price, lost=request in self._lost))
        # First here, then on the disk: whatever interrupts, nothing on the disk is forgotten here.
        self._bookings.append(booking)
        self._lost |= {request} - {b""}
        self._log.append("booked", request, body)

    def _refusal(self, name: str, price: float, *, lost: bool) -> str:
        total = self.budget
        return (
            f"{name}: with it data set {total.data!r} would be at epsilon {figure(price)}, beyond "
            f"its total of {figure(total.epsilon)} at delta {total.delta:g}"
            + (" (it was paid for before, but its answer was lost)" if lost else "")
        )


def _resolved(path: str | PathLike[str]) -> Path:
    """One name a file, so that it has one lock."""
    return Path(path).resolve()


def ledger_of(ledgers: Mapping[int, BudgetLedger] | None, number: int) -> BudgetLedger | None:
    """The budget of a client's data set; None where nobody keeps one.

    Raises ConfigurationError where others have one and this client has none.
    """
    if ledgers is not None and number not in ledgers:
        raise ConfigurationError("ledgers", sorted(ledgers), f"client {number} needs one as well")
    return None if ledgers is None else ledgers[number]
