"""Attacks on distillation and on sums of updates from the literature, none with a shadow run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from attacks.base import AttackResult, FloatArray
from attacks.fedmia import FedMIA
from attacks.imprint import Imprint, lying
from attacks.label_distribution import LabelDistribution
from attacks.on_run import histograms, public_of
from attacks.one_update import MLP, SetUp, one_update
from attacks.peers import CoopLiRA, CoopVotes, DistillationLiRA, PeerAttack
from attacks.statistics import distributions
from attacks.updates_attack import UpdateInversion
from attacks.view import AnswerFunction, Capability, Oracle, View, server_view
from experiments.leakage import Attempt
from experiments.scenes import Job, Progress, Scene, Turn, launched, noted
from experiments.scenes.membership import (
    FULL,
    QUICK,
    Arena,
    Played,
    Prepared,
    Row,
    clients_of,
    draw,
)
from secure_fd import models
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.base import Labels, Opinion
from secure_fd.methods.ds_fl import DSFL
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.private_training import PrivateSGD
from secure_fd.recipes import Sizes
from secure_fd.training import predict

_RUNS: Final = 4
"""Two pairs: no run is a shadow, and each candidate is inside half of them."""
_UNEVEN: Final = Split("dirichlet", 0.5)
_BATCH: Final = 8
_UNCAPPED: Final = 1_000_000


def _ds_fl(labels: Labels) -> DSFL:  # noqa: ARG001 - it has soft ones alone
    return DSFL()


_VOTES: Mapping[str, Row] = {
    "fedmd": Row("FedMD soft", "soft", method=FedMD),
    "fedmd-masks": Row("FedMD soft + masks", "soft", masks=True, method=FedMD),
    "ds-fl": Row("DS-FL", "soft", method=_ds_fl),
    "selective-fd-hard": Row("Selective-FD hard", "hard"),
    "selective-fd-hard-masks": Row("Selective-FD hard + masks", "hard", masks=True),
}
_UPDATES: Mapping[str, Row] = {
    "fedavg": Row("FedAvg"),
    "fedavg-dp-sgd": Row("FedAvg + DP-SGD", noise="steps"),
}
_PLAYED: Mapping[str, Row] = {**_VOTES, **_UPDATES}
_IMPRINTS: Mapping[str, str] = {
    "imprint": "FedAvg + masks, a model of the server's own",
    "imprint-dp-sgd": "FedAvg + masks + DP-SGD, a model of the server's own",
}


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What the rows of a seed share. game: small mixed local sets. uneven: clients whose shares of
    classes differ. even: of ten clients, for updates.
    """

    game: Prepared = field(repr=False)
    uneven: FederatedData = field(repr=False)
    even: FederatedData = field(repr=False)


def _rows(job: Job) -> Mapping[str, str]:
    """Votes, updates, and models of a server's own."""
    epsilon = f", ε = {job.epsilon:g}"
    named = {key: row.label + epsilon * bool(row.noise) for key, row in _PLAYED.items()}
    return {**named, **_IMPRINTS}


def _prepare(job: Job, seed: int, progress: Progress) -> Shared:
    source, scale = load(job.dataset, job.data_dir), QUICK if job.quick else FULL
    game = draw(job, replace(scale, runs=_RUNS), seed)
    progress(60)
    sizes = Sizes(proxies=scale.proxies, test=1, held_out=40, local=60)
    uneven = federate(source, _UNEVEN, scale.clients, seed, sizes)
    return Shared(game, uneven, federate(source, Split("iid"), 10, seed, sizes))


def _attempts(turn: Turn[Shared]) -> Mapping[str, Attempt]:
    """Play a row, or its one update, and attack it."""
    if turn.row in _IMPRINTS:
        return {Imprint.name: partial(_imprint, turn)}
    game, row = turn.made.game, _PLAYED[turn.row]
    arena = Arena.of(game, row, turn.job, turn.seed, turn.progress)
    if turn.row in _UPDATES:
        cosines = [FedMIA(own, k) for k, own in game.candidates]
        return {FedMIA.name: partial(arena.beside_peers, cosines, arena.server)}
    asked = partial(asking_server, arena)
    students = 2 if turn.job.quick else 4
    kinds: Mapping[str, list[PeerAttack]] = {
        CoopVotes.name: [CoopVotes.prepare(game.public, own, k) for k, own in game.candidates],
        CoopLiRA.name: [CoopLiRA(own, k) for k, own in game.candidates],
        DistillationLiRA.name: [
            DistillationLiRA(own, k, students=students) for k, own in game.candidates
        ],
    }
    attempts: dict[str, Attempt] = {
        name: partial(arena.beside_peers, attacks, asked) for name, attacks in kinds.items()
    }
    return {**attempts, LabelDistribution.name: partial(_label_shares, turn, row)}


# Answers about images that a server puts among the proxies.


def asking_server(arena: Arena, run: int, client: int | None) -> View:  # noqa: ARG001 - of all
    """The server of a run of votes, which may ask about further images after the last round."""
    votes = injected(arena.made, arena.row, arena.runs[run], clients_of(arena.made, run))
    oracles = {Capability.INJECT_PROXIES: Oracle(votes, _UNCAPPED)}
    return server_view(arena.runs[run].transcript, arena.made.public, oracles)


def injected(made: Prepared, row: Row, played: Played, clients: list[ClientData]) -> AnswerFunction:
    """Images -> votes [N, K, C] of every client by its final network, or their sum [N, 1, C].

    In the steps of the row's votes, and through the client's selector where the method has one.
    """
    labels = row.labels or "soft"
    method, levels = row.method(labels), played.transcript.distillation[0].levels

    def answer(images: Tensor) -> Tensor:
        each = [
            _vote(_opinion(method, own, made.public.proxies, images), predict(net, images), labels)
            for own, net in zip(clients, played.networks, strict=True)
        ]
        votes = np.rint(np.stack(each, axis=1) * levels) / levels
        return torch.from_numpy(votes.sum(axis=1, keepdims=True) if row.masks else votes)

    return answer


def _opinion(method: object, own: ClientData, proxies: Tensor, images: Tensor) -> Opinion:
    if isinstance(method, SelectiveFD):
        verdict = method.selector.fit(own, proxies).judge(images)
        return method.opinion_of(verdict, own.n_classes)
    return FedMD().opinion(own, images)


def _vote(opinion: Opinion, predictions: FloatArray, labels: Labels) -> FloatArray:
    """[N, C] weight times prediction."""
    indices = np.arange(len(predictions))
    said = opinion.contribution(indices, predictions, labels, trust=1.0)
    return np.asarray(said.weights[:, None] * said.predictions)


# Label distributions where clients' shares differ.


def _label_shares(turn: Turn[Shared], row: Row) -> AttackResult:
    """Class totals of a client's votes, with the divergence that the literature prints."""
    data, scale = turn.made.uneven, turn.made.game.scale
    run = Federation(
        participants_of(
            [turn.made.game.public.architecture(turn.seed + k) for k in range(len(data.clients))],
            data.clients,
        ),
        data.proxies.pixels,
        row.method(row.labels or "soft"),
        aggregation=MaskedSum(len(data.clients), public_seed=turn.seed) if row.masks else None,
        schedule=replace(scale.schedule, proxies_per_round=len(data.proxies)),
        seed=turn.seed,
    )
    run.fit(1)
    attack, truth = LabelDistribution(), histograms(data)
    view = server_view(run.transcript, public_of(data))
    estimate = attack.run(view, turn.seed)
    result = attack.score(estimate, truth, turn.seed)
    return noted(result, {"kl_divergence": _divergence(truth, np.asarray(estimate.rows))})


def _divergence(truth: FloatArray, rows: FloatArray) -> float:
    """Mean Kullback-Leibler divergence of estimated shares [K, C] from true counts, in nats."""
    uniform = np.full(truth.shape[1], 1 / truth.shape[1])
    shares, guessed = distributions(truth, uniform), 0.999 * rows + 0.001 * uniform
    terms = np.where(shares > 0, shares * np.log(np.maximum(shares, 1e-12) / guessed), 0.0)
    return float(terms.sum(axis=1).mean())


# A model of the server's own.


def _imprint(turn: Turn[Shared]) -> AttackResult:
    """One step on eight records by each of ten clients; beside it what an honest model shows."""
    data, seed, job = turn.made.even, turn.seed, turn.job
    public = replace(public_of(data), architecture=partial(models.build, MLP, data.n_classes))
    private = PrivateSGD(job.epsilon, job.delta, 2) if turn.row.endswith("dp-sgd") else None
    set_up = SetUp(batch=_BATCH)
    update = partial(one_update, set_up, data, seed, private=private, masks=True)
    lied, honest = update(lie=lying(public)), update()
    turn.progress(100)
    found = launched(Imprint(public, set_up.recipe), lied.view, lied.records, seed)
    plain = launched(UpdateInversion(public, set_up.recipe), honest.view, honest.records, seed)
    return noted(found, {"honest_model_psnr": plain.figure}, lied.caveats)


SCENE = Scene(
    name="literature",
    title="Attacks from the literature, without shadow runs",
    about="Five clients hold about a hundred records each, of all classes, a tenth mislabelled. A "
    "server compares what each says with what its peers say, of proxies, of records that it puts "
    "among them, or in updates. Label shares are told where they differ (Dirichlet, beta = 0.5). "
    "Or the server sends a model of its own, and reads the sum of ten clients under masks.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
