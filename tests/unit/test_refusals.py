"""What a party refuses: settings in one sentence, and messages that do not belong."""

import numpy as np
import pytest

from secure_fd import simulate
from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fkd import FKD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.recipes import Schedule
from secure_fd.wire import Kind, Place, frame

QUICK = Schedule(warmup_steps=0, local_steps=1, proxy_steps=1, proxies_per_round=20)
MODEL = len(models.flatten(models.build(models.SHARED, 10, 0)))


@pytest.fixture(scope="module")
def fedavg(digits):
    networks = [models.build(models.SHARED, 10, 0) for _ in digits.clients]
    return Federation(networks, digits.clients, None, FedAvg(), schedule=QUICK)


INDEX = bytes(8)
NOT_FINITE = np.full(MODEL, np.nan, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (b"short", "use 8"),
        (INDEX, "no global model was sent"),
        (INDEX + bytes(12), "not of this architecture"),
        (INDEX + NOT_FINITE, "not finite"),
    ],
)
def test_a_fedavg_client_refuses_what_is_no_model(fedavg, subject, sentence):
    with pytest.raises(PeerError, match=sentence):
        next(fedavg.clients[0].role.round(subject))


@pytest.mark.parametrize("method", [SelectiveFD("hard"), FKD()])
def test_a_subject_of_another_length_is_refused(digits, method):
    networks = [models.build(models.SHARED, 10, k) for k in range(len(digits.clients))]
    people = networks, digits.clients
    run = Federation(*people, digits.proxies.pixels, method, schedule=QUICK)
    with pytest.raises(PeerError, match="has 3 bytes"):
        next(run.clients[0].role.round(b"abc"))


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
        server.receive(0, frame(Kind.RESULT, place, 0, b""))
    with pytest.raises(PeerError, match="another length"):
        server.receive(0, frame(Kind.INPUT, place, 0, terms.subject, b"1"))
    with pytest.raises(PeerError, match="told something else"):
        server.receive(0, frame(Kind.INPUT, place, 0, b"t" * 32, bytes(8)))
    assert server.waiting == {0, 1}


def test_a_simulation_gives_each_unit_its_method():
    private = simulate("digits", clients=3, method="fedavg", unit="record", epsilon=4.0)
    assert isinstance(private.federation.method, FedAvg)
    assert isinstance(private.federation.method.private, PrivateSGD)
    noisy = simulate("digits", clients=3, unit="label", epsilon=4.0)
    assert noisy.federation.protection.name == "label unit"
    pooled = simulate("digits", clients=3, secure="masks", unit="record", epsilon=4.0)
    assert pooled.federation.method.name == "Pooled heads"
    assert pooled.federation.protection.name == "pooled record unit"
    alone = simulate("digits", clients=3, unit="record", epsilon=4.0)
    assert alone.federation.protection.name == "local record unit"
    assert noisy.transcript.n_clients == 3
