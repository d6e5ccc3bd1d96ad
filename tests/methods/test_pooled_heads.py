"""Heads on public features: sums of class sums, and residual rounds towards least squares."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.rivals.afl import AFL
from secure_fd import simulate
from secure_fd.data.images import concatenate
from secure_fd.errors import PeerError
from secure_fd.methods.base import write_index
from secure_fd.methods.least_squares import LeastSquares
from secure_fd.methods.pooled_heads import KNOWN, PooledHeads, simplex
from secure_fd.selection.density_ratio import class_means, shared_reference
from secure_fd.training.recipes import SGD, Recipe
from tests.small_federation import SMALL, STILL

ONCE = replace(STILL, proxy_steps=1, anneal_over=1, sgd=SGD(0.05, distillation_batch=32))


def run(data, method, rounds, schedule=STILL, secure=None):
    made = simulate(data, method=method, recipe=Recipe(rounds, schedule), secure=secure)
    made.fit(rounds)
    return made


def role(made, client=0):
    return made.federation.clients[client].role


def pooled(data):
    """The reference, features and one-hot labels of all training records."""
    reference = shared_reference(data.proxies.pixels, SMALL)
    records = concatenate([client.train for client in data.clients])
    return reference, reference.features(records.pixels), np.eye(10)[records.labels.numpy()]


def test_one_sum_gives_the_density_ratio_head_of_all_records(digits):
    made = run(digits, PooledHeads(residual_rounds=0, features=SMALL), 1)
    reference, features, labels = pooled(digits)
    means = class_means(features, labels.argmax(axis=1), tuple(range(10)))
    wanted = reference.solver.solve(means.T)
    # Six classes of the proxies have no holder: ratios of 2.5 are halved, labels are the same.
    assert np.allclose(2 * role(made).head, wanted, atol=2e-3 * np.abs(wanted).max())
    assert set(role(made).lesson()[1].unique().tolist()) == {0.0, 1.0}
    assert simplex(np.array([[np.nextafter(0, -1), -1.0]])).tolist() == [[0.5, 0.5]]


def test_residual_rounds_come_to_least_squares(digits):
    """AFL solves it. The mutant, plain steps of the same number, is farther off."""
    made = run(digits, PooledHeads(8, features=SMALL), 9)
    _, features, labels = pooled(digits)

    def loss(head):
        return float(((labels - features @ head) ** 2).sum(axis=1).mean())

    ours, solved = role(made).head, role(run(digits, AFL(features=SMALL), 1)).head
    solver = shared_reference(digits.proxies.pixels, SMALL).solver
    plain = np.zeros_like(ours)
    for _ in range(9):
        plain += solver.solve(features.T @ (labels - features @ plain) / len(features))
    best, first = loss(solved), loss(role(run(digits, PooledHeads(0, features=SMALL), 1)).head)
    assert loss(ours) - best < 0.1 * (first - best)
    assert loss(plain) - best > 2 * (loss(ours) - best)


def test_steps_under_noise_do_not_overshoot_where_a_class_is_rare_among_the_proxies():
    """One feature a class; the second class is half as common at the proxies as in the records.

    Least squares answers 1 about it. The first head says 2, and a whole step goes back to 0.
    """
    proxies = np.repeat(np.eye(2), [75, 25], axis=0)
    moment, records = proxies.T @ proxies / len(proxies), np.eye(2) / 2

    class Rare:
        def solve(self, right):
            return np.linalg.solve(moment, right)

    search = LeastSquares(Rare(), Rare(), proxies, (2, 2), noisy=True)
    first = search.step(records, (0, 1)).copy()
    wrong = records - records @ first
    whole = first + np.linalg.solve(moment, wrong)
    assert (first[1, 1], whole[1, 1]) == pytest.approx((2, 0))
    assert search.step(wrong, (0, 1))[1, 1] == pytest.approx(1)


def test_clients_answer_with_the_head_alone_until_their_networks_learnt(digits):
    distilled = replace(STILL, proxy_steps=30, anneal_over=1, sgd=SGD(0.05, momentum=0.9))
    alone, both = (run(digits, PooledHeads(1, features=SMALL), 2, s) for s in (STILL, distilled))
    held = digits.test[torch.nonzero(digits.test.labels < 4)[:, 0]]
    found = [role(both, k).accuracies(held) for k in range(4)]
    mean = {name: np.mean([one[name] for one in found]) for name in found[0]}
    assert mean["head"] > 0.85
    assert 0.2 < mean["network"] < mean["head"]
    for made, answers in ((both, "mean"), (alone, "head")):
        assert np.mean(made.federation.accuracies(held)) == pytest.approx(mean[answers])


def test_a_message_that_is_no_head_is_refused(digits):
    client = role(run(digits, PooledHeads(1, features=SMALL), 1))
    before, place = client.head, write_index(1)
    floats = np.full(before.size, np.nan, "<f4").tobytes()
    bits = np.arange(len(digits.proxies)) % 3 == 0
    for message in (b"", b"h", bytes(8), b"h" + floats, b"c\x00"):
        with pytest.raises(PeerError):
            client.missed(place, message)
    assert client.head is before
    client.missed(place, b"h" + np.ones(before.size, "<f4").tobytes())
    assert client.head.min() == client.head.max() == 1.0
    client.take(KNOWN + np.packbits(bits).tobytes())
    assert np.array_equal(client.known, bits)
    with pytest.raises(PeerError, match="known"):
        client.take(KNOWN + np.packbits(bits).tobytes() + b"\0")


def test_statistics_in_clear_reveal_the_classes_of_each_client(digits):
    """Under masks the server reads the total alone."""
    clear, masked = (run(digits, PooledHeads(0), 1, secure=s) for s in (None, "masks"))
    assert clear.attack("label-distribution").figure < 0.05
    hidden = masked.attack("label-distribution")
    assert hidden.details["readable_clients"] == 0
    assert hidden.figure > 0.6


def test_heads_do_not_label_proxies_of_classes_without_a_holder(digits):
    own = np.isin(digits.proxies.labels.numpy(), [c.classes[0] for c in digits.clients])
    asked = run(digits, PooledHeads(1, features=SMALL), 2, ONCE)
    known = role(asked).known
    assert np.array_equal(known, asked.federation.server.role.known)
    assert known[~own].mean() < 0.15
    assert known[own].mean() > 0.75
