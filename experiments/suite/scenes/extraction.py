"""IDEAL steals a student from trained clients, by what a server may read or inject.

Answers pass through all that a round's would: the client's selector and network, the protection,
the codec and the sum.

    clients = Clients.of(terms, made, data, protection)
    oracle = Oracle(clients.injected, budget=1000)     # images [N, 1, H, W] -> votes [N, R, C]
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core import fit
from attacks.core.run import labelled, public_of
from attacks.core.view import Capability, Oracle, server_view
from attacks.inversion import gmi
from attacks.inversion import prior as priors
from attacks.inversion.gmi import InversionTruth, inversion_truth
from attacks.inversion.ideal import DEFAULT, QUICK, Ideal
from experiments.compare.leakage import Attempt
from experiments.core.rows import RowSpec, Terms
from experiments.core.runs import (
    RowRun,
    WarmUp,
    data_of,
    network,
    parts_of,
    run_row,
    warm_up,
)
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import launched, members_of
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import NoNoise, NoProtection, PrivacyMechanism
from secure_fd.privacy.label import LabelUnit
from secure_fd.selection.selectors import FittedSelector
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import Contribution, IntArray, KnowledgeCodec, Sums


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """Trained clients of Selective-FD, which answer a server that picks the images.

    Attributes:
        summed: whether the server reads only the sum of the votes.
        protection: the object that the row was trained with.
        selecting: with False no client abstains, as in FedMD, and the networks are the same.
        debias: whether the answer is the server's unbiased sum, so that R = 1.
    """

    summed: bool
    method: SelectiveFD
    data: FederatedData
    protection: PrivacyMechanism
    networks: tuple[nn.Module, ...] = field(repr=False)
    selectors: tuple[FittedSelector, ...] = field(repr=False)
    selecting: bool = True
    debias: bool = False

    @classmethod
    def of(
        cls, terms: Terms, made: RowRun, data: FederatedData, protection: PrivacyMechanism
    ) -> Self:
        """Rebuild the clients of a row. Raises ConfigurationError if they send no votes."""
        method = parts_of(terms.run(made.spec, made.seed), data).method
        if not isinstance(method, SelectiveFD):
            raise ConfigurationError("row", made.spec.key, "use Selective-FD")
        networks = tuple(network(name, data.n_classes, flat) for name, flat in made.networks)
        fitted = tuple(method.selector.fit(c, data.proxies.pixels) for c in data.clients)
        return cls(bool(made.spec.secure), method, data, protection, networks, fitted)

    def injected(self, images: Tensor) -> Tensor:
        """Votes [N, R, C] about any images: of each client where uploads are readable, or a sum.

        Under the label unit each batch has fresh noise, as its ledger knows none of the images.
        """
        unit = self.protection
        if isinstance(unit, LabelUnit):
            unit = LabelUnit(unit.mechanism.epsilon, unit.delta)
            unit.agree(len(images), self.data.n_classes)
            for client in range(len(self.data.clients)):
                unit.client(client)
        return self._votes(unit, np.arange(len(images)), images)

    def _answer(self, client: int, images: Tensor, _: IntArray) -> Contribution:
        """Return what a client's selector and network answer about images [N, 1, H, W]."""
        labels = self.method.labels
        opinion = FedMD(labels).policy(self.data.clients[client], images)
        if self.selecting:
            verdict = self.selectors[client].predict(images)
            opinion = self.method.policy_of(verdict, self.data.n_classes)
        predictions = predict(self.networks[client], images)
        return opinion.contribution(np.arange(len(images)), predictions, labels, trust=1.0)

    def _votes(self, unit: PrivacyMechanism, indices: IntArray, images: Tensor) -> Tensor:
        """[N, R, C] in votes, in the units that the codec would send."""
        clients, n_classes = range(len(self.data.clients)), self.data.n_classes
        codec, sent = KnowledgeCodec(n_classes, unit.levels(self.method.levels)), []
        for k in clients:
            part = NoNoise() if isinstance(unit, NoProtection) else unit.parts[k]
            released = part.release(indices, partial(self._answer, k, images))
            sent.append(codec.encode(released).reshape(-1, n_classes))
        votes = np.stack(sent, axis=1).astype(np.float64) / codec.levels
        if self.debias:
            total = votes.sum(axis=1)
            votes = unit.debias(Sums(total.sum(axis=1), total), clients).total[:, None]
        elif self.summed:
            votes = votes.sum(axis=1, keepdims=True)
        return torch.from_numpy(votes)


ROUNDS, QUICK_ROUNDS = 10, 2
"""Fewer than a comparison's: at 256 proxies a round nearly every proxy has been answered."""
_SEARCH = gmi.InversionSettings(steps=80, restarts=2, per_class=2)
_QUICK_SEARCH = gmi.InversionSettings(steps=40, restarts=1, per_class=1)
_QUICK_PRIOR = priors.PriorSettings(channels=8, steps=40, batch=16, learning_rate=2e-3)
_SOFT, _HARD = RowSpec("selective-fd", "soft"), RowSpec("selective-fd", "hard")
_NOISY = replace(_HARD, secure="masks", unit="label")
_READS, _INJECTS = "ideal-reads", "ideal-injects"
_OFF = f"{_SOFT.key}-open"
"""Row whose clients answer the attacker's queries without their selectors."""
_SPECS = {spec.key: spec for spec in (_SOFT, _HARD, _NOISY)} | {_OFF: _SOFT}


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """The warm-up and attacks that all rows of a seed share."""

    terms: Terms
    data: FederatedData
    attack: Ideal
    truth: InversionTruth
    warm: WarmUp = field(repr=False)


def _rows(cell: Cell) -> Mapping[str, str]:
    """Selective-FD with soft and hard labels, under masks and noise, and with its selector off."""
    labels = {key: spec.label for key, spec in _SPECS.items()}
    labels[_OFF] += ", selector off for queries"
    return {key: labels[key] for key in ((_SOFT.key, _OFF) if cell.quick else labels)}


def _prepare(cell: Cell, data_dir: Path | None) -> Prepared:
    """The warm-up, the public prior, controls and the truth."""
    chosen = Settings(
        dataset=cell.dataset,
        data_dir=data_dir,
        rounds=QUICK_ROUNDS if cell.quick else ROUNDS,
        dp_eps=cell.epsilon,
        dp_delta=cell.delta,
        attacks="none",
        quick=cell.quick,
    )
    terms, seed = plan(chosen, None).terms, cell.seed
    data = data_of(terms, seed)
    warm, public = warm_up(terms, seed), public_of(data)
    lesson = fit.QUICK if cell.quick else fit.Fit()
    truth = inversion_truth(members_of(data), labelled(data.held_out), public, lesson, seed)
    sizes = _QUICK_PRIOR if cell.quick else priors.PriorSettings()
    trained = priors.train_prior(public.proxies, sizes, seed)
    theft, search = (QUICK, _QUICK_SEARCH) if cell.quick else (DEFAULT, _SEARCH)
    attack = replace(Ideal.prepare(public, trained, seed, search, lesson), theft=theft)
    return Prepared(terms, data, attack, truth, warm)


def _attempts(cell: Cell, made: Prepared) -> Mapping[str, Attempt]:
    """Train the row and attack it as a server that reads, and as one that injects."""
    terms, spec, seed = made.terms, _SPECS[cell.row], cell.seed
    protection = parts_of(terms.run(spec, seed), made.data).protection
    run = run_row(terms, spec, seed, made.warm, chosen=protection)
    clients = replace(
        Clients.of(terms, run, made.data, protection),
        selecting=cell.row != _OFF,
        debias=spec.unit is not None,
    )
    known, attack = public_of(made.data), made.attack
    oracle = Oracle(clients.injected, attack.theft.queries)
    acting = {_INJECTS: server_view(run.transcript, known, {Capability.INJECT_PROXIES: oracle})}
    reading = {_READS: server_view(run.transcript, known)} if clients.selecting else {}
    views = {**reading, **acting}
    return {name: partial(launched, attack, v, made.truth, seed) for name, v in views.items()}


SCENE = Scene(
    title="Model extraction, then reconstruction",
    about="IDEAL steals a student from clients of one class each, by reading their ensembles or "
    "by injecting images; the student is inverted with GMI's public "
    f"prior. {ROUNDS} rounds of training, one class a client: where each answer is one "
    "client's, and a selector has most to refuse.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
