"""FedProto: prototypes from one sum, a loss on embeddings, prediction by the nearest of them."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_fd.cohort import Alone
from torch import nn
from torch.nn import functional

from attacks.on_run import public_of
from attacks.view import Capability, client_view, server_view
from experiments import measures
from experiments.privacy_compare import Settings, plan, row_specs
from experiments.rows import Cell
from experiments.runs import prepare, run_cell
from secure_fd import Simulation, models, simulate
from secure_fd.aggregation.base import SecureSum, Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.federation import Dropouts, Federation, Participant, participants_of
from secure_fd.knowledge import FloatArray
from secure_fd.methods.fedproto import (
    FedProto,
    FedProtoClient,
    FedProtoServer,
    PrototypeCodec,
    PrototypeTrainer,
    embeddings,
    last_linear,
    prototype_message,
    read_prototypes,
)
from secure_fd.methods.heads import index_subject
from secure_fd.methods.independent import Independent
from secure_fd.models import HETEROGENEOUS, flatten
from secure_fd.recipes import SGD, Recipe, Schedule, Sizes
from secure_fd.training import Trainer, accuracy
from secure_fd.transcript import PrototypeRound
from tests.small_federation import faults
from tests.unit.toy import network, toy

CPU = torch.device("cpu")
STILL = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
BRIEF = replace(STILL, local_steps=2, proxy_steps=1, sgd=SGD(0.1, local_batch=16, momentum=0.9))
WIDTHS = (32, 20, 50, 64)
"""Of four networks' embeddings."""


def four_of_all_classes(seed: int) -> FederatedData:
    """Four clients that hold every class."""
    sizes = Sizes(proxies=1, test=30, held_out=4, local=80)
    return federate(load("digits"), parse_split("iid"), 4, seed=seed, sizes=sizes)


@pytest.fixture(scope="module")
def mixed() -> FederatedData:
    return four_of_all_classes(0)


def people(data: FederatedData) -> list[Participant]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [
            nn.Sequential(nn.Flatten(), nn.Linear(784, w), nn.ReLU(), nn.Linear(w, 10))
            for w in WIDTHS
        ]
    return participants_of(made, data.clients)


def federation(
    data: FederatedData,
    method: FedProto | Independent | None = None,
    schedule: Schedule = BRIEF,
    aggregation: SecureSum | None = None,
    script: Mapping[int, Mapping[int, Stage]] | None = None,
) -> Federation:
    return Federation(
        people(data),
        None,
        method or FedProto(dimension=20),
        aggregation=aggregation,
        schedule=schedule,
        dropouts=faults(script) if script else Dropouts(0.0, 0),
        device=CPU,
    )


def client(made: Federation, number: int = 0) -> FedProtoClient:
    half = made.clients[number].half
    assert isinstance(half, FedProtoClient)
    return half


def server(made: Federation) -> FedProtoServer:
    half = made.server.half
    assert isinstance(half, FedProtoServer)
    return half


def rounds_of(made: Federation) -> list[PrototypeRound]:
    found = [seen for seen in made.transcript.heads if isinstance(seen, PrototypeRound)]
    assert len(found) == len(made.transcript.heads)
    return found


def averaged(values: FloatArray, size: int) -> FloatArray:
    """[N, size] means of the values from floor(i L / d) to ceil((i + 1) L / d)."""
    length = values.shape[1]
    ends = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
    return np.stack([values[:, low:high].mean(axis=1) for low, high in ends], axis=1)


# Prototypes.


@pytest.mark.parametrize("kind", ["strong", "iid"])
def test_prototypes_are_the_means_over_all_records(
    digits: FederatedData, mixed: FederatedData, kind: str
) -> None:
    data = digits if kind == "strong" else mixed
    made = federation(data, schedule=STILL)
    made.fit(1)
    found = [
        averaged(model[:-1](one.train.pixels).detach().double().numpy(), 20)  # type: ignore[index]
        for model, one in zip(made.models, data.clients, strict=True)
    ]
    labels = np.concatenate([one.train.labels.numpy() for one in data.clients])
    every, half = np.concatenate(found), client(made)
    assert half.known.tolist() == [c in labels for c in range(10)]
    for c in np.unique(labels):
        wanted = every[labels == c].mean(axis=0)
        assert np.abs(half.prototypes[c] - wanted).max() < 1e-5
    assert not half.prototypes[~half.known].any()


def test_clients_of_many_records_weigh_more() -> None:
    form = PrototypeCodec((30, 10, 20), n_classes=2, dimension=2)
    counts = [np.array([30, 0]), np.array([5, 5]), np.array([0, 20])]
    means = [np.full((2, 2), float(k)) for k in range(3)]
    sent = sum(form.encode(k, *own) for k, own in enumerate(zip(counts, means, strict=True)))
    total, found = form.decode(np.asarray(sent), (0, 1, 2))
    assert total.tolist() == [35, 25]
    assert found == pytest.approx(np.array([[5 / 35] * 2, [45 / 25] * 2]), abs=1e-5)


def test_every_network_of_table_3_has_prototypes_of_one_size() -> None:
    pixels = torch.rand(3, 1, 28, 28)
    for name in dict.fromkeys(HETEROGENEOUS):
        model = models.build(name, 10, seed=0)
        found = embeddings(model, pixels, FedProto().dimension, limit=16.0)
        layers = list(model)[:-1]  # type: ignore[arg-type]
        wide = nn.Sequential(*layers)(pixels).detach().double().numpy()
        assert wide.shape[1] == last_linear(model).in_features >= 50
        assert found.shape == (3, 50)
        assert np.allclose(found.numpy(), averaged(wide, 50), atol=1e-5)
        assert not last_linear(model)._forward_pre_hooks  # nothing of it stays


def test_masks_change_no_bit(mixed: FederatedData) -> None:
    clear, masked = (federation(mixed, aggregation=s) for s in (None, MaskedSum(4)))
    for made in (clear, masked):
        made.fit(3)
    for one, other in zip(clear.models, masked.models, strict=True):
        assert torch.equal(flatten(one), flatten(other))
    assert np.array_equal(client(clear).prototypes, client(masked).prototypes)
    seen, hidden = rounds_of(clear)[-1], rounds_of(masked)[-1]
    assert np.array_equal(seen.parameters, hidden.parameters)
    assert (hidden.uploads, hidden.counts) == (None, None)
    assert seen.uploads is not None
    own = seen.uploads[2].reshape(10, 20)
    assert np.abs(own - client(clear, 2)._means()[1]).max() < 1e-5


# Steps.


def test_one_step_lowers_both_losses_together() -> None:
    """Against CE + lambda times the mean squared distance by autograd; class 1 has no prototype."""
    data, weight, rate = toy(16), 0.7, 0.3
    start, twin = network(), network()
    trainer = PrototypeTrainer(Trainer(start, data, SGD(rate, 16), 0, CPU), weight)
    lessons = torch.full((2, 4), torch.nan)
    lessons[0] = torch.arange(4.0)
    pixels, labels = Trainer(twin, data, SGD(rate, 16), 0, CPU).local_batch()  # drawn alike
    trainer.local_steps(1, lessons)
    embedded = twin[:-1](pixels)  # type: ignore[index]
    apart = embedded.view(16, 4, 2).mean(dim=2)[labels == 0] - lessons[0]
    loss = functional.cross_entropy(twin[-1](embedded), labels)  # type: ignore[index]
    (loss + weight * apart.square().sum() / (16 * 4)).backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.sub_(rate * parameter.grad)
    assert torch.allclose(flatten(start), flatten(twin), atol=1e-6)
    assert not torch.allclose(flatten(start), flatten(network()), atol=1e-3)


def test_before_there_are_prototypes_it_learns_alone(mixed: FederatedData) -> None:
    """One round to within rounding, and afterwards not; with a weight of 0 for good."""
    for weight, rounds, same in ((1.0, 1, True), (1.0, 2, False), (0.0, 2, True)):
        alone, made = federation(mixed, Independent()), federation(mixed, FedProto(weight, 20))
        alone.fit(rounds)
        kept = [report.kept for report in made.rounds(rounds)]
        assert kept == [0.0, 1.0][:rounds]
        pairs = zip(made.models, alone.models, strict=True)
        close = [torch.allclose(flatten(one), flatten(other), atol=1e-5) for one, other in pairs]
        assert all(close) if same else not any(close)


def test_who_trains_beside_whom_changes_nothing(mixed: FederatedData) -> None:
    """Its trainer fits no cohort of networks that know cross-entropy alone: it is run as it is."""
    names = ["cnn-5-5-50"] * 2
    ends = []
    for train in (None, Alone()):
        networks = [models.build(name, 10, seed=k) for k, name in enumerate(names)]
        made = Federation(
            participants_of(networks, mixed.clients[:2]),
            None,
            FedProto(),
            schedule=BRIEF,
            device=CPU,
            trainer=train,
        )
        made.fit(2)
        ends.append([flatten(model) for model in made.models])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


# What it gives.


def test_prototypes_of_all_classes_teach() -> None:
    """The nearest prototype is right ever more often; classifiers gain a point on learning alone.

    Of four seeds that were tried, each gained .9 to 1.3 points: at a faster pace networks of 80
    records swing by twenty points from seed to seed, and nothing can be told.
    """
    plan = replace(BRIEF, local_steps=20, proxy_steps=0, sgd=SGD(0.1, 16, momentum=0.5))
    gains = []
    for seed in range(3):
        data = four_of_all_classes(seed)
        made, alone = (
            Federation(
                participants_of(
                    [models.build("cnn-5-5-50", 10, k) for k in range(4)], data.clients
                ),
                None,
                method,
                schedule=replace(plan, anneal_over=8),
                device=CPU,
            )
            for method in (FedProto(), Independent())
        )
        made.fit(1)
        early = np.mean(made.accuracies(data.test))
        made.fit(7)
        alone.fit(8)
        each = [client(made, k).accuracies(data.test) for k in range(4)]
        assert [one["prototypes"] for one in each] == made.accuracies(data.test)
        nearest, own = (
            np.mean([one[name] for one in each]) for name in ("prototypes", "classifier")
        )
        assert own == np.mean([accuracy(model, data.test) for model in made.models])
        assert nearest > early + 0.4
        gains.append(own - np.mean(alone.accuracies(data.test)))
    assert np.mean(gains) > 0.003


def test_where_each_client_holds_one_class_it_names_no_other(digits: FederatedData) -> None:
    """Nobody else's records enter its prototype, and other classes lie nowhere near theirs."""
    made = federation(digits, schedule=replace(BRIEF, local_steps=10))
    made.fit(4)
    test = digits.test[torch.nonzero(digits.test.labels < 4)[:, 0]]
    for k, data in enumerate(digits.clients):
        half, [own] = client(made, k), data.classes
        counts, means = half._means()
        assert np.flatnonzero(counts).tolist() == [own]
        assert np.abs(half.prototypes[own] - means[own]).max() < 1e-5
        assert float((half.nearest(test.pixels) == own).double().mean()) > 0.9
    assert np.mean(made.accuracies(test)) == pytest.approx(0.25, abs=0.05)


def test_a_class_without_a_prototype_is_never_named(digits: FederatedData) -> None:
    made = federation(digits)
    half = client(made)
    start = accuracy(half.learner.model, digits.test)
    assert half.accuracy(digits.test) == start  # there is no prototype at all: the classifier
    made.fit(1)
    assert set(half.nearest(digits.test.pixels).tolist()) <= {0, 1, 2, 3}
    half.known[:] = np.arange(10) == 2
    assert half.accuracy(digits.test) == float((digits.test.labels == 2).double().mean())


# Who is away.


def test_a_class_whose_holder_is_away_keeps_its_prototype(digits: FederatedData) -> None:
    away = {1: Stage.PREPARE}
    made = federation(digits, aggregation=MaskedSum(4), script={0: away, 2: away})
    known = []
    for _ in range(3):
        made.fit(1)
        known.append((server(made).known.nonzero()[0].tolist(), server(made).prototypes.copy()))
    assert [classes for classes, _ in known] == [[0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    assert np.array_equal(known[2][1][1], known[1][1][1])
    assert not np.array_equal(known[2][1][0], known[1][1][0])
    # It was away, and has what it was sent last.
    assert np.allclose(client(made, 1).prototypes, known[1][1], atol=1e-6)
    assert np.allclose(client(made, 0).prototypes, known[2][1], atol=1e-6)
    made.fit(1)  # it is told of the round that it missed before it learns
    assert np.array_equal(client(made, 1).prototypes, client(made, 0).prototypes)


def test_a_void_round_keeps_the_prototypes(mixed: FederatedData) -> None:
    lost = dict.fromkeys(range(1, 4), Stage.INPUT)
    made = federation(mixed, aggregation=MaskedSum(4), script={0: lost, 2: lost})
    [nothing] = made.rounds(1)
    assert nothing.void
    assert not client(made).known.any()
    made.fit(1)
    before, networks = client(made).prototypes, flatten(made.models[0]).clone()
    [void] = made.rounds(1)
    assert void.void
    assert np.array_equal(client(made).prototypes, before)
    assert not torch.equal(flatten(made.models[0]), networks)  # it has learnt what it was sent
    assert [seen.index for seen in rounds_of(made)] == [1]


# What crosses.


def test_entries_are_bounded_whatever_a_network_says() -> None:
    form = PrototypeCodec((5, 9), n_classes=2, dimension=3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    pixels = torch.tensor([[1e9, -torch.inf, 2.0], [17.0, -17.0, 0.0]])
    found = embeddings(model, pixels, 3, form.limit)
    assert found.tolist() == [[16, -16, 2], [16, -16, 0]]
    rng = np.random.default_rng(0)
    for _ in range(50):
        means = rng.choice([-16.0, 16.0, 0.0, 1.23456], size=(2, 3))
        units = form.encode(1, rng.integers(0, 10, 2), means)
        assert units.dtype == np.uint64
        assert units.max() <= form.bound
        assert len(units) == form.length == 8


def test_rounding_is_within_what_is_claimed() -> None:
    rng = np.random.default_rng(1)
    records = (100, 7, 60)
    form = PrototypeCodec(records, n_classes=4, dimension=8)
    worst = 0.0
    for _ in range(200):
        counts = [rng.multinomial(n, [0.9, 0.05, 0.05, 0.0]) for n in records]
        means = [rng.uniform(-16, 16, (4, 8)) for _ in records]
        sent = sum(form.encode(k, counts[k], means[k]) for k in range(3))
        total, found = form.decode(np.asarray(sent), (0, 1, 2))
        assert total.tolist() == np.sum(counts, axis=0).tolist()
        held = total > 0
        exact = sum(c[:, None] * m for c, m in zip(counts, means, strict=True))
        off = np.abs(found[held] - exact[held] / total[held, None])
        worst = max(worst, float((off * total[held, None]).max() / (3 * 100)))
    assert worst <= 2**-20


def test_a_lie_about_counts_is_found_or_bounded() -> None:
    form = PrototypeCodec((5, 9), n_classes=2, dimension=1)
    units = form.encode(0, np.array([5, 0]), np.array([[16.0], [0.0]]))
    few = units.copy()
    few[0] = 1
    assert form.decode(few, (0,))[1].tolist() == [[16.0], [0.0]]
    units[1] = 6
    with pytest.raises(PeerError, match="more records"):
        form.decode(units, (0,))


def test_a_network_that_diverged_holds_no_class(mixed: FederatedData) -> None:
    made = federation(mixed, schedule=STILL)
    with torch.no_grad():
        last_linear(made.models[0]).weight.fill_(torch.nan)
        made.models[0][1].weight.fill_(torch.nan)  # type: ignore[index]
    made.fit(1)
    counts = rounds_of(made)[0].counts
    assert counts is not None
    assert not counts[0].any()
    assert counts[1].sum() == len(mixed.clients[1].train)
    assert np.isfinite(client(made).prototypes).all()


def test_messages_of_another_form_are_refused(mixed: FederatedData) -> None:
    rows = np.ones((10, 20))
    sent = prototype_message(rows, np.arange(10) < 3)
    assert len(sent) == 2 + 3 * 20 * 4
    broken = [b"", sent[:-1], sent + b"x", sent[:2] + b"\xff" * (len(sent) - 2)]
    for message in broken:
        with pytest.raises(PeerError):
            read_prototypes(message, (10, 20))
    half = client(federation(mixed))
    with pytest.raises(PeerError, match="bytes"):
        half.missed(b"", None)
    half.missed(index_subject(0), None)
    assert not half.known.any()
    half.missed(index_subject(0), sent)
    assert half.known.sum() == 3


# Who reads what.


def ran(data: FederatedData, secure: str | None) -> Simulation:
    made = simulate(
        data,
        method="fedproto",
        recipe=Recipe(2, BRIEF),
        secure=secure,  # type: ignore[arg-type]
    )
    made.fit()
    return made


def test_counts_in_clear_tell_who_holds_what(digits: FederatedData) -> None:
    """To the record; under masks, and for a client, every client gets the same guess."""
    clear, masked = (ran(digits, secure) for secure in (None, "masks"))
    seen, hidden = (one.attack("label-distribution") for one in (clear, masked))
    assert seen.figure == 0
    assert not any("votes" in said for said in seen.caveats)
    assert hidden.details["readable_clients"] == 0
    assert hidden.figure == pytest.approx(0.75)
    public = public_of(digits)
    told = client_view(clear.transcript, public)
    [first, _] = told.heads
    assert isinstance(first, PrototypeRound)
    assert (first.uploads, first.counts, first.counted) == (None, None, None)
    assert Capability.READ_STATISTICS not in told.capabilities
    assert Capability.READ_STATISTICS in server_view(clear.transcript, public).capabilities
    assert Capability.READ_STATISTICS not in server_view(masked.transcript, public).capabilities


def test_a_cell_says_what_the_classifier_reaches() -> None:
    cell = Cell("digits", "iid", "fedproto", "", "", "", 0, 2, replace(BRIEF, local_steps=1), 3)
    told: list[int] = []
    found = run_cell(None, cell, prepare(None, [cell], told.append), told.append)
    assert found.figures[measures.ACCURACY] == found.accuracy
    assert 0 < found.figures[measures.CLASSIFIER] < 1


def test_the_comparison_runs_it_in_clear_and_masked() -> None:
    made = plan(Settings(dataset="digits", methods="fedproto", secure_agg=True), None)
    keys = [spec.key for spec in row_specs(made)]
    assert keys[-2:] == ["fedproto", "fedproto-masks"]


# What is refused.


@pytest.mark.parametrize(("unit", "field"), [("label", "protection"), ("record", "unit")])
def test_a_unit_of_votes_is_refused(digits: FederatedData, unit: str, field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        simulate(digits, method="fedproto", unit=unit, epsilon=4.0)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_settings_and_networks_that_cannot_be(digits: FederatedData) -> None:
    for changed in ({"weight": -1.0}, {"weight": float("nan")}, {"dimension": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(changed))):
            FedProto(**changed)  # type: ignore[arg-type]
    flat = nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten())
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(784, 12), nn.Flatten(), nn.ReLU())
    for model, said in ((flat, "linear layer"), (narrow, "10 logits")):
        pair = [people(digits)[0], Participant(model, digits.clients[1])]
        with pytest.raises(ConfigurationError, match=said):
            Federation(pair, None, FedProto())


def test_images_are_left_out_of_no_mean_for_their_number(mixed: FederatedData) -> None:
    """A mean is over the first hundred records of a class at most, its weight over all."""
    one = mixed.clients[0].train
    many = Images(one.pixels.repeat(20, 1, 1, 1), one.labels.repeat(20))
    data = replace(mixed.clients[0], train=many)
    made = Federation(
        participants_of([p.model for p in people(mixed)[:2]], [data, mixed.clients[1]]),
        None,
        FedProto(dimension=20),
        schedule=STILL,
        device=CPU,
    )
    half = client(made)
    assert len(half._asked) < len(many)
    assert max(torch.bincount(half._asked.labels)) == 100
    assert half._means()[0].sum() == len(many)
