"""`Client` and `Server` as a roster has them: networks, method, unit and sum, everywhere the same.

Nothing here knows a transport. What `simulate` builds for one process is built here for one party.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from secure_fd.crypto.keys import IdentityKey
from secure_fd.data.federated import ClientData
from secure_fd.deployment.roster import RosterFile
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.methods.feded import FedED
from secure_fd.methods.registry import build as build_method
from secure_fd.methods.registry import load as load_method
from secure_fd.privacy.base import NoProtection, Protection
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientRole, ServerRole
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secure_sum.base import SumClient, SumServer
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.simulate import architectures, central_network, named_recipe, pooled_heads
from secure_fd.storage import Store
from secure_fd.training import models
from secure_fd.training.recipes import Recipe

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """What follows from a roster and its proxies, for all parties alike.

    rounds: of the run.
    """

    roster: RosterFile
    method: Method
    protection: Protection
    recipe: Recipe
    rounds: int
    _proxies: Tensor = field(repr=False)

    @classmethod
    def of(
        cls, roster: RosterFile, proxies: Tensor, ledger: tuple[int, BudgetLedger] | None = None
    ) -> "Agreement":
        """ledger: a site's number, and the budget of its records."""
        method = _method(roster, proxies)
        protection = _protection(roster, len(proxies), ledger)
        terms, classes = roster.terms, len(roster.classes)
        recipe = named_recipe(
            terms.recipe, method, classes, len(proxies), terms.held, terms.image_set
        )
        protection.agree(len(proxies), classes)
        return cls(roster, method, protection, recipe, terms.rounds or recipe.rounds, proxies)

    def architecture(self, number: int) -> str:
        """The name of a site's architecture, for `models.build`."""
        roster = self.roster
        shared = self.method.shares_parameters
        return architectures(roster.terms.image_set, len(roster.sites), shared=shared)[number]

    def network(self, number: int) -> nn.Module:
        """A site's network before training."""
        roster, seed = self.roster, 100 * self.roster.terms.seed + number
        return models.build(self.architecture(number), len(roster.classes), seed)

    def setting(self, seed: bytes) -> Setting:
        """The public terms of the halves. seed: of joint draws, from the set-up."""
        roster = self.roster
        return Setting(
            n_clients=len(roster.sites),
            n_classes=len(roster.classes),
            shape=roster.shape,
            proxies=self._proxies if self.method.needs_proxies else None,
            schedule=self.recipe.schedule,
            records=roster.records,
            seed=seed,
            releases=None,
            protection=self.protection,
        )

    def half(self, number: int, data: ClientData, seed: bytes) -> ClientRole:
        """A site's half of the method."""
        own = Own(number, self.network(number), data, 1000 * self.roster.terms.seed + number, _CPU)
        setting = self.setting(seed)
        self.method.check(setting, [own.model])
        return self.method.client(setting, own)

    def server_half(self, seed: bytes) -> ServerRole:
        """The server's half of the method."""
        setting, initial = self.setting(seed), self.network(0)
        self.method.check(setting, [initial])
        return self.method.server(setting, initial)

    def client(self, number: int, half: ClientRole, sums: SumClient, file: Store | None) -> Client:
        """A site's party."""
        roster, noise = self.roster, self.protection.noise_terms
        return Client(number, roster.session.id, roster.server, half, sums, noise, None, file)

    def server(self, half: ServerRole, sums: SumServer, key: IdentityKey) -> Server:
        """The server's party. key: ConfigurationError where the roster pins another."""
        roster = self.roster
        if key.public.raw != roster.identity:
            raise ConfigurationError("identity", roster.name, "the roster pins another server")
        numbers, noise = tuple(range(len(roster.sites))), self.protection.noise_terms
        return Server(numbers, roster.session.id, key, half, sums, noise)


def kept_seed(file: Store, member: MaskingClient | MaskingServer) -> bytes:
    """The seed of joint draws: that of the first set-up, in all lives of a party."""
    seed = file.get("seed")
    if not seed:
        seed = member.group.seed
        file.put({"seed": seed})
    return seed


def _method(roster: RosterFile, proxies: Tensor) -> Method:
    """Pooled heads in the place of Selective-FD under the record unit, as `simulate` does."""
    terms = roster.terms
    if terms.unit == "record":
        if terms.method not in ("selective-fd", "heads"):
            allowed = f"not with {terms.method}: use selective-fd or heads"
            raise ConfigurationError("unit", terms.unit, allowed)
        if not math.isinf(terms.epsilon):
            return pooled_heads(terms.epsilon)
    if load_method(terms.method, "method") is FedED:
        classes, named = len(roster.classes), terms.image_set
        recipe = named_recipe(terms.recipe, None, classes, len(proxies), terms.held, named)
        given = classes, named, recipe.schedule, terms.seed
        return central_network(terms.labels, *given)
    return build_method(terms.method, terms.labels, "method")


def _protection(
    roster: RosterFile, n_proxies: int, ledger: tuple[int, BudgetLedger] | None
) -> Protection:
    terms = roster.terms
    if terms.unit == "none" or math.isinf(terms.epsilon):
        return NoProtection()
    unit = PooledRecordUnit(
        terms.epsilon,
        terms.delta,
        records=roster.records,
        n_proxies=n_proxies,
        n_classes=len(roster.classes),
        sums=sums_for(terms.epsilon),
        ledgers=None if ledger is None else dict([ledger]),
        session=roster.session.id,
    )
    unit.check_sum(RosterMasks(roster.session))  # parties of a roster have no other sums
    return unit
