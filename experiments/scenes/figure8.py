"""GMI's split of the digits as a federation, and the sizes of the scene that uses it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from attacks import fit
from attacks import inversion as gmi
from attacks.base import AttackResult
from attacks.ideal import POOL, IdealK3, IdealSettings
from attacks.inversion import (
    RAW_PSNR,
    InversionTruth,
    ModelInversion,
    beyond_pixels,
    inversion_truth,
    raw_psnr,
    train_prior,
)
from attacks.on_run import labelled
from attacks.view import AnswerFunction, Capability, Oracle, Public, View, server_view
from experiments.attacking import unless_missing
from experiments.scenes import Findings, Job, Progress, Scene
from secure_fd import models
from secure_fd.data.federated import ClientData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, Participant, participants_of
from secure_fd.knowledge import one_hot
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.recipes import Sizes, image_set, schedule
from secure_fd.training import predict

FIRST_PRIVATE = 5
"""GMI's split of MNIST: digits below are public, from here on private."""
SIZES = {
    "mnist5k": Sizes(proxies=100, test=100, held_out=100, local=200),
    "mnist": Sizes(proxies=600, test=0, held_out=200),
}
"""Sets of digits, with more held-out records than elsewhere: a class is compared with as many."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes of everything that takes time.

    search: of every target alike. literal: of GMI on FedAvg as the figure has it. rounds: of
    Selective-FD, at most what the set needs; fedavg_rounds: more, because averaging one-digit
    clients swings from round to round before it settles.
    """

    prior: gmi.PriorSettings
    search: gmi.InversionSettings
    literal: gmi.InversionSettings
    theft: IdealSettings
    lesson: fit.Fit
    warmup_steps: int
    rounds: int
    fedavg_rounds: int


FULL = Effort(
    prior=replace(gmi.PUBLISHED_PRIOR, channels=16, epochs=None, steps=780),
    search=gmi.InversionSettings(steps=300, restarts=3, per_class=4),
    literal=gmi.PUBLISHED,
    theft=IdealSettings(epochs=30, batch=50, warm=False),
    lesson=fit.Fit(),
    warmup_steps=200,
    rounds=100,
    fedavg_rounds=100,
)
QUICK = Effort(
    prior=replace(gmi.QUICK_PRIOR, steps=100),
    search=replace(gmi.QUICK, steps=60),
    literal=replace(gmi.PUBLISHED, steps=60, restarts=2),
    theft=IdealSettings(epochs=3, batch=50, generator_steps=10, channels=6, warm=False),
    lesson=fit.QUICK,
    warmup_steps=25,
    rounds=4,
    fedavg_rounds=4,
)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """outside: everything of digits 0-4, all of it public. The rest is of digits 5-9 alone.

    proxies: public too, which distillation cannot do without; GMI's prior never sees them.
    """

    clients: tuple[ClientData, ...]
    proxies: Images
    held_out: Images
    test: Images
    outside: Images
    n_classes: int


@lru_cache(maxsize=1)
def digits(dataset: str, data_dir: Path | None, seed: int) -> Digits:
    """A ten-client federation, of which the first five clients are made public."""
    whole = federate(load(dataset, data_dir), Split("strong"), 10, seed, SIZES[dataset])
    public = [part for c in whole.clients[:FIRST_PRIVATE] for part in (c.train, c.validation)]
    parts = [whole.proxies, whole.held_out, whole.test]
    public += [part[part.labels < FIRST_PRIVATE] for part in parts]
    proxies, held_out, test = (part[part.labels >= FIRST_PRIVATE] for part in parts)
    clients = whole.clients[FIRST_PRIVATE:]
    return Digits(clients, proxies, held_out, test, concatenate(public), whole.n_classes)


def some(images: Images, count: int, seed: int) -> Images:
    """At most `count` of the images, drawn by `seed`."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[:count]]


def sizes_of(effort: Effort, data: Digits) -> dict[str, float]:
    """What a report must say of the prior and the data besides the figures."""
    return {
        "private_images": sum(len(client.train) for client in data.clients),
        "public_images_of_prior": len(data.outside),
        "public_proxies": len(data.proxies),
        "prior_channels": effort.prior.channels,
        "prior_critic_steps": effort.prior.critic_batches(len(data.outside)),
    }


def search_of(settings: gmi.InversionSettings) -> dict[str, float]:
    """What a report must say of a search; restarts are the candidates of an image."""
    return {
        "search_steps": settings.steps,
        "candidates_per_image": settings.restarts,
        "images_per_class": settings.per_class,
    }


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """What the rows of a seed share. public: what servers know; record: how it was made."""

    public: Public
    inversion: ModelInversion
    truth: InversionTruth
    record: Mapping[str, float]


def _attack_fedavg(
    effort: Effort, data: Digits, dataset: str, seed: int, ready: Ready, progress: Progress
) -> Findings:
    """GMI on the last global model, under both of its figures."""
    steps = schedule(dataset, "strong")
    shared = [models.build(models.SHARED, data.n_classes, seed) for _ in data.clients]
    runner = Federation(
        participants_of(shared, data.clients), None, FedAvg(), schedule=steps, seed=seed
    )
    _consume(runner.rounds, effort.fedavg_rounds, progress)
    record = _trained(ready, effort.fedavg_rounds, runner.accuracies(data.test))
    view = server_view(runner.transcript, ready.public)
    estimate = ready.inversion.run(view, seed)
    scored = ready.inversion.score(estimate, ready.truth, seed)
    published = replace(ready.inversion, settings=effort.literal).run(view, seed)
    controls = ready.inversion.controls
    literal = raw_psnr(published, "GMI, global model", controls, ready.truth, seed)
    thief = _thief(effort, ready)
    return {
        literal.name: _with(literal, {**record, **search_of(effort.literal)}, _LITERAL),
        scored.name: _with(scored, {**record, **search_of(effort.search)}),
        thief.name: unless_missing(lambda: thief.score(thief.run(view, seed), ready.truth, seed)),
    }


def _attack_selective(
    effort: Effort,
    data: Digits,
    dataset: str,
    labels: Labels,
    seed: int,
    ready: Ready,
    progress: Progress,
) -> Findings:
    """IDEAL by direct queries, its images as they are and its student through the prior; and K1."""
    method = SelectiveFD(labels)
    runner = _distilled(effort, data, dataset, method, seed)
    rounds = min(effort.rounds, image_set(dataset).rounds)
    _consume(runner.rounds, rounds, progress)
    record = _trained(ready, rounds, runner.accuracies(data.test))
    oracle = Oracle(_direct(runner.models, labels), effort.theft.queries)
    view = server_view(runner.transcript, ready.public, {Capability.INJECT_PROXIES: oracle})
    thief = _thief(effort, ready)
    stolen = thief.run(view, seed)
    asked, pooled = stolen.asked, stolen.others.get(POOL)
    record = {**record, **_acceptance(method, data, asked)}
    found: dict[str, AttackResult | str] = {}
    if pooled is None or not torch.isin(pooled.groups, ready.inversion.classes).any():
        found[RAW_PSNR] = "not applicable: missing an image that the clients gave a private class"
    else:
        words, controls = f"IDEAL, {labels} labels", ready.inversion.controls
        literal = raw_psnr(pooled, words, controls, ready.truth, seed)
        found[RAW_PSNR] = _with(
            replace(literal, queries=stolen.queries),
            {**record, "images_per_class": effort.search.per_class},
            (*_LITERAL, *_DIRECT, thief.caveat),
        )
    progress(95)
    found[ModelInversion.name] = unless_missing(lambda: _read_only(view, seed, ready, record))
    more = beyond_pixels("", stolen, ready.truth) | search_of(effort.search)
    scored = thief.score(stolen, ready.truth, seed)
    found[thief.name] = _with(scored, {**record, **more}, _DIRECT)
    return found


def _read_only(view: View, seed: int, ready: Ready, record: Mapping[str, float]) -> AttackResult:
    """The prior against a student of the ensembles: what the honest but curious server has."""
    estimate = ready.inversion.run(view, seed)
    scored = ready.inversion.score(estimate, ready.truth, seed)
    return _with(scored, {**record, **search_of(ready.inversion.settings)})


def _distilled(
    effort: Effort, data: Digits, dataset: str, method: SelectiveFD, seed: int
) -> Federation:
    """The paper's federation: architectures by client, sums in clear."""
    participants = [
        Participant(models.build(models.heterogeneous(k), data.n_classes, 100 * seed + k), client)
        for k, client in enumerate(data.clients)
    ]
    steps = replace(schedule(dataset, "strong"), warmup_steps=effort.warmup_steps)
    return Federation(participants, data.proxies.pixels, method, schedule=steps, seed=seed)


def _direct(networks: list[nn.Module], labels: Labels) -> AnswerFunction:
    """Votes [N, K, C] of every client about any image: no mask, no selector, as Fig. 8 assumes."""

    def votes(images: Tensor) -> Tensor:
        says = [predict(network, images) for network in networks]
        if labels == "hard":
            says = [one_hot(each.argmax(axis=1), each.shape[1]) for each in says]
        return torch.from_numpy(np.stack(says, axis=1)).float()

    return votes


def _acceptance(method: SelectiveFD, data: Digits, images: Tensor) -> dict[str, float]:
    """Share of images that the protocol itself would have let clients answer."""
    verdicts = [
        method.selector.fit(client, data.proxies.pixels).judge(images).accepted
        for client in data.clients
    ]
    return {
        "selector_accepts_a_client": float(np.mean(verdicts)),
        "selector_accepts_any": float(np.any(verdicts, axis=0).mean()),
    }


def _thief(effort: Effort, ready: Ready) -> IdealK3:
    """IDEAL with the prior, the search and the controls of the inversion."""
    same = ready.inversion
    return IdealK3(
        same.prior, effort.theft, same.settings, same.training, same.classes, same.controls
    )


_LITERAL = (
    "as in Fig. 8, two attacks with different priors and access: the difference between rows is "
    "not that of the protocols",
    "the paper leaves open the target, the round, the public set, the reference of PSNR and how "
    "images are chosen; here: after the last round, best private image of the class, by the "
    "target's score",
)
_DIRECT = (
    "queries reach the clients' networks unmasked and past the selector, which the protocol does "
    "not allow",
)


def _with(
    result: AttackResult, record: Mapping[str, float], caveats: tuple[str, ...] = ()
) -> AttackResult:
    return replace(
        result,
        details={**result.details, **record},
        caveats=(*result.caveats, *caveats, *_SETTING),
    )


_SETTING = (
    "the controls of classes use labelled proxies of the private digits, which are public only "
    "because distillation needs them; the prior and GMI see digits 0-4 alone",
)


def _consume(rounds: Callable[[int], Iterable[object]], count: int, progress: Progress) -> None:
    for done, _ in enumerate(rounds(count), start=1):
        progress(60 * done // count)


def _trained(ready: Ready, rounds: int, accuracies: list[float]) -> dict[str, float]:
    return {**ready.record, "rounds": rounds, "accuracy": float(np.mean(accuracies))}


def _effort(job: Job) -> Effort:
    return QUICK if job.quick else FULL


def _digits(job: Job, seed: int) -> Digits:
    return digits(job.dataset, job.data_dir, seed)


def _rows(job: Job) -> Mapping[str, str]:
    """The three panels; none of an image set without digits, which the split is one of."""
    if job.dataset not in SIZES:
        return {}
    return {
        "fedavg": "FedAvg",
        "selective-fd-soft": "Selective-FD soft",
        "selective-fd-hard": "Selective-FD hard",
    }


def _prepare(job: Job, seed: int, progress: Progress) -> Ready:
    """The prior, the controls and the evaluator."""
    effort, data = _effort(job), _digits(job, seed)
    public = Public(
        data.proxies.pixels,
        len(data.clients),
        data.n_classes,
        partial(models.build, models.SHARED, data.n_classes),
        data.proxies.labels,
    )
    trained = train_prior(
        data.outside.pixels, effort.prior, seed, lambda share: progress(int(60 * share))
    )
    private = torch.arange(FIRST_PRIVATE, data.n_classes)
    attack = ModelInversion.prepare(public, trained, seed, effort.search, effort.lesson, private)
    progress(90)
    members = labelled(concatenate([client.train for client in data.clients]))
    lesson = labelled(concatenate([data.test, some(data.outside, len(data.test), seed)]))
    truth = inversion_truth(members, labelled(data.held_out), public, effort.lesson, seed, lesson)
    return Ready(public, attack, truth, sizes_of(effort, data))


def _run(job: Job, row: str, seed: int, prepared: Ready, progress: Progress) -> Findings:
    """Train the row, then attack what its server sees."""
    effort, data = _effort(job), _digits(job, seed)
    if row == "fedavg":
        return _attack_fedavg(effort, data, job.dataset, seed, prepared, progress)
    labels: Labels = "soft" if row == "selective-fd-soft" else "hard"
    return _attack_selective(effort, data, job.dataset, labels, seed, prepared, progress)


SCENE = Scene(
    name="figure8",
    title="Figure 8: inversion of MNIST",
    about="Five clients hold one digit each of 5-9; a prior is trained on digits 0-4, as GMI has "
    "it. `raw-psnr` compares as the paper does, GMI against IDEAL by raw PSNR, at sizes that its "
    "caveats state; `inversion` and `ideal-k3` search one prior with one search, so that the "
    "attack is the same, while methods differ in access and in how they train.",
    rows=_rows,
    prepare=_prepare,
    run=_run,
)
