"""The one builder: method, privacy mechanism, recipe and networks of a run, from its settings.

`simulate` builds a run for one process, a roster for one party of many: from the same settings and
the same public facts of the data both get the same parts.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data import image_sets
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import proxy_pixels
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels, Method, Own, Setting
from secure_fd.methods.fedavg import AveragesParameters
from secure_fd.methods.feded import FedED
from secure_fd.methods.min_voters import check_sum
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.registry import METHODS, RECORD_UNIT, RECORD_UNIT_METHODS
from secure_fd.methods.registry import load as load_method
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.ledger import Ledger
from secure_fd.privacy.record import PooledRecordUnit, sums_for
from secure_fd.privacy.samplers import Random
from secure_fd.secure_sum.base import SecureSum, SumGuarantee
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.training import models, recipes
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import classes_held

Secure = Literal["masks", "he", "prio3"] | None
Unit = Literal["label", "record"] | None
RecipeName = Literal["ours", "paper"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Settings of a run: method, sum, privacy, recipe and seed, the same for all parties.

    Args:
        method: a name of `methods.registry`, package.module:Name, or an instance.
        labels: what clients share, where a named method asks.
        secure: "masks", "he" or "prio3"; None sums in clear.
        unit: the privacy unit, label or record; None adds no noise.
        epsilon: finite if and only if there is a unit.
        delta: None for one in 10 times the records of the largest client, 1e-5 at most.
        recipe: "ours", "paper", or a user-supplied one.
        min_voters: fewest clients that answer a proxy whose predictions Selective-FD asks for.
        seed: of networks, batches and public draws.

    Raises:
        ConfigurationError: for settings that would protect nothing, or exclude each other.

    Example:
        >>> RunConfig("fedmd", unit="label", epsilon=4.0).noisy
        True
    """

    method: str | Method = "selective-fd"
    labels: Labels = "hard"
    secure: Secure = None
    unit: Unit = None
    epsilon: float = math.inf
    delta: float | None = None
    recipe: RecipeName | Recipe = "ours"
    min_voters: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.noisy and self.epsilon != math.inf:
            allowed = "without a unit there is no noise: use unit label or record as well"
            raise ConfigurationError("epsilon", self.epsilon, allowed)
        if self.noisy and self.epsilon == math.inf:
            allowed = "without a finite epsilon there is no noise: set epsilon as well"
            raise ConfigurationError("unit", self.unit, allowed)
        if self.unit not in (None, "label", "record"):
            raise ConfigurationError("unit", self.unit, "use label or record")
        named = isinstance(self.method, str) and self.method in METHODS
        if self.unit == "record" and named and self.method not in RECORD_UNIT:
            allowed = f"not with {self.method}: {RECORD_UNIT_METHODS}"
            raise ConfigurationError("unit", self.unit, allowed)
        if self.min_voters != 1 and (self.pools or self.method != "selective-fd"):
            allowed = "it goes with the votes of selective-fd, by name; SelectiveFD has its own"
            raise ConfigurationError("min_voters", self.min_voters, allowed)

    @property
    def noisy(self) -> bool:
        """True if a privacy unit is in force."""
        return self.unit is not None

    @property
    def pools(self) -> bool:
        """True if pooled heads run in the place of votes, which have no record unit."""
        heads = self.method in ("selective-fd", "heads") and self.secure in (None, "masks")
        return self.unit == "record" and heads


@dataclass(frozen=True, slots=True, eq=False)
class PublicFacts:
    """Public facts about the data of a run.

    image_set: "" for data without a name. shape: of one record. records: training records by
    client. held: classes that a client holds, as if evenly, mean over clients. proxies: [P, ...],
    or None for a method that needs none.
    """

    image_set: str
    n_classes: int
    shape: tuple[int, ...]
    records: tuple[int, ...]
    held: float
    proxies: Tensor | None = field(repr=False)

    @classmethod
    def of(cls, data: FederatedData) -> "PublicFacts":
        """Return the facts about divided data."""
        return cls.of_clients(data.clients, data.proxies.pixels, data.name)

    @classmethod
    def of_clients(
        cls, clients: Sequence[ClientData], proxies: Tensor | None, image_set: str = ""
    ) -> "PublicFacts":
        """Return the facts about the data of these clients."""
        train, n_classes = [client.train for client in clients], clients[0].n_classes
        shape, records = tuple(train[0].pixels.shape[1:]), tuple(map(len, train))
        held = classes_held(train, n_classes)
        return cls(image_set, n_classes, shape, records, held, proxies)

    @property
    def n_clients(self) -> int:
        """Return the number of clients."""
        return len(self.records)

    @property
    def n_proxies(self) -> int:
        """Return the number of proxy samples; 0 without any."""
        return 0 if self.proxies is None else len(self.proxies)


@dataclass(frozen=True, slots=True, eq=False)
class RunParts:
    """Parts of a run that all of its parties derive alike; `build_run` makes them from settings.

    Args:
        method: with its client and server roles.
        protection: the privacy mechanism.
        recipe: rounds and schedule.
        facts: public facts of the data.
        seed: of networks and batches.
        releases: how often a client answers one proxy in all; None: once a round.
    """

    method: Method
    protection: PrivacyMechanism
    recipe: Recipe
    facts: PublicFacts
    seed: int
    releases: int | None = None

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of the clients' architectures, for `models.build`."""
        facts, shared = self.facts, self.method.shares_parameters
        return architectures(facts.image_set, facts.n_clients, shared=shared)

    def network(self, number: int) -> nn.Module:
        """Return a client's network before training."""
        return fresh_network(self.architectures[number], self.facts.n_classes, self.seed, number)

    def setting(self, seed: bytes, device: torch.device) -> Setting:
        """Return the public terms of the roles. seed: of joint draws, from the set-up."""
        facts = self.facts
        proxies = facts.proxies if self.method.needs_proxies else None
        return Setting(
            n_clients=facts.n_clients,
            n_classes=facts.n_classes,
            shape=facts.shape,
            proxies=None if proxies is None else proxies.to(device),
            schedule=self.recipe.schedule,
            records=facts.records,
            seed=seed,
            releases=self.releases,
            protection=self.protection,
        )

    def own(self, number: int, model: nn.Module, data: ClientData, device: torch.device) -> Own:
        """Return what a client brings into its role."""
        return Own(number, model, data, 1000 * self.seed + number, device)

    def check_sum(self, sums: SumGuarantee) -> None:
        """Raise ConfigurationError for a sum that hides too little for method or mechanism."""
        self.protection.check_sum(sums)
        check_sum(self.method.min_voters, sums)


def build_run(
    config: RunConfig,
    facts: PublicFacts,
    ledgers: Mapping[int, Ledger] | None = None,
    session: bytes | None = None,
    random: Random = os.urandom,
) -> RunParts:
    """Build the parts of a run.

    Args:
        config: settings.
        facts: public facts of the data.
        ledgers: by client, the ledger of its data set; by default in memory, for public data.
        session: of a roster; the ledger books under it.
        random: source of the unit's noise.

    Raises:
        ConfigurationError: for a method that does not exist, or without the unit.

    Example:
        >>> from secure_fd import federate, load, parse_split
        >>> data = federate(load("digits"), parse_split("iid"), 3, seed=0)
        >>> build_run(RunConfig("fedmd"), PublicFacts.of(data)).method.name
        'FedMD hard'
    """
    delta = default_delta(facts.records) if config.delta is None else config.delta
    method = _method(config, facts)
    recipe = named_recipe(config.recipe, method, facts)
    protection: PrivacyMechanism = NoProtection()
    if config.pools:
        protection = pooled_unit(
            facts,
            config.epsilon,
            delta,
            local=config.secure is None,
            random=random,
            ledgers=ledgers,
            session=session,
        )
    elif config.unit == "label" and method.shares_parameters:
        allowed = "use record: this method shares no labels"
        raise ConfigurationError("unit", config.unit, allowed)
    elif config.noisy and isinstance(method, AveragesParameters):
        plan = recipe.rounds, recipe.schedule
        method = method.trained_privately(config.epsilon, delta, *plan, ledgers=ledgers)
    elif config.unit == "record":
        raise ConfigurationError("unit", config.unit, RECORD_UNIT_METHODS)
    elif config.unit == "label":
        protection = LabelUnit(config.epsilon, delta, random)
    return RunParts(checked(method), protection, recipe, facts, config.seed)


def _method(config: RunConfig, facts: PublicFacts) -> Method:
    method = config.method
    if config.pools:
        return pooled_heads(config.epsilon, local=config.secure is None)
    if not isinstance(method, str):
        return method
    if method == "selective-fd":
        ours = SelectiveFD(config.labels, min_voters=config.min_voters)
        if config.unit == "label":  # it makes one symbol noisy, so votes are counted
            ours = replace(ours, server_threshold=1.0, votes="counted")
        return ours
    kind: Any = load_method(method, "method")
    if kind is FedED:
        return central_network(config.labels, facts, config.recipe, config.seed)
    made: Method = kind(config.labels) if kind.takes_labels else kind()
    return made


def checked(method: object) -> Method:
    """Return the method; ConfigurationError for anything else, such as a name or a class."""
    if not isinstance(method, Method):
        allowed = "use an instance, as SelectiveFD() is; secure_fd.simulate takes names"
        raise ConfigurationError("method", method, allowed)
    return method


def architectures(image_set: str, clients: int, *, shared: bool = False) -> tuple[str, ...]:
    """Return every client's architecture, as in the paper's tables; shared: the first for all.

    >>> architectures("mnist", 3)
    ('cnn-5-5-50', 'cnn-5-5-50', 'cnn-3-3-128')
    """
    known = image_sets.image_set(image_set).architectures
    return tuple(known[0 if shared else k % len(known)] for k in range(clients))


def fresh_network(architecture: str, n_classes: int, seed: int, number: int) -> nn.Module:
    """Return a client's network before training, with initial weights of its own."""
    return models.build(architecture, n_classes, 100 * seed + number)


def fresh_networks(data: FederatedData, seed: int, *, shared: bool = False) -> list[nn.Module]:
    """Return every client's network before training."""
    names = architectures(data.name, len(data.clients), shared=shared)
    return [fresh_network(name, data.n_classes, seed, k) for k, name in enumerate(names)]


def central_network(
    labels: Labels, facts: PublicFacts, recipe: RecipeName | Recipe, seed: int
) -> FedED:
    """Return FedED with a central network of the first client's architecture.

    Before its first answer the server takes as many more steps as a client's warm-up has.
    """
    warmup = named_recipe(recipe, None, facts).schedule.warmup_steps
    [name] = architectures(facts.image_set, 1)
    return FedED(labels, models.build(name, facts.n_classes, seed), warmup=warmup, seed=seed)


def named_recipe(recipe: str | Recipe, method: Method | None, facts: PublicFacts) -> Recipe:
    """Return the recipe of that name for a method, from public facts of the data.

    method: None for one without a recipe of its own. Raises ConfigurationError for another name
    than ours and paper.
    """
    if isinstance(recipe, Recipe):
        return recipe
    classes, proxies = facts.n_classes, facts.n_proxies
    if recipe == "paper":
        return recipes.paper(classes, proxies, facts.held, image_set=facts.image_set)
    if recipe != "ours":
        raise ConfigurationError("recipe", recipe, "use ours, paper, or a Recipe")
    if method is None:
        return recipes.plain(proxies)
    return method.recipe(classes, proxies, facts.held, facts.image_set)


def default_delta(records: Sequence[int]) -> float:
    """Return one in ten times the records of the largest client, and 1e-5 at most.

    >>> default_delta([100, 200])
    1e-05
    """
    return min(1e-5, 0.1 / max(records))


def pooled_heads(epsilon: float, *, local: bool = False) -> PooledHeads:
    """Return the method of the record unit: noisy class sums label the proxies.

    Clients answer with the mean of network and head: no validation, which would read records,
    chooses. local: every client makes its own noise, of which one sum has enough.

    >>> pooled_heads(4.0).rounds, pooled_heads(4.0, local=True).rounds
    (2, 1)
    """
    return PooledHeads(sums_for(epsilon, local=local) - 1)


def pooled_unit(
    facts: PublicFacts,
    epsilon: float,
    delta: float,
    *,
    local: bool = False,
    random: Random = os.urandom,
    ledgers: Mapping[int, Ledger] | None = None,
    session: bytes | None = None,
) -> PooledRecordUnit:
    """Return the record unit of pooled heads.

    Args:
        facts: public facts of the data.
        epsilon: of one record over the whole run.
        delta: of one record over the whole run.
        local: each client's own noise is enough, so that sums may be in clear.
        random: source of the noise.
        ledgers: by client, the ledger of its data set; by default in memory, for public data.
        session: of a roster; the ledger books under it.

    Example:
        >>> from secure_fd import federate, load, parse_split
        >>> data = federate(load("digits"), parse_split("iid"), 3, seed=0)
        >>> pooled_unit(PublicFacts.of(data), 1.0, 1e-5).plan.sums
        1
    """
    return PooledRecordUnit(
        epsilon,
        delta,
        records=facts.records,
        n_proxies=facts.n_proxies,
        n_classes=facts.n_classes,
        sums=sums_for(epsilon, local=local),
        honest=1 if local else None,
        random=random,
        ledgers=ledgers,
        session=session,
    )


def secure_sum(
    secure: Secure, data: FederatedData, seed: int | None, configuration: bytes = b""
) -> SecureSum:
    """Return the sum of that name: under masks, encryption or proofs about proxies, or in clear.

    seed: of the public draws of the masks' set-up; None: fresh. configuration: further settings on
    which all clients agree. Raises ConfigurationError for another name.

    >>> from secure_fd import federate, load, parse_split
    >>> data = federate(load("digits"), parse_split("iid"), 3, seed=0)
    >>> secure_sum(None, data, seed=0).name
    'plain'
    """
    clients = len(data.clients)
    if secure is None:
        return PlainSum(clients)
    committed = proxy_commitment(proxy_pixels(data.proxies.pixels))
    if secure == "masks":
        return MaskedSum(clients, public_seed=seed, configuration=configuration, proxies=committed)
    if secure == "prio3":
        from secure_fd.secure_sum.validated import Prio3Sum  # its circuits are slow to import

        return Prio3Sum(clients, configuration=configuration, proxies=committed)
    if secure != "he":
        raise ConfigurationError("secure", secure, "use masks, he, prio3, or None")
    from secure_fd.secure_sum.homomorphic import HomomorphicSum  # TenSEAL is slow to import

    return HomomorphicSum(clients, configuration=configuration, proxies=committed)
