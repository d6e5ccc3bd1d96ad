"""Mistakes with the API: one sentence each that names the field, before anything trains."""

import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import secure_fd as fd
from examples.own_method import Majority
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.registry import load as load_method
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.training.trainer import run_each
from tests.refusals import refused
from tests.toy import network, toy

CLIENTS = 3
BRIEF = fd.Schedule(warmup_steps=2, proxy_steps=2, proxies_per_round=20)
PROXIES = toy(60, seed=9).pixels
RECORDS = toy(40)
LARGER = fd.Images(torch.rand(40, 1, 5, 5), RECORDS.labels)


def client(pixels=RECORDS.pixels, labels=RECORDS.labels):
    return fd.ClientData(fd.Images(pixels, labels), RECORDS[:4], n_classes=2)


def never(_):
    pytest.fail("something trained")


def federation(
    *,
    networks=None,
    data=None,
    proxies=PROXIES,
    method=None,
    **options,
):
    """A federation that works where nothing is given."""
    data = [client() for _ in range(CLIENTS)] if data is None else data
    networks = [network(k) for k in range(CLIENTS)] if networks is None else networks
    options, method = {"schedule": BRIEF, **options}, method or fd.SelectiveFD("hard")
    made = fd.Federation(networks, data, proxies, method, **options)
    made.trainer = never
    return made


def third(other):
    """A federation with one network of another kind."""
    return federation(networks=[network(0), network(1), other])


def of_clients(other):
    """A federation with one client's data of another kind."""
    return federation(data=[client(), client(), other])


class Shares(Majority):
    """A user-supplied method of shared parameters, which looks at no privacy unit."""

    shares_parameters = True


simulated = partial(fd.simulate, "digits", clients=CLIENTS)
MISTAKES = (
    # Images and labels.
    ("pixels", lambda: client(RECORDS.pixels * 255)),
    ("pixels", lambda: client(RECORDS.pixels.byte())),
    ("labels", lambda: client(labels=RECORDS.labels.int())),
    ("labels", lambda: client(labels=RECORDS.labels[:-1])),
    ("labels", lambda: client(labels=RECORDS.labels + 1)),
    ("train", lambda: fd.ClientData(RECORDS[:0], RECORDS, 2)),
    ("parts", lambda: fd.clients_of([RECORDS[:1]])),
    ("n_classes", lambda: of_clients(replace(client(), n_classes=3))),
    ("participants", lambda: of_clients(fd.ClientData(LARGER, LARGER, 2))),
    ("participants", lambda: of_clients(RECORDS)),
    ("participants", lambda: federation(networks=[network()], data=[client()])),
    ("test", lambda: federation().accuracies((0, 1))),
    ("dataset", lambda: fd.load("mnits")),
    ("data_dir", lambda: fd.load("mnist", "nowhere")),
    ("split", lambda: fd.parse_split("strng")),
    ("folder", lambda: fd.images_in("nowhere", 32)),
    ("folder", lambda: fd.images_in(__file__, 32)),
    ("size", lambda: fd.images_in(".", 0)),
    ("images", lambda: fd.images_of([(PROXIES[0], "cat")])),
    ("parts", lambda: fd.clients_of([])),
    ("n_classes", lambda: fd.ClientData(RECORDS, RECORDS[:0], 0)),
    ("validation", lambda: fd.ClientData(RECORDS, LARGER, 2)),
    ("pixels", lambda: client(RECORDS.pixels * float("nan"))),
    ("labels", lambda: client(labels=RECORDS.labels - 1)),
    ("data", lambda: fd.simulate(None)),
    # Proxies.
    ("proxies", lambda: federation(proxies=PROXIES * 255)),
    ("proxies", lambda: federation(proxies=PROXIES[..., :3, :3])),
    ("proxies", lambda: federation(proxies=PROXIES[:0])),
    ("proxies", lambda: federation(proxies=list(PROXIES))),
    ("proxies", lambda: federation(proxies=None, method=fd.FedMD())),
    ("proxies_per_round", lambda: federation(schedule=replace(BRIEF, proxies_per_round=61))),
    # Networks.
    ("models", lambda: third("cnn")),
    ("models", lambda: third(nn.Linear(9, 2))),
    ("models", lambda: third(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)))),
    ("models", lambda: third(nn.Sequential(network(), nn.Softmax(dim=1)))),
    ("models", lambda: third(network().requires_grad_(requires_grad=False))),
    ("models", lambda: third(network().double())),
    ("models", lambda: federation(networks=[network()] * CLIENTS)),
    ("models", lambda: federation(networks=[network(0), network(1)])),
    # Methods and training.
    ("method", lambda: federation(method="selective-fd")),
    ("method", lambda: federation(method=fd.FedMD)),
    ("method", lambda: simulated(method="fedsgd")),
    *(
        ("methods", partial(load_method, name))
        for name in ("fedsgd", "examples.missing:Name", "examples.own_method:No", "pathlib:Path")
    ),
    ("labels", lambda: fd.SelectiveFD("Hard")),
    ("votes", lambda: fd.SelectiveFD(votes="loud")),
    ("selector", lambda: fd.SelectiveFD(selector="kulsif")),
    ("schedule", lambda: federation(schedule="ours")),
    ("server_threshold", lambda: fd.SelectiveFD(server_threshold=2.5)),
    ("bits", lambda: fd.SelectiveFD("hard", bits=13)),
    ("quantile", lambda: fd.ProxyRatioSelector(quantile=float("nan"))),
    ("residual_rounds", lambda: PooledHeads(residual_rounds=-1)),
    ("warmup_steps", lambda: fd.Schedule(warmup_steps=-1)),
    ("learning_rate", lambda: fd.SGD(learning_rate=-0.1)),
    ("local_batch", lambda: fd.SGD(local_batch=0)),
    ("recipe", lambda: simulated(recipe="our")),
    ("device", lambda: federation(device="cuda:99")),
    # Sums and rounds.
    ("secure", lambda: simulated(secure="mask")),
    ("aggregation", lambda: federation(aggregation=fd.MaskedSum(n_clients=5))),
    ("rate", lambda: fd.Dropouts(1.5, seed=0)),
    ("rounds", lambda: federation().fit(1.5)),
    ("aggregation", lambda: federation(aggregation="masks")),
    *(("clients", partial(fd.simulate, "digits", clients=n)) for n in (0, 1, 2.5, 40, "3", 10**9)),
    *(("seed", partial(federation, seed=seed)) for seed in (-1, 1.5, "x", 1 << 70)),
    ("seed", lambda: fd.simulate("digits", clients=CLIENTS, seed=-1)),
    ("rounds", lambda: federation().fit(-1)),
    ("attack", lambda: simulated().attack("member")),
    # Differential privacy.
    ("epsilon", lambda: fd.LabelUnit(float("nan"), 1e-5)),
    *(("epsilon", partial(fd.LabelUnit, eps, 1e-5)) for eps in (0.0, -1.0, 1e9, float("inf"))),
    ("epsilon", lambda: simulated(epsilon=4.0)),
    *(("delta", partial(fd.LabelUnit, 4.0, delta)) for delta in (0.0, 1.0, float("nan"))),
    ("unit", lambda: simulated(unit="person", epsilon=4.0)),
    ("unit", lambda: simulated(unit="record")),
    ("unit", lambda: simulated(unit="label", epsilon=4.0, method="fedavg")),
    *(
        ("unit", partial(simulated, method=Shares(), unit=u, epsilon=4.0))
        for u in ("label", "record")
    ),
    (
        "private",
        lambda: federation(
            method=fd.FedAvg(private=PrivateSGD(4.0, 1e-5, 10)), schedule=fd.Schedule(anneal_over=3)
        ),
    ),
)


@pytest.mark.parametrize(("field", "mistake"), MISTAKES)
def test_a_mistake_gets_one_sentence_before_anything_trains(field, mistake):
    with refused(field) as caught:
        mistake()
    sentence = str(caught.value)
    assert re.match(f"{field}: .+ is not allowed; .", sentence)
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < 300


@pytest.mark.parametrize(
    ("method", "secure"),
    [
        *((name, None) for name in ("fedmd", "ds-fl", "feded", "selective-fd-published", "fkd")),
        *((name, sum_) for name in ("selective-fd", "heads") for sum_ in ("he", "prio3")),
        *((fd.SelectiveFD("hard"), secure) for secure in (None, "he", "prio3")),
    ],
)
def test_votes_carry_no_epsilon_of_a_record(method, secure):
    with refused("unit"):
        simulated(method=method, secure=secure, unit="record", epsilon=4.0)


@pytest.mark.parametrize("method", [fd.FedMD("hard"), fd.SelectiveFD("hard")])
def test_noise_on_class_sums_fits_no_votes(method):
    sizes = {"records": (40,) * CLIENTS, "n_proxies": 60, "n_classes": 2}
    unit = fd.PooledRecordUnit(4.0, 1e-5, honest=1, **sizes)
    with refused("protection"):
        federation(method=method, protection=unit)


# The same federation without a mistake, which all of these checks must accept.


def trained(**options):
    made = federation(**options)
    made.trainer = run_each
    made.fit(1)
    return made


def test_without_a_mistake_it_trains():
    """Also without records for validation, and with fewer proxies than the default asks."""
    own = [fd.ClientData(RECORDS, RECORDS[:0], 2) for _ in range(CLIENTS)]
    usual = fd.Schedule(warmup_steps=0, proxy_steps=1)
    assert np.mean(trained().accuracies(toy(50, seed=5))) > 0.4
    assert len(trained(data=own).accuracies(toy(10))) == CLIENTS
    few = trained(schedule=usual, method=fd.FedMD())
    assert [len(seen.result.indices) for seen in few.transcript.distillation] == [60]


class Modes(nn.Module):
    """Records the modes in which it learnt; one of its layers is fixed."""

    def __init__(self):
        super().__init__()
        self.inner, self.fixed = network(), nn.Dropout().eval()
        self.learnt_in = set()

    def forward(self, pixels):
        if torch.is_grad_enabled():
            self.learnt_in.add((self.training, self.fixed.training))
        return self.inner(self.fixed(pixels))


@pytest.mark.parametrize("training", [True, False])
def test_a_network_learns_in_the_modes_of_its_layers_and_ends_in_evaluation_mode(training):
    """A fixed layer stays fixed, except in a network that was in evaluation mode throughout."""
    networks = [Modes() if training else Modes().eval() for _ in range(CLIENTS)]
    federation(networks=networks)
    assert {(model.training, model.fixed.training) for model in networks} == {(training, False)}
    made = trained(networks=networks)
    assert all(model.learnt_in == {(True, not training)} for model in networks)
    assert not any(layer.training for model in made.models for layer in model.modules())
