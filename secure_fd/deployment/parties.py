"""`Client` and `Server` as a roster has them: networks, method, unit and sum, everywhere the same.

Nothing here knows a transport. The parts come from the builder that `simulate` uses.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secure_fd.crypto.keys import IdentityKey
from secure_fd.data.federated import ClientData
from secure_fd.deployment.roster import RosterFile
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Setting
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientRole, ServerRole
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secure_sum.base import SumClient, SumServer
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.build import PublicFacts, RunConfig, RunParts, build_run
from secure_fd.storage import Store

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Parts of a run that follow from a roster and its proxies, for all parties alike.

    rounds: of the run.
    """

    roster: RosterFile
    parts: RunParts
    rounds: int

    @classmethod
    def of(
        cls, roster: RosterFile, proxies: Tensor, ledger: tuple[int, BudgetLedger] | None = None
    ) -> "Agreement":
        """Build the parts. ledger: a site's number, and the budget of its records."""
        terms, classes = roster.terms, len(roster.classes)
        if terms.unit == "record" and terms.method not in ("selective-fd", "heads"):
            allowed = f"not with {terms.method}: use selective-fd or heads"
            raise ConfigurationError("unit", terms.unit, allowed)
        noisy = terms.unit == "record" and not math.isinf(terms.epsilon)
        config = RunConfig(
            terms.method,
            terms.labels,
            "masks",
            "record" if noisy else None,
            terms.epsilon if noisy else math.inf,
            terms.delta,
            terms.recipe,
            seed=terms.seed,
        )
        shape, records = roster.shape, roster.records
        facts = PublicFacts(terms.image_set, classes, shape, records, terms.held, proxies)
        ledgers = None if ledger is None else dict([ledger])
        parts = build_run(config, facts, ledgers, roster.session.id)
        parts.check_sum(RosterMasks(roster.session))
        parts.protection.agree(len(proxies), classes)
        return cls(roster, parts, terms.rounds or parts.recipe.rounds)

    def architecture(self, number: int) -> str:
        """The name of a site's architecture, for `models.build`."""
        return self.parts.architectures[number]

    def network(self, number: int) -> nn.Module:
        """A site's network before training."""
        return self.parts.network(number)

    def setting(self, seed: bytes) -> Setting:
        """The public terms of the roles. seed: of joint draws, from the set-up."""
        return self.parts.setting(seed, _CPU)

    def half(self, number: int, data: ClientData, seed: bytes) -> ClientRole:
        """A site's role in the method."""
        own = self.parts.own(number, self.network(number), data, _CPU)
        setting = self.setting(seed)
        self.parts.method.check(setting, [own.model])
        return self.parts.method.client(setting, own)

    def server_half(self, seed: bytes) -> ServerRole:
        """The server's role in the method."""
        setting, initial = self.setting(seed), self.network(0)
        self.parts.method.check(setting, [initial])
        return self.parts.method.server(setting, initial)

    def client(self, number: int, half: ClientRole, sums: SumClient, file: Store | None) -> Client:
        """A site's party."""
        roster, noise = self.roster, self.parts.protection.noise_terms
        return Client(number, roster.session.id, roster.server, half, sums, noise, file)

    def server(self, half: ServerRole, sums: SumServer, key: IdentityKey) -> Server:
        """The server's party. key: ConfigurationError where the roster pins another."""
        roster = self.roster
        if key.public.raw != roster.identity:
            raise ConfigurationError("identity", roster.name, "the roster pins another server")
        numbers, noise = tuple(range(len(roster.sites))), self.parts.protection.noise_terms
        return Server(numbers, roster.session.id, key, half, sums, noise)


def kept_seed(file: Store, member: MaskingClient | MaskingServer) -> bytes:
    """The seed of joint draws: that of the first set-up, in all lives of a party."""
    seed = file.get("seed")
    if not seed:
        seed = member.group.seed
        file.put({"seed": seed})
    return seed
