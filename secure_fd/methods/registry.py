"""Methods by name. Names cost no import; `load` imports the one method that is asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from secure_fd.errors import ConfigurationError

METHODS: Mapping[str, str] = {
    "selective-fd": "secure_fd.methods.selective_fd:SelectiveFD",
    "fedmd": "secure_fd.methods.fedmd:FedMD",
    "ds-fl": "secure_fd.methods.ds_fl:DSFL",
    "fkd": "secure_fd.methods.fkd:FKD",
    "pls": "secure_fd.methods.pls:PLS",
    "fedavg": "secure_fd.methods.fedavg:FedAvg",
    "independent": "secure_fd.methods.independent:Independent",
}
"""Name -> module:Class, for methods that need nothing but labels."""


def load(name: str) -> Any:  # noqa: ANN401 - a class of any method
    """The class of a method by its name, or of one's own as package.module:Name.

    Raises ConfigurationError for an unknown name, a module that cannot be imported, or a class
    that is none of the three kinds of method.

    >>> load("fedmd").__name__
    'FedMD'
    """
    place = METHODS.get(name, name)
    module, colon, cls = place.partition(":")
    if not colon:
        known = f"use one of {', '.join(METHODS)}, or package.module:Name for one of your own"
        raise ConfigurationError("method", name, known)
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError("method", name, f"use a class that exists ({error})") from error
    kinds = (("client", "server"), ("opinion", "ensemble"), ("contribution", "teaching"))
    if not any(all(hasattr(found, part) for part in kind) for kind in kinds):
        wanted = ", or ".join(" and ".join(kind) for kind in kinds)
        raise ConfigurationError("method", name, f"give the class {wanted}")
    return found
