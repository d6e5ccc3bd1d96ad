"""Cache of values computed from private objects, freed together with these objects."""

import weakref
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 64
"""Values kept for one owner, the newest."""


def freed_with_owner(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function for as long as its first argument, the owner of the values, lives.

    An `lru_cache` would keep clients' records in memory after their federation is gone. Owners are
    compared by identity. Neither a value nor another argument may refer to the owner.

    Args:
        function: takes the owner first, and then hashable arguments.

    Returns:
        The same function, cached.
    """
    cached: dict[int, dict[Hashable, T]] = {}

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        owner, *rest = arguments
        values, key = cached.get(id(owner)), (*rest, *named.items())
        if values is None:
            values = cached[id(owner)] = {}
            weakref.finalize(owner, cached.pop, id(owner)).atexit = False
        if key not in values:
            values[key] = function(*arguments, **named)
            if len(values) > _MOST:
                del values[next(iter(values))]
        return values[key]

    return call
