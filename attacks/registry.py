"""The attacks by name. Names cost no import; `load` imports the one attack that is asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from secure_fd.errors import ConfigurationError

ATTACKS: Mapping[str, str] = {
    "label-distribution": "attacks.label_distribution:LabelDistribution",
    "inversion": "attacks.inversion:ModelInversion",
    "label-only": "attacks.label_only:LabelOnly",
    "update-inversion": "attacks.updates_attack:UpdateInversion",
}
"""Name -> module and class."""


def load(name: str) -> type:
    """The class of an attack; its `name` is the one asked for."""
    if name not in ATTACKS:
        raise ConfigurationError("attack", name, f"use one of {', '.join(ATTACKS)}")
    module, _, cls = ATTACKS[name].partition(":")
    return cast(type, getattr(import_module(module), cls))
