"""The budget of one data set: all releases made from it, booked before noise is drawn.

A simulation counts in memory (`Ledger`), real data in a file (`BudgetLedger`). A file books one
release in this order: book the event and wait for the disk; draw; store the answer and wait for the
disk; return the answer. A process that dies
- before the booking is on the disk has drawn nothing;
- between booking and stored answer has sent nothing. Whether noise was drawn is unknown, so the
  event stays spent, and asking again books a further one, refused beyond the total: each draw has a
  booking of its own, and all bookings are priced together;
- after that returns the same bytes when it is asked again.

A price is the epsilon of all bookings composed, for one record, at the total's delta. That holds
at any stopping time, for noise that was planned. Where earlier answers choose the noise of later
ones it is proved for Renyi divergences (Feldman and Zrnic, "Individual Privacy Accounting via a
Renyi Filter", NeurIPS 2021), and not for numerical composition.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Final, Self, TypeAlias

from msgspec import Struct

from secure_fd.codec import Codec, SecretText
from secure_fd.crypto.keys import SecretHolder, fields
from secure_fd.errors import BudgetError, ConfigurationError, LocalError, SecureFDError
from secure_fd.privacy.accountants import sampled_cost
from secure_fd.privacy.events import Composed, Event, Repeated, check_delta, check_least
from secure_fd.privacy.guarantee import format_epsilon
from secure_fd.storage import UNFINISHED, Store

SIMULATION: Final = "simulation"
"""Data set of a ledger in memory."""

_LONGEST_NAME = 200
_HASH_BYTES: Final = 32


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


class Total(Struct, frozen=True, tag=True):
    """The most that all releases of a data set may cost one record.

    >>> Total("ward 7", 4.0, 1e-5).epsilon
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
        check_delta(self.delta)


class Ledger(SecretHolder):
    """Releases of a simulation against a total; they are lost with this process.

    >>> from secure_fd.privacy.events import Gaussian
    >>> ledger = Ledger(epsilon=4.0, delta=1e-5)
    >>> ledger.book("means", Gaussian(1.2))
    >>> round(ledger.spent, 2)
    3.55
    """

    __slots__ = ("bookings", "total")

    def __init__(self, epsilon: float = math.inf, delta: float = 1e-5) -> None:
        self.total = Total(SIMULATION, epsilon, delta)
        self.bookings: tuple[Booking, ...] = ()
        """Everything that was paid for, in order, whether or not an answer left."""

    def price(self, *further: Booking) -> float:
        """Return the epsilon of all bookings and some further ones, at the total's delta.

        It is infinite if the samplers' distance from ideal noise exceeds a hundredth of delta.
        """
        booked = (*self.bookings, *further)
        counted = Counter(booking.event for booking in booked)
        event = Composed(tuple(Repeated(each, times) for each, times in counted.items()))
        return sampled_cost(event, self.total.delta, sum(booking.draws for booking in booked))[0]

    @property
    def spent(self) -> float:
        """Epsilon of all bookings, at the total's delta."""
        return self.price()

    def book(self, name: str, event: Event, *, draws: int = 0, unmet: Iterable[str] = ()) -> None:
        """Pay for a release whose noise is about to be drawn and whose answer is not kept.

        Args:
            name: of the release, in error messages.
            event: the release, in an accountant's terms.
            draws: samples of its noise, where they are within 2^-110 of exact.
            unmet: reasons why the noise carries no guarantee (`unmet_by`).

        Raises:
            BudgetError: the total would be exceeded; nothing is booked.
            ConfigurationError: `unmet` is not empty and the data are real.
        """
        self._pay(Booking(name, event, draws), b"", unmet)

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
        """Book the event, then draw the answer. What was booked stays spent, even if `draw` raises.

        Args:
            name: of the release.
            event: the release.
            request: all that was asked, in public terms: a ledger that keeps answers returns the
                same bytes to the same request.
            draw: makes the noisy answer; nothing else that it touches may leave.
            draws: as in `book`.
            unmet: as in `book`.
        """
        booking = Booking(name, event, draws)
        asked = fields(_BOOKINGS.encode(booking), request)
        return self._answer(booking, hashlib.blake2b(asked, digest_size=32).digest(), draw, unmet)

    def _answer(
        self, booking: Booking, key: bytes, draw: Callable[[], bytes], unmet: Iterable[str]
    ) -> bytes:
        """Pay and draw. key: of the booking and the request."""
        self._pay(booking, key, unmet)
        return draw()

    def _pay(self, booking: Booking, key: bytes, unmet: Iterable[str], note: str = "") -> None:  # noqa: ARG002 - a simulation's noise may be seeded
        total = self.total
        if math.isfinite(total.epsilon) and not (price := self.price(booking)) <= total.epsilon:
            raise BudgetError(
                f"{booking.name}: with it data set {total.data!r} would be at epsilon "
                f"{format_epsilon(price)}, beyond its total of {format_epsilon(total.epsilon)} "
                f"at delta {total.delta:g}{note}"
            )
        self.bookings += (booking,)


class _Booked(Struct, frozen=True, tag=True):
    """key: of the request that is answered next, empty if no answer is kept."""

    booking: Booking
    key: bytes


class _Answer(SecretText, Struct, frozen=True, tag=True):
    key: bytes
    answer: bytes


_BOOKINGS: Final = Codec[Booking](Booking, "a booking of a ledger", LocalError)
_Entry: TypeAlias = Total | _Booked | _Answer
_ENTRIES: Final = Codec[_Entry](_Entry, "an entry of a ledger", LocalError)


class BudgetLedger(Ledger):
    """The ledger of a real data set, in a file for its owner alone.

    A release under the same name, event and request returns its stored answer. Make one with
    `create` or `open`; one process holds a file at a time. An answer may be as private as the
    records, so it appears in no text.

    >>> import os, tempfile
    >>> from secure_fd.privacy.events import Gaussian
    >>> path = os.path.join(tempfile.mkdtemp(), "ward7.ledger")
    >>> with BudgetLedger.create(path, "ward 7", epsilon=4.0, delta=1e-5) as ledger:
    ...     first = ledger.release("means", Gaussian(1.2), b"round 1", lambda: os.urandom(4))
    >>> with BudgetLedger.open(path, "ward 7") as ledger:
    ...     again = ledger.release("means", Gaussian(1.2), b"round 1", lambda: os.urandom(4))
    ...     round(ledger.spent, 2), len(ledger.bookings)
    (3.55, 1)
    >>> first == again
    True
    >>> with BudgetLedger.open(path, "ward 7") as ledger:
    ...     ledger.book("means", Gaussian(1.2))
    Traceback (most recent call last):
    ...
    secure_fd.errors.BudgetError: means: with it data set 'ward 7' would be at ...
    """

    __slots__ = ("_answers", "_file", "_turn", "_unanswered")

    def __init__(self, file: Store, total: Total) -> None:
        self._file, self.total, self.bookings, self._turn = file, total, (), RLock()
        self._answers: dict[bytes, bytes] = {}
        self._unanswered: set[bytes] = set()

    @classmethod
    def create(
        cls, path: str | PathLike[str], data: str, *, epsilon: float, delta: float
    ) -> "BudgetLedger":
        """Start the ledger of a data set, in a new file of mode 0600.

        Args:
            path: of the file.
            data: name of the data set.
            epsilon: total of all releases, finite.
            delta: of the total.

        Raises:
            ConfigurationError: the file exists, or an argument is out of range.
        """
        total = Total(data, epsilon, delta)
        if data == SIMULATION:
            raise ConfigurationError("data", data, "use another: it is for no real data")
        if math.isinf(epsilon):
            raise ConfigurationError("epsilon", epsilon, "use a finite number")
        made = cls(Store.create(Path(path).resolve(), "ledger"), total)
        made._file.append(_ENTRIES.encode(total))
        return made

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        data: str | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> "BudgetLedger":
        """Open the ledger of a data set; name, epsilon and delta, if given, must be its own.

        Raises:
            ConfigurationError: another data set, another total, or a process has the file open.
            LocalError: the file is damaged.
        """
        file = Store.open(Path(path).resolve(), "ledger")
        try:
            made = cls._read(file)
            for field, given in (("data", data), ("epsilon", epsilon), ("delta", delta)):
                kept = getattr(made.total, field)
                if given is not None and given != kept:
                    raise ConfigurationError(field, given, f"the ledger was made for {kept!r}")
        except SecureFDError:
            file.close()
            raise
        return made

    @classmethod
    def _read(cls, file: Store) -> "BudgetLedger":
        entries = [_ENTRIES.decode(body) for body in file.entries()]
        total = entries.pop(0) if entries else None
        if not isinstance(total, Total):
            raise LocalError(f"a ledger has no total: {UNFINISHED}")
        made = cls(file, total)
        for entry in entries:
            if isinstance(entry, _Booked):
                made.bookings += (entry.booking,)
                made._unanswered.add(entry.key)
            elif isinstance(entry, _Answer) and entry.key in made._unanswered:
                made._unanswered.remove(entry.key)
                made._answers[entry.key] = entry.answer
            else:
                raise LocalError("an entry of a ledger belongs to nothing")
        return made

    def recognise(self, records: Iterable[bytes]) -> int:
        """Note which records the ledger is about, and return how many of these it already had.

        The file keeps a keyed hash of each: without the file's key no party can find out whether
        a record is among them.

        Args:
            records: the bytes of each record.
        """
        key = self._file.get("key") or os.urandom(_HASH_BYTES)
        kept = self._file.get("records") or b""
        known = {kept[k : k + _HASH_BYTES] for k in range(0, len(kept), _HASH_BYTES)}
        found = {hashlib.blake2b(r, key=key, digest_size=_HASH_BYTES).digest() for r in records}
        if found - known:
            self._file.put({"key": key, "records": b"".join(sorted(known | found))})
        return len(found & known)

    def _answer(
        self, booking: Booking, key: bytes, draw: Callable[[], bytes], unmet: Iterable[str]
    ) -> bytes:
        """Return the stored answer, or book the event, draw the answer and store it."""
        with self._turn:
            if key not in self._answers:
                answer = super()._answer(booking, key, draw, unmet)
                self._file.append(_ENTRIES.encode(_Answer(key, answer)))
                self._answers[key] = answer
                self._unanswered.discard(key)
            return self._answers[key]

    def _pay(self, booking: Booking, key: bytes, unmet: Iterable[str], note: str = "") -> None:
        """Book the event in memory and, before this returns, on the disk."""
        for reason in unmet:
            raise ConfigurationError("random", reason, "use os.urandom for real data")
        with self._turn:
            if key and key in self._unanswered:
                note = " (it was paid for before, but its answer was lost)"
            # In memory first: after an interrupt nothing on the disk is missing here.
            super()._pay(booking, key, unmet, note)
            self._unanswered.add(key)
            self._file.append(_ENTRIES.encode(_Booked(booking, key)))

    def close(self) -> None:
        """Let another process open the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


def ledger_of(ledgers: Mapping[int, Ledger] | None, number: int) -> Ledger | None:
    """Return the budget of a client's data set, None if there are no ledgers at all.

    Raises:
        ConfigurationError: other clients have a ledger and this one has none.
    """
    if ledgers is not None and number not in ledgers:
        raise ConfigurationError("ledgers", sorted(ledgers), f"client {number} needs one as well")
    return None if ledgers is None else ledgers[number]
