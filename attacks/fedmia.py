"""FedMIA: membership from all clients' updates of all rounds, without shadow runs.

A client that trains on a record moves against the record's gradient. A server that reads every
update compares how far the client's own points along it with how far the others', who do not hold
the record, do; and does so again in every round (Zhu et al., "Evaluating Membership Inference
Attacks and Defenses in Federated Learning", arXiv 2402.06289, the form with cosines). They average
the tail's probability over rounds; the deviation itself, averaged here, ranks as well and does not
saturate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, normalize

from attacks.base import FloatArray, Labelled
from attacks.fit import network, on_device
from attacks.peers import PeerAttack, Signals
from attacks.view import Capability, Public, View
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.transcript import Float32Array, ParameterRound

_HELD = 20_000_000
"""Numbers in the gradients that are held at once: each is as large as the network."""
_LEAST_CLIENTS = 3
"""In a round: the client, and two peers."""


@dataclass(frozen=True, slots=True, eq=False)
class FedMIA(PeerAttack):
    """By round, how the client's cosine with a candidate's gradient stands out among its peers'.

    The transcript keeps every round's uploads under `Federation(keep_uploads=True)`; else the
    newest alone. A round that the client missed, or all but one peer, tells nothing. most_rounds:
    of those, as many and evenly spaced; None for all: a round costs a gradient for each candidate.

    >>> FedMIA.title
    "Membership: FedMIA, every update beside the peers'"
    """

    name = "fedmia"
    title = "Membership: FedMIA, every update beside the peers'"
    needs = (frozenset({Capability.CLIENT_PARAMETERS, Capability.GLOBAL_PARAMETERS}),)

    most_rounds: int | None = None

    def __post_init__(self) -> None:
        if self.most_rounds is not None and self.most_rounds < 1:
            raise ConfigurationError("most_rounds", self.most_rounds, "use 1 or more, or None")

    def signals(self, view: View, seed: int) -> Sequence[Signals]:  # noqa: ARG002 - nothing is drawn
        """Cosines of the client's update and of its peers', by round."""
        return [self._cosines(view.public, *pair) for pair in self._rounds(view)]

    def _rounds(self, view: View) -> list[tuple[Float32Array, ParameterRound]]:
        """Rounds that show updates, each with the parameters that it began from."""
        pairs = zip(view.models[:-1], view.models[1:], strict=True)
        found = [
            (before.parameters, seen)
            for before, seen in pairs
            if seen.uploads and self.client in seen.uploads and len(seen.uploads) >= _LEAST_CLIENTS
        ]
        return [found[i] for i in evenly(len(found), self.most_rounds)]

    def _cosines(self, public: Public, start: Float32Array, seen: ParameterRound) -> Signals:
        uploads = seen.uploads or {}
        clients = sorted(uploads)
        moved = torch.stack([torch.from_numpy(start - uploads[k]) for k in clients])
        along = _alignment(public, start, self.candidates, normalize(moved, dim=1))
        own = clients.index(self.client)
        return along[own], np.delete(along, own, axis=0)


def along_means(view: View, candidates: Labelled, most_rounds: int | None = None) -> FloatArray:
    """[N] cosines with the mean update of all clients, which masks show too; means over rounds.

    MissingCapabilityError where fewer than two rounds of global parameters were sent.
    """
    view.require(Capability.GLOBAL_PARAMETERS)
    pairs = list(zip(view.models[:-1], view.models[1:], strict=True))
    if not pairs:
        raise MissingCapabilityError(f"missing two rounds of global parameters ({view.attacker})")
    found = []
    for before, seen in (pairs[i] for i in evenly(len(pairs), most_rounds)):
        moved = torch.from_numpy(before.parameters - seen.parameters)[None]
        found.append(
            _alignment(view.public, before.parameters, candidates, normalize(moved, dim=1))
        )
    return np.asarray(np.concatenate(found).mean(axis=0))


def evenly(rounds: int, most: int | None) -> list[int]:
    """At most so many of the rounds 0 to `rounds` - 1, evenly spaced and the newest among them.

    >>> evenly(10, 4), evenly(2, None)
    ([0, 3, 6, 9], [0, 1])
    """
    chosen = np.linspace(rounds - 1, 0, rounds if most is None else min(most, rounds))
    return [int(i) for i in chosen.round()[::-1]]


def _alignment(
    public: Public, start: Float32Array, candidates: Labelled, directions: Tensor
) -> FloatArray:
    """[K, N] cosines of each candidate's gradient at `start` with directions [K, m]."""
    model = network(public, torch.from_numpy(start.copy()))
    with on_device(model) as on:
        return _along(model, candidates, directions.to(on), max(1, _HELD // len(start)))


def _along(model: nn.Module, candidates: Labelled, directions: Tensor, at_once: int) -> FloatArray:
    """Where model and directions are, so many candidates at once."""
    by_record = vmap(grad(_loss_of(model)), in_dims=(None, 0, 0))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    parts = []
    for chunk in torch.split(torch.arange(len(candidates)), at_once):
        some = candidates.take(chunk)
        images, labels = (side.to(directions.device) for side in (some.images, some.labels))
        found = by_record(weights, images, labels)
        flat = torch.cat([g.flatten(1) for g in found.values()], dim=1)
        parts.append(directions @ normalize(flat, dim=1).T)
    return np.asarray(torch.cat(parts, dim=1).double().cpu().numpy())


def _loss_of(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """Weights, one image and its label -> the cross-entropy."""
    buffers = dict(model.named_buffers())

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model, {**weights, **buffers}, (image[None],))
        return cross_entropy(logits, label[None])

    return loss
