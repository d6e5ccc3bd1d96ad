"""Paired-logits inversion: a client's answers beside everybody else's, turned back into a picture.

A server that reads votes about public images knows, of each image, what a client says and what the
rest says. A network learns the way back, from such a pair to the image, and is then asked for a
pair that no public image gave: a client that is sure of a class which the rest does not name
(Takahashi, Liu and Liu, "Breaching FedMD: Image Recovery via Paired-Logits Inversion Attack", CVPR
2023). Theirs is one network a client, with an image prior from a translation model; here one
network serves all clients, without a prior.

A client that answers one class for everything, as one that trained on one class does in FedMD,
says nothing of the images that it answers: then every picture is the mean public image.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from attacks.base import Attack, AttackResult, FloatArray, Images, seeded, substream
from attacks.fit import on_device
from attacks.inversion import InversionTruth, beyond_pixels, score_inversion
from attacks.membership import mean_votes
from attacks.view import Capability, View
from secure_fd.errors import ConfigurationError, MissingCapabilityError

Pair = tuple[FloatArray, FloatArray]
"""What a client says, and the mean of what the others say: [P, C] each."""
_SUREST = 20
"""Proxies that say how the rest answers where a client is sure."""
_CAVEATS = (
    "one picture a client, of the class that it names beyond the rest: of a class, not of a record",
    "attack accuracy and D speak of classes, not of records",
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the way back is learnt: Adam on the squared error of pixels.

    >>> Decoding(steps=10).hidden
    128
    """

    steps: int = 500
    batch: int = 64
    hidden: int = 128
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.hidden) < 1 or not self.learning_rate > 0:
            raise ConfigurationError("decoding", self, "use 1 or more, and a rate above 0")


@dataclass(frozen=True, slots=True, eq=False)
class PairedLogits(Attack[Images, InversionTruth]):
    """A picture of every client whose votes can be read, by the class that it names most.

    controls: [c] images a class of attackers without access, as `ModelInversion` makes them.

    >>> PairedLogits.title
    'Paired-logits inversion of votes'
    """

    name = "paired-logits"
    title = "Paired-logits inversion of votes"
    figure_name = "Δ PSNR"
    control_name = "Δ of the public-only target"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.READ_UPLOADS, Capability.PUBLIC_PROXIES}),
    )

    controls: Mapping[str, Images] = field(repr=False)
    decoding: Decoding = field(default_factory=Decoding)

    def run(self, view: View, seed: int) -> Images:
        """One image a client. MissingCapabilityError without votes, or with one client alone."""
        view.require_any(*self.needs)
        proxies, pairs = view.public.pixels(), pairs_of(view)
        named = [int((own - rest).sum(axis=0).argmax()) for own, rest in pairs]
        sure = np.stack([_sure_pair(*each, c) for each, c in zip(pairs, named, strict=True)])
        given = np.stack([np.concatenate(each, axis=1) for each in pairs])
        made = _way_back(_tensor(given), proxies, self.decoding, _tensor(sure), seed)
        return Images(made, torch.tensor(named), target="all rounds")

    def score(self, estimate: Images, truth: InversionTruth, seed: int) -> AttackResult:
        """Δ with its interval; A, A_H, D and attack accuracy beside the controls."""
        details = beyond_pixels("", estimate, truth)
        shown = {"attack": estimate, **self.controls}
        return score_inversion(self, estimate, truth, seed, self.controls, details, shown, _CAVEATS)


def pairs_of(view: View) -> list[Pair]:
    """By client, its votes and the mean of the others', over the rounds that asked."""
    clients = view.public.n_clients
    if clients < 2:
        raise MissingCapabilityError(f"missing a second client's votes ({view.attacker})")
    said = np.stack([mean_votes(view, k) for k in range(clients)])
    total = said.sum(axis=0)
    return [(own, (total - own) / (clients - 1)) for own in said]


def _sure_pair(own: FloatArray, rest: FloatArray, label: int) -> FloatArray:
    """[2 C] the client as sure of a class as it ever was, the rest as silent on it as then."""
    surest = own[:, label].argsort()[::-1][:_SUREST]
    said = np.zeros(own.shape[1])
    said[label] = own[surest, label].max()
    others = rest[surest].mean(axis=0)
    others[label] = rest[surest, label].min()
    return np.concatenate([said, others])


def _way_back(
    given: Tensor, proxies: Tensor, decoding: Decoding, asked: Tensor, seed: int
) -> Tensor:
    """[K, ...] images of the pairs asked [K, 2 C]. given: [K, P, 2 C] of the proxies [P, ...]."""
    clients, images, width = given.shape
    model = seeded(
        lambda: _decoder(width, decoding.hidden, proxies[0].numel()), substream(seed, "decoder")
    )
    draws = torch.Generator().manual_seed(substream(seed, "pairs"))
    optimiser = torch.optim.Adam(model.parameters(), decoding.learning_rate)
    scale = given.flatten(0, 1).std(dim=0).clamp_min(1e-3)
    with on_device(model) as on:
        for _ in range(decoding.steps):
            client, image = (
                torch.randint(most, (decoding.batch,), generator=draws)
                for most in (clients, images)
            )
            wanted = proxies[image].flatten(1).to(on)
            loss = mse_loss(model((given[client, image] / scale).to(on)), wanted)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        with torch.no_grad():
            made: Tensor = model((asked / scale).to(on)).cpu()
    return made.view(len(asked), *proxies.shape[1:])


def _decoder(width: int, hidden: int, pixels: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, pixels),
        nn.Sigmoid(),
    )


def _tensor(values: FloatArray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
