"""Divisions of a pool: sizes, classes, disjointness, seeds and refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.data.federated import ClientData, Source, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images
from secure_fd.data.partition import Split, parse_split, partition
from secure_fd.errors import LocalError
from tests.refusals import refused

PER_CLASS = 100
SIZES = Sizes(proxies=20, test=10, held_out=10)  # 60 of a class are left to the clients


def numbered():
    """Records whose only pixel carries their own number, in 4096ths, stored class by class."""
    count = 10 * PER_CLASS
    pixels = torch.arange(count, dtype=torch.float32).reshape(-1, 1, 1, 1) / 4096
    return Source("numbered", 10, Images(pixels, torch.arange(count) // PER_CLASS), None)


def numbers(images):
    return [int(x * 4096) for x in images.pixels.flatten()]


def dealt(split, clients=10, seed=0, sizes=SIZES):
    return federate(numbered(), parse_split(split), clients, seed, sizes)


def parts(data):
    own = [part for client in data.clients for part in (client.train, client.validation)]
    return [data.proxies, data.test, data.held_out, *own]


@pytest.mark.parametrize("text", ["strong", "weak", "iid", "dirichlet:0.3", "dirichlet:0.001"])
def test_every_record_is_in_one_part(text):
    data = dealt(text, seed=7)
    assert parse_split(text).name == text
    every = [number for part in parts(data) for number in numbers(part)]
    assert sorted(every) == list(range(10 * PER_CLASS))
    assert [len(part) for part in parts(data)[:3]] == [200, 100, 100]
    for part in parts(data)[:3]:
        assert len(set(torch.bincount(part.labels).tolist())) == 1
    for part in parts(data):
        assert [n // PER_CLASS for n in numbers(part)] == part.labels.tolist()


def test_test_images_from_a_pool_are_the_same_for_every_seed_and_in_no_other_part():
    """The choices of one seed use no record that scores another seed.

    Proxies, held-out records and clients' shares do differ between the seeds.
    """
    made = [dealt("strong", seed=seed) for seed in range(5)]
    tested = set(numbers(made[0].test))
    for data in made:
        assert set(numbers(data.test)) == tested
        assert not tested & {
            n for part in parts(data) if part is not data.test for n in numbers(part)
        }
    assert len({tuple(numbers(data.proxies)) for data in made}) == 5
    assert len({tuple(numbers(data.held_out)) for data in made}) == 5


def test_a_strong_client_holds_one_class_and_a_tenth_of_it_back():
    data = dealt("strong")
    assert [client.classes for client in data.clients] == [(c,) for c in range(10)]
    assert {(len(c.train), len(c.validation)) for c in data.clients} == {(54, 6)}
    assert all(client.n_classes == 10 for client in data.clients)
    capped = dealt("strong", 3, sizes=Sizes(20, 10, 10, local=30))
    assert [client.classes for client in capped.clients] == [(0,), (1,), (2,)]
    assert {len(c.train) + len(c.validation) for c in capped.clients} == {30}


@settings(max_examples=150, deadline=None)
@given(
    split=st.sampled_from(["strong", "weak", "iid", "dirichlet:0.001", "dirichlet:9"]),
    n_clients=st.integers(2, 10),
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(60, 120), min_size=10, max_size=10),
)
def test_shares_are_disjoint_and_lose_nothing(split, n_clients, seed, counts):
    """Classes are dealt whole: where some client holds one, all of its records are dealt."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(10), counts))
    shares = partition(labels, parse_split(split), n_clients, 10, rng)
    every = np.concatenate(shares)
    held = [set(labels[share]) for share in shares]
    assert len(held) == n_clients
    assert len(set(every)) == len(every) == sum(counts[c] for c in set.union(*held))
    if split == "strong":
        assert held == [{k} for k in range(n_clients)]
    elif split in ("weak", "iid"):
        assert {len(classes) for classes in held} == {2 if split == "weak" else 10}
    else:
        assert min(map(len, shares)) >= 20


def test_proxies_do_not_show_labels_by_position():
    """Class by class the labels would be sorted; shuffled, 200 of them have about 90 descents.

    Descents among random labels of 10 classes: mean 199 * 0.45 = 90, deviation below 7.
    """
    labels = dealt("strong").proxies.labels
    assert int((labels.diff() < 0).sum()) > 55


@pytest.mark.parametrize("other", [0, 1])
def test_an_overlapping_split_does_not_get_past_federate(monkeypatch, other):
    """Mutants: one record in the parts of two clients, or twice in one."""

    def overlapping(*args):
        shares = partition(*args)
        shares[1] = np.append(shares[1], shares[other][0])
        return shares

    monkeypatch.setattr("secure_fd.data.federated.partition", overlapping)
    with pytest.raises(LocalError):
        dealt("strong")


@pytest.mark.parametrize(
    ("split", "clients", "sizes", "field"),
    [
        *(("strong", count, SIZES, "clients") for count in (1, 11)),
        *(("weak", 46, SIZES, "clients"), ("iid", 0, SIZES, "clients")),
        *((split, 700, SIZES, "clients") for split in ("iid", "dirichlet:0.5")),
        ("strong", 10, Sizes(81, 10, 10), "proxies"),
        ("strong", 10, Sizes(20, 10, 10, local=61), "local"),
        *(
            (text, 10, SIZES, "split")
            for text in (
                *("", "Strong", "dirichlet:", "dirichlet:0", "dirichlet:nan", "dirichlet:1e308"),
                *("dirichlet:x", "iid:2"),
            )
        ),
    ],
)
def test_a_division_that_cannot_be_is_refused(split, clients, sizes, field):
    dealt("strong", sizes=Sizes(79, 10, 10))  # one record a client
    with refused(field):
        dealt(split, clients, sizes=sizes)


def test_an_image_that_occurs_twice_is_used_once():
    """A copy in two parts would be a member and a stranger at once."""
    source = numbered()
    pixels = source.pool.pixels.clone()
    pixels[5] = pixels[3]
    twice = Source("twice", 10, Images(pixels, source.pool.labels), None)
    data = federate(twice, Split("strong"), 10, 0, SIZES)
    every = [number for part in parts(data) for number in numbers(part)]
    assert sorted(every) == sorted(set(range(10 * PER_CLASS)) - {5})


def test_a_pool_image_of_the_test_set_is_left_out():
    source = numbered()
    tested = Images(source.pool.pixels[:2], source.pool.labels[:2])
    data = federate(Source("leaky", 10, source.pool, tested), Split("strong"), 10, 0, SIZES)
    assert numbers(data.test) == [0, 1]
    every = [number for part in parts(data) for number in numbers(part)]
    assert len(every) == len(set(every)) == 10 * PER_CLASS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_pixel_that_is_none_is_refused_before_a_run_exists(value):
    """Refused later, the refusal itself would tell of the record."""
    good = Images(torch.zeros(2, 1, 1, 1), torch.zeros(2, dtype=torch.int64))
    bad = Images(torch.full((2, 1, 1, 1), value), good.labels)
    with refused("pixels"):
        ClientData(bad, good, 2)
    with refused("pixels"):
        ClientData(good, bad, 2)
