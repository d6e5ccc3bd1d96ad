"""Methods by name. Names cost no import; `load` imports the one method that is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from secure_fd.methods.base import Method


@dataclass(frozen=True, slots=True)
class MethodName:
    """A method of this project. home: module:Class. labels: whether it shares soft or hard ones.

    averages: whether clients share parameters, so that all networks are of one architecture and
    the record unit is DP-SGD of the training itself.
    """

    title: str
    home: str
    labels: bool = True
    averages: bool = False


METHODS: Mapping[str, MethodName] = {
    "fedavg": MethodName("FedAvg", "fedavg:FedAvg", labels=False, averages=True),
    "independent": MethodName("Independent", "independent:Independent", labels=False),
    "fedmd": MethodName("FedMD", "fedmd:FedMD"),
    "ds-fl": MethodName("DS-FL", "ds_fl:DSFL"),
    "feded": MethodName("FedED", "feded:FedED"),
    "heads": MethodName("Pooled heads", "pooled_heads:PooledHeads", labels=False),
    "dafkd": MethodName("DaFKD", "dafkd:DaFKD", labels=False, averages=True),
    "feddf": MethodName("FedDF", "dafkd:FedDF", labels=False, averages=True),
    "fkd": MethodName("FKD", "fkd:FKD"),
    "pls": MethodName("PLS", "pls:PLS"),
    "selective-fd-published": MethodName(
        "Selective-FD as published", "selective_fd:SelectiveFDAsPublished"
    ),
    "selective-fd": MethodName("Selective-FD", "selective_fd:SelectiveFD"),
}
"""The one table of method names; homes are in this package."""

RECORD_UNIT: Final = (
    *("selective-fd", "heads"),
    *(name for name, known in METHODS.items() if known.averages),
)
"""Methods of the table that have a record unit of their own."""
RECORD_UNIT_METHODS: Final = (
    "votes carry no record's epsilon; heads do (as which selective-fd then runs), in clear or "
    f"under masks, and by DP-SGD {', '.join(RECORD_UNIT[2:])}"
)


def load(name: str, field: str = "methods") -> "type[Method]":
    """Return the class of a method by its name, or a user's own by package.module:Name.

    Args:
        name: of the method.
        field: the setting that the name was typed as.

    Raises:
        ConfigurationError: the name is unknown, or names no subclass of `Method`.

    >>> load("fedmd").__name__
    'FedMD'
    """
    home = f"{__package__}.{METHODS[name].home}" if name in METHODS else name
    module, colon, cls = home.partition(":")
    if not colon or not cls:
        known = f"use one of {', '.join(METHODS)}, or package.module:Name for one of your own"
        raise ConfigurationError(field, name, known)
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(field, name, f"use a class that exists ({error})") from error
    from secure_fd.methods.base import Method  # imports torch

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigurationError(field, name, "use a subclass of secure_fd.Method")
    return found
