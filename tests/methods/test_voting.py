"""Methods that average votes: votes of a client, ensembles of the server, distillation targets."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import (
    SelectiveFD,
    SelectiveFDAsPublished,
    WeighedVotes,
    precise,
)
from secure_fd.methods.votes import LEAST_COMPARED, agreement
from secure_fd.training.trainer import Trainer
from secure_fd.votes.codec import Ensemble, Sums, one_hot
from tests.small_federation import BRIEF, ensembles, federation, run

RNG = np.random.default_rng(0)
SUMS = Sums(
    count=np.array([4.0, 4.0, 2.0, 0.0, 4.0]),
    total=np.array([[4.0, 0, 0], [2.0, 1, 1], [1.0, 1, 0], [0, 0, 0], [1.5, 1.5, 1]]),
)


def test_a_weighed_vote_is_the_product_of_selector_and_network():
    votes = WeighedVotes(np.array([[0.8, 0.2, 0.0], [0.0, 0.0, 0.0]]), np.arange(3) < 2)
    softmax = np.array([[0.3, 0.1, 0.6], [0.2, 0.5, 0.3]])
    soft = votes.contribution(np.arange(2), softmax, "soft", trust=1.0)
    both = 0.24**2, 0.02**2  # .8 x .3 and .2 x .1, sharpened; without evidence no vote
    assert soft.weights == pytest.approx([sum(both), 0.0])
    assert soft.predictions[0] == pytest.approx([both[0] / sum(both), both[1] / sum(both), 0.0])
    hard = votes.contribution(np.arange(2), softmax, "hard", trust=1.0)
    assert hard.weights == pytest.approx([np.sqrt(0.24), 0.0])
    assert hard.predictions[0].tolist() == [1.0, 0.0, 0.0]
    # A network without trust only divides between the classes held: .75 and .25.
    new = votes.contribution(np.arange(2), softmax, "soft", trust=0.0)
    assert new.weights[0] == pytest.approx(0.6**2 + 0.05**2)
    between = votes.contribution(np.arange(2), softmax, "soft", trust=0.5)
    assert between.weights[0] == pytest.approx(0.42**2 + 0.035**2)


def test_trust_is_the_agreement_on_many_kept_proxies_and_none_on_few():
    """One kept proxy would show what the network answers about it."""
    count = LEAST_COMPARED
    answers = np.arange(count + 1) % 3
    named = np.where(np.arange(count + 1) < 8, 0, answers)  # 5 of these 8 differ
    for kept, trust in ((count, 1 - 5 / count), (count - 1, None), (1, None)):
        made = Ensemble(np.arange(count + 1), np.eye(3)[named], np.arange(count + 1) < kept)
        assert agreement(answers, made) == (trust and pytest.approx(trust))
        assert agreement(None, made) is None


# The server's ensembles.


@pytest.mark.parametrize("threshold", [0.3, 0.5, 1.0, 1.4])
def test_kept_predictions_are_near_their_label(threshold):
    """2 (1 - max h) is |h - onehot(h)|_1, by definition rather than by formula here."""
    h = RNG.dirichlet(np.full(6, 0.9), size=2000)
    distance = np.abs(h - one_hot(h.argmax(axis=1), 6)).sum(axis=1)
    found = precise(h, threshold)
    clear = np.abs(distance - threshold) > 1e-9
    assert found[clear].tolist() == (distance <= threshold)[clear].tolist()
    assert 0 < found.sum() < len(found)
    ties = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert not precise(ties, threshold).any()


def test_the_server_keeps_precise_ensembles():
    """2 (1 - max h) is 0, 1, 1, no answer, 1.25; the third ties, so it names no label."""
    where = np.array([5, 7, 8, 9, 11])
    for threshold, kept in ((0.5, 1), (1.0, 2), (2.0, 2)):
        found = SelectiveFD("soft", server_threshold=threshold).ensemble(where, SUMS)
        assert found.kept.tolist() == [True] * kept + [False] * (5 - kept)
        assert found.predictions[1].tolist() == [0.5, 0.25, 0.25]
        assert found.indices.tolist() == where.tolist()
    assert SelectiveFD("hard").ensemble(where, SUMS).predictions[1].tolist() == [1, 0, 0]
    mean = FedMD().ensemble(where, SUMS)
    published = SelectiveFDAsPublished("hard").ensemble(where, SUMS)
    assert mean.kept.tolist() == [True, True, True, False, True]
    assert published.kept[2]
    assert mean.predictions[2].tolist() == published.predictions[2].tolist() == [0.5, 0.5, 0.0]
    assert np.isfinite(mean.predictions).all()


@pytest.mark.parametrize("remember", [True, False])
def test_targets_are_the_newest_ensembles_of_all_rounds_or_of_the_last(
    digits, remember, monkeypatch
):
    targets_of = []

    def watched(_, __, pixels=None, targets=None):
        if pixels is not None:
            targets_of.append((pixels.clone(), targets.clone()))

    monkeypatch.setattr(Trainer, "take_steps", watched)
    made = run(federation(digits, FedMD(), schedule=replace(BRIEF, remember=remember)), rounds=3)
    newest = {}
    for number, sent in enumerate(ensembles(made)):
        rows = dict(zip(sent.indices.tolist(), sent.predictions, strict=True))
        newest = {**newest, **rows} if remember else rows
        order = sorted(newest)
        wanted = torch.tensor(np.stack([newest[i] for i in order]), dtype=torch.float32)
        for pixels, targets in targets_of[4 * number : 4 * number + 4]:
            assert torch.equal(pixels, digits.proxies.pixels[order])
            assert torch.equal(targets, wanted)
    assert len(newest) > 32 if remember else len(newest) == 32
