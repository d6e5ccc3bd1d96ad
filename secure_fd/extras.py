"""Libraries that a plain install leaves out, each brought by an extra of this package.

The core needs torch, numpy, scipy, cryptography and dp-accounting. All else is imported where it is
used, inside `extra`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from secure_fd.errors import MissingCapabilityError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around an import: MissingCapabilityError, which says what to install, for a missing library.

    >>> with extra("he"):
    ...     import no_such_library
    Traceback (most recent call last):
    secure_fd.errors.MissingCapabilityError: no_such_library is not installed: ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("secure_fd", "attacks", "experiments", ""):
            raise
        raise MissingCapabilityError(
            f"{library} is not installed: python -m pip install 'secure-fd[{name}]'"
        ) from error
