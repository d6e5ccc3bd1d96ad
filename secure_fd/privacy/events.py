"""Releases in the terms that an accountant needs: noise against sensitivity, no data.

Events are hashable values. They describe a release; an accountant computes its cost.
Throughout, a noise multiplier is the noise's standard deviation over the L2 sensitivity, 0 is no
noise, and a distributed sum counts in integer units.
"""

from collections import Counter
from typing import TypeAlias

from msgspec import Struct

from secure_fd.errors import ConfigurationError

_LEAST_SHARE = 0.25  # units squared: what is proved of sums starts at a deviation of 1/2


class Gaussian(Struct, frozen=True, tag=True):
    """One release of real numbers under continuous Gaussian noise."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_least("noise_multiplier", self.noise_multiplier, 0)


class SampledGaussian(Struct, frozen=True, tag=True):
    """One step of DP-SGD: Gaussian noise on the sum over a Poisson sample of the records."""

    noise_multiplier: float
    sample_rate: float

    def __post_init__(self) -> None:
        check_least("noise_multiplier", self.noise_multiplier, 0)
        if not 0 < self.sample_rate < 1:
            allowed = "use a number in (0, 1), or a Gaussian if all records are taken"
            raise ConfigurationError("sample_rate", self.sample_rate, allowed)


class Response(Struct, frozen=True, tag=True):
    """One answer by randomised response over `alphabet_size` symbols.

    The truth is answered with e^epsilon times the probability of any other symbol.
    """

    epsilon: float
    alphabet_size: int

    def __post_init__(self) -> None:
        check_least("epsilon", self.epsilon, 0)
        check_least("alphabet_size", self.alphabet_size, 2)


class DistributedGaussian(Struct, frozen=True, tag=True):
    """An integer vector and the sum of independent discrete Gaussians, one share a client.

    variance: sigma^2 of one share, in units squared. shares: those that honest clients added.
    l2: sensitivity, in units. dimension: entries in which neighbours may differ, at most.
    """

    variance: float
    shares: int
    l2: float
    dimension: int

    def __post_init__(self) -> None:
        check_least("variance", self.variance, 0)
        check_least("shares", self.shares, 1)
        if self.shares > 1 and 0 < self.variance < _LEAST_SHARE:
            raise ConfigurationError(
                "variance", self.variance, "use 0, or 1/4 or more: below, no bound is known"
            )
        check_least("l2", self.l2, 0)
        check_least("dimension", self.dimension, 1)


class Repeated(Struct, frozen=True, tag=True):
    """An event repeated on the same data, each time with fresh noise."""

    event: "Event"
    times: int

    def __post_init__(self) -> None:
        check_least("times", self.times, 0)


class Composed(Struct, frozen=True, tag=True):
    """Several events on the same data; none at all costs nothing."""

    events: tuple["Event", ...]


Primitive: TypeAlias = Gaussian | DistributedGaussian | SampledGaussian | Response
Event: TypeAlias = Primitive | Repeated | Composed


def primitives(event: Event) -> Counter[Primitive]:
    """Count how often each kind of release happened, all nesting undone.

    >>> primitives(Repeated(Composed((Gaussian(2.0), Gaussian(2.0))), 3))
    Counter({Gaussian(noise_multiplier=2.0): 6})
    """
    counted: Counter[Primitive] = Counter()
    if isinstance(event, Repeated):
        for primitive, times in primitives(event.event).items():
            counted[primitive] = times * event.times
    elif isinstance(event, Composed):
        for part in event.events:
            counted.update(primitives(part))
    else:
        counted[event] = 1
    return +counted  # what happened no time is left out


def check_delta(delta: float) -> None:
    """Raise ConfigurationError for a delta that is no probability of failure."""
    if not 0 < delta < 1:
        raise ConfigurationError("delta", delta, "use a number in (0, 1), such as 1e-5")


def check_least(field: str, value: float, least: int) -> None:
    """Raise ConfigurationError for a value below `least`, or none at all."""
    if not value >= least:
        raise ConfigurationError(field, value, f"use {least} or more")
