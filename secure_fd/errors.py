"""Every error this package raises on purpose; each message is one sentence."""

from typing import Self


class SecureFDError(Exception):
    """Base of all deliberate errors.

    >>> issubclass(PeerError, SecureFDError)
    True
    """


class ConfigurationError(SecureFDError, ValueError):
    """A setting is not allowed; the sentence names field, value and what is allowed.

    >>> str(ConfigurationError("clients", 1, "use 2 or more"))
    'clients: 1 is not allowed; use 2 or more'
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}: {value!r} is not allowed; {allowed}")
        self.field = field
        self._parts = (field, value, allowed)

    def __reduce__(self) -> tuple[type[Self], tuple[str, object, str]]:
        """Rebuilt from its parts, so that a worker's error reaches the parent process whole."""
        return type(self), self._parts


class LocalError(SecureFDError):
    """This party did something the protocol forbids.

    >>> isinstance(LocalError("this client has answered already"), SecureFDError)
    True
    """


class PeerError(SecureFDError):
    """Another party sent something the protocol forbids.

    >>> isinstance(PeerError("a message is too long"), LocalError)
    False
    """


class MissingClientError(PeerError):
    """A client that the round needs did not answer; the round ends with nothing released."""


class GarbledSumError(MissingClientError):
    """The clients' inputs do not add up to a sum; the round ends with nothing released.

    >>> issubclass(GarbledSumError, MissingClientError)
    True
    """


class BudgetError(SecureFDError):
    """A release, or a query, would exceed what was agreed.

    >>> str(BudgetError("epsilon 4 is spent"))
    'epsilon 4 is spent'
    """


class MissingCapabilityError(SecureFDError):
    """A request needs something that is not there: a view, or a library.

    >>> str(MissingCapabilityError("missing queries to the final model"))
    'missing queries to the final model'
    """
