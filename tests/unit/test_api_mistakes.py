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
from tests.unit.toy import network, toy

CLIENTS = 3
BRIEF = fd.Schedule(warmup_steps=2, proxy_steps=2, proxies_per_round=20)


def records(k: int = 0) -> fd.Images:
    return toy(40, seed=k)


def client(k: int = 0, **changed: Any) -> fd.ClientData:
    own = records(k)
    made = fd.Images(changed.get("pixels", own.pixels), changed.get("labels", own.labels))
    return fd.ClientData(made, own[:4], n_classes=2)


def never(_: Sequence[fd.Steps]) -> NoReturn:
    pytest.fail("something trained")


def federation(
    *,
    networks: Sequence[Any] | None = None,
    data: Sequence[fd.ClientData] | None = None,
    proxies: object = None,
    method: object = None,
    **options: Any,
) -> fd.Federation:
    """A federation that works where nothing is given."""
    data = [client(k) for k in range(CLIENTS)] if data is None else data
    networks = [network(k) for k in range(CLIENTS)] if networks is None else networks
    given: Any = toy(60, seed=9).pixels if proxies is None else proxies
    chosen: Any = fd.SelectiveFD("hard") if method is None else method
    options = {"schedule": BRIEF, "trainer": never, **options}
    return fd.Federation(fd.participants_of(networks, data), given, chosen, **options)


def with_proxies(change: Callable[[Tensor], object]) -> Callable[[], object]:
    return lambda: federation(proxies=change(toy(60, seed=9).pixels))


def with_network(make: Callable[[], object]) -> Callable[[], object]:
    return lambda: federation(networks=[network(0), make(), network(2)])


def with_pixels(change: Callable[[Tensor], Any]) -> Callable[[], object]:
    return lambda: client(pixels=change(records().pixels))


def with_labels(change: Callable[[Tensor], Any]) -> Callable[[], object]:
    return lambda: client(labels=change(records().labels))


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


def frozen() -> nn.Module:
    return network().requires_grad_(requires_grad=False)


def broken() -> nn.Module:
    made = network()
    with torch.no_grad():
        next(made.parameters()).fill_(torch.nan)
    return made


def simulated(**options: Any) -> Callable[[], object]:
    return lambda: fd.simulate("digits", **{"clients": CLIENTS, **options})


PROXIES: list[tuple[str, Callable[[], object], str, str]] = [
    ("bytes as floats", with_proxies(lambda p: p * 255), "proxies", "[0, 1]"),
    ("not a number", with_proxies(spoilt), "proxies", "[0, 1]"),
    ("another size", with_proxies(lambda p: p[..., :3, :3]), "proxies", "(1, 4, 4)"),
    ("other channels", with_proxies(lambda p: p.expand(-1, 3, -1, -1)), "proxies", "(1, 4, 4)"),
    ("a NumPy array", with_proxies(lambda p: p.numpy()), "proxies", "torch.from_numpy"),
    ("a path", with_proxies(lambda _: Path("proxies")), "proxies", "a tensor"),
    ("a list", with_proxies(list), "proxies", "a tensor"),
    ("labelled images", with_proxies(lambda _: toy(60)), "proxies", ".pixels of Images"),
    ("8-bit integers", with_proxies(lambda p: p.byte()), "proxies", "float32"),
    ("float64", with_proxies(lambda p: p.double()), "proxies", "float32"),
    ("none of them", with_proxies(lambda p: p[:0]), "proxies", "one or more"),
    ("no channels", with_proxies(lambda p: p[:, 0]), "proxies", "[N, channels, H, W]"),
]
NETWORKS: list[tuple[str, Callable[[], object], str, str]] = [
    ("other inputs", with_network(lambda: nn.Linear(9, 2)), "models", "(1, 4, 4)"),
    (
        "five outputs for two classes",
        with_network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5))),
        "models",
        "2 logits",
    ),
    ("two outputs", with_network(Pair), "models", "one tensor"),
    (
        "probabilities",
        with_network(lambda: nn.Sequential(network(), nn.Softmax(dim=1))),
        "models",
        "logits",
    ),
    ("frozen", with_network(frozen), "models", "requires_grad"),
    ("float64", with_network(lambda: network().double()), "models", "float32"),
    ("not a number", with_network(broken), "models", "finite"),
    ("no module", with_network(lambda: "cnn"), "models", "torch.nn.Module"),
    ("a class, not an instance", with_network(lambda: Pair), "models", "torch.nn.Module"),
    ("one for all", lambda: federation(networks=[network()] * CLIENTS), "models", "of its own"),
    (
        "one too few",
        lambda: federation(networks=[network(0), network(1)]),
        "models",
        "one a client",
    ),
]
RECORDS: list[tuple[str, Callable[[], object], str, str]] = [
    ("bytes as floats", with_pixels(lambda p: p * 255), "pixels", "[0, 1]"),
    ("not a number", with_pixels(spoilt), "pixels", "[0, 1]"),
    ("float64", with_pixels(lambda p: p.double()), "pixels", "float32"),
    ("8-bit integers", with_pixels(lambda p: p.round().byte()), "pixels", "float32"),
    ("a NumPy array", with_pixels(lambda p: p.numpy()), "pixels", "torch.from_numpy"),
    ("a path", with_pixels(lambda _: "scans/"), "pixels", "a tensor"),
    (
        "channels last",
        with_pixels(lambda p: p.repeat(1, 3, 2, 2).permute(0, 2, 3, 1)),
        "pixels",
        "permute",
    ),
    ("no channels", with_pixels(lambda p: p[:, 0]), "pixels", "[N, channels, H, W]"),
    ("int32 labels", with_labels(lambda y: y.int()), "labels", "int64"),
    ("float labels", with_labels(lambda y: y.float()), "labels", "int64"),
    ("a list of labels", with_labels(lambda y: y.tolist()), "labels", "a tensor"),
    ("fewer labels", with_labels(lambda y: y[:-1]), "labels", "one a record"),
    ("one-hot labels", with_labels(lambda y: torch.eye(2)[y].long()), "labels", "one a record"),
    ("a label too large", with_labels(lambda y: y + 1), "labels", "0 to 1"),
    ("a negative label", with_labels(lambda y: y - 1), "labels", "0 to 1"),
    (
        "no record",
        lambda: fd.ClientData(records()[:0], records(), 2),
        "train",
        "one record or more",
    ),
    ("one record", lambda: fd.clients_of([records()[:1]]), "parts", "2 records or more"),
    (
        "other pixels at one client",
        lambda: federation(data=[client(0), client(1), client(2, pixels=torch.rand(40, 1, 5, 5))]),
        "participants",
        "one shape",
    ),
    (
        "other classes at one client",
        lambda: federation(data=[client(0), client(1), replace(client(2), n_classes=3)]),
        "n_classes",
        "agree",
    ),
    (
        "one client",
        lambda: federation(networks=[network()], data=[client()]),
        "participants",
        "2 or",
    ),
    (
        "records for clients",
        lambda: federation(data=[records(k) for k in range(CLIENTS)]),
        "participants",
        "ClientData",
    ),
]
SETTINGS: list[tuple[str, Callable[[], object], str, str]] = [
    ("a device that is none", lambda: federation(device="gpu"), "device", "cpu"),
    ("a GPU that is not there", lambda: federation(device="cuda:99"), "device", "here"),
    ("a method's name", lambda: federation(method="selective-fd"), "method", "simulate"),
    ("a method's class", lambda: federation(method=fd.FedMD), "method", "an instance"),
    ("a capital", lambda: fd.SelectiveFD("Hard"), "labels", "soft or hard"),
    ("another kind of label", lambda: fd.FedMD("one-hot"), "labels", "soft or"),
    ("no number for epsilon", lambda: fd.LabelUnit(float("nan"), 1e-5), "epsilon", "0.01 to 50"),
    ("no epsilon", lambda: fd.LabelUnit(0.0, 1e-5), "epsilon", "0.01 to 50"),
    ("an epsilon that nothing survives", lambda: fd.LabelUnit(0.001, 1e-5), "epsilon", "0.01"),
    ("an epsilon that protects nobody", lambda: fd.LabelUnit(400.0, 1e-5), "epsilon", "to 50"),
    ("a delta of one", lambda: fd.LabelUnit(4.0, 1.0), "delta", "between 0 and 1"),
    ("rounds below none", lambda: list(federation().rounds(-3)), "rounds", "0 or more"),
    ("half a round", lambda: federation().fit(1.5), "rounds", "a whole number"),
    ("a pair to test on", lambda: federation().accuracies((0, 1)), "test", "Images"),
    (
        "other images to test on",
        lambda: federation().accuracies(fd.Images(torch.rand(2, 1, 5, 5), torch.tensor([0, 1]))),
        "test",
        "(1, 4, 4)",
    ),
    (
        "no proxies a round",
        lambda: replace(BRIEF, proxies_per_round=0),
        "proxies_per_round",
        "1 or",
    ),
    (
        "more proxies than there are",
        lambda: federation(schedule=replace(BRIEF, proxies_per_round=61)),
        "proxies_per_round",
        "60 proxies",
    ),
    ("steps below none", lambda: fd.Schedule(warmup_steps=-1), "warmup_steps", "0 or more"),
    ("a rate below none", lambda: fd.SGD(learning_rate=-0.1), "learning_rate", "0 or more"),
    ("batches of none", lambda: fd.SGD(local_batch=0), "local_batch", "1 or more"),
    ("dropouts above one", lambda: fd.Dropouts(1.5, seed=0), "rate", "less than 1"),
    (
        "masks for others",
        lambda: federation(aggregation=fd.MaskedSum(n_clients=5)),
        "aggregation",
        "3",
    ),
    ("a seed below none", lambda: federation(seed=-1), "seed", "0 or more"),
    ("a set's name misspelt", lambda: fd.load("mnits"), "dataset", "mnist"),
    ("a split's name misspelt", lambda: fd.parse_split("strng"), "split", "strong"),
    ("a folder that is not there", lambda: fd.images_in("nowhere", 32), "folder", "a folder"),
    ("a method misspelt", simulated(method="fedsgd"), "method", "fedavg"),
    ("a sum misspelt", simulated(secure="mask"), "secure", "masks"),
    ("a unit misspelt", simulated(unit="person", epsilon=4.0), "unit", "label or record"),
    *(
        (
            f"a record unit that never asks {method}",
            simulated(method=method, unit="record", epsilon=4.0),
            "unit",
            "votes carry no record's epsilon",
        )
        for method in ("fedmd", "ds-fl", "feded", "selective-fd-published", "fkd")
    ),
    *(
        (
            f"a record's epsilon under {secure} for {method}",
            simulated(method=method, secure=secure, unit="record", epsilon=4.0),
            "unit",
            "votes carry no record's epsilon",
        )
        for method in ("selective-fd", "heads", fd.SelectiveFD("hard"))
        for secure in ("he", "prio3")
    ),
    (
        "a record's epsilon for a method of votes of one's own",
        simulated(method=fd.SelectiveFD("hard"), unit="record", epsilon=4.0),
        "unit",
        "votes carry no record's epsilon",
    ),
    *(
        (
            f"noise on class sums for {method.name}",
            lambda method=method: federation(
                method=method,
                protection=fd.LocalRecordUnit(
                    *(4.0, 1e-5), records=(40,) * CLIENTS, n_proxies=60, n_classes=2
                ),
            ),
            "protection",
            "votes carry no record's epsilon",
        )
        for method in (fd.FedMD("hard"), fd.SelectiveFD("hard"))
    ),
    ("a capital in a threshold", lambda: fd.ProxyRatioSelector("Otsu"), "threshold", "otsu or"),
    (
        "a threshold that is a number",
        lambda: fd.ProxyRatioSelector(0.5),
        "threshold",
        "otsu or quantile",
    ),
    *(
        (
            f"{quantile} as a quantile of {kind.__name__}",
            partial(kind, quantile=quantile),
            "quantile",
            "0 to 1",
        )
        for kind in (fd.ProxyRatioSelector, fd.KulsifSelector)
        for quantile in (7.0, -0.1, float("nan"))
    ),
    ("a kernel of no width", lambda: fd.KulsifSelector(width=0.0), "width", "above 0"),
    ("no reference", lambda: fd.KulsifSelector(n_reference=0), "n_reference", "1 or more"),
    ("an epsilon without a unit", simulated(epsilon=4.0), "epsilon", "unit"),
    ("a record unit without an epsilon", simulated(unit="record"), "unit", "epsilon"),
    ("a label unit without an epsilon", simulated(unit="label"), "unit", "epsilon"),
    ("a recipe misspelt", simulated(recipe="our"), "recipe", "ours, paper"),
    ("too many clients for the split", simulated(clients=40), "clients", "10"),
    (
        "an attack misspelt",
        lambda: fd.simulate("digits", clients=3).attack("member"),
        "attack",
        "label-distribution",
    ),
]
TABLE = [
    pytest.param(mistake, field, said, id=f"{part}: {name}")
    for part, rows in (
        ("proxies", PROXIES),
        ("networks", NETWORKS),
        ("records", RECORDS),
        ("settings", SETTINGS),
    )
    for name, mistake, field, said in rows
]


@pytest.mark.parametrize(("mistake", "field", "said"), TABLE)
def test_a_mistake_gets_one_sentence_before_anything_trains(mistake, field, said):
    with pytest.raises(fd.ConfigurationError) as refused:
        mistake()
    assert refused.value.field == field
    sentence = str(refused.value)
    assert said in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


def test_there_are_forty_mistakes():
    assert len(TABLE) >= 40


# The same federation without a mistake, which all of these checks must let pass.


def trained(**options: Any) -> fd.Federation:
    made = federation(**{"trainer": None, **options})
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
        assert [len(seen.ensemble.indices) for seen in made.transcript.distillation] == [60]


def test_a_device_may_be_named():
    assert trained(device="cpu").models[0][1].weight.device == torch.device("cpu")


def test_every_round_is_told_and_logged(caplog):
    told: list[fd.RoundReport] = []
    made = federation(trainer=None, on_round=told.append)
    with caplog.at_level("INFO", logger="secure_fd"):
        reports = made.fit(2)
    assert told == reports
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


def test_networks_learn_in_the_modes_that_they_came_in_and_leave_in_evaluation_mode():
    networks = [Modes() for _ in range(CLIENTS)]
    made = trained(networks=networks)
    assert all(model.learnt_in == {(True, False)} for model in networks)
    assert not any(layer.training for model in made.models for layer in model.modules())
    made.fit(1)
    assert all(model.learnt_in == {(True, False)} for model in networks)


def test_a_network_that_comes_in_evaluation_mode_learns_all_the_same():
    networks = [Modes().eval() for _ in range(CLIENTS)]
    trained(networks=networks)
    assert all(model.learnt_in == {(True, True)} for model in networks)


def test_a_look_at_networks_leaves_their_modes():
    networks = [Modes() for _ in range(CLIENTS)]
    federation(networks=networks)
    assert all(model.training and not model.fixed.training for model in networks)
