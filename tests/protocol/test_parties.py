"""Client and server: bytes alone pass between them, every sum carries a method, user methods."""

import os

import numpy as np
import pytest
import torch

from examples.own_method import Majority
from secure_fd.crypto.keys import SERVER, IdentityKey
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.registry import METHODS
from secure_fd.methods.registry import load as load_method
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.protocol.broadcasts import BroadcastSigner, BroadcastVerifier
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import ClientTurn
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.federation import Federation
from secure_fd.simulation.simulate import simulate
from secure_fd.training.recipes import Schedule
from secure_fd.wire import Kind, Place, frame, read_header
from tests.refusals import refused
from tests.small_federation import CPU, federation, participants, run

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
    ],
)
def test_a_message_of_another_place_or_form_is_refused(data):
    with pytest.raises(PeerError):
        BroadcastVerifier(SESSION, KEY.public).read(read_header(data, SESSION, SERVER)[0], data)


def test_a_message_is_limited_in_length(monkeypatch):
    monkeypatch.setattr("secure_fd.wire.LIMIT", 60)
    with pytest.raises(PeerError):
        read_header(frame(Kind.RESULT, Place(SESSION, 0), SERVER, bytes(40)), SESSION, SERVER)


def test_a_sum_in_clear_refuses_a_message_that_is_not_the_one_input_of_its_round():
    sums = PlainSum(2)
    server, terms = sums.server(), RoundTerms(0, 2, 3, b"s" * 32)
    with pytest.raises(LocalError):
        server.advance()
    with pytest.raises(PeerError):
        sums.client(0).receive(b"?")
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


class Quiet:
    """Role of a client that takes part in nothing."""

    def begin(self) -> ClientTurn:
        yield from ()


def test_a_result_without_a_round_is_refused():
    client = Client(0, SESSION, KEY.public, Quiet(), PlainSum(2).client(0))
    client.start()
    with pytest.raises(PeerError):
        client.receive(BroadcastSigner(SESSION, KEY).write(Kind.RESULT, 0, b"news"))


def test_a_client_with_another_history_is_left_out_of_the_sum_and_named(digits):
    """The running hash is signed, so this client refuses the next broadcast; the others sum."""
    made = run(federation(digits, aggregation=MaskedSum(4, public_seed=0)), rounds=1)
    made.clients[1]._chain.digest = bytes(32)
    [report] = made.fit(1)
    assert report.survivors == (0, 2, 3)
    [(refusing, why)] = report.refused
    assert refusing == 1
    assert "signature" in why


# User-supplied methods.


def test_a_user_supplied_method_is_one_file(digits):
    kind = load_method("examples.own_method:Majority")
    assert kind is Majority
    every, none = (run(federation(digits, kind(share=share))) for share in (0.0, 1.0))
    assert all(seen.result.kept.all() for seen in every.transcript.distillation)
    assert not any(seen.result.kept.any() for seen in none.transcript.distillation)


class Shares(Majority):
    """A user-supplied method of shared parameters, which looks at no privacy unit."""

    shares_parameters = True


@pytest.mark.parametrize("unit", ["label", "record"])
def test_a_method_that_would_add_no_noise_is_refused(unit):
    with refused("unit"):
        simulate("digits", clients=3, method=Shares(), unit=unit, epsilon=4.0)


@pytest.mark.parametrize(
    "name", ["fedsgd", "examples.missing:Name", "examples.own_method:Missing", "pathlib:Path"]
)
def test_a_name_of_no_method_is_refused(name):
    with refused("methods"):
        load_method(name)


def test_the_table_of_methods_says_which_share_parameters():
    for name, known in METHODS.items():
        assert load_method(name).shares_parameters == known.averages, name


def test_dp_sgd_is_planned_for_the_steps_that_a_method_takes():
    """Three local steps of its own, not the schedule's eleven."""
    made = FedAvg().trained_privately(4.0, 1e-5, 10, Schedule(local_steps=1, proxy_steps=2))
    assert made == FedAvg(private=PrivateSGD(4.0, 1e-5, 30))


# Recipes, and a run in five lines.


@pytest.mark.parametrize(
    ("sites", "whole"),
    [
        *((held, True) for held in ([(75, 25), (150, 50)], [(95, 5), (190, 10)])),
        *((held, False) for held in ([(60, 0), (0, 60)], [(95, 5), (100, 0)], [(99, 1), (1, 99)])),
        ([(30, 30, *[0] * 8), (*[0] * 8, 30, 30)], False),
    ],
)
def test_sites_with_every_class_warm_up_at_any_shares(sites, whole):
    """Classes in useful number count, not even shares: 75 to 25 is every class of two."""
    n_classes, pixels = len(sites[0]), torch.zeros(200, 1, 28, 28)
    held = [np.repeat(np.arange(n_classes), counts) for counts in sites]
    parts = [Images(pixels[: len(labels)], torch.tensor(labels)) for labels in held]
    clients = tuple(ClientData(part, EMPTY, n_classes) for part in parts)
    proxies = Images(pixels[:64], torch.arange(64) % 2)
    made = FederatedData("digits", n_classes, clients, proxies, EMPTY, EMPTY)
    alone = Federation(*participants(made), proxies.pixels, SelectiveFD(), device=CPU).recipe
    for recipe in (alone, simulate(made, method="selective-fd").recipe):
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
