"""Interface of attacks, and the finished run that they attack."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from torch import nn

from attacks import load
from attacks.core.base import AttackResult, Effort, Estimate, FloatArray, Labelled
from attacks.core.statistics import Claim
from attacks.core.view import Capability, Public, View, server_view
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import IMAGE_SETS, image_set, own_shape
from secure_fd.data.images import Images, concatenate
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.fedavg import AveragesParameters
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.privacy.calibration import epsilon
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit, RandomizedResponse
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.protocol.transcript import Transcript
from secure_fd.simulation.federation import Federation
from secure_fd.training import models

EstimateT = TypeVar("EstimateT", bound=Estimate)
TruthT = TypeVar("TruthT")
REFERENCES = 200
"""Most private, and held-out, records of a class that an attack is scored with."""


@dataclass(frozen=True, slots=True)
class SumNoise:
    """Public facts about the noise in pooled sums.

    deviation: of an entry of a sum over all records, where a record moves the sum by 1 in L2.
    records: of all clients. claim: of the unit, for all of its sums.
    """

    deviation: float
    records: int
    claim: Claim

    @classmethod
    def of(cls, unit: PooledRecordUnit) -> Self | None:
        """Return the noise of all clients' shares, as the server reads it; None without noise.

        The claim counts on the honest clients' shares alone, and adds up the sums.
        """
        if unit.noiseless:
            return None
        plan = unit.plan
        all_shares = float(plan.noise * np.sqrt(plan.clients / plan.honest))
        noise = float(plan.noise / np.sqrt(plan.sums))
        claim = Claim(epsilon(plan, unit.delta), unit.delta, noise)
        return cls(all_shares, sum(unit.records), claim)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as attacks receive it: its data, transcript, networks and public settings.

    Attributes:
        data: records of all parties: what is public of them, and the truth.
        transcript: what crossed the boundary.
        seed: of the run and of its attacks.
        response: mechanism of the label unit, whose parameters are public.
        private: DP-SGD of shared parameters.
        adversarial: settings of the generator, where the method has one.
        noise: of pooled sums, what is public of it.
        networks: of each client, after the last round.
        effort: time that attacks may spend.
        model: architecture of shared parameters, where it is not that of the data.
        made: by attack, what `Attack.for_data` made for all runs on these data.
    """

    data: FederatedData = field(repr=False)
    transcript: Transcript = field(repr=False)
    seed: int
    response: RandomizedResponse | None = None
    private: PrivateSGD | None = None
    adversarial: AdversarialSettings | None = None
    noise: SumNoise | None = None
    networks: tuple[nn.Module, ...] = field(default=(), repr=False)
    effort: Effort = "full"
    model: str = ""
    made: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, data: FederatedData, federation: Federation, seed: int) -> Self:
        """Return a federation as it is now."""
        unit, method = federation.protection, federation.method
        return cls(
            data,
            federation.transcript,
            seed,
            unit.mechanism if isinstance(unit, LabelUnit) else None,
            method.private if isinstance(method, AveragesParameters) else None,
            method.adversarial if isinstance(method, DaFKD) else None,
            SumNoise.of(unit) if isinstance(unit, PooledRecordUnit) else None,
            tuple(federation.models),
        )

    @cached_property
    def public(self) -> Public:
        """Values that are public, and so known to every attacker."""
        return public_of(self.data, self.model)

    @cached_property
    def view(self) -> View:
        """View of the server."""
        return server_view(self.transcript, self.public)

    @cached_property
    def members(self) -> Labelled:
        """Training records of all clients."""
        return labelled(concatenate([client.train for client in self.data.clients]))

    @cached_property
    def held_out(self) -> Labelled:
        """Records that no client trained on."""
        return labelled(self.data.held_out)

    @cached_property
    def histograms(self) -> FloatArray:
        """[clients, classes] training records of each class."""
        return histograms(self.data)

    def shared(self, attack: "type[Attack[Any, Any]]") -> Any:  # noqa: ANN401 - the attack's own
        """Return what an attack shares between runs on these data; made now where it is missing."""
        if attack.name in self.made:
            return self.made[attack.name]
        return attack.for_data(self.data, self.seed, self.effort)

    def attack(self, name: str) -> AttackResult:
        """Return the result of an attack by name.

        Raises:
            ConfigurationError: for an unknown name.
            MissingCapabilityError: if the attacker can read too little of this run.
        """
        kind = load(name)
        shared = {kind.name: self.made[name]} if name in self.made else {}
        made = kind.for_run(replace(self, made={**self.made, **shared}))
        view = made.view or self.view
        view.require_any(*made.needs)
        return attack_view(made, view, self.seed)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Attack(ABC, Generic[EstimateT, TruthT]):
    """Attack on one run: estimate from the view of an attacker, and score with the truth.

    A subclass in this package is registered by its literal `name` and `title`; see `attacks.load`.
    Any other subclass is named package.module:Name, see examples/own_attack.py.

    Attributes:
        name: word of the command line and of the report.
        title: a few words for a table.
        needs: alternative sets of capabilities, one of which suffices.
        figure_name: unit of what the attack reports.
        control_name: the same figure without access.
        shown_in: column of the comparison's table, which shows the sharpest attack of each; attacks
            of a column run where none is named. In this package a literal of the class's body.
        truth: what `score` alone reads; `attack_view` removes it for `estimate`.
        view: view of a set-up of the attack's own, which replaces the run's.
        positive: figure that the same attack reaches where nothing protects clients.
        caveats: of this run, for the report.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[tuple[frozenset[Capability], ...]]
    figure_name: ClassVar[str]
    control_name: ClassVar[str]
    shown_in: ClassVar[str] = ""

    truth: TruthT = field(default=None, repr=False)  # type: ignore[assignment]  # until it is known
    view: View | None = field(default=None, repr=False)
    positive: float | None = None
    caveats: tuple[str, ...] = ()

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> Any:  # noqa: ANN401 - each attack's own
        """Return what the attack shares between all runs on the same data; by default nothing.

        Priors, controls and shadow runs are made here once. `for_run` reads them by
        `run.shared(cls)`; they are passed between processes.

        Args:
            data: records of all parties.
            seed: of the runs.
            effort: time that may be spent.
        """

    @classmethod
    @abstractmethod
    def for_run(cls, run: Run) -> Self:
        """Return the attack on a finished run, with the truth that scores it.

        Raises:
            MissingCapabilityError: if the run lacks what the attack reads.
        """

    @abstractmethod
    def estimate(self, view: View, seed: int) -> EstimateT:
        """Return the attacker's estimate from its view alone.

        Raises:
            MissingCapabilityError: if the view lacks what the attack needs.
        """

    @abstractmethod
    def score(self, estimate: EstimateT, seed: int) -> AttackResult:
        """Return the figure beside its control; only this method reads the truth."""

    def with_truth(self, truth: TruthT) -> Self:
        """Return the same attack, scored with this truth."""
        return replace(self, truth=truth)


def attack_view(made: Attack[Any, Any], view: View, seed: int) -> AttackResult:
    """Estimate from a view without the truth, then score with it."""
    blind = replace(made, truth=None)
    return made.score(blind.estimate(view, seed), seed)


def public_of(data: FederatedData, model: str = "") -> Public:
    """Return what every attacker knows: proxies, counts of clients and classes, the network.

    model: name of the network; "" for that of the data.
    """
    known = own_shape(data.name) is not None or data.name in IMAGE_SETS
    shared = model or (image_set(data.name).architectures[0] if known else models.SHARED)
    unlabelled = bool((data.proxies.labels < 0).any())
    return Public(
        labelled(data.proxies).images,
        len(data.clients),
        data.n_classes,
        partial(models.build, shared, data.n_classes),
        None if unlabelled else data.proxies.labels,
    )


def histograms(data: FederatedData) -> FloatArray:
    """[clients, classes] training records of each class."""
    rows = [np.bincount(c.train.labels.numpy(), minlength=data.n_classes) for c in data.clients]
    return np.stack(rows).astype(np.float64)


def labelled(images: Images) -> Labelled:
    """Return a run's images as attacks take them: feature maps of one pixel are vectors."""
    pixels = images.pixels
    features = pixels.shape[2:] == (1, 1)
    return Labelled(pixels.flatten(1) if features else pixels, images.labels)
