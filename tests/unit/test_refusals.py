"""What a party refuses: settings in one sentence, and messages that do not belong."""

from functools import partial

import numpy as np
import pytest
import torch

from experiments.rivals.by_network import SelectiveByNetwork
from secure_fd import models, simulate
from secure_fd.aggregation.base import PlainSum
from secure_fd.data.images import Images
from secure_fd.data.own import clients_of, images_in
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.exchange import ClientTurn, Kind
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fkd import FKD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.private_training import PrivateSGD
from secure_fd.recipes import Schedule
from secure_fd.secagg.session import Place, RoundTerms, frame

ONE_RECORD = Images(torch.zeros(1, 1, 4, 4), torch.zeros(1, dtype=torch.int64))
QUICK = Schedule(warmup_steps=0, local_steps=1, proxy_steps=1, proxies_per_round=20)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (partial(SelectiveFD, votes="loud"), "votes"),
        (partial(SelectiveFD, class_by="nobody"), "class_by"),
        (partial(SelectiveFD, votes="counted", class_by="network"), "class_by"),
        (partial(SelectiveFD, own_classes=False), "own_classes"),
        (partial(SelectiveFD, sharpness=9.0), "sharpness"),
        (partial(RoundTerms, -1, 1, 1, b""), "index"),
        (partial(RoundTerms, 0, 0, 1, b""), "length"),
        (partial(RoundTerms, 0, 1, 0, b""), "bound"),
        (partial(images_in, ".", 8, channels=2), "channels"),
        (partial(clients_of, [ONE_RECORD]), "parts"),
    ],
)
def test_a_setting_is_refused_by_name(make, field):
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert refused.value.field == field


def test_dp_sgd_takes_no_falling_rate(digits):
    networks = [models.build(models.SHARED, 10, 0) for _ in digits.clients]
    people = participants_of(networks, digits.clients)
    with pytest.raises(ConfigurationError, match="neither anneal_over nor augment"):
        Federation(
            people, None, FedAvg(PrivateSGD(4.0, 1e-5, 10)), schedule=Schedule(anneal_over=3)
        )


@pytest.fixture(scope="module")
def fedavg(digits):
    networks = [models.build(models.SHARED, 10, 0) for _ in digits.clients]
    return Federation(participants_of(networks, digits.clients), None, FedAvg(), schedule=QUICK)


INDEX = bytes(8)


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (b"short", "too short"),
        (INDEX, "no global model was sent"),
        (INDEX + bytes(12), "not of this architecture"),
    ],
)
def test_a_fedavg_client_refuses_what_is_no_model(fedavg, subject, sentence):
    turn: ClientTurn = fedavg.clients[0].half.round(subject)
    with pytest.raises(PeerError, match=sentence):
        next(turn)


def test_a_model_that_is_not_finite_is_refused(fedavg):
    size = sum(p.numel() for p in fedavg.models[0].parameters())
    model = np.full(size, np.nan, dtype="<f4").tobytes()
    with pytest.raises(PeerError, match="not finite"):
        next(fedavg.clients[0].half.round(INDEX + model))


@pytest.mark.parametrize("method", [SelectiveFD("hard"), FKD()])
def test_a_subject_of_another_length_is_refused(digits, method):
    networks = [models.build(models.SHARED, 10, k) for k in range(len(digits.clients))]
    people = participants_of(networks, digits.clients)
    run = Federation(people, digits.proxies.pixels, method, schedule=QUICK)
    with pytest.raises(PeerError, match="subject has 3 bytes"):
        next(run.clients[0].half.round(b"abc"))


def test_a_sum_in_clear_refuses_what_is_not_the_one_input_of_its_round():
    sums = PlainSum(2)
    server, terms = sums.server(), RoundTerms(0, 2, 3, b"s" * 32)
    with pytest.raises(LocalError, match="no sum was opened"):
        server.advance()
    with pytest.raises(PeerError, match="no message"):
        sums.client(0).receive(b"?")
    server.open(terms)
    place = Place(sums.session, 0)
    with pytest.raises(PeerError, match="something else"):
        server.receive(0, frame(Kind.TELL, place, 0, b""))
    with pytest.raises(PeerError, match="another length"):
        server.receive(0, frame(Kind.INPUT, place, 0, terms.subject, b"1"))
    with pytest.raises(PeerError, match="told something else"):
        server.receive(0, frame(Kind.INPUT, place, 0, b"t" * 32, bytes(8)))
    assert server.waiting == {0, 1}


def test_a_simulation_gives_each_unit_its_method():
    private = simulate("digits", clients=3, method="fedavg", unit="record", epsilon=4.0)
    assert isinstance(private.federation.method, FedAvg)
    assert isinstance(private.federation.method.optimiser, PrivateSGD)
    noisy = simulate("digits", clients=3, unit="label", epsilon=4.0)
    assert noisy.federation.protection.name == "label unit"
    pooled = simulate("digits", clients=3, secure="masks", unit="record", epsilon=4.0)
    assert pooled.federation.method.name == "Pooled heads"
    assert pooled.federation.protection.name == "pooled record unit"
    alone = simulate("digits", clients=3, unit="record", epsilon=4.0)
    assert alone.federation.protection.name == "local record unit"
    assert noisy.transcript.n_clients == 3


def test_a_selector_by_network_is_named():
    assert SelectiveByNetwork("hard", "energy").name == "Selective-FD hard by energy"
