"""Messages that a party refuses by their form, and the recipe and unit that a run takes."""

import os

import numpy as np
import pytest
import torch

from secure_fd.crypto.keys import SERVER, IdentityKey
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.protocol.broadcasts import BroadcastVerifier
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import Schedule
from secure_fd.wire import Kind, Place, frame, read_header
from tests.small_federation import federation

SESSION = bytes(32)
KEY = IdentityKey.generate(os.urandom)
EMPTY = Images(torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(Kind.RESULT, Place(bytes(31) + b"x", 0), SERVER, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), 3, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), SERVER, b"\0"),
        frame(Kind.INPUT, Place(SESSION, 0), SERVER, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), SERVER, bytes(60)),  # too long, in this test
    ],
)
def test_a_message_of_another_place_or_form_is_refused(monkeypatch, data):
    monkeypatch.setattr("secure_fd.wire.LIMIT", 60)
    with pytest.raises(PeerError):
        BroadcastVerifier(SESSION, KEY.public).read(read_header(data, SESSION, SERVER)[0], data)


def test_a_sum_in_clear_refuses_a_message_that_is_not_the_one_input_of_its_round():
    sums = PlainSum(2)
    server, terms = sums.server(), RoundTerms(0, 2, 3, b"s" * 32)
    with pytest.raises(LocalError):
        server.advance()
    server.open(terms)
    place = Place(sums.session, 0)
    for message in (
        frame(Kind.RESULT, place, 0, b""),
        frame(Kind.INPUT, place, 0, terms.subject, b"1"),
        frame(Kind.INPUT, place, 0, b"t" * 32, bytes(8)),
    ):
        with pytest.raises(PeerError):
            server.receive(0, message)
    assert server.waiting == {0, 1}


def test_dp_sgd_is_planned_for_the_steps_that_a_method_takes():
    """Three local steps of its own, not the schedule's eleven."""
    made = FedAvg().trained_privately(4.0, 1e-5, 10, Schedule(local_steps=1, proxy_steps=2))
    assert made == FedAvg(private=PrivateSGD(4.0, 1e-5, 30))


@pytest.mark.parametrize(
    ("sites", "whole"),
    [
        *((held, True) for held in ([(75, 25), (150, 50)], [(95, 5), (190, 10)])),
        *((held, False) for held in ([(60, 0), (0, 60)], [(95, 5), (100, 0)], [(99, 1), (1, 99)])),
    ],
)
def test_sites_with_every_class_warm_up_at_any_shares(sites, whole):
    """Classes in useful number count, not even shares: 75 to 25 is every class of two."""
    pixels, held = torch.zeros(200, 1, 28, 28), [np.repeat((0, 1), counts) for counts in sites]
    parts = [Images(pixels[: len(labels)], torch.tensor(labels)) for labels in held]
    clients = tuple(ClientData(part, EMPTY, 2) for part in parts)
    proxies = Images(pixels[:64], torch.arange(64) % 2)
    made = FederatedData("digits", 2, clients, proxies, EMPTY, EMPTY)
    for recipe in (federation(made, schedule=None).recipe, simulate(made).recipe):
        assert (recipe.schedule.warmup_steps > 0) == whole


@pytest.mark.parametrize(
    ("asked", "protection"),
    [
        ({"unit": "label"}, "label unit"),
        ({"unit": "record"}, "local record unit"),
        ({"unit": "record", "secure": "masks"}, "pooled record unit"),
    ],
)
def test_a_simulation_gives_each_unit_its_mechanism(asked, protection):
    made = simulate("digits", clients=3, epsilon=4.0, **asked)
    assert made.federation.protection.name == protection
