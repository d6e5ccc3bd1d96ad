"""Parts of a run that follow from a roster and its proxy samples, the same for all parties."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from secure_fd.deployment.roster import RosterFile
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.build import PublicFacts, RunConfig, RunParts, build_run
from secure_fd.storage import Store

CPU: Final = torch.device("cpu")


def parts_of(
    roster: RosterFile, proxies: Tensor, ledgers: Mapping[int, BudgetLedger] | None = None
) -> RunParts:
    """Build the parts of a roster's run by the builder that `simulate` uses.

    Args:
        roster: settings, and public facts of the data.
        proxies: [P, ...] proxy samples.
        ledgers: at a site, the ledger of its records by its number.

    Raises:
        ConfigurationError: for a method that does not exist, or without the unit.
    """
    terms, classes = roster.terms, len(roster.classes)
    unit = None if terms.unit == "none" else terms.unit
    config = RunConfig(
        terms.method, secure="masks", unit=unit, epsilon=terms.epsilon, seed=terms.seed
    )
    facts = PublicFacts(terms.image_set, classes, roster.shape, roster.records, terms.held, proxies)
    parts = build_run(config, facts, ledgers, roster.session.id)
    parts.check_sum(RosterMasks(roster.session))
    parts.protection.agree(len(proxies), classes)
    return parts


def kept_seed(file: Store, member: MaskingClient | MaskingServer) -> bytes:
    """The seed of joint draws: that of the first set-up, in all lives of a party."""
    seed = file.get("seed")
    if not seed:
        seed = member.group.seed
        file.put({"seed": seed})
    return seed
