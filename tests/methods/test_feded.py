"""FedED: the server's network learns from the mean, and its predictions are distilled."""

import numpy as np
import pytest
import torch

from secure_fd.methods.base import Setting
from secure_fd.methods.feded import FedED
from secure_fd.privacy.base import NoProtection
from secure_fd.training.models import flatten
from secure_fd.training.recipes import SGD, Schedule
from secure_fd.training.trainer import Trainer, predict
from secure_fd.votes.codec import Sums
from tests.small_federation import CPU
from tests.toy import network, toy

EARLIER, LATER = (0.3, 0.7), (0.9, 0.1)


def central(remember, warmup):
    steps = Schedule(proxy_steps=3, proxies_per_round=6, remember=remember, sgd=SGD(0.5, 4, 4))
    proxies, shape = toy(6).pixels, (1, 4, 4)
    terms = Setting(2, 2, shape, proxies, steps, (3, 4), bytes(32), None, NoProtection())
    return FedED("soft", network(1), warmup, seed=5).server(terms, network(1))


def votes(*means):
    """Sums of two clients."""
    return Sums(np.full(len(means), 2.0), 2 * np.array(means))


def trained(*lessons, warmup=0):
    """A copy of the central network, trained step by step; warmup: steps more on the first."""
    copy = network(1)
    trainer = Trainer(copy, toy(2), SGD(0.5, 4, 4), 5, CPU)
    for index, (where, means) in enumerate(lessons):
        steps = 3 + (warmup if index == 0 else 0)
        trainer.take_steps(steps, toy(6).pixels[where], torch.tensor(means))
    return copy


@pytest.mark.parametrize(("remember", "warmup"), [(True, 0), (False, 0), (True, 4)])
def test_the_central_network_answers_after_it_learnt_from_the_means(remember, warmup):
    made = central(remember, warmup)
    made.apply(np.array([2]), votes(EARLIER))
    answer = made.apply(np.array([4]), votes(LATER))
    last = ([2, 4], [EARLIER, LATER]) if remember else ([4], [LATER])
    copy = trained(([2], [EARLIER]), last, warmup=warmup)
    assert np.array_equal(answer.predictions, predict(copy, toy(6).pixels[[4]]))
    assert answer.indices.tolist() == [4]
    assert np.abs(answer.predictions - [LATER]).max() > 0.01  # not the mean itself
    assert not torch.equal(flatten(copy), flatten(trained(([2], [EARLIER]))))
