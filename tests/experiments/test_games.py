"""Membership games of the comparison: records of the same data, and the protocol of the row."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from attacks.core.base import POSITIVE, AttackResult, Labelled
from attacks.membership.budgets import LeakageGame
from attacks.membership.shadows import Game, LiRA
from experiments.compare import games
from experiments.compare.games import BY_LABELS, SERVER
from experiments.core import runs
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
HARD = RowSpec("selective-fd", "hard")
MASKED = RowSpec("selective-fd", "hard", "masks")


def config(spec: RowSpec) -> RunConfig:
    return row_config(BASE, spec, NOISE)


def images(count: int, shape: tuple[int, ...], classes: int, seed: int) -> Images:
    chance = torch.Generator().manual_seed(seed)
    return Images(torch.rand(count, *shape, generator=chance), torch.arange(count) % classes)


def federated(shape: tuple[int, ...], classes: int, each: int) -> FederatedData:
    """Two clients with so many records each."""
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


# What attacks find.


POSITIVES = {"indirect": 0.9}
"""What attacks reach on overfitted federations."""


@cache
def server(spec: RowSpec) -> AttackResult:
    found = games.played(None, config(spec), POSITIVES, (SERVER, BY_LABELS), quick=True)
    assert found[BY_LABELS] == "not run: a quick look"
    result = found[SERVER]
    assert isinstance(result, AttackResult)
    return result


def test_masks_take_from_the_server_most_of_what_votes_tell_of_members():
    clear, masked = server(HARD), server(MASKED)
    assert clear.interval[0] > masked.interval[1]  # the twin: the same votes without masks
    assert masked.details[POSITIVE] == POSITIVES["indirect"]
    assert masked.name == SERVER
    assert masked.details["game_runs"] == 6.0
    assert masked.details["game_members_of_a_class"] > 1


def test_with_shuffled_members_every_figure_is_a_coin():
    """The same runs, scored by the coins of another game."""
    row, records = games.small(BASE), games._few(games.drawn(runs.data_of(BASE), 0))
    true = LeakageGame.of(records.candidates, 6, 0)
    networks = []

    def seen(members: Sequence[Labelled], seed: int) -> torch.nn.Module:
        networks.append(games.train(row, records, members, seed).models)
        return networks[-1][0]

    true.views(seen)
    shuffled = replace(true, game=Game.of(records.candidates, 6, 99))
    assert not np.array_equal(true.game.inside, shuffled.game.inside)
    caught, coin = (
        one.outside(lambda _, own, k: LiRA(own, k), networks, records.proxies.pixels)
        for one in (true, shuffled)
    )
    assert caught.interval[0] > 0.6
    assert coin.interval[0] <= 0.5 <= coin.interval[1]
