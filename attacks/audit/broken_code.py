"""Mistakes that privacy software really makes: the real code with one thing replaced.

Each twin still prints the claim of the right code. An audit that does not refute it has no
power against that mistake.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from attacks.audit.setting import SHARE, replaced
from secure_fd.privacy import client, dp_sgd, label, record
from secure_fd.privacy.client import ClientPlan
from secure_fd.privacy.label import BoolArray, NoisyLabels, RandomizedResponse
from secure_fd.privacy.record import Bounded, PooledPlan
from secure_fd.privacy.samplers import FloatGaussian, Random, discrete_gaussian, words
from secure_fd.votes.codec import FloatArray, IntArray

Twin = Callable[[], AbstractContextManager[None]]
Sampler = Callable[[float, int, Random], IntArray]


def _scaled(sampler: Sampler, factor: float) -> Sampler:
    """The same noise with its first argument, deviation or variance, times a factor."""

    def sample(spread: float, size: int, random: Random) -> IntArray:
        return sampler(factor * spread, size, random)

    return sample


def less_client_noise(share: float) -> AbstractContextManager[None]:
    """So much of the deviation in every share of the client unit."""
    return replaced(client, "discrete_gaussian", _scaled(discrete_gaussian, share))


def less_pooled_noise(share: float) -> AbstractContextManager[None]:
    """So much of the deviation in every share of the pooled record unit."""
    return replaced(record, "discrete_gaussian", _scaled(discrete_gaussian, share))


def less_label_noise(share: float) -> AbstractContextManager[None]:
    """So much of the chance of each answer that is not the truth; one word in 2^64 at least."""
    weigh = label._wrong_weight

    def less(epsilon: float, others: int) -> int:
        return max(1, int(weigh(epsilon, others) * share))

    return replaced(label, "_wrong_weight", less)


def less_training_noise(share: float) -> AbstractContextManager[None]:
    """So much of the deviation on every gradient."""

    class Less(FloatGaussian):
        def normal(self, count: int) -> FloatArray:
            return super().normal(count) * share

    return replaced(dp_sgd, "FloatGaussian", Less)


def abstention_unprotected() -> AbstractContextManager[None]:
    """Classes are answered at random, an abstention always as it is."""
    respond = RandomizedResponse.respond_rows

    def leaky(self: RandomizedResponse, symbols: IntArray, random: Random) -> BoolArray:
        named: BoolArray = respond(self, symbols, random)
        named[symbols == self.alphabet_size - 1] = False
        return named

    return replaced(RandomizedResponse, "respond_rows", leaky)


def fresh_noise_every_round() -> AbstractContextManager[None]:
    """The ledger counts a pair as released and forgets what it answered."""
    answer = NoisyLabels.named

    def forgetful(self: NoisyLabels, indices: IntArray, symbols: IntArray) -> BoolArray:
        self._answered[indices] = False
        return answer(self, indices, symbols)

    return replaced(NoisyLabels, "named", forgetful)


def noise_per_client() -> AbstractContextManager[None]:
    """Each of n clients adds deviation sigma / n instead of sigma / sqrt n."""
    share = ClientPlan.share

    def short(self: ClientPlan, size: int, random: Random) -> IntArray:
        with less_client_noise(1 / math.sqrt(self.honest)):
            return share(self, size, random)

    return replaced(ClientPlan, "share", short)


def dropouts_ignored() -> AbstractContextManager[None]:
    """Shares are sized as if all clients were there and honest."""
    share = ClientPlan.share

    def short(self: ClientPlan, size: int, random: Random) -> IntArray:
        with less_client_noise(math.sqrt(self.honest / self.clients)):
            return share(self, size, random)

    return replaced(ClientPlan, "share", short)


def _repeating(sampler: Sampler, period: int) -> Sampler:
    """The same samples again: a call gives what the call `period` before it gave, one time."""
    calls: list[IntArray] = []

    def sample(spread: float, size: int, random: Random) -> IntArray:
        if len(calls) == 2 * period:
            calls.clear()
        fresh = len(calls) < period
        calls.append(sampler(spread, size, random) if fresh else calls[len(calls) - period])
        return calls[-1]

    return sample


def seed_shared_between_answers() -> AbstractContextManager[None]:
    """Two clients' answers are drawn from the same words."""
    kept: list[np.ndarray[tuple[int, ...], np.dtype[np.uint64]]] = []

    def same(random: Random, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        if kept and len(kept[0]) == count:
            return kept.pop()
        kept[:] = [words(random, count)]
        return kept[0]

    return replaced(label, "words", same)


def seed_shared_between_rounds(clients: int) -> AbstractContextManager[None]:
    """The second round of so many clients carries the noise of the first."""
    sampler = _repeating(discrete_gaussian, clients)
    return replaced(client, "discrete_gaussian", sampler)


def pooled_noise_per_client() -> AbstractContextManager[None]:
    """Each share of a pooled sum has deviation sigma / h instead of sigma / sqrt h."""
    share = PooledPlan.perturb

    def short(self: PooledPlan, sums: Bounded, random: Random) -> IntArray:
        with less_pooled_noise(1 / math.sqrt(self.honest)):
            return share(self, sums, random)

    return replaced(PooledPlan, "perturb", short)


def seed_shared_in_a_sum() -> AbstractContextManager[None]:
    """Every second client of a pooled sum adds the noise of the one before it."""
    return replaced(record, "discrete_gaussian", _repeating(discrete_gaussian, 1))


def _bent(bend: Callable[[IntArray], None]) -> Sampler:
    """The noise of a call, changed in place."""

    def sample(spread: float, size: int, random: Random) -> IntArray:
        made = discrete_gaussian(spread, size, random)
        bend(made)
        return made

    return sample


def _twins(noise: IntArray | FloatArray) -> None:
    noise[1] = noise[0]


def _gaps(noise: IntArray) -> None:
    noise[1::2] = 0


def every_other_entry() -> AbstractContextManager[None]:
    """Every second entry of a pooled sum has no noise."""
    return replaced(record, "discrete_gaussian", _bent(_gaps))


def two_entries_share() -> AbstractContextManager[None]:
    """Two entries of a pooled sum carry the same noise, of the right size."""
    return replaced(record, "discrete_gaussian", _bent(_twins))


class _Twins(FloatGaussian):
    def normal(self, count: int) -> FloatArray:
        made = super().normal(count)
        _twins(made)
        return made


def two_weights_share() -> AbstractContextManager[None]:
    """Two weights' gradients carry the same noise, of the right size."""
    return replaced(dp_sgd, "FloatGaussian", _Twins)


def _sampling(
    draw: Callable[[FloatGaussian, int], FloatArray],
) -> AbstractContextManager[None]:
    """Batches from another rule: uniform numbers, of which the smallest draw their records."""
    normal = FloatGaussian.normal

    class Drawing(FloatGaussian):
        def uniform(self, count: int) -> FloatArray:
            return draw(self, count)

        def normal(self, count: int) -> FloatArray:
            plain = replaced(Drawing, "uniform", FloatGaussian.uniform)
            with plain:
                return normal(self, count)

    return replaced(dp_sgd, "FloatGaussian", Drawing)


def shuffled_batches() -> AbstractContextManager[None]:
    """Batches of one size, as loaders make them, accounted as Poisson samples."""
    return fixed_batches(0.0)


def fixed_batches(share: float) -> AbstractContextManager[None]:
    """Batches whose size varies by so much of a Poisson sample's deviation around its mean."""

    def draw(chance: FloatGaussian, count: int) -> FloatArray:
        drawn, rate = FloatGaussian.uniform(chance, count), 1 / SHARE
        mean = count * rate
        size = round(mean + share * (np.count_nonzero(drawn < rate) - mean))
        ranks = np.argsort(np.argsort(drawn))
        return np.where(ranks < size, 0.0, 1.0)

    return _sampling(draw)


def twice_the_rate() -> AbstractContextManager[None]:
    """Each record is drawn twice as often as is accounted for."""
    return _sampling(lambda chance, count: FloatGaussian.uniform(chance, count) / 2)
