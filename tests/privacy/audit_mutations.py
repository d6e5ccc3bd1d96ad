"""Mistakes that privacy software really makes: the real code with one thing replaced.

Each mutant still prints the claim of the right code. An audit that does not refute it has no power
against that mistake.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import nn

from secure_fd.data.images import Images
from secure_fd.privacy import client, label, record
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.dp_sgd import PrivateBudget
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse
from secure_fd.privacy.samplers import Random, discrete_gaussian, words
from secure_fd.training.dp_sgd import PrivateGradient
from secure_fd.votes.codec import FloatArray, IntArray

Mutant = AbstractContextManager[Any]
HONEST = 6
"""Clients whose noise an audited sum of the client unit counts on."""
Sampler = Callable[[float, int, Random], IntArray]


# Less of what hides the data: a share of it is left.


def _scaled(share: float) -> Sampler:
    """Return the discrete Gaussian with a share of its deviation."""
    return lambda deviation, size, random: discrete_gaussian(share * deviation, size, random)


def less_client_noise(share: float) -> Mutant:
    """Scale the deviation of every share of the client unit."""
    return patch.object(client, "discrete_gaussian", _scaled(share))


def less_pooled_noise(share: float) -> Mutant:
    """Scale the deviation of every share of the pooled record unit."""
    return patch.object(record, "discrete_gaussian", _scaled(share))


def less_label_noise(share: float) -> Mutant:
    """Scale the chance of each answer that is not the truth; one word in 2^64 at least."""
    weigh = label._wrong_weight

    def less(epsilon: float, others: int) -> int:
        return max(1, int(weigh(epsilon, others) * share))

    return patch.object(label, "_wrong_weight", less)


def less_training_noise(share: float) -> Mutant:
    """Scale the deviation on every gradient."""
    noise = PrivateBudget.step_noise

    def less(self: PrivateBudget, count: int) -> FloatArray:
        return share * noise(self, count)

    return patch.object(PrivateBudget, "step_noise", less)


def fixed_batches(share: float) -> Mutant:
    """Scale the deviation of a batch's size around its mean: 0 is a loader's fixed size."""
    batch = PrivateBudget.batch

    def fixed(self: PrivateBudget) -> BoolArray:
        poisson = np.count_nonzero(batch(self))
        size = round(self.expected_batch + share * (poisson - self.expected_batch))
        ranks = np.argsort(np.argsort(self._chance.uniform(self._plan.n_records)))
        return np.asarray(ranks < size)

    return patch.object(PrivateBudget, "batch", fixed)


# Training.


def twice_the_rate() -> Mutant:
    """Draw each record twice as often as is accounted for."""
    batch = PrivateBudget.batch

    def twice(self: PrivateBudget) -> BoolArray:
        first = batch(self)  # q, and (1 - q) q / (1 - q) for those that it left
        return first | (self._chance.uniform(len(first)) < self.rate / (1 - self.rate))

    return patch.object(PrivateBudget, "batch", twice)


def clipped_too_late() -> Mutant:
    """Clip gradients at twice the norm that the noise was made for."""
    begin = PrivateGradient.__init__

    def loose(
        self: PrivateGradient, model: nn.Module, train: Images, budget: PrivateBudget
    ) -> None:
        begin(self, model, train, budget)
        self._clipper.max_grad_norm *= 2

    return patch.object(PrivateGradient, "__init__", loose)


# Answers.


def abstention_unprotected() -> Mutant:
    """Answer with a class at random, with an abstention always as it is."""
    respond = RandomizedResponse.respond_rows

    def leaky(self: RandomizedResponse, symbols: IntArray, random: Random) -> BoolArray:
        named: BoolArray = respond(self, symbols, random)
        named[symbols == self.alphabet_size - 1] = False
        return named

    return patch.object(RandomizedResponse, "respond_rows", leaky)


def fresh_noise_every_round() -> Mutant:
    """Count an answer as released, and draw it again when it is requested again."""
    answer = NoisyLabels.named

    def forgetful(self: NoisyLabels, indices: IntArray, symbols: IntArray) -> BoolArray:
        self._answered[indices] = False
        return answer(self, indices, symbols)

    return patch.object(NoisyLabels, "named", forgetful)


def seed_shared_between_answers() -> Mutant:
    """Draw the answers of two clients from the same words."""
    kept: list[np.ndarray[tuple[int, ...], np.dtype[np.uint64]]] = []

    def same(random: Random, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        if kept and len(kept[0]) == count:
            return kept.pop()
        kept[:] = [words(random, count)]
        return kept[0]

    return patch.object(label, "words", same)


# Shares of noise in a sum.


def dropouts_ignored() -> Mutant:
    """Size the shares as if all clients were present and honest."""
    share = ClientPlan.share

    def short(self: ClientPlan, size: int, random: Random) -> IntArray:
        with less_client_noise(math.sqrt(self.honest / self.clients)):
            return share(self, size, random)

    return patch.object(ClientPlan, "share", short)


def _repeating(period: int) -> Sampler:
    """Return a sampler whose call gives what the call `period` before it gave, one time."""
    calls: list[IntArray] = []

    def sample(deviation: float, size: int, random: Random) -> IntArray:
        if len(calls) == 2 * period:
            calls.clear()
        fresh = len(calls) < period
        calls.append(discrete_gaussian(deviation, size, random) if fresh else calls[-period])
        return calls[-1]

    return sample


def seed_shared_between_rounds() -> Mutant:
    """Give the second round of the audited sum the noise of the first."""
    return patch.object(client, "discrete_gaussian", _repeating(HONEST))


def sensitivity_of_half_a_vote() -> Mutant:
    """Make the noise for votes of half their norm."""
    right = ClientPlan.l2.fget
    assert right is not None
    return patch.object(ClientPlan, "l2", property(lambda plan: right(plan) / 2))


def seed_shared_in_a_sum() -> Mutant:
    """Give every second client of a pooled sum the noise of the one before it."""
    return patch.object(record, "discrete_gaussian", _repeating(1))


def two_entries_share() -> Mutant:
    """Give two entries of a pooled sum the same noise, of the right size."""

    def sample(deviation: float, size: int, random: Random) -> IntArray:
        made = discrete_gaussian(deviation, size, random)
        made[1] = made[0]
        return made

    return patch.object(record, "discrete_gaussian", sample)


LESS = {
    "pooled-noise": less_pooled_noise,
    "dp-sgd-noise": less_training_noise,
    "dp-sgd-batches": fixed_batches,
    "label-noise": less_label_noise,
    "label": less_label_noise,
    "client-noise": less_client_noise,
}
"""Mutant with a share of the noise, by audit."""

MUTATIONS = {
    "noise x0.95, label": ("label-noise", partial(less_label_noise, 0.95)),
    "noise shared by clients": ("pooled-noise", seed_shared_in_a_sum),
    "two entries, one noise": ("pooled-noise", two_entries_share),
    "shuffled as Poisson": ("dp-sgd-batches", partial(fixed_batches, 0.0)),
    "twice the sampling rate": ("dp-sgd-batches", twice_the_rate),
    "clipped at twice the norm": ("dp-sgd-batches", clipped_too_late),
    "abstention unprotected": ("label", abstention_unprotected),
    "fresh noise each round": ("label", fresh_noise_every_round),
    "seed shared, answers": ("label", seed_shared_between_answers),
    "seed shared, rounds": ("client-noise", seed_shared_between_rounds),
    "dropouts ignored": ("client-noise", dropouts_ignored),
    "sensitivity of half a vote": ("client-noise", sensitivity_of_half_a_vote),
}
"""The audit that must catch a mutant, and the mutant, by name: one for each kind of mistake."""

SAME_KIND = {
    "noise x0.95, pooled": ("pooled-noise", partial(less_pooled_noise, 0.95)),
    "noise x0.95, DP-SGD": ("dp-sgd-noise", partial(less_training_noise, 0.95)),
    "noise x0.95, client": ("client-noise", partial(less_client_noise, 0.95)),
    **{
        f"no noise, {audit}": (audit, partial(less, 0.0))
        for audit, less in LESS.items()
        if audit != "dp-sgd-batches"
    },
}
"""Further mutants with less noise, by the audit that must catch them."""
