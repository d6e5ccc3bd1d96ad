"""Votes in clear tell each client's labels exactly; masks leave one guess for all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import nn

from attacks.core.base import AttackResult, Distributions
from attacks.core.view import Public, View, server_view
from attacks.server.label_distribution import UNREADABLE, LabelDistribution
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.protocol.transcript import Transcript
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import SGD, Recipe, Schedule
from secure_fd.votes.codec import KnowledgeCodec, Released, WordArray, one_hot
from secure_fd.votes.packing import LaneLayout
from tests.attack_games import add_round
from tests.drivers.summing import summed

C, M = 4, 12
CODEC = KnowledgeCodec(C, 1)
LABELS = (
    [0] * 6 + [1] * 6,
    [1] * 3 + [2] * 9,
    [3] * 12,
)
"""The classes that each client's model predicts on the 12 proxies of a round."""
HISTOGRAMS = np.stack([np.bincount(votes, minlength=C) * 5 for votes in LABELS])
ATTACK = LabelDistribution()
LAYOUT = LaneLayout(len(LABELS), bound=1)


def votes() -> dict[int, WordArray]:
    return {
        k: CODEC.encode(Released(np.ones(M), one_hot(classes, C)))
        for k, classes in enumerate(LABELS)
    }


def run(aggregation: SecureSum, rounds: int = 2) -> Transcript:
    """Record the transcript of a real sum, round after round."""
    history = Transcript(len(LABELS))
    for index in range(rounds):
        sent = summed(aggregation, index, votes(), 1)
        uploads = {k: votes()[k] for k in sent.survivors} if sent.seen.uploads else None
        seen = {"payloads": sent.payloads, "survivors": sent.survivors}
        add_round(history, sent.total, C, uploads=uploads, **seen)
    return history


def public() -> Public:
    return Public(torch.zeros(M, 1, 4, 4), len(LABELS), C, lambda _: nn.Linear(1, 1))


def attacked(
    seen: Transcript | View, truth: ArrayLike = HISTOGRAMS, attack: LabelDistribution = ATTACK
) -> tuple[Distributions, AttackResult]:
    view = server_view(seen, public()) if isinstance(seen, Transcript) else seen
    estimate = attack.estimate(view, 0)
    return estimate, attack.with_truth(truth).score(estimate, 0)


@pytest.mark.parametrize("aggregation", [PlainSum, MaskedSum], ids=["clear", "unmasked"])
def test_readable_votes_give_every_distribution_exactly(aggregation, request):
    if aggregation is MaskedSum:
        request.getfixturevalue("unmasked")
    history = run(aggregation(3))
    assert all(
        (seen.uploads is None) == (aggregation is MaskedSum) for seen in history.distillation
    )
    estimate, result = attacked(history)
    assert estimate.read.all()
    assert result.figure == pytest.approx(0.0, abs=1e-12)
    assert result.control > 0.4
    assert result.details["largest_class_right"] == pytest.approx(1.0)
    assert UNREADABLE not in result.caveats


def test_masks_leave_the_same_guess_for_every_client_and_say_so():
    estimate, result = attacked(run(MaskedSum(3)))
    assert not estimate.read.any()
    assert (estimate.rows == estimate.rows[0]).all()
    np.testing.assert_allclose(estimate.guess, HISTOGRAMS.sum(0) / HISTOGRAMS.sum())
    assert result.figure == pytest.approx(result.control)
    assert result.caveats == (UNREADABLE,)


def test_one_client_that_forgot_its_mask_is_read_alone():
    history = run(MaskedSum(3), rounds=1)
    clear = run(PlainSum(3), rounds=1).distillation[0].payloads[1]
    record = history.distillation[0]
    history.distillation[0] = replace(record, payloads={**record.payloads, 1: clear})
    estimate, result = attacked(history)
    assert estimate.read.tolist() == [False, True, False]
    np.testing.assert_allclose(estimate.rows[1], HISTOGRAMS[1] / HISTOGRAMS[1].sum())
    assert any("2 clients" in words for words in result.caveats)


def test_masked_words_never_pass_for_votes():
    # A uniform 2-bit lane holds 0 or 1 with chance 1/2; 48 lanes: 4e-15 a payload.
    rng = np.random.default_rng(0)
    history = run(PlainSum(3), rounds=1)
    for _ in range(100):
        uniform = rng.integers(0, 2**64, (3, LAYOUT.words(M * C)), dtype=np.uint64)
        record = replace(history.distillation[0], uploads=None, payloads=dict(enumerate(uniform)))
        history.distillation[0] = record
        assert not attacked(history)[0].read.any()


# Randomised response over four classes: true with chance TRUE, else one of the others.
TRUE, SCALE = 0.4, 1000
OTHER = (1 - TRUE) / (C - 1)
KNOWING = LabelDistribution(RandomizedResponse(float(np.log(TRUE / OTHER)), C))
"""Class totals are linear in the true ones, so public parameters give them back."""


def noisy(clients: tuple[int, ...], survivors: tuple[int, ...]) -> View:
    """A round of the votes that are expected of clients, in thousandths: so shares are exact."""
    shares = (OTHER + (TRUE - OTHER) * one_hot(LABELS[k], C) for k in clients)
    uploads = {k: np.rint(SCALE * e).reshape(-1).astype(np.uint64) for k, e in enumerate(shares)}
    total = np.sum(list(uploads.values()), axis=0, dtype=np.uint64)
    seen = {"levels": SCALE, "survivors": survivors, "uploads": uploads}
    return server_view(add_round(Transcript(len(LABELS)), total, C, **seen), public())


def test_an_attacker_who_knows_the_noise_undoes_that_of_the_survivors():
    """A mutant that also subtracts the noise of a lost client guesses far off."""
    whole = noisy((0, 1, 2), (0, 1, 2))
    estimate, result = attacked(whole, attack=KNOWING)
    assert result.figure < 1e-3
    assert attacked(whole)[1].figure > 0.3
    np.testing.assert_allclose(estimate.guess, HISTOGRAMS.sum(0) / HISTOGRAMS.sum(), atol=1e-3)
    true = HISTOGRAMS[:2].sum(axis=0) / HISTOGRAMS[:2].sum()
    right, mutant = (
        KNOWING.estimate(noisy((0, 1), survivors), 0).guess for survivors in ((0, 1), (0, 1, 2))
    )
    np.testing.assert_allclose(right, true, atol=1e-3)
    assert np.abs(mutant - true).max() > 0.05


@pytest.mark.parametrize("applied", [True, False])
def test_masks_on_an_update_hide_whose_labels_it_tells_unless_not_applied(digits, applied, request):
    if not applied:
        request.getfixturevalue("unmasked")
    steps = Schedule(local_steps=3, proxy_steps=0, sgd=SGD(0.1, 16))
    made = simulate(digits, method="fedavg", secure="masks", recipe=Recipe(3, steps))
    made.fit()
    assert made.transcript.parameters[-1].uploads is None
    found = made.attack("label-distribution")
    if applied:
        assert found.figure == found.control
        assert found.caveats == (UNREADABLE,)
    else:
        assert found.figure < 0.1
