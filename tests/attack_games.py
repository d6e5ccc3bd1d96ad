"""Digits, networks and written transcripts that tests of attacks share."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import interpolate

from attacks.core.base import Labelled, seeded
from attacks.core.fit import Fit, fit
from attacks.core.view import Public, View, server_view
from attacks.inversion.gmi import InversionTruth, inversion_truth
from attacks.inversion.prior import Prior, PriorSettings, train_prior
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.votes.codec import Ensemble, IntArray, UnitArray


def perceptron(inputs: int, hidden: int, classes: int, seed: int) -> nn.Module:
    """One hidden layer; the weights follow from the seed."""

    def layers() -> nn.Module:
        first, last = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)

    return seeded(layers, seed)


def linear(inputs: int, classes: int, seed: int) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes)), seed)


mlp = partial(perceptron, 256, 48, 10)
"""Seed -> a network of digits at 16 x 16 pixels."""


@cache
def digits(side: int = 16) -> Labelled:
    """All 1,797 digits of scikit-learn in random order, enlarged to a side."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.tensor(found.images[order] / 16, dtype=torch.float32)[:, None]
    if side != 8:
        images = interpolate(images, size=side, mode="bilinear").clamp(0, 1)
    return Labelled(images, torch.tensor(found.target[order], dtype=torch.int64))


def part(start: int, stop: int) -> Labelled:
    """Some of the enlarged digits."""
    return digits().take(torch.arange(start, stop))


# A private network to invert or to steal, and what all parties know.

TRAINING = Fit(epochs=10)


@cache
def known() -> Public:
    return Public(part(0, 600).images, 3, 10, mlp, part(0, 600).labels)


@cache
def prior() -> Prior:
    settings = PriorSettings(
        latent=16, channels=6, steps=150, batch=16, learning_rate=2e-3, critic_steps=3
    )
    return train_prior(known().proxies, settings, seed=0)


@cache
def private_network() -> nn.Module:
    return fit(mlp, part(600, 1200).images, part(600, 1200).labels, TRAINING, seed=1)


@cache
def inverted_truth() -> InversionTruth:
    return inversion_truth(part(600, 1200), part(1200, 1797), known(), TRAINING, 0)


def add_round(
    history: Transcript,
    total: UnitArray,
    classes: int,
    *,
    proxies: IntArray | None = None,
    levels: int = 1,
    uploads: dict[int, UnitArray] | None = None,
    payloads: dict[int, UnitArray] | None = None,
    answer: Ensemble | None = None,
    survivors: tuple[int, ...] = (0, 1, 2),
) -> Transcript:
    """Write one more round: its sum [m * C], and by default an ensemble that says nothing."""
    indices = np.arange(len(total) // classes) if proxies is None else proxies
    m = len(indices)
    silent = Ensemble(indices, np.full((m, classes), 1 / classes), np.ones(m, dtype=bool))
    history.distillation.append(
        ObservedRound(
            len(history.distillation),
            answer or silent,
            uploads,
            payloads or {},
            total,
            survivors,
            levels,
        )
    )
    return history


def client_view(transcript: Transcript, public: Public) -> View:
    """A curious client: what the server sends to all clients, and no upload."""
    sent, made = Transcript(transcript.n_clients), transcript.generator
    sent.distillation = [seen.broadcast() for seen in transcript.distillation]
    sent.parameters = [seen.broadcast() for seen in transcript.parameters]
    sent.heads = [seen.broadcast() for seen in transcript.heads]
    sent.generator = None if made is None else made.broadcast()
    sent.features = transcript.features
    return replace(server_view(sent, public), attacker="client")


def answered(*ensembles: Ensemble) -> Transcript:
    """Rounds of three clients of which nothing was seen but the ensembles."""
    history = Transcript(3)
    for answer in ensembles:
        total = np.zeros(answer.predictions.size, dtype=np.uint64)
        classes = answer.predictions.shape[1]
        add_round(history, total, classes, proxies=answer.indices, answer=answer)
    return history
