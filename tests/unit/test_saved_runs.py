"""A whole run in a file: it goes on as if nothing had happened, and the file holds no secret.

Runs with noise, and their ledgers, are in test_saved_privacy.py.
"""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from secure_fd import (
    Federation,
    MaskedSum,
    Recipe,
    RoundReport,
    Schedule,
    SelectiveFD,
    Simulation,
    kept,
    participants_of,
    saved,
    simulate,
)
from secure_fd.adversarial import AdversarialSettings
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.kept_values import decode, encode
from secure_fd.methods.afl import AFL
from secure_fd.methods.dafkd import DaFKD, FedDF
from secure_fd.methods.fedavg import flatten
from secure_fd.methods.feded import FedED
from secure_fd.recipes import SGD
from secure_fd.selection.density import ReferenceSettings
from secure_fd.simulation import fresh_networks
from secure_fd.training import Learner

STEPS = Schedule(warmup_steps=4, local_steps=1, proxy_steps=3, proxies_per_round=60)
RECIPE = Recipe(4, STEPS)


def run(weak_digits: FederatedData, **options: Any) -> Simulation:  # noqa: ANN401 - of `simulate`
    return simulate(weak_digits, **{"recipe": RECIPE, **options})


def same(one: Simulation, other: Simulation, *, size: bool = True) -> None:
    """Networks, votes and figures, bit for bit. size: messages' bytes too."""
    pairs = zip(one.federation.models, other.federation.models, strict=True)
    assert all(torch.equal(flatten(a), flatten(b)) for a, b in pairs)
    assert one.accuracies == other.accuracies
    shared = [made.federation.global_parameters for made in (one, other)]
    assert (shared[0] is None) is (shared[1] is None)
    if shared[0] is not None and shared[1] is not None:
        np.testing.assert_array_equal(shared[0], shared[1])
    first, second = (made.transcript for made in (one, other))
    if size:
        assert first.up.tolist() == second.up.tolist()
        assert first.down.tolist() == second.down.tolist()
    assert (first.missing, first.survivors) == (second.missing, second.survivors)
    votes = zip(first.distillation, second.distillation, strict=True)
    for a, b in votes:
        np.testing.assert_array_equal(a.total, b.total)
        np.testing.assert_array_equal(a.proxy_indices, b.proxy_indices)


MOMENTUM = Recipe(4, replace(STEPS, sgd=SGD(momentum=0.5, own_batch=8), augment="shift"))
SMALL = AdversarialSettings(latent=4, hidden=16, judge=16, sums=2, steps=2, batch=16)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "selective-fd"},
        {"method": "selective-fd", "secure": "masks", "drop": 0.3, "recipe": MOMENTUM},
        {"method": "fedmd", "labels": "soft"},
        {"method": "fedavg", "drop": 0.3},
        {"method": "independent"},
        {"method": "heads", "drop": 0.2},
        {"method": "heads", "secure": "masks"},
        {"method": AFL(features=ReferenceSettings(n_features=64))},
        {"method": "fkd", "drop": 0.3},
        {"method": "pls", "labels": "hard"},
        {"method": "fedproto", "recipe": MOMENTUM},
        {"method": DaFKD(adversarial=SMALL, generated=64, steps=5), "drop": 0.3},
        {"method": FedDF(adversarial=SMALL, generated=64, steps=5, start="last")},
    ],
    ids=[
        *("votes", "masks-dropouts-momentum", "fedmd", "fedavg", "independent"),
        *("heads", "heads-masks", "afl", "fkd", "pls", "fedproto", "dafkd", "feddf"),
    ],
)
def test_a_run_goes_on_as_if_it_had_not_ended(
    weak_digits: FederatedData, tmp_path: Path, options: dict[str, Any]
) -> None:
    whole = run(weak_digits, **options)
    reports = whole.fit(4)
    begun = run(weak_digits, **options)
    begun.fit(2)
    begun.save(tmp_path / "run.pt")
    going = run(weak_digits, **options)
    going.load(tmp_path / "run.pt")
    same(going, begun)
    plain = "secure" not in options  # a new set-up of masks has other shares to send
    assert [sized(r, plain) for r in going.fit(2)] == [sized(r, plain) for r in reports[2:]]
    same(going, whole, size=plain)


def sized(report: RoundReport, keep: bool) -> RoundReport:
    return report if keep else replace(report, bytes_up=0.0, bytes_down=0.0)


@pytest.mark.parametrize(
    ("method", "part", "forgotten"),
    [
        ("selective-fd", "Trainer", "_generator"),
        ("fedproto", "PrototypeTrainer", "_sgd"),
        ("fedproto", "FedProtoClient", "prototypes"),
        ("heads", "HeadServer", "_search"),
        ("dafkd", "Adversary", "_judges"),
        ("dafkd", "DaFKDServer", "_makes"),
    ],
)
def test_a_part_that_is_forgotten_shows(
    weak_digits: FederatedData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    part: str,
    forgotten: str,
) -> None:
    """The twin of the test above."""
    own = DaFKD(adversarial=SMALL, generated=64, steps=5) if method == "dafkd" else method
    options: dict[str, Any] = {"method": own, "recipe": MOMENTUM}
    rest = tuple(name for name in kept.KEPT[part] if name != forgotten)
    assert len(rest) == len(kept.KEPT[part]) - 1
    whole = run(weak_digits, **options)
    whole.fit(3)
    monkeypatch.setattr(kept, "KEPT", {**kept.KEPT, part: rest})
    begun, going = run(weak_digits, **options), run(weak_digits, **options)
    begun.fit(2)
    begun.save(tmp_path / "run.pt")
    going.load(tmp_path / "run.pt")
    going.fit(1)
    with pytest.raises(AssertionError):
        same(going, whole)


def test_a_server_with_a_network_of_its_own_goes_on(
    weak_digits: FederatedData, tmp_path: Path
) -> None:
    """FedED's rule holds it, so that every run, in any process, has a rule of its own."""

    def made() -> Simulation:
        network = fresh_networks(weak_digits, 9)[0]
        rule = FedED(
            "soft", weak_digits.proxies.pixels, network, warmup=3, device=torch.device("cpu")
        )
        return run(weak_digits, method=rule)

    whole, begun, going = made(), made(), made()
    whole.fit(3)
    begun.fit(1)
    begun.save(tmp_path / "run.pt")
    going.load(tmp_path / "run.pt")
    going.fit(2)
    same(going, whole)
    rules: list[Any] = [one.federation.method for one in (whole, begun, going)]
    central = [flatten(each.rule.model) for each in rules]
    assert torch.equal(central[0], central[2])
    assert not torch.equal(central[0], central[1])


def test_networks_come_back_in_the_order_of_their_memory(weak_digits: FederatedData) -> None:
    """Sums of the same numbers in another order round otherwise."""
    one, other = fresh_networks(weak_digits, 0)[0], fresh_networks(weak_digits, 1)[0]
    first, second = (
        Learner(model, weak_digits.clients[0].train, STEPS, seed=0, device=torch.device("cpu"))
        for model in (one, other)
    )
    for parameter in one.parameters():
        parameter.data = parameter.data.contiguous()
    assert strides(one) != strides(other)
    kept.restore(second, kept.state_of(first))
    assert strides(one) == strides(other)
    assert torch.equal(flatten(one), flatten(other))


def strides(network: nn.Module) -> list[tuple[int, ...]]:
    return [parameter.stride() for parameter in network.parameters()]


def test_answers_that_were_released_keep_their_noise(
    weak_digits: FederatedData, tmp_path: Path
) -> None:
    options = {"method": "selective-fd", "unit": "label", "epsilon": 2.0, "secure": "masks"}
    begun, going = run(weak_digits, **options), run(weak_digits, **options)
    begun.fit(2)
    begun.save(tmp_path / "run.pt")
    going.load(tmp_path / "run.pt")
    assert going.guarantee == begun.guarantee
    for number, part in begun.federation.protection.parts.items():
        there: Any = going.federation.protection.parts[number]
        before: Any = part
        asked = np.flatnonzero(before.ledger._released)
        symbols = np.zeros(len(asked), dtype=np.int64)
        named = before.ledger.release(asked, symbols, _no_noise)
        np.testing.assert_array_equal(there.ledger.release(asked, symbols, _no_noise), named)
    going.fit(1)


def _no_noise(_: int) -> bytes:
    raise AssertionError("a pair that was released got new noise")


def test_no_key_is_in_the_file(weak_digits: FederatedData, tmp_path: Path) -> None:
    """Everything of 16 bytes or more that was drawn for keys, masks and seeds is looked for."""
    drawn: list[bytes] = []

    def noted(count: int) -> bytes:
        drawn.append(os.urandom(count))
        return drawn[-1]

    made = Federation(
        participants_of(fresh_networks(weak_digits, 0), weak_digits.clients),
        weak_digits.proxies.pixels,
        SelectiveFD("hard"),
        aggregation=MaskedSum(3, random=noted, public_seed=0),
        schedule=STEPS,
    )
    made.fit(2)
    path = tmp_path / "run.pt"
    saved.write(path, {"run": saved.state_of_run(made)})
    long = [value for value in drawn if len(value) >= 16]
    assert len(long) > 10
    assert not any(value in path.read_bytes() for value in long)
    saved.write(path, {"run": saved.state_of_run(made) | {"key": encode(long[-1])}})
    assert any(value in path.read_bytes() for value in long)  # the search finds one that is there
    assert path.stat().st_mode & 0o077 == 0


def test_a_write_that_fails_leaves_no_network_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pt"
    saved.write(path, {"run": 1})
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        saved.write(path, {"run": 2})
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"method": "fedmd"}, "method"),
        ({"seed": 1}, "seed"),
        ({"secure": "masks"}, "aggregation"),
        ({"drop": 0.2}, "dropouts"),
        ({"recipe": Recipe(4, replace(STEPS, local_steps=2))}, "schedule"),
        ({"unit": "label", "epsilon": 2.0}, "method"),
    ],
)
def test_a_run_of_another_form_is_refused_by_name(
    weak_digits: FederatedData, tmp_path: Path, options: dict[str, Any], field: str
) -> None:
    made = run(weak_digits)
    made.fit(1)
    made.save(tmp_path / "run.pt")
    other = run(weak_digits, **options)
    with pytest.raises(ConfigurationError) as refused:
        other.load(tmp_path / "run.pt")
    assert refused.value.field == field
    with pytest.raises(ConfigurationError, match="fresh run"):
        made.load(tmp_path / "run.pt")


def test_what_has_no_form_in_a_file_is_refused_and_its_networks_are_kept(
    weak_digits: FederatedData, tmp_path: Path
) -> None:
    fresh = run(weak_digits)
    with pytest.raises(ConfigurationError, match="before it begins"):
        fresh.save(tmp_path / "run.pt")
    central = Central("soft", weak_digits.proxies.pixels, fresh_networks(weak_digits, 1)[0])
    own, other = run(weak_digits, method=central), run(weak_digits)
    own.fit(1)
    with pytest.raises(ConfigurationError, match="save_networks"):
        own.save(tmp_path / "run.pt")
    own.save_networks(tmp_path / "networks.pt")
    other.load_networks(tmp_path / "networks.pt")
    with pytest.raises(ConfigurationError, match="networks alone"):
        other.load(tmp_path / "networks.pt")
    assert not (tmp_path / "run.pt").exists()


class Central(FedED):
    """A rule of one's own, of whose state nobody knows."""


class Runs:
    """What a hostile pickle would do."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("it ran",))


def test_a_file_that_would_run_something_is_refused(
    weak_digits: FederatedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "run.pt", run(weak_digits)
    for write in (
        lambda: torch.save({"schema": saved.SCHEMA, "run": Runs()}, path),
        lambda: path.write_bytes(pickle.dumps(Runs())),
        lambda: torch.save({"schema": "other"}, path),
        lambda: path.write_bytes(b""),
    ):
        write()
        with pytest.raises(ConfigurationError, match="damaged"):
            other.load(path)
    assert "it ran" not in capsys.readouterr().out
    with pytest.raises(ConfigurationError, match="no such file"):
        other.load(tmp_path / "missing.pt")


@pytest.mark.parametrize(
    "wrong",
    [
        ("array", ["<f8", [3], torch.zeros(8, dtype=torch.uint8)]),
        ("array", ["|O", [1], torch.zeros(8, dtype=torch.uint8)]),
        ("array", ["<f8", [-1], torch.zeros(0, dtype=torch.uint8)]),
        ("Ensemble", {"indices": 1}),
        ("dict", [[1]]),
        ("os.system", ["x"]),
        ("event", torch.zeros(3, dtype=torch.uint8)),
        ("ReferenceSettings", {"images": "patches"}),
        ("list", 3),
        [1],
    ],
)
def test_values_of_another_form_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="damaged"):
        decode(wrong)


def test_values_come_back_as_they_were() -> None:
    for array in (np.arange(6, dtype=np.uint64).reshape(2, 3), np.zeros((0, 4)), np.array([True])):
        found = decode(encode(array))
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype
    assert decode(encode({1: (None, b"x", frozenset({"a"}))})) == {1: (None, b"x", frozenset("a"))}
