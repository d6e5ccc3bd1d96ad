"""Votes in clear tell each client's labels exactly; masks leave one guess for all."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from attacks.view import Public, client_view, server_view
from attacks.votes import UNREADABLE, LabelDistribution
from secure_fd.aggregation.base import PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.knowledge import (
    Ensemble,
    FloatArray,
    KnowledgeCodec,
    Released,
    WordArray,
    one_hot,
)
from secure_fd.secagg.packing import LaneLayout
from secure_fd.transcript import DistillationRound, Transcript, readable_uploads

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
    """What the real sum puts on the wire, round after round."""
    history = Transcript(len(LABELS))
    answer = Ensemble(np.arange(M), np.full((M, C), 1 / C), np.ones(M, dtype=bool))
    for index in range(rounds):
        sent = aggregation.sum(index, votes(), 1)
        uploads = readable_uploads(sent, votes())
        history.distillation.append(
            DistillationRound(
                index,
                np.arange(M),
                1,
                uploads,
                sent.payloads,
                sent.total,
                answer,
                sent.survivors,
            )
        )
    return history


def public() -> Public:
    return Public(torch.zeros(M, 1, 4, 4), len(LABELS), C, lambda _: nn.Linear(1, 1))


def test_readable_uploads_give_every_distribution_exactly() -> None:
    estimate = ATTACK.run(server_view(run(PlainSum(3)), public()), 0)
    result = ATTACK.score(estimate, HISTOGRAMS, 0)
    assert estimate.read.all()
    assert result.figure == pytest.approx(0.0, abs=1e-12)
    assert result.control > 0.4
    assert result.details["largest_class_right"] == pytest.approx(1.0)
    assert UNREADABLE not in result.caveats


def test_masks_leave_the_same_guess_for_every_client_and_say_so() -> None:
    estimate = ATTACK.run(server_view(run(MaskedSum(3)), public()), 0)
    result = ATTACK.score(estimate, HISTOGRAMS, 0)
    assert not estimate.read.any()
    assert (estimate.shares == estimate.shares[0]).all()
    np.testing.assert_allclose(estimate.guess, HISTOGRAMS.sum(0) / HISTOGRAMS.sum())
    assert result.figure == pytest.approx(result.control)
    assert result.caveats == (UNREADABLE,)


def test_a_masked_sum_that_does_not_mask_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
    monkeypatch.setattr("secure_fd.secagg.server.mask_words", lambda *_: None)
    history = run(MaskedSum(3))
    assert all(record.uploads is None for record in history.distillation)
    result = ATTACK.score(ATTACK.run(server_view(history, public()), 0), HISTOGRAMS, 0)
    assert result.figure == pytest.approx(0.0, abs=1e-12)
    assert result.details["readable_clients"] == 3


def test_one_client_that_forgot_its_mask_is_read_alone() -> None:
    history = run(MaskedSum(3), rounds=1)
    clear = run(PlainSum(3), rounds=1).distillation[0].payloads[1]
    record = history.distillation[0]
    history.distillation[0] = replace(record, payloads={**record.payloads, 1: clear})
    estimate = ATTACK.run(server_view(history, public()), 0)
    assert estimate.read.tolist() == [False, True, False]
    np.testing.assert_allclose(estimate.shares[1], HISTOGRAMS[1] / HISTOGRAMS[1].sum())
    assert any("2 clients" in words for words in ATTACK.score(estimate, HISTOGRAMS, 0).caveats)


def test_masked_words_never_pass_for_votes() -> None:
    # A uniform 2-bit lane holds 0 or 1 with chance 1/2; 48 lanes: 4e-15 a payload.
    rng = np.random.default_rng(0)
    history = run(PlainSum(3), rounds=1)
    for _ in range(100):
        uniform = rng.integers(0, 2**64, (3, LAYOUT.words(M * C)), dtype=np.uint64)
        record = replace(history.distillation[0], uploads=None, payloads=dict(enumerate(uniform)))
        history.distillation[0] = record
        assert not ATTACK.run(server_view(history, public()), 0).read.any()


def test_an_attacker_who_knows_the_noise_undoes_it() -> None:
    # Randomised response over four classes, true with chance p, else one of the others: the
    # class totals are linear in the true ones, so public parameters give them back.
    p, rounds = 0.4, 400
    q = (1 - p) / (C - 1)
    rng = np.random.default_rng(0)
    history = Transcript(len(LABELS))
    answer = Ensemble(np.arange(M), np.full((M, C), 1 / C), np.ones(M, dtype=bool))
    for index in range(rounds):
        noisy = {}
        for k, classes in enumerate(LABELS):
            honest = rng.random(M) < p
            said = np.where(honest, classes, (classes + rng.integers(1, C, M)) % C)
            noisy[k] = CODEC.encode(Released(np.ones(M), one_hot(said, C)))
        total = np.stack(list(noisy.values())).sum(axis=0, dtype=np.uint64)
        history.distillation.append(
            DistillationRound(index, np.arange(M), 1, noisy, {}, total, answer, (0, 1, 2))
        )
    view = server_view(history, public())
    naive = ATTACK.score(ATTACK.run(view, 0), HISTOGRAMS, 0).figure
    knowing = LabelDistribution(debias=lambda votes, asked: (votes - asked * q) / (p - q))
    estimate = knowing.run(view, 0)
    # 4,800 answers a client: deviation of a share below .5 / sqrt(4800) / .2 = .036.
    assert knowing.score(estimate, HISTOGRAMS, 0).figure < 0.1
    assert naive > 0.3
    np.testing.assert_allclose(estimate.guess, HISTOGRAMS.sum(0) / HISTOGRAMS.sum(), atol=0.1)


def test_the_noise_of_survivors_alone_is_undone() -> None:
    """One of three clients is lost in every round; exact expected votes, so exact shares.

    The twin that takes the noise of all three off gets a guess that is far away.
    """
    p = 0.4
    q = (1 - p) / (C - 1)
    true = np.stack([np.bincount(votes, minlength=C) for votes in LABELS[:2]])
    scale = 1000  # levels that hold the expected fractions of a vote
    expected = np.rint(scale * (q * M + (p - q) * true)).astype(np.uint64)

    def guess(survivors: tuple[int, ...]) -> FloatArray:
        history = Transcript(len(LABELS))
        total = np.zeros((M, C), dtype=np.uint64)
        total[0] = expected.sum(axis=0)
        answer = Ensemble(np.arange(M), np.full((M, C), 1 / C), np.ones(M, dtype=bool))
        history.distillation.append(
            DistillationRound(
                0, np.arange(M), scale, None, {}, total.reshape(-1), answer, survivors
            )
        )
        knowing = LabelDistribution(debias=lambda votes, asked: (votes - asked * q) / (p - q))
        return knowing.run(server_view(history, public()), 0).guess

    np.testing.assert_allclose(guess((0, 1)), true.sum(axis=0) / true.sum(), atol=1e-3)
    assert np.abs(guess((0, 1, 2)) - true.sum(axis=0) / true.sum()).max() > 0.05


def test_a_client_cannot_run_it() -> None:
    with pytest.raises(MissingCapabilityError, match=r"sums over clients \(client\)"):
        ATTACK.run(client_view(run(PlainSum(3)), public()), 0)


def test_truth_of_another_shape_is_refused() -> None:
    estimate = ATTACK.run(server_view(run(PlainSum(3)), public()), 0)
    with pytest.raises(LocalError, match="histograms"):
        ATTACK.score(estimate, HISTOGRAMS[:, :2], 0)
