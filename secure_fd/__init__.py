"""Selective federated distillation with secure sums and differential privacy.

The names below are the public interface; each is imported when it is first used, so that the
parts that need no tensors stay free of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from secure_fd.data.federated import ClientData as ClientData
    from secure_fd.data.federated import FederatedData as FederatedData
    from secure_fd.data.federated import federate as federate
    from secure_fd.data.images import Images as Images
    from secure_fd.data.own import clients_of as clients_of
    from secure_fd.data.own import images_in as images_in
    from secure_fd.data.own import images_of as images_of
    from secure_fd.data.partition import parse_split as parse_split
    from secure_fd.data.sources import load as load
    from secure_fd.deployment.site_network import load_site_network as load_site_network
    from secure_fd.errors import BudgetError as BudgetError
    from secure_fd.errors import ConfigurationError as ConfigurationError
    from secure_fd.errors import LocalError as LocalError
    from secure_fd.errors import MissingCapabilityError as MissingCapabilityError
    from secure_fd.errors import PeerError as PeerError
    from secure_fd.errors import SecureFDError as SecureFDError
    from secure_fd.methods.base import Exchange as Exchange
    from secure_fd.methods.base import Method as Method
    from secure_fd.methods.base import Own as Own
    from secure_fd.methods.base import Setting as Setting
    from secure_fd.methods.ds_fl import DSFL as DSFL
    from secure_fd.methods.fedavg import FedAvg as FedAvg
    from secure_fd.methods.feded import FedED as FedED
    from secure_fd.methods.fedmd import FedMD as FedMD
    from secure_fd.methods.fkd import FKD as FKD
    from secure_fd.methods.heads import PooledHeads as PooledHeads
    from secure_fd.methods.independent import Independent as Independent
    from secure_fd.methods.pls import PLS as PLS
    from secure_fd.methods.selective_fd import SelectiveFD as SelectiveFD
    from secure_fd.privacy.base import NoProtection as NoProtection
    from secure_fd.privacy.base import Protection as Protection
    from secure_fd.privacy.client import ClientUnit as ClientUnit
    from secure_fd.privacy.dp_sgd import PrivateSGD as PrivateSGD
    from secure_fd.privacy.guarantee import Guarantee as Guarantee
    from secure_fd.privacy.guarantee import PrivacyUnit as PrivacyUnit
    from secure_fd.privacy.label import LabelUnit as LabelUnit
    from secure_fd.privacy.ledger import BudgetLedger as BudgetLedger
    from secure_fd.privacy.record import LocalRecordUnit as LocalRecordUnit
    from secure_fd.privacy.record import PooledRecordUnit as PooledRecordUnit
    from secure_fd.protocol.client import Client as Client
    from secure_fd.protocol.messages import Ask as Ask
    from secure_fd.protocol.messages import Share as Share
    from secure_fd.protocol.messages import Void as Void
    from secure_fd.protocol.server import Server as Server
    from secure_fd.protocol.transcript import RoundReport as RoundReport
    from secure_fd.protocol.transcript import Transcript as Transcript
    from secure_fd.secure_sum.base import SecureSum as SecureSum
    from secure_fd.secure_sum.base import Stage as Stage
    from secure_fd.secure_sum.homomorphic import HomomorphicSum as HomomorphicSum
    from secure_fd.secure_sum.masked import MaskedSum as MaskedSum
    from secure_fd.secure_sum.plain import PlainSum as PlainSum
    from secure_fd.secure_sum.validated import Prio3Sum as Prio3Sum
    from secure_fd.selection.selectors import KulsifSelector as KulsifSelector
    from secure_fd.selection.selectors import ProxyRatioSelector as ProxyRatioSelector
    from secure_fd.simulation.federation import Dropouts as Dropouts
    from secure_fd.simulation.federation import Federation as Federation
    from secure_fd.simulation.federation import Participant as Participant
    from secure_fd.simulation.federation import participants_of as participants_of
    from secure_fd.simulation.simulate import Simulation as Simulation
    from secure_fd.simulation.simulate import simulate as simulate
    from secure_fd.training import models as models
    from secure_fd.training import recipes as recipes
    from secure_fd.training.recipes import SGD as SGD
    from secure_fd.training.recipes import Recipe as Recipe
    from secure_fd.training.recipes import Schedule as Schedule
    from secure_fd.training.trainer import Learner as Learner
    from secure_fd.training.trainer import Lesson as Lesson
    from secure_fd.training.trainer import Steps as Steps
    from secure_fd.wire import Sum as Sum

_NAMES = {
    "secure_sum.base": ("SecureSum", "Stage"),
    "secure_sum.plain": ("PlainSum",),
    "secure_sum.homomorphic": ("HomomorphicSum",),
    "secure_sum.masked": ("MaskedSum",),
    "secure_sum.validated": ("Prio3Sum",),
    "protocol.client": ("Client",),
    "data.federated": ("ClientData", "FederatedData", "federate"),
    "data.images": ("Images",),
    "data.own": ("clients_of", "images_in", "images_of"),
    "data.partition": ("parse_split",),
    "data.sources": ("load",),
    "errors": (
        "BudgetError",
        "ConfigurationError",
        "LocalError",
        "MissingCapabilityError",
        "PeerError",
        "SecureFDError",
    ),
    "protocol.messages": ("Ask", "Share", "Void"),
    "simulation.federation": ("Dropouts", "Federation", "Participant", "participants_of"),
    "methods.base": ("Exchange", "Method", "Own", "Setting"),
    "methods.ds_fl": ("DSFL",),
    "methods.fedavg": ("FedAvg",),
    "methods.feded": ("FedED",),
    "methods.fedmd": ("FedMD",),
    "methods.fkd": ("FKD",),
    "methods.heads": ("PooledHeads",),
    "methods.independent": ("Independent",),
    "methods.pls": ("PLS",),
    "methods.selective_fd": ("SelectiveFD",),
    "privacy.base": ("NoProtection", "Protection"),
    "privacy.client": ("ClientUnit",),
    "privacy.dp_sgd": ("PrivateSGD",),
    "privacy.guarantee": ("Guarantee", "PrivacyUnit"),
    "privacy.label": ("LabelUnit",),
    "privacy.ledger": ("BudgetLedger",),
    "privacy.record": ("LocalRecordUnit", "PooledRecordUnit"),
    "training.recipes": ("Recipe", "SGD", "Schedule"),
    "selection.selectors": ("KulsifSelector", "ProxyRatioSelector"),
    "protocol.server": ("Server",),
    "simulation.simulate": ("Simulation", "simulate"),
    "deployment.site_network": ("load_site_network",),
    "training.trainer": ("Learner", "Lesson", "Steps"),
    "protocol.transcript": ("RoundReport", "Transcript"),
    "wire": ("Sum",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {"models": "training.models", "recipes": "training.recipes"}

__all__ = list(_HOMES)
__all__ += ["models", "recipes"]


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name in _MODULES:
        return import_module(f"secure_fd.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'secure_fd' has no attribute {name!r}")
    return getattr(import_module(f"secure_fd.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
