"""What only an ablation runs: true labels for the ensemble's, and selectors that are refitted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.grid import default_cell
from experiments.measures import AUROC_CLASS, KEPT_ALL, RIGHT_ALL
from experiments.runs import Prepared, method_of, prepare, run_cell
from experiments.variants import Refitted, before_last, seen
from secure_fd.models import flatten
from secure_fd.recipes import Schedule

BASE = replace(
    default_cell("digits", "weak", 1, rounds=2, quick=True),
    schedule=Schedule(warmup_steps=3, proxy_steps=2, proxies_per_round=64),
)
HARD = replace(BASE, method="selective-fd", labels="hard", selector="ratio")


@pytest.fixture(scope="module")
def made() -> Prepared:
    return prepare(None, [HARD], lambda _: None)


def refitting(data: Prepared, every: int) -> Refitted:
    method = method_of(replace(HARD, variant="selector refitted"), data.data)
    assert isinstance(method, Refitted)
    return replace(method, every=every, _asked={}, _opinions={})


def test_true_labels_teach_at_every_proxy(made: Prepared) -> None:
    told = replace(HARD, variant="true labels")
    found = run_cell(None, told, made, lambda _: None)
    assert (found.figures[RIGHT_ALL], found.figures[KEPT_ALL]) == (1.0, 1.0)
    usual = run_cell(None, HARD, made, lambda _: None)
    assert usual.figures[RIGHT_ALL] < 1.0
    assert found.per_client != usual.per_client
    assert found.figures[AUROC_CLASS] == usual.figures[AUROC_CLASS]  # it still selects


def test_a_selector_is_refitted_when_it_is_time(made: Prepared) -> None:
    method, network = refitting(made, every=2), made.networks()[0]
    client, proxies = made.data.clients[0], made.data.proxies.pixels
    asked = np.arange(5)
    opinions = [method.opinion_of_network(client, proxies, asked, network) for _ in range(4)]
    assert opinions[0] is opinions[1] is not opinions[2]
    assert opinions[2] is opinions[3]
    usual = method.opinion(client, proxies).scores
    first, second = opinions[0].scores, opinions[2].scores
    assert usual is not None
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, usual)
    assert not np.allclose(second, usual)
    np.testing.assert_array_equal(method.scores(network, proxies), second)


def test_clients_do_not_share_their_selectors(made: Prepared) -> None:
    method, proxies = refitting(made, every=1), made.data.proxies.pixels
    pairs = list(zip(made.data.clients, made.networks(), strict=True))[:2]
    for client, network in pairs:
        method.opinion_of_network(client, proxies, np.arange(5), network)
    one, other = (method.scores(network, proxies) for _, network in pairs)
    assert not np.allclose(one, other)


def test_what_the_last_layer_sees_is_scaled_once_for_records_and_proxies(made: Prepared) -> None:
    network, client = made.networks()[0], made.data.clients[0]
    pixels = made.data.proxies.pixels
    before, parameters = before_last(network, pixels), flatten(network)
    last = list(network.children())[-1]
    torch.testing.assert_close(last(before.flatten(1)), network(pixels))
    records, proxies = seen(network, client, pixels)
    largest = max(float(part.max()) for part in (records.train.pixels, proxies))
    assert largest == pytest.approx(1.0)
    torch.testing.assert_close(proxies * before.max() / proxies.max(), before)
    assert records.classes == client.classes
    assert torch.equal(flatten(network), parameters)
