"""GMI's split of the digits as a federation, and the sizes of the scene that uses it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core import fit
from attacks.core.base import AttackResult
from attacks.core.base import Images as Estimated
from attacks.core.view import AnswerFunction, Capability, Oracle, View, server_view
from attacks.inversion import gmi, ideal
from attacks.inversion import prior as priors
from attacks.inversion.gmi import (
    RAW_PSNR,
    InversionTruth,
    ModelInversion,
    inversion_truth,
    raw_psnr,
)
from attacks.inversion.ideal import POOL, IdealK3, IdealSettings
from attacks.inversion.prior import train_prior
from attacks.on_run import labelled, public_of
from experiments.compare.leakage import Attempt
from experiments.core.grid import paper_recipe
from experiments.suite.scenes import Job, Scene, Turn, launched, noted
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import HETEROGENEOUS, Sizes
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.methods.base import Labels
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import one_hot

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

    prior: priors.PriorSettings
    search: gmi.InversionSettings
    literal: gmi.InversionSettings
    theft: IdealSettings
    lesson: fit.Fit
    warmup_steps: int
    rounds: int
    fedavg_rounds: int


FULL = Effort(
    prior=replace(priors.PUBLISHED_PRIOR, channels=16, epochs=None, steps=780),
    search=gmi.InversionSettings(steps=300, restarts=3, per_class=4),
    literal=gmi.PUBLISHED,
    theft=IdealSettings(epochs=30, batch=50, warm=False),
    lesson=fit.Fit(),
    warmup_steps=200,
    rounds=100,
    fedavg_rounds=100,
)
PUBLISHED = replace(FULL, prior=priors.PUBLISHED_PRIOR, theft=ideal.PUBLISHED)
"""What both papers print: a prior of 64 channels and 100 passes, and 25,000 queries."""
QUICK = Effort(
    prior=replace(priors.QUICK_PRIOR, steps=100),
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
    """private: a federation of digits 5-9 alone. outside: all of digits 0-4, all of it public.

    Its proxies are public too, which distillation cannot do without; GMI's prior never sees them.
    """

    private: FederatedData
    outside: Images


@lru_cache(maxsize=1)
def digits(dataset: str, data_dir: Path | None, seed: int) -> Digits:
    """A ten-client federation, of which the first five clients are made public."""
    whole = federate(load(dataset, data_dir), Split("strong"), 10, seed, SIZES[dataset])
    public = [part for c in whole.clients[:FIRST_PRIVATE] for part in (c.train, c.validation)]
    parts = [whole.proxies, whole.held_out, whole.test]
    public += [part[part.labels < FIRST_PRIVATE] for part in parts]
    proxies, held_out, test = (part[part.labels >= FIRST_PRIVATE] for part in parts)
    clients = whole.clients[FIRST_PRIVATE:]
    private = replace(whole, clients=clients, proxies=proxies, test=test, held_out=held_out)
    return Digits(private, concatenate(public))


def some(images: Images, count: int, seed: int) -> Images:
    """At most `count` of the images, drawn by `seed`."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order[:count]]


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """What the rows of a seed share. record: how the prior and the data came about."""

    effort: Effort
    data: FederatedData
    inversion: ModelInversion
    thief: IdealK3
    truth: InversionTruth
    record: Mapping[str, float]


def _rows(job: Job) -> Mapping[str, str]:
    """The three panels; none of an image set without digits, which the split is one of."""
    if job.dataset not in SIZES:
        return {}
    return {
        "fedavg": "FedAvg",
        "selective-fd-soft": "Selective-FD soft",
        "selective-fd-hard": "Selective-FD hard",
    }


def _prepared(effort: Effort, job: Job, seed: int) -> Ready:
    """The prior, the controls, the evaluator, and IDEAL with all of them."""
    effort = QUICK if job.quick else effort
    made = digits(job.dataset, job.data_dir, seed)
    data, outside, public = made.private, made.outside, public_of(made.private)
    trained = train_prior(outside.pixels, effort.prior, seed)
    classes = torch.arange(FIRST_PRIVATE, data.n_classes)
    gmi_attack = ModelInversion.prepare(
        public, trained, seed, effort.search, effort.lesson, classes
    )
    members = labelled(concatenate([client.train for client in data.clients]))
    lesson = labelled(concatenate([data.test, some(outside, len(data.test), seed)]))
    truth = inversion_truth(members, labelled(data.held_out), public, effort.lesson, seed, lesson)
    thief = IdealK3(
        gmi_attack.prior,
        effort.theft,
        gmi_attack.settings,
        gmi_attack.training,
        gmi_attack.classes,
        gmi_attack.controls,
    )
    record = {
        "private_images": sum(len(client.train) for client in data.clients),
        "public_images_of_prior": len(outside),
        "public_proxies": len(data.proxies),
        "prior_channels": effort.prior.channels,
        "prior_critic_steps": effort.prior.critic_batches(len(outside)),
    }
    return Ready(effort, data, gmi_attack, thief, truth, record)


def _attempts(turn: Turn[Ready]) -> Mapping[str, Attempt]:
    """Train the row, then attack what its server sees."""
    if turn.row == "fedavg":
        target = _averaged(turn)
        return {
            RAW_PSNR: target.literal,
            ModelInversion.name: target.read_only,
            IdealK3.name: target.stolen,
        }
    stolen = _distilled(turn)
    return {
        RAW_PSNR: stolen.literal,
        ModelInversion.name: stolen.target.read_only,
        IdealK3.name: stolen.scored,
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """A trained row as its server sees it. record: what a report must say besides the figures."""

    ready: Ready
    view: View
    seed: int
    record: Mapping[str, float]

    def read_only(self) -> AttackResult:
        """GMI on the last global model, or on a student of the ensembles: honest but curious."""
        attack = self.ready.inversion
        found = launched(attack, self.view, self.ready.truth, self.seed)
        return self.with_record(found, search_of(attack.settings))

    def literal(self) -> AttackResult:
        """GMI as Fig. 8 has it, by raw PSNR."""
        attack, literal = self.ready.inversion, self.ready.effort.literal
        published = replace(attack, settings=literal).run(self.view, self.seed)
        found = raw_psnr(
            published, "GMI, global model", attack.controls, self.ready.truth, self.seed
        )
        return self.with_record(found, search_of(literal), _LITERAL)

    def stolen(self) -> AttackResult:
        """IDEAL, which finds nobody to ask."""
        return launched(self.ready.thief, self.view, self.ready.truth, self.seed)

    def with_record(
        self, found: AttackResult, more: Mapping[str, float], caveats: tuple[str, ...] = ()
    ) -> AttackResult:
        """A result with what a report must say of it."""
        return noted(found, {**self.record, **more}, (*caveats, *_SETTING))


def search_of(settings: gmi.InversionSettings) -> dict[str, float]:
    """What a report must say of a search; restarts are the candidates of an image."""
    return {
        "search_steps": settings.steps,
        "candidates_per_image": settings.restarts,
        "images_per_class": settings.per_class,
    }


def _averaged(turn: Turn[Ready]) -> _Target:
    """FedAvg with one network."""
    data, count = turn.made.data, turn.made.effort.fedavg_rounds
    shared = [models.build(models.SHARED, data.n_classes, turn.seed) for _ in data.clients]
    steps = paper_recipe(turn.job.dataset, "strong").schedule
    runner = Federation(shared, data.clients, None, FedAvg(), schedule=steps, seed=turn.seed)
    return _trained(turn, runner, count)


def _trained(
    turn: Turn[Ready], runner: Federation, count: int, queried: Labels | None = None
) -> _Target:
    """Run the rounds. queried: what direct queries to the clients' networks answer."""
    runner.fit(count)
    oracles = {}
    if queried:
        answer = _direct(runner.models, queried)
        oracles[Capability.INJECT_PROXIES] = Oracle(answer, turn.made.effort.theft.queries)
    reached = float(np.mean(runner.accuracies(turn.made.data.test)))
    record = {**turn.made.record, "rounds": count, "accuracy": reached}
    view = server_view(runner.transcript, public_of(turn.made.data), oracles)
    return _Target(turn.made, view, turn.seed, record)


@dataclass(frozen=True, slots=True, eq=False)
class _Stolen:
    """What IDEAL stole by direct queries from clients that distil."""

    target: _Target
    estimate: Estimated
    words: str

    def literal(self) -> AttackResult | str:
        """The generator's images as they are, by raw PSNR as in Fig. 8."""
        ready, pooled = self.target.ready, self.estimate.others.get(POOL)
        if pooled is None or not torch.isin(pooled.groups, ready.inversion.classes).any():
            return "not applicable: missing an image that the clients gave a private class"
        found = raw_psnr(
            pooled, self.words, ready.inversion.controls, ready.truth, self.target.seed
        )
        return self.target.with_record(
            replace(found, queries=self.estimate.queries),
            {"images_per_class": ready.effort.search.per_class},
            (*_LITERAL, *_DIRECT, ready.thief.caveat),
        )

    def scored(self) -> AttackResult:
        """The stolen student, inverted with the prior."""
        ready = self.target.ready
        more = search_of(ready.effort.search)
        found = ready.thief.score(self.estimate, ready.truth, self.target.seed)
        return self.target.with_record(found, more, _DIRECT)


def _distilled(turn: Turn[Ready]) -> _Stolen:
    """The paper's federation, architectures by client, sums in clear; and IDEAL's queries to it."""
    effort, data, seed = turn.made.effort, turn.made.data, turn.seed
    labels: Labels = "soft" if turn.row == "selective-fd-soft" else "hard"
    method, names = SelectiveFD(labels), HETEROGENEOUS
    networks = [
        models.build(names[k % len(names)], data.n_classes, 100 * seed + k)
        for k in range(len(data.clients))
    ]
    recipe, proxies = paper_recipe(turn.job.dataset, "strong"), data.proxies.pixels
    steps = replace(recipe.schedule, warmup_steps=effort.warmup_steps)
    runner = Federation(networks, data.clients, proxies, method, schedule=steps, seed=seed)
    count = min(effort.rounds, recipe.rounds)
    target = _trained(turn, runner, count, labels)
    estimate = turn.made.thief.run(target.view, seed)
    record = {**target.record, **_acceptance(method, data, estimate.asked)}
    return _Stolen(replace(target, record=record), estimate, f"IDEAL, {labels} labels")


def _direct(networks: list[nn.Module], labels: Labels) -> AnswerFunction:
    """Votes [N, K, C] of every client about any image: no mask, no selector, as Fig. 8 assumes."""

    def votes(images: Tensor) -> Tensor:
        says = [predict(network, images) for network in networks]
        if labels == "hard":
            says = [one_hot(each.argmax(axis=1), each.shape[1]) for each in says]
        return torch.from_numpy(np.stack(says, axis=1)).float()

    return votes


def _acceptance(method: SelectiveFD, data: FederatedData, images: Tensor) -> dict[str, float]:
    """Share of images that the protocol itself would have let clients answer."""
    verdicts = [
        method.selector.fit(client, data.proxies.pixels).predict(images).accepted
        for client in data.clients
    ]
    return {
        "selector_accepts_a_client": float(np.mean(verdicts)),
        "selector_accepts_any": float(np.any(verdicts, axis=0).mean()),
    }


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
_SETTING = (
    "the controls of classes use labelled proxies of the private digits, which are public only "
    "because distillation needs them; the prior and GMI see digits 0-4 alone",
)

SCENE = Scene(
    name="figure8",
    title="Figure 8: inversion of MNIST",
    about="Five clients hold one digit each of 5-9; a prior is trained on digits 0-4, as GMI has "
    "it. `raw-psnr` compares as the paper does, GMI against IDEAL by raw PSNR, at sizes that its "
    "caveats state; `inversion` and `ideal-k3` search one prior with one search, so that the "
    "attack is the same, while methods differ in access and in how they train.",
    rows=_rows,
    prepare=partial(_prepared, FULL),
    attempts=_attempts,
)
AT_PUBLISHED_SIZES = replace(
    SCENE,
    name="figure8-published",
    title="Figure 8 at the published sizes",
    about="As `figure8`, with GMI's own prior, 64 channels and 100 passes, and IDEAL's own "
    "generator, 64 channels, and 25,000 queries: hours on one core.",
    prepare=partial(_prepared, PUBLISHED),
)
