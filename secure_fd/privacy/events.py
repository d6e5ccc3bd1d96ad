"""What was released, in the terms that an accountant needs: noise against sensitivity, no data.

Events are hashable values. They say what happened; what it costs is an accountant's business.
Throughout, a noise multiplier is the noise's standard deviation over the L2 sensitivity, 0 is no
noise, and a distributed sum counts in integer units.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import index
from typing import Any, Final, TypeAlias, get_args

from secure_fd.errors import ConfigurationError, LocalError

_LEAST_SHARE = 0.25  # units squared: what is proved of sums starts at a deviation of 1/2


@dataclass(frozen=True, slots=True)
class Gaussian:
    """One release of real numbers under continuous Gaussian noise."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _at_least("noise_multiplier", self.noise_multiplier, 0)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """One integer vector, independent discrete Gaussian noise on every entry.

    noise_multiplier: the noise's parameter sigma over the vector's L2 sensitivity.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _at_least("noise_multiplier", self.noise_multiplier, 0)


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """One step of DP-SGD: Gaussian noise on the sum over a Poisson sample of the records."""

    noise_multiplier: float
    sample_rate: float

    def __post_init__(self) -> None:
        _at_least("noise_multiplier", self.noise_multiplier, 0)
        _rate("sample_rate", self.sample_rate)


@dataclass(frozen=True, slots=True)
class Response:
    """One answer by randomised response over `alphabet_size` symbols.

    The truth is answered with e^epsilon times the probability of any other symbol.
    """

    epsilon: float
    alphabet_size: int

    def __post_init__(self) -> None:
        _at_least("epsilon", self.epsilon, 0)
        _at_least("alphabet_size", self.alphabet_size, 2)


@dataclass(frozen=True, slots=True)
class DistributedGaussian:
    """An integer vector and the sum of independent discrete Gaussians, one share a client.

    variance: sigma^2 of one share, in units squared. shares: those that honest clients added.
    l2: sensitivity, in units. dimension: entries in which neighbours may differ, at most.
    """

    variance: float
    shares: int
    l2: float
    dimension: int

    def __post_init__(self) -> None:
        _at_least("variance", self.variance, 0)
        _at_least("shares", self.shares, 1)
        if self.shares > 1 and 0 < self.variance < _LEAST_SHARE:
            raise ConfigurationError(
                "variance", self.variance, "use 0, or 1/4 or more: below, no bound is known"
            )
        _at_least("l2", self.l2, 0)
        _at_least("dimension", self.dimension, 1)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same event so many times on the same data, each with noise of its own."""

    event: "Event"
    times: int

    def __post_init__(self) -> None:
        _at_least("times", self.times, 0)


@dataclass(frozen=True, slots=True)
class Composed:
    """Several events on the same data; none at all costs nothing."""

    events: tuple["Event", ...]


Primitive: TypeAlias = (
    Gaussian | DiscreteGaussian | DistributedGaussian | SampledGaussian | Response
)
Event: TypeAlias = Primitive | Repeated | Composed


def primitives(event: Event) -> Counter[Primitive]:
    """Count how often each kind of release happened, all nesting undone.

    >>> primitives(Repeated(Composed((Gaussian(2.0), Gaussian(2.0))), 3))
    Counter({Gaussian(noise_multiplier=2.0): 6})
    """
    counted: Counter[Primitive] = Counter()
    for primitive, times in _flat(event, 1):
        counted[primitive] += times
    return counted


def _flat(event: Event, times: int) -> Iterator[tuple[Primitive, int]]:
    if isinstance(event, Repeated):
        yield from _flat(event.event, times * event.times)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from _flat(part, times)
    elif times:
        yield event, times


def _at_least(field: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigurationError(field, value, f"use {least} or more")


def _rate(field: str, value: float) -> None:
    if not 0 < value <= 1 or math.isnan(value):
        raise ConfigurationError(field, value, "use a number in (0, 1]")


# Events as bytes, for what must outlast a process.


_VERSION: Final = 1
_DEEPEST: Final = 20
_KINDS: Final = {kind.__name__: kind for kind in get_args(Primitive)}


def encode(event: Event) -> bytes:
    """Write an event as bytes: one form an event, floats exact in hexadecimal.

    Raises LocalError for events in more than twenty others.

    >>> encode(Gaussian(2.0))
    b'[1,["Gaussian","0x1.0000000000000p+1"]]'
    """
    return json.dumps([_VERSION, _plain(event, _DEEPEST)], separators=(",", ":")).encode()


def decode(data: bytes) -> Event:
    """Read what `encode` wrote. LocalError for all else, another spelling of an event included.

    >>> decode(encode(Repeated(Gaussian(2.0), 3)))
    Repeated(event=Gaussian(noise_multiplier=2.0), times=3)
    """
    try:
        version, plain = json.loads(data)
        event = _event(plain, _DEEPEST)
        same = version == _VERSION and encode(event) == data
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as failure:
        raise LocalError("bytes that are no event were read as one") from failure
    if not same:
        raise LocalError(f"an event is not in the one form that version {_VERSION} has for it")
    return event


def _plain(event: Event, depth: int) -> list[object]:
    """Its kind's name and what it holds, in lists, strings and whole numbers."""
    if depth == 0:
        raise LocalError(f"an event lies in more than {_DEEPEST} others")
    if isinstance(event, Composed):
        return ["Composed", *(_plain(part, depth - 1) for part in event.events)]
    if isinstance(event, Repeated):
        return ["Repeated", _plain(event.event, depth - 1), _whole(event.times)]
    values = ((part.type, getattr(event, part.name)) for part in fields(event))
    parts = (float(value).hex() if kind is float else _whole(value) for kind, value in values)
    return [type(event).__name__, *parts]


def _event(plain: list[Any], depth: int) -> Event:
    name, *parts = plain
    if depth == 0:
        raise ValueError("events are nested too deep")
    if name == "Composed":
        return Composed(tuple(_event(part, depth - 1) for part in parts))
    if name == "Repeated":
        inner, times = parts
        return Repeated(_event(inner, depth - 1), _whole(times))
    values = (float.fromhex(part) if isinstance(part, str) else part for part in parts)
    made: Primitive = _KINDS[name](*values)
    return made


def _whole(number: int) -> int:
    """No bool, and none of numpy's; TypeError for what is not whole."""
    return int(index(number))
