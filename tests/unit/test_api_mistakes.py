"""Mistakes that newcomers make with the interface: one sentence each, before anything trains."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secure_fd as fd
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.secagg.session import RoundTerms
from secure_fd.training.trainer import run_each
from tests.unit.toy import network, toy

CLIENTS = 3
BRIEF = fd.Schedule(warmup_steps=2, proxy_steps=2, proxies_per_round=20)
PROXIES = toy(60, seed=9).pixels


def records(k: int = 0) -> fd.Images:
    return toy(40, seed=k)


def client(k: int = 0, pixels: Any = None, labels: Any = None) -> fd.ClientData:
    own = records(k)
    chosen = own.pixels if pixels is None else pixels, own.labels if labels is None else labels
    return fd.ClientData(fd.Images(*chosen), own[:4], n_classes=2)


def never(_: Sequence[fd.Steps]) -> NoReturn:
    pytest.fail("something trained")


def federation(
    *,
    networks: Sequence[Any] | None = None,
    data: Sequence[Any] | None = None,
    proxies: Any = PROXIES,
    method: Any = None,
    **options: Any,
) -> fd.Federation:
    """A federation that works where nothing is given."""
    data = [client(k) for k in range(CLIENTS)] if data is None else data
    networks = [network(k) for k in range(CLIENTS)] if networks is None else networks
    options, method = {"schedule": BRIEF, **options}, method or fd.SelectiveFD("hard")
    made = fd.Federation(networks, data, proxies, method, **options)
    made.trainer = never
    return made


def third(client_or_network: Any, kind: str) -> fd.Federation:
    """A federation with one client's data or network of another kind."""
    usual = network if kind == "networks" else client
    return federation(**{kind: [usual(0), usual(1), client_or_network]})


def spoilt(pixels: Tensor) -> Tensor:
    changed = pixels.clone()
    changed[3, 0, 1, 1] = torch.nan
    return changed


class Pair(nn.Module):
    """Gives features beside logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(pixels), pixels


def broken() -> nn.Module:
    made = network()
    with torch.no_grad():
        next(made.parameters()).fill_(torch.nan)
    return made


simulated = partial(fd.simulate, "digits", clients=CLIENTS)
IMAGES: Sequence[Callable[[Tensor], object]] = (
    lambda p: p * 255,
    spoilt,
    lambda p: p.numpy(),
    lambda _: Path("scans"),
    lambda p: p.byte(),
    lambda p: p.double(),
    lambda p: p[:, 0],
)
"""Wrong as the images of a client and as proxies."""
MISTAKES: dict[str, Sequence[Callable[[], object]]] = {
    "proxies": [
        *(partial(lambda change: federation(proxies=change(PROXIES)), change) for change in IMAGES),
        lambda: federation(proxies=PROXIES[..., :3, :3]),
        lambda: federation(proxies=PROXIES.expand(-1, 3, -1, -1)),
        lambda: federation(proxies=list(PROXIES)),
        lambda: federation(proxies=toy(60)),
        lambda: federation(proxies=PROXIES[:0]),
    ],
    "models": [
        lambda: third(nn.Linear(9, 2), "networks"),
        lambda: third(nn.Sequential(nn.Flatten(), nn.Linear(16, 5)), "networks"),
        lambda: third(Pair(), "networks"),
        lambda: third(nn.Sequential(network(), nn.Softmax(dim=1)), "networks"),
        lambda: third(network().requires_grad_(requires_grad=False), "networks"),
        lambda: third(network().double(), "networks"),
        lambda: third(broken(), "networks"),
        lambda: third("cnn", "networks"),
        lambda: third(Pair, "networks"),
        lambda: federation(networks=[network()] * CLIENTS),
        lambda: federation(networks=[network(0), network(1)]),
    ],
    "pixels": [
        *(partial(lambda change: client(pixels=change(records().pixels)), c) for c in IMAGES),
        lambda: client(pixels=records().pixels.repeat(1, 3, 2, 2).permute(0, 2, 3, 1)),
    ],
    "labels": [
        lambda: client(labels=records().labels.int()),
        lambda: client(labels=records().labels.float()),
        lambda: client(labels=records().labels.tolist()),
        lambda: client(labels=records().labels[:-1]),
        lambda: client(labels=torch.eye(2)[records().labels].long()),
        lambda: client(labels=records().labels + 1),
        lambda: client(labels=records().labels - 1),
        lambda: fd.SelectiveFD("Hard"),
        lambda: fd.FedMD("one-hot"),
    ],
    "train": [lambda: fd.ClientData(records()[:0], records(), 2)],
    "parts": [lambda: fd.clients_of([records()[:1]])],
    "n_classes": [lambda: third(replace(client(2), n_classes=3), "data")],
    "participants": [
        lambda: third(client(2, pixels=torch.rand(40, 1, 5, 5)), "data"),
        lambda: federation(networks=[network()], data=[client()]),
        lambda: federation(data=[records(k) for k in range(CLIENTS)]),
    ],
    "device": [lambda: federation(device="gpu"), lambda: federation(device="cuda:99")],
    "method": [
        lambda: federation(method="selective-fd"),
        lambda: federation(method=fd.FedMD),
        lambda: simulated(method="fedsgd"),
    ],
    "votes": [lambda: fd.SelectiveFD(votes="loud")],
    "index": [lambda: RoundTerms(-1, 1, 1, b"")],
    "length": [lambda: RoundTerms(0, 0, 1, b"")],
    "bound": [lambda: RoundTerms(0, 1, 0, b"")],
    "channels": [lambda: fd.images_in(".", 8, channels=2)],
    "epsilon": [
        *(partial(fd.LabelUnit, epsilon, 1e-5) for epsilon in (float("nan"), 0.0, 0.001, 400.0)),
        lambda: simulated(epsilon=4.0),
    ],
    "delta": [lambda: fd.LabelUnit(4.0, 1.0)],
    "unit": [
        lambda: simulated(unit="person", epsilon=4.0),
        lambda: simulated(unit="record"),
        lambda: simulated(unit="label"),
    ],
    "rounds": [lambda: list(federation().rounds(-3)), lambda: federation().fit(1.5)],
    "test": [
        lambda: federation().accuracies((0, 1)),
        lambda: federation().accuracies(fd.Images(torch.rand(2, 1, 5, 5), torch.tensor([0, 1]))),
    ],
    "proxies_per_round": [
        lambda: replace(BRIEF, proxies_per_round=0),
        lambda: federation(schedule=replace(BRIEF, proxies_per_round=61)),
    ],
    "warmup_steps": [lambda: fd.Schedule(warmup_steps=-1)],
    "private": [
        lambda: federation(
            method=fd.FedAvg(private=PrivateSGD(4.0, 1e-5, 10)), schedule=fd.Schedule(anneal_over=3)
        )
    ],
    "learning_rate": [lambda: fd.SGD(learning_rate=-0.1)],
    "local_batch": [lambda: fd.SGD(local_batch=0)],
    "rate": [lambda: fd.Dropouts(1.5, seed=0)],
    "aggregation": [lambda: federation(aggregation=fd.MaskedSum(n_clients=5))],
    "seed": [lambda: federation(seed=-1)],
    "dataset": [lambda: fd.load("mnits")],
    "split": [lambda: fd.parse_split("strng")],
    "folder": [lambda: fd.images_in("nowhere", 32)],
    "secure": [lambda: simulated(secure="mask")],
    "quantile": [
        partial(kind, quantile=quantile)
        for kind in (fd.ProxyRatioSelector, fd.KulsifSelector)
        for quantile in (7.0, -0.1, float("nan"))
    ],
    "width": [lambda: fd.KulsifSelector(width=0.0)],
    "share": [lambda: fd.KulsifSelector(share=1.0)],
    "recipe": [lambda: simulated(recipe="our")],
    "clients": [lambda: fd.simulate("digits", clients=40)],
    "attack": [lambda: simulated().attack("member")],
}


@pytest.mark.parametrize(
    ("field", "mistake"), [(field, each) for field, found in MISTAKES.items() for each in found]
)
def test_a_mistake_gets_one_sentence_before_anything_trains(field, mistake):
    with pytest.raises(fd.ConfigurationError) as refused:
        mistake()
    sentence = str(refused.value)
    assert refused.value.field == field
    assert f"{field}: " in sentence
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
    with pytest.raises(fd.ConfigurationError, match="votes carry no record's epsilon") as refused:
        simulated(method=method, secure=secure, unit="record", epsilon=4.0)
    assert refused.value.field == "unit"


@pytest.mark.parametrize("method", [fd.FedMD("hard"), fd.SelectiveFD("hard")])
def test_noise_on_class_sums_fits_no_votes(method):
    sizes = {"records": (40,) * CLIENTS, "n_proxies": 60, "n_classes": 2}
    unit = fd.PooledRecordUnit(4.0, 1e-5, honest=1, **sizes)
    with pytest.raises(fd.ConfigurationError, match="votes carry no record's epsilon") as refused:
        federation(method=method, protection=unit)
    assert refused.value.field == "protection"


# The same federation without a mistake, which all of these checks must let pass.


def trained(**options: Any) -> fd.Federation:
    made = federation(**options)
    made.trainer = run_each
    made.fit(1)
    return made


def test_without_a_mistake_it_trains():
    assert np.mean(trained().accuracies(toy(50, seed=5))) > 0.4


def test_a_client_needs_no_validation():
    own = [fd.ClientData(records(k), records()[:0], 2) for k in range(CLIENTS)]
    assert len(trained(data=own).accuracies(toy(10))) == CLIENTS


def test_fewer_proxies_than_the_default_asks_are_all_asked():
    usual = fd.Schedule(warmup_steps=0, proxy_steps=1)
    for method in (fd.SelectiveFD("hard"), fd.FedMD()):
        made = trained(schedule=usual, method=method)
        assert [len(seen.result.indices) for seen in made.transcript.distillation] == [60]


def test_a_device_may_be_named():
    assert trained(device="cpu").models[0][1].weight.device == torch.device("cpu")


def test_every_round_is_logged(caplog):
    made = federation()
    made.trainer = run_each
    with caplog.at_level("INFO", logger="secure_fd"):
        made.fit(2)
    assert [line.split(":")[0] for line in caplog.messages] == ["round 0", "round 1"]
    assert all("3 of 3 clients" in line for line in caplog.messages)


class Modes(nn.Module):
    """Keeps a note of the modes in which it learnt; one of its layers is fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fixed = network(), nn.Dropout().eval()
        self.learnt_in: set[tuple[bool, bool]] = set()

    def forward(self, pixels: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.learnt_in.add((self.training, self.fixed.training))
        made: Tensor = self.inner(self.fixed(pixels))
        return made


@pytest.mark.parametrize("training", [True, False])
def test_a_network_learns_in_the_modes_that_it_came_in_and_leaves_in_evaluation_mode(training):
    """A fixed layer stays fixed, but for a network that came in evaluation mode throughout."""
    networks = [Modes() if training else Modes().eval() for _ in range(CLIENTS)]
    federation(networks=networks)
    assert {(model.training, model.fixed.training) for model in networks} == {(training, False)}
    made = trained(networks=networks)
    made.fit(1)
    assert all(model.learnt_in == {(True, not training)} for model in networks)
    assert not any(layer.training for model in made.models for layer in model.modules())
