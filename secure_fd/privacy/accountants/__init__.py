"""From events to epsilons: one file an accountant, the tightest that knows the event is taken."""

from typing import Final

from secure_fd.errors import UnsupportedEventError
from secure_fd.privacy.accountants.analytic import AnalyticGaussian
from secure_fd.privacy.accountants.base import Accountant
from secure_fd.privacy.accountants.concentrated import ZeroConcentrated
from secure_fd.privacy.accountants.prv import PrivacyLoss
from secure_fd.privacy.accountants.renyi import IntegerRenyi, Renyi
from secure_fd.privacy.accountants.single_answer import SingleAnswer
from secure_fd.privacy.events import Event

ACCOUNTANTS: Final[tuple[Accountant, ...]] = (
    SingleAnswer(),
    AnalyticGaussian(),
    PrivacyLoss(),
    ZeroConcentrated(),
    Renyi(),
    IntegerRenyi(),
)
"""Tightest first: where two know an event, the earlier one's epsilon is not above the other's."""


def accountant_for(event: Event) -> Accountant:
    """The tightest accountant that knows a bound for the event."""
    for accountant in ACCOUNTANTS:
        if accountant.supports(event):
            return accountant
    raise UnsupportedEventError("event", event, "no accountant knows a bound for it")


__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "AnalyticGaussian",
    "IntegerRenyi",
    "PrivacyLoss",
    "Renyi",
    "SingleAnswer",
    "ZeroConcentrated",
    "accountant_for",
]
