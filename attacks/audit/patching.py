"""Twins of a mechanism: the real code with one thing replaced, for as long as a block lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Let `owner`, a class or a module, have `value` under an existing name, then the old one."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def tapped(owner: object, name: str) -> Iterator[list[Any]]:
    """A list of all that a function of `owner` returns while the block lasts; nothing changes."""
    before, seen = vars(owner)[name], []

    def pass_on(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
        seen.append(before(*arguments, **named))
        return seen[-1]

    with replaced(owner, name, pass_on):
        yield seen
