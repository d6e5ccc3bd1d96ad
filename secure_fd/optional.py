"""Imports of libraries that may be missing, and of the packages installed beside this one.

Libraries of a plain install that take seconds are imported where they are used too, inside `extra`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from secure_fd.errors import ConfigurationError, MissingCapabilityError


@contextmanager
def extra(name: str = "") -> Iterator[None]:
    """Raise MissingCapabilityError, which names what to install, for a library that is missing.

    Args:
        name: the extra that brings the library; by default a plain install does.

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
        wanted = f"'secure-fd[{name}]'" if name else "secure-fd"
        raise MissingCapabilityError(
            f"{library} is not installed: python -m pip install {wanted}"
        ) from error


def import_ours(name: str) -> ModuleType:
    """Import a module of secure_fd, or of the packages `attacks` and `experiments` beside it.

    secure_fd may not import these two by a statement. Their names are common: where the current
    folder or another project has a package of the same name, Python finds that one.

    Raises:
        ConfigurationError: another package of the name comes first. It is not executed.

    >>> import_ours("attacks").__name__
    'attacks'
    """
    package = name.partition(".")[0]
    ours, found = Path(__file__).parents[1] / package, find_spec(package)
    if found is not None:
        places = list(found.submodule_search_locations or [found.origin or ""])
        if ours.resolve() not in [Path(place).resolve() for place in places]:
            raise ConfigurationError(
                package,
                places[0],
                f"secure-fd needs its own package of this name, {ours}: "
                "start from another folder, or rename the other package",
            )
    return import_module(name)
