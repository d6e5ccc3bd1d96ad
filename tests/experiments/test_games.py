"""Membership games of the comparison: records of the same data, and the protocol of the row."""

from dataclasses import replace

import pytest
import torch

from experiments.compare import games
from experiments.compare.games import BY_LABELS, SERVER
from experiments.core.run_config import Privacy, RowSpec, RunConfig, row_config
from secure_fd.data.federated import ClientData, FederatedData, content_of
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.simulation.federation import Federation
from secure_fd.training.recipes import Schedule
from tests.refusals import refused

BASE = RunConfig(
    image_set="digits",
    split="strong",
    method="independent",
    selector="ratio",
    seed=0,
    rounds=2,
    schedule=Schedule(),
)
NOISE = Privacy("record", 4.0)


def config(spec: RowSpec) -> RunConfig:
    return row_config(BASE, spec, NOISE)


def images(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Images:
    chance = torch.Generator().manual_seed(seed)
    return Images(torch.rand(count, *shape, generator=chance), torch.arange(count) % classes)


def federated(shape: tuple[int, ...], classes: int, each: int) -> FederatedData:
    """Two clients with this number of records each."""
    parts = [images(each, shape, classes, seed) for seed in range(2)]
    clients = tuple(ClientData(part, part[torch.arange(0)], classes) for part in parts)
    shared = [images(count, shape, classes, 9 + count) for count in (600, 30, 40)]
    return FederatedData("own", classes, clients, *shared)


# What is drawn.


@pytest.mark.parametrize(
    ("shape", "classes", "members"),
    [((1, 28, 28), 10, 11), ((3, 20, 20), 2, 11), ((20, 1, 1), 3, 11)],
)
def test_records_are_drawn_from_the_data_and_in_one_part_only(shape, classes, members):
    data = federated(shape, classes, 400)
    found = games.drawn(data, 0)
    parts = [own.images.reshape(len(own), *shape) for own in found.candidates]
    every = [content_of(image) for part in (*parts, found.proxies.pixels) for image in part]
    assert len(set(every)) == len(every) == 3 * 2 * members * classes + games.PROXIES
    pool = [*(client.train for client in data.clients), data.held_out]
    known = {content_of(image) for part in pool for image in part.pixels}
    assert {content_of(image) for part in parts for image in part} <= known
    assert found.details == {
        "game_clients": 3.0,
        "game_members_of_a_class": float(members),
    }


def test_a_record_that_is_a_proxy_too_is_not_drawn_and_never_accepted():
    data = federated((1, 20, 20), 2, 100)
    twice = replace(data, proxies=data.clients[0].train)
    kept = games.drawn(twice, 0)
    shared = {content_of(image) for image in twice.proxies.pixels}
    assert not shared & {content_of(i) for own in kept.candidates for i in own.images}
    with pytest.raises(LocalError):
        replace(kept, proxies=Images(kept.candidates[0].images, kept.candidates[0].labels))


# How a row trains.


def trained(spec: RowSpec) -> Federation:
    """One run of few steps."""
    row = games.small(config(spec))
    records = tuple(own.take(torch.arange(0, 220, 20)) for own in games.digits().candidates)
    brief = replace(row.schedule, warmup_steps=min(2, row.schedule.warmup_steps))
    return games.train(replace(row, schedule=brief), games.digits(), records, 0)


@pytest.mark.parametrize("secure", ["masks", "he", "prio3"])
def test_a_row_is_played_under_its_own_sum(secure):
    run = trained(RowSpec("selective-fd", "hard", secure))
    assert run.aggregation.name == secure
    assert all(one.uploads is None for one in run.transcript.distillation)


def test_a_row_is_played_under_its_own_unit():
    noisy = trained(RowSpec("selective-fd", "hard", "masks", "label"))
    assert isinstance(noisy.protection, LabelUnit)
    assert noisy.protection.mechanism.epsilon == pytest.approx(4.0)
    assert (noisy.method.labels, noisy.method.votes) == ("hard", "counted")
    for secure, local in ((None, True), ("masks", False)):
        run = trained(RowSpec("heads", "hard", secure, "record"))
        unit = run.protection
        assert isinstance(unit, PooledRecordUnit)
        assert (unit.local, unit.delta) == (local, NOISE.delta)
        claim = unit.plan.guarantee(unit.delta, unit.records, 1)
        assert claim.epsilon == pytest.approx(4.0, rel=0.02)
    private = trained(RowSpec("fedavg", unit="record")).method.private
    assert (private.epsilon, private.delta) == (4.0, NOISE.delta)
    assert trained(RowSpec("fedavg")).method.private is None


def test_the_record_unit_over_votes_is_not_played_as_the_label_unit():
    with refused("unit"):
        trained(RowSpec("selective-fd", "hard", "masks", "record"))


@pytest.mark.parametrize("spec", [RowSpec("dafkd"), RowSpec("selective-fd", unit="client")])
def test_a_row_without_a_game_has_a_sentence(spec):
    with pytest.raises(MissingCapabilityError):
        games.small(config(spec))
    with pytest.raises(MissingCapabilityError):
        games.played(None, config(spec), {}, (SERVER, BY_LABELS), quick=True)
