"""What trained clients would answer a server that picks, or makes up, the images it asks about.

The experimenter's side: attacks get these answers wrapped in an `attacks.core.view.Oracle`.
Answers pass through all that a round's would: the client's selector and network, the protection,
the codec, and the sum.

    protection = parts_of(terms.run(spec, seed)).protection
    made = run_row(terms, spec, seed, warm, chosen=protection)
    votes = injection_oracle(terms, made, data, protection)      # images [N, 1, H, W] -> [N, R, C]
    votes = choice_oracle(terms, made, data, protection)         # the same, public proxies only
    oracle = Oracle(votes, budget=1000)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core import fit
from attacks.core.view import AnswerFunction, Capability, LabelFunction, Oracle, View, server_view
from attacks.inversion import gmi
from attacks.inversion import prior as priors
from attacks.inversion.gmi import InversionTruth, inversion_truth
from attacks.inversion.ideal import DEFAULT, QUICK, Ideal, IdealK1, IdealK2, IdealK3, IdealSettings
from attacks.on_run import labelled, public_of
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
from experiments.suite.scenes import Job, Scene, Turn, launched
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import ClientMechanism, NoNoise, NoProtection, PrivacyMechanism
from secure_fd.privacy.client import ClientUnit
from secure_fd.privacy.label import LabelUnit
from secure_fd.selection.selectors import FittedSelector
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import Contribution, FloatArray, IntArray, KnowledgeCodec, Released, Sums

_Release = Callable[[int], Released]
"""What a client lets go about one batch."""


def injection_oracle(
    terms: Terms,
    made: RowRun,
    data: FederatedData,
    protection: PrivacyMechanism,
    *,
    selecting: bool = True,
    debias: bool = False,
) -> AnswerFunction:
    """Votes [N, R, C] about any images: of each client where uploads are readable, or their sum.

    protection: the very object that the row was trained with. The label unit makes new answers
    noisy, a session a batch, so that an image asked about in two batches is answered with new
    noise. selecting: with False nobody abstains, as in
    FedMD, and the networks are the same. debias: the server's unbiased sum, so that R = 1.
    """
    clients = _clients(terms, made, data, protection, selecting=selecting)

    def answer(images: Tensor) -> Tensor:
        session = _fresh(terms, made.spec, protection, images, data)
        indices = np.arange(len(images))
        return clients.votes(session, clients.released(session, indices, images), debias=debias)

    return answer


def choice_oracle(
    terms: Terms,
    made: RowRun,
    data: FederatedData,
    protection: PrivacyMechanism,
    *,
    selecting: bool = True,
    debias: bool = False,
) -> AnswerFunction:
    """The same about public proxies alone, which a ledger answers as it has answered before.

    LocalError, before anybody is asked, where an image is no public proxy.
    """
    clients = _clients(terms, made, data, protection, selecting=selecting)
    places = {image.numpy().tobytes(): i for i, image in enumerate(data.proxies.pixels)}

    def answer(images: Tensor) -> Tensor:
        found = [places.get(image.numpy().tobytes()) for image in images]
        if None in found:
            raise LocalError("images: one is not a public proxy, and only those may be chosen")
        release = clients.released(protection, np.array(found, dtype=np.int64), images)
        return clients.votes(protection, release, debias=debias)

    return answer


def unanimous_labels(terms: Terms, made: RowRun, data: FederatedData) -> LabelFunction:
    """The class that most votes name if nobody abstains and nothing protects them."""
    bare = replace(made, spec=replace(made.spec, unit=None, secure=None))
    votes = injection_oracle(terms, bare, data, NoProtection(), selecting=False)
    return lambda images: votes(images).sum(dim=1).argmax(dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Clients:
    """Every client's network, trusted in full, and its selector where one stands in the way."""

    spec: RowSpec
    method: FedMD | SelectiveFD
    data: FederatedData
    networks: tuple[nn.Module, ...]
    selectors: tuple[FittedSelector, ...] | None

    def answer(self, client: int, images: Tensor) -> Contribution:
        """What a client's selector and network say about images [N, 1, H, W]."""
        labels, n_classes = self.method.labels, self.data.n_classes
        if self.selectors is None or isinstance(self.method, FedMD):
            opinion = FedMD(labels).policy(self.data.clients[client], images)
        else:
            verdict = self.selectors[client].predict(images)
            opinion = self.method.policy_of(verdict, n_classes)
        predictions = predict(self.networks[client], images)
        return opinion.contribution(np.arange(len(images)), predictions, labels, trust=1.0)

    def released(self, protection: PrivacyMechanism, indices: IntArray, images: Tensor) -> _Release:
        """What a client lets go about one batch, known to the protection by these indices."""

        def release(client: int) -> Released:
            bare = isinstance(protection, NoProtection)
            part: ClientMechanism | None = NoNoise() if bare else protection.parts.get(client)
            if part is not None:
                return part.release(indices, lambda _: self.answer(client, images))
            raise LocalError(f"client {client} has no part of the {protection.name}")

        return release

    def votes(self, protection: PrivacyMechanism, release: _Release, *, debias: bool) -> Tensor:
        """[N, R, C] in votes, in the units that the codec would send."""
        clients, n_classes = range(len(self.data.clients)), self.data.n_classes
        codec = KnowledgeCodec(n_classes, protection.levels(self.method.levels))
        sent = [codec.encode(release(k)).reshape(-1, n_classes) for k in clients]
        votes: FloatArray = np.stack(sent, axis=1).astype(np.float64) / codec.levels
        if debias:
            total = votes.sum(axis=1)
            votes = protection.debias(Sums(total.sum(axis=1), total), clients).total[:, None]
        elif self.spec.secure is not None:
            votes = votes.sum(axis=1, keepdims=True)
        return torch.from_numpy(votes)


def _clients(
    terms: Terms,
    made: RowRun,
    data: FederatedData,
    protection: PrivacyMechanism,
    *,
    selecting: bool,
) -> _Clients:
    """ConfigurationError for a row whose clients answer nothing, or only in a noisy sum."""
    method = parts_of(terms.run(made.spec, made.seed), data).method
    if not isinstance(method, FedMD | SelectiveFD) or isinstance(protection, ClientUnit):
        allowed = "use Selective-FD or FedMD, not the client unit"
        raise ConfigurationError("row", made.spec.key, allowed)
    networks = tuple(network(name, data.n_classes, flat) for name, flat in made.networks)
    selectors = None
    if selecting and isinstance(method, SelectiveFD):
        kind = method.selector
        selectors = tuple(kind.fit(client, data.proxies.pixels) for client in data.clients)
    return _Clients(made.spec, method, data, networks, selectors)


def _fresh(
    terms: Terms, spec: RowSpec, protection: PrivacyMechanism, images: Tensor, data: FederatedData
) -> PrivacyMechanism:
    """A session about images that no ledger knows; other protections have no ledger."""
    if not isinstance(protection, LabelUnit):
        return protection
    session = parts_of(terms.run(spec, 0), data).protection
    session.agree(len(images), data.n_classes)
    for number in range(len(data.clients)):
        session.client(number)
    return session


ROUNDS, QUICK_ROUNDS = 10, 2
"""Fewer than a comparison's: at 256 proxies a round nearly every proxy has been answered."""
_SEARCH = gmi.InversionSettings(steps=80, restarts=2, per_class=2)
_QUICK_SEARCH = gmi.InversionSettings(steps=40, restarts=1, per_class=1)
_QUICK_PRIOR = priors.PriorSettings(channels=8, steps=40, batch=16, learning_rate=2e-3)
_OPEN = "not applicable: missing a query to answer without a selector (it only reads)"


@dataclass(frozen=True, slots=True)
class _Row:
    """selector: of the clients. selecting: False switches it off for what the attacker asks."""

    spec: RowSpec
    label: str
    selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio"
    selecting: bool = True


def _every_row() -> dict[str, _Row]:
    soft, hard = RowSpec("selective-fd", "soft"), RowSpec("selective-fd", "hard")
    masks = RowSpec("selective-fd", "hard", "masks")
    protected = (
        RowSpec("selective-fd", "soft", "masks"),
        masks,
        replace(masks, unit="label"),
    )
    rows = {spec.key: _Row(spec, spec.label) for spec in (soft, hard, *protected)}
    for spec in (soft, hard):
        off = f"{spec.label}, selector off for queries"
        rows[f"{spec.key}-open"] = _Row(spec, off, selecting=False)
    rows[f"{hard.key}-kulsif"] = _Row(hard, f"{hard.label}, KuLSIF selector", "kulsif")
    return rows


_ROWS = _every_row()
_QUICK_ROWS = ("selective-fd-soft", "selective-fd-soft-open")


@dataclass(frozen=True, slots=True, eq=False)
class Arsenal:
    """What all rows of a seed share. runs: the rows without protection, by their kind of labels."""

    attacks: tuple[Ideal, ...]
    truth: InversionTruth
    warm: WarmUp = field(repr=False)
    runs: Mapping[str, RowRun] = field(repr=False)


def _rows(job: Job) -> Mapping[str, str]:
    """Selective-FD under every protection, and with its selector off; a few where quick."""
    return {key: _ROWS[key].label for key in (_QUICK_ROWS if job.quick else _ROWS)}


def _terms(job: Job, selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio") -> Terms:
    chosen = Settings(
        dataset=job.dataset,
        data_dir=job.data_dir,
        rounds=QUICK_ROUNDS if job.quick else ROUNDS,
        selector=selector,
        dp_eps=job.epsilon,
        dp_delta=job.delta,
        attacks="none",
        quick=job.quick,
    )
    return plan(chosen, None).terms


def _theft(job: Job) -> IdealSettings:
    return QUICK if job.quick else DEFAULT


def _prepare(job: Job, seed: int) -> Arsenal:
    """The warm-up, the unprotected runs, the public prior, controls and the truth."""
    terms = _terms(job)
    data = data_of(terms, seed)
    warm = warm_up(terms, seed)
    runs: dict[str, RowRun] = {
        spec.labels: run_row(terms, spec, seed, warm)
        for spec in (_ROWS[key].spec for key in _rows(job))
        if spec.secure is None
    }
    public = public_of(data)
    members = labelled(concatenate([c.train for c in data.clients]))
    lesson = fit.QUICK if job.quick else fit.Fit()
    truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
    sizes = _QUICK_PRIOR if job.quick else priors.PriorSettings()
    trained = priors.train_prior(public.proxies, sizes, seed)
    # One prior and one set of controls for the three levels.
    search = _QUICK_SEARCH if job.quick else _SEARCH
    first = IdealK1.prepare(public, trained, seed, _theft(job), search, lesson)
    others = (
        level.prepare(public, trained, seed, _theft(job), search, lesson, first.controls)
        for level in (IdealK2, IdealK3)
    )
    attacks = (first, *others)
    return Arsenal(attacks, truth, warm, runs)


def _attempts(turn: Turn[Arsenal]) -> Mapping[str, Attempt]:
    """Train the row, unless `prepare` has, and attack it at every level of access."""
    row, ready, seed = _ROWS[turn.row], turn.made, turn.seed
    terms, spec = _terms(turn.job, row.selector), row.spec
    protection = parts_of(terms.run(spec, seed), data_of(terms, seed)).protection
    if spec.secure is None and row.selector == "proxy-ratio":
        made = ready.runs[spec.labels]
    else:
        made = run_row(terms, spec, seed, ready.warm, chosen=protection)
    view = _view(turn, terms, made, protection)
    teacher = unanimous_labels(terms, made, data_of(terms, seed))
    return {
        attack.name: (lambda: _OPEN)
        if isinstance(attack, IdealK1) and not row.selecting
        else partial(launched, replace(attack, teacher=teacher), view, ready.truth, seed)
        for attack in ready.attacks
    }


def _view(turn: Turn[Arsenal], terms: Terms, made: RowRun, protection: PrivacyMechanism) -> View:
    """The malicious server's, with oracles that the row's clients answer."""
    data, noisy = data_of(terms, turn.seed), not isinstance(protection, NoProtection)
    asked = {"selecting": _ROWS[turn.row].selecting, "debias": noisy}
    makers = {
        Capability.CHOOSE_INDICES: choice_oracle,
        Capability.INJECT_PROXIES: injection_oracle,
    }
    oracles = {
        capability: Oracle(make(terms, made, data, protection, **asked), _theft(turn.job).queries)
        for capability, make in makers.items()
    }
    return server_view(made.transcript, public_of(data), oracles)


SCENE = Scene(
    name="extraction",
    title="Model extraction, then reconstruction",
    about="IDEAL steals a student from clients of one class each, by reading their ensembles, by "
    "choosing proxies, or by injecting images; the student is inverted with GMI's public "
    f"prior. {ROUNDS} rounds of training, one class a client: where each answer is one "
    "client's, and a selector has most to refuse.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
