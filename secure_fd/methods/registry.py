"""Methods by name. Names cost no import; `load` imports the one method that is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from secure_fd.errors import ConfigurationError


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
    "fedavg": MethodName("FedAvg", "secure_fd.methods.fedavg:FedAvg", labels=False, averages=True),
    "independent": MethodName(
        "Independent", "secure_fd.methods.independent:Independent", labels=False
    ),
    "fedmd": MethodName("FedMD", "secure_fd.methods.fedmd:FedMD"),
    "ds-fl": MethodName("DS-FL", "secure_fd.methods.ds_fl:DSFL"),
    "feded": MethodName("FedED", "secure_fd.methods.feded:FedED"),
    "heads": MethodName("Pooled heads", "secure_fd.methods.heads:PooledHeads", labels=False),
    "dafkd": MethodName("DaFKD", "secure_fd.methods.dafkd:DaFKD", labels=False, averages=True),
    "feddf": MethodName("FedDF", "secure_fd.methods.dafkd:FedDF", labels=False, averages=True),
    "fkd": MethodName("FKD", "secure_fd.methods.fkd:FKD"),
    "pls": MethodName("PLS", "secure_fd.methods.pls:PLS"),
    "selective-fd-published": MethodName(
        "Selective-FD as published", "secure_fd.methods.as_published:SelectiveFDAsPublished"
    ),
    "selective-fd": MethodName("Selective-FD", "secure_fd.methods.selective_fd:SelectiveFD"),
}
"""The one table of method names."""

RECORD_UNIT: Final = (
    *("selective-fd", "heads"),
    *(name for name, known in METHODS.items() if known.averages),
)
"""Methods of the table that have a record unit of their own."""
RECORD_UNIT_METHODS: Final = (
    "votes carry no record's epsilon; heads do (as which selective-fd then runs), in clear or "
    f"under masks, and by DP-SGD {', '.join(RECORD_UNIT[2:])}"
)

_KINDS: Final = (("client", "server"), ("opinion", "ensemble"), ("contribution", "teaching"))


def load(name: str, field: str = "methods") -> Any:  # noqa: ANN401 - a class of any method
    """The class of a method by its name, or of one's own as package.module:Name.

    field: the setting that the name was typed as. Raises ConfigurationError for an unknown name, a
    module that cannot be imported, or a class that is none of the three kinds of method.

    >>> load("fedmd").__name__
    'FedMD'
    """
    module, colon, cls = (METHODS[name].home if name in METHODS else name).partition(":")
    if not colon or not cls:
        known = f"use one of {', '.join(METHODS)}, or package.module:Name for one of your own"
        raise ConfigurationError(field, name, known)
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(field, name, f"use a class that exists ({error})") from error
    whole = any(all(hasattr(found, part) for part in kind) for kind in _KINDS)
    if not isinstance(found, type) or not whole:
        needed = ", or ".join(" and ".join(kind) for kind in _KINDS)
        raise ConfigurationError(field, name, f"use a class that has {needed}")
    return found
