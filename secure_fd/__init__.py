"""Selective federated distillation with secure sums and differential privacy.

The names below are the public interface; each is imported when it is first used, so that the
parts that need no tensors stay free of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from secure_fd.aggregation.base import Dropouts as Dropouts
    from secure_fd.aggregation.base import PlainSum as PlainSum
    from secure_fd.aggregation.homomorphic import HomomorphicSum as HomomorphicSum
    from secure_fd.aggregation.masked import MaskedSum as MaskedSum
    from secure_fd.data.federated import ClientData as ClientData
    from secure_fd.data.federated import federate as federate
    from secure_fd.data.images import Images as Images
    from secure_fd.data.partition import parse_split as parse_split
    from secure_fd.data.sources import load as load
    from secure_fd.federation import Federation as Federation
    from secure_fd.federation import Participant as Participant
    from secure_fd.methods.ds_fl import DSFL as DSFL
    from secure_fd.methods.fedavg import FedAvg as FedAvg
    from secure_fd.methods.feded import FedED as FedED
    from secure_fd.methods.fedmd import FedMD as FedMD
    from secure_fd.methods.fkd import FKD as FKD
    from secure_fd.methods.independent import Independent as Independent
    from secure_fd.methods.pls import PLS as PLS
    from secure_fd.methods.selective_fd import SelectiveFD as SelectiveFD
    from secure_fd.private_training import PrivateSGD as PrivateSGD
    from secure_fd.protection.label import LabelUnit as LabelUnit
    from secure_fd.protection.record import RecordUnit as RecordUnit
    from secure_fd.recipes import SGD as SGD
    from secure_fd.recipes import Schedule as Schedule
    from secure_fd.selection.client import KulsifSelector as KulsifSelector
    from secure_fd.selection.client import ProxyRatioSelector as ProxyRatioSelector

_HOMES = {
    "Dropouts": "aggregation.base",
    "HomomorphicSum": "aggregation.homomorphic",
    "MaskedSum": "aggregation.masked",
    "PlainSum": "aggregation.base",
    "SGD": "recipes",
    "Schedule": "recipes",
    "ClientData": "data.federated",
    "federate": "data.federated",
    "Images": "data.images",
    "parse_split": "data.partition",
    "load": "data.sources",
    "Federation": "federation",
    "Participant": "federation",
    "DSFL": "methods.ds_fl",
    "FedAvg": "methods.fedavg",
    "FedED": "methods.feded",
    "FedMD": "methods.fedmd",
    "FKD": "methods.fkd",
    "Independent": "methods.independent",
    "PLS": "methods.pls",
    "SelectiveFD": "methods.selective_fd",
    "PrivateSGD": "private_training",
    "LabelUnit": "protection.label",
    "RecordUnit": "protection.record",
    "KulsifSelector": "selection.client",
    "ProxyRatioSelector": "selection.client",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'secure_fd' has no attribute {name!r}")
    return getattr(import_module(f"secure_fd.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
