"""What trained clients would answer a server that picks, or makes up, the images it asks about.

The experimenter's side: attacks get these answers wrapped in an `attacks.view.Oracle`.
Answers pass through all that a round's would: the client's selector and network, the protection,
the codec, and the sum.

    protection = protection_for(terms, spec)
    made = run_row(terms, spec, seed, warm, progress, chosen=protection)
    votes = injection_oracle(terms, made, data, protection)      # images [N, 1, H, W] -> [N, R, C]
    votes = choice_oracle(terms, made, data, protection)         # the same, public proxies only
    oracle = Oracle(votes, budget=1000)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from attacks.view import AnswerFunction, LabelFunction
from experiments.rows import RowSpec, Terms
from experiments.runs import RowRun, method_of, network, protection_for
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import concatenate
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import (
    Contribution,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Released,
    Sums,
)
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protection.base import FromAnswers, NetworkFree, NoProtection, Protection
from secure_fd.protection.client import ClientUnit
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.selection.client import FittedSelector
from secure_fd.training import predict

_Release = Callable[[int], Released]
"""What a client lets go about one batch."""


def injection_oracle(
    terms: Terms,
    made: RowRun,
    data: FederatedData,
    protection: Protection,
    *,
    selecting: bool = True,
    debias: bool = False,
) -> AnswerFunction:
    """Votes [N, R, C] about any images: of each client where uploads are readable, or their sum.

    protection: the very object that the row was trained with. The record unit answers from its one
    release; the label unit makes new answers noisy, a session a batch, so that an image asked
    about in two batches is answered with new noise. selecting: with False nobody abstains, as in
    FedMD, and the networks are the same. debias: the server's unbiased sum, so that R = 1.
    """
    clients = _clients(terms, made, data, protection, selecting=selecting)

    def answer(images: Tensor) -> Tensor:
        session = _fresh(terms, made.spec, protection, images, data)
        indices = np.arange(len(images))

        def release(client: int) -> Released:
            if isinstance(session, RecordUnit):
                return session.judge(client, images)
            return _released(session, client, indices, lambda _: clients.answer(client, images))

        return _votes(made.spec, data, session, release, clients.method.levels, debias=debias)

    return answer


def choice_oracle(
    terms: Terms,
    made: RowRun,
    data: FederatedData,
    protection: Protection,
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
        indices = np.array(found, dtype=np.int64)

        def release(client: int) -> Released:
            return _released(protection, client, indices, lambda _: clients.answer(client, images))

        return _votes(made.spec, data, protection, release, clients.method.levels, debias=debias)

    return answer


def unanimous_labels(terms: Terms, made: RowRun, data: FederatedData) -> LabelFunction:
    """The class that most votes name if nobody abstains and nothing protects them."""
    bare = replace(made, spec=replace(made.spec, unit=None, secure=None))
    votes = injection_oracle(terms, bare, data, NoProtection(), selecting=False)
    return lambda images: votes(images).sum(dim=1).argmax(dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class _Clients:
    """Every client's network, trusted in full, and its selector where one stands in the way."""

    method: FedMD | SelectiveFD
    data: FederatedData
    networks: tuple[nn.Module, ...]
    selectors: tuple[FittedSelector, ...] | None

    def answer(self, client: int, images: Tensor) -> Contribution:
        """What a client's selector and network say about images [N, 1, H, W]."""
        labels, n_classes = self.method.labels, self.data.n_classes
        if self.selectors is None or isinstance(self.method, FedMD):
            opinion = FedMD(labels).opinion(self.data.clients[client], images)
        else:
            verdict = self.selectors[client].judge(images)
            opinion = self.method.opinion_of(verdict, n_classes)
        predictions = predict(self.networks[client], images)
        return opinion.contribution(np.arange(len(images)), predictions, labels, trust=1.0)


def _clients(
    terms: Terms, made: RowRun, data: FederatedData, protection: Protection, *, selecting: bool
) -> _Clients:
    """ConfigurationError for a row whose clients answer nothing, or only in a noisy sum."""
    method = method_of(terms, made.spec)
    if not isinstance(method, FedMD | SelectiveFD) or isinstance(protection, ClientUnit):
        allowed = "use Selective-FD or FedMD, not the client unit"
        raise ConfigurationError("row", made.spec.key, allowed)
    networks = tuple(network(name, data.n_classes, flat) for name, flat in made.networks)
    selectors = None
    if selecting and isinstance(method, SelectiveFD):
        kind = method.selector
        selectors = tuple(kind.fit(client, data.proxies.pixels) for client in data.clients)
    return _Clients(method, data, networks, selectors)


def _fresh(
    terms: Terms, spec: RowSpec, protection: Protection, images: Tensor, data: FederatedData
) -> Protection:
    """A session about images that no ledger knows; other protections have no ledger."""
    if not isinstance(protection, LabelUnit):
        return protection
    session = protection_for(terms, spec)
    records = [concatenate([c.train, c.validation]) for c in data.clients]
    session.prepare(images, data.n_classes, records)
    return session


def _released(
    protection: Protection,
    client: int,
    indices: IntArray,
    answer: Callable[[IntArray], Contribution],
) -> Released:
    match protection:
        case NetworkFree() as heads:
            return heads.release(client, indices)
        case FromAnswers() as answers:
            return answers.release(client, indices, answer)
        case unknown:
            raise LocalError(f"a {unknown.name} protection releases nothing")


def _votes(
    spec: RowSpec,
    data: FederatedData,
    protection: Protection,
    release: _Release,
    levels: int,
    *,
    debias: bool,
) -> Tensor:
    """[N, R, C] in votes, in the units that the codec would send."""
    clients = range(len(data.clients))
    codec = KnowledgeCodec(data.n_classes, protection.levels(levels))
    sent = [codec.encode(release(k)).reshape(-1, data.n_classes) for k in clients]
    votes: FloatArray = np.stack(sent, axis=1).astype(np.float64) / codec.levels
    if debias:
        total = votes.sum(axis=1)
        votes = protection.debias(Sums(total.sum(axis=1), total), clients).total[:, None]
    elif spec.secure is not None:
        votes = votes.sum(axis=1, keepdims=True)
    return torch.from_numpy(votes)
