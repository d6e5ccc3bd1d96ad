"""IDEAL: a student stolen from a federation by reading, choosing or injecting, then inverted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad

from attacks.core.base import (
    AttackResult,
    Effort,
    Images,
    seeded,
    substream,
)
from attacks.core.fit import UNTAUGHT, Fit, fit, kept_answers, label_function, predict
from attacks.core.run import Attack, Run
from attacks.core.view import Capability, LabelFunction, Oracle, Public, View
from attacks.inversion.gmi import (
    InversionSettings,
    InversionTruth,
    ModelInversion,
    control_of,
    inversion_controls,
    invert,
    score_inversion,
)
from attacks.inversion.prior import Prior
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError

_COUNTS = ("epochs", "batch", "generator_steps", "latent", "channels", "passes")
_RATES = ("generator_rate", "student_rate")


@dataclass(frozen=True, slots=True)
class IdealSettings:
    """How a student is stolen. An epoch makes, and asks the teacher about, one batch of images.

    epochs: of one batch each, so queries = epochs * batch. balance: weight of mean(p log p).
    latent, channels: of the generator. flip: mirror half of the generated images before the
    student judges them. passes: over the pool, after each batch. momentum, decay: of the student's
    SGD. warm: start from the ensembles that the view holds, and keep them in the pool.
    rejected_weight: of an unanswered image, which is taught as the uniform distribution.
    """

    epochs: int = 6
    batch: int = 50
    generator_steps: int = 30
    generator_rate: float = 1e-3
    balance: float = 5.0
    latent: int = 64
    channels: int = 8
    flip: bool = False
    student_rate: float = 0.01
    momentum: float = 0.9
    decay: float = 5e-4
    passes: int = 2
    warm: bool = True
    rejected_weight: float = 0.1

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ConfigurationError(f"ideal.{name}", getattr(self, name), "use 1 or more")
        for name in _RATES:
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"ideal.{name}", getattr(self, name), "use more than 0")
        if not 0 <= self.rejected_weight <= 1:
            raise ConfigurationError(
                "ideal.rejected_weight", self.rejected_weight, "use a number from 0 to 1"
            )

    @property
    def queries(self) -> int:
        """Most images that the teacher is asked about."""
        return self.epochs * self.batch


PUBLISHED = IdealSettings(
    epochs=100,
    batch=250,
    latent=256,
    channels=64,
    flip=True,
    passes=1,
    warm=False,
    rejected_weight=0.0,
)
"""MNIST in the paper and its released code: 25,000 queries. Its teacher always answers."""

DEFAULT = IdealSettings()
"""An eightieth of the queries (300), and a generator of an eighth of the channels."""

QUICK = IdealSettings(epochs=2, batch=40, generator_steps=10, passes=2)
"""Shows that everything runs; its figures say little."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Images that were asked about. images: [N, 1, H, W].

    targets: [N, C], the ensemble, or the uniform distribution for an unanswered image.
    answered: [N] bool.
    """

    images: Tensor
    targets: Tensor
    answered: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def joined(self, other: "Pool") -> "Pool":
        """This pool, then the other."""
        return Pool(
            torch.cat([self.images, other.images]),
            torch.cat([self.targets, other.targets]),
            torch.cat([self.answered, other.answered]),
        )

    @property
    def acceptance(self) -> float:
        """Share of the images that anybody answered; 0 where nothing was asked."""
        return float(self.answered.double().mean()) if len(self) else 0.0


def empty_pool(proxies: Tensor, n_classes: int) -> Pool:
    """Nothing asked yet, about images like these."""
    return Pool(proxies[:0], torch.zeros(0, n_classes), torch.zeros(0, dtype=torch.bool))


def from_votes(images: Tensor, votes: Tensor) -> Pool:
    """The ensembles of votes [N, R, C]: their sum over R, normalised.

    Where noise made a class's total negative, it counts as zero, as at the server. LocalError for
    answers of another shape.
    """
    if votes.ndim != 3 or len(votes) != len(images):
        raise LocalError(f"votes: {tuple(votes.shape)} is not allowed; use [{len(images)}, R, C]")
    sums = votes.sum(dim=1).clamp(min=0).double()
    count = sums.sum(dim=1, keepdim=True)
    uniform = torch.full_like(sums, 1 / votes.shape[2])
    targets = torch.where(count > 0, sums / count.clamp(min=torch.finfo(count.dtype).tiny), uniform)
    return Pool(images, targets.float(), count[:, 0] > 0)


def from_ensembles(view: View) -> Pool:
    """The proxies whose ensembles were kept for teaching, each with its newest answer."""
    public = view.public
    indices, targets = kept_answers(view)
    if not len(indices):
        return empty_pool(public.proxies, public.n_classes)
    every = torch.ones(len(indices), dtype=torch.bool)
    return Pool(public.proxies[indices], targets, every)


_PADDING = 4
"""Pixels by which a generated image is shifted at most, as released."""


class Synthesiser(nn.Module):
    """Codes [N, latent] -> images [N, C, side, side] in [0, 1].

    A linear layer and two nearest-neighbour upscalings with batch norm, as is usual in data-free
    distillation (Fang et al., "Contrastive model inversion", IJCAI 2021).
    """

    def __init__(self, settings: IdealSettings, side: int, colours: int = 1) -> None:
        super().__init__()
        c, low = settings.channels, (side + 3) // 4
        self.paint = nn.Sequential(
            nn.Linear(settings.latent, 2 * c * low**2),
            nn.Unflatten(1, (2 * c, low, low)),
            nn.BatchNorm2d(2 * c),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * c, 2 * c, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * c),
            nn.LeakyReLU(0.2),
            nn.Upsample(size=side),
            nn.Conv2d(2 * c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.LeakyReLU(0.2),
            nn.Conv2d(c, colours, 3, padding=1),
            nn.Sigmoid(),
        )
        for weights in self.parameters():
            if weights.ndim == 4:  # channels last: a third less time on a processor
                weights.data = weights.data.contiguous(memory_format=torch.channels_last)

    def forward(self, z: Tensor) -> Tensor:
        """Images of codes z."""
        images: Tensor = self.paint(z)
        return images


def generator_loss(logits: Tensor, targets: Tensor, balance: float) -> Tensor:
    """CE(S(x), y) + balance * mean(p log p), the mean over images and classes.

    The second term is a negative entropy: it keeps the student from being sure beyond need, so
    that images stay near where classes meet. logits: [N, C]; targets: [N] class ids.
    """
    log_p = log_softmax(logits, dim=1)
    return cross_entropy(logits, targets) + balance * (log_p.exp() * log_p).mean()


@dataclass(frozen=True, slots=True, eq=False)
class Synthesis:
    """images: [N, 1, H, W], the batch of lowest loss. targets: [N] the classes asked of them."""

    images: Tensor
    targets: Tensor
    loss: float


def synthesise(
    student: nn.Module,
    n_classes: int,
    shape: tuple[int, ...],
    settings: IdealSettings,
    seed: int,
) -> Synthesis:
    """A new generator, trained against the student alone; its best batch, of balanced targets.

    shape: (C, H, W) of an image; MissingCapabilityError for feature vectors. The codes stay fixed,
    as released. The student is left in evaluation mode.
    """
    if len(shape) != 3:
        raise MissingCapabilityError("missing proxies that are images: feature vectors have none")
    random = torch.Generator().manual_seed(substream(seed, "codes and shifts"))
    generator = seeded(
        lambda: Synthesiser(settings, shape[-1], shape[0]), substream(seed, "generator")
    )
    optimizer = torch.optim.Adam(
        generator.parameters(), settings.generator_rate, betas=(0.5, 0.999)
    )
    z = torch.randn(settings.batch, settings.latent, generator=random)
    targets = torch.arange(settings.batch) % n_classes
    student.requires_grad_(False).eval()
    best = Synthesis(torch.empty(0), targets, float("inf"))
    for _ in range(settings.generator_steps):
        images = generator(z)
        seen = jitter(images, random, flip=settings.flip)
        loss = generator_loss(student(seen), targets, settings.balance)
        if float(loss.detach()) < best.loss or not len(best.images):
            best = Synthesis(images.detach(), targets, float(loss.detach()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    student.requires_grad_(True)
    return best


def jitter(images: Tensor, random: torch.Generator, *, flip: bool) -> Tensor:
    """Every image shifted by up to four pixels over black; with `flip`, half of them mirrored."""
    n, side = len(images), images.shape[-1]
    if flip:
        mirrored = torch.rand(n, generator=random) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    padded = pad(images, (_PADDING,) * 4)
    starts = torch.randint(0, 2 * _PADDING + 1, (2, n, 1), generator=random)
    rows, columns = starts + torch.arange(side)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


Choose = Callable[[Tensor], Tensor]
"""Generated images [N, 1, H, W] -> the images to ask about, each at most once in a run."""


@dataclass(frozen=True, slots=True, eq=False)
class Theft:
    """student: the stolen network, in evaluation mode. asked: what the teacher was asked about.

    batches: the acceptance rate of each epoch's batch.
    """

    student: nn.Module
    asked: Pool
    batches: tuple[float, ...]


def steal(
    student: nn.Module,
    known: Pool,
    teacher: Oracle,
    settings: IdealSettings,
    seed: int,
    choose: Choose | None = None,
) -> Theft:
    """Train `student` by asking `teacher` about one batch an epoch.

    known: answers that the attacker has already; they stay in the pool and cost nothing. choose:
    what is asked instead of the generated images themselves. The run ends early where nothing is
    left to ask about.
    """
    shape, n_classes = tuple(known.images.shape[1:]), known.targets.shape[1]
    asked = empty_pool(known.images, n_classes)
    learner = _Learner(student, settings, substream(seed, "pool"))
    batches = []
    for epoch in range(settings.epochs):
        made = synthesise(student, n_classes, shape, settings, substream(seed, f"epoch {epoch}"))
        images = made.images if choose is None else choose(made.images)
        if not len(images):
            break
        answers = from_votes(images, teacher(images))
        if answers.targets.shape[1] != n_classes:
            raise LocalError(f"votes: {answers.targets.shape[1]} classes, not {n_classes}")
        batches.append(answers.acceptance)
        asked = asked.joined(answers)
        learner.learn(known.joined(asked))
    return Theft(student.eval(), asked, tuple(batches))


class _Learner:
    """The student's optimiser, whose momentum lasts over epochs."""

    def __init__(self, student: nn.Module, settings: IdealSettings, seed: int) -> None:
        self._student = student
        self._settings = settings
        self._random = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.SGD(
            student.parameters(),
            settings.student_rate,
            momentum=settings.momentum,
            weight_decay=settings.decay,
        )

    def learn(self, pool: Pool) -> None:
        """Passes over the pool.

        Cross-entropy: to a distribution it differs from the KL divergence by a constant.
        """
        weights = torch.where(pool.answered, 1.0, self._settings.rejected_weight)
        useful = weights.nonzero()[:, 0]
        self._student.train()
        for _ in range(self._settings.passes if len(useful) else 0):
            order = useful[torch.randperm(len(useful), generator=self._random)]
            for batch in torch.split(order, self._settings.batch):
                losses = cross_entropy(
                    self._student(pool.images[batch]), pool.targets[batch], reduction="none"
                )
                self._optimizer.zero_grad()
                torch.autograd.backward((weights[batch] * losses).mean())
                self._optimizer.step()


class NearestProxies:
    """Chooses, for each generated image, the nearest public proxy that was not yet asked about."""

    def __init__(self, proxies: Tensor) -> None:
        self._proxies = proxies
        self._left = torch.ones(len(proxies), dtype=torch.bool)

    def __call__(self, images: Tensor) -> Tensor:
        """Public proxies [n, 1, H, W], as many as there are images, or as are left."""
        distances = torch.cdist(images.flatten(1), self._proxies.flatten(1))
        chosen = []
        for row in distances[: int(self._left.sum())]:
            nearest = int(row.masked_fill(~self._left, torch.inf).argmin())
            self._left[nearest] = False
            chosen.append(nearest)
        return self._proxies[torch.tensor(chosen, dtype=torch.int64)]


CAVEATS = (
    "raw PSNR (A) rewards blur: read it beside the controls made with no access",
    "attack accuracy and D speak of classes, not of records",
    "the interval covers the reconstructions drawn; the p-value covers the images compared",
    "an answer is not the selector's consent where noise can make one of silence",
)
POOL, GENERATOR = "pool", "IDEAL generator"
"""Routes beside the public prior: what the teacher gave a class to, and IDEAL's own images."""


def theft_details(pool: Pool, batches: tuple[float, ...]) -> dict[str, float]:
    """How many answers there are, and which share of questions and of classes they are about.

    batches: acceptance rates of the batches that were asked about; none where answers were read.
    """
    named = pool.targets[pool.answered].argmax(dim=1)
    details = {
        "answers": float(pool.answered.sum()),
        "classes_covered": len(torch.unique(named)) / pool.targets.shape[1],
    }
    if batches:
        details |= {
            "acceptance_rate": pool.acceptance,
            "acceptance_rate_first": batches[0],
            "acceptance_rate_last": batches[-1],
        }
    return details


def student_details(
    student: nn.Module, truth: InversionTruth, teacher: LabelFunction | None
) -> dict[str, float]:
    """Accuracy of the student on held-out records, and its agreement with the teacher."""
    images, labels = truth.held_out.images, truth.held_out.labels
    says = label_function(student)(images)
    details = {"student_accuracy": float((says == labels).double().mean())}
    if teacher is not None:
        told = teacher(images)
        details["teacher_accuracy"] = float((told == labels).double().mean())
        details["student_agreement"] = float((says == told).double().mean())
    return details


def from_pool(pool: Pool, per_class: int, seed: int) -> Images | None:
    """The answered images that the teacher is surest of, `per_class` of each class it named.

    Ties, which hard labels make of everything, fall at random. None where nothing was answered.
    """
    shuffle = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    order = shuffle[pool.answered[shuffle]]
    if not len(order):
        return None
    sure, named = pool.targets[order].max(dim=1)
    return _best_of_each(pool.images[order], named, sure, per_class)


def from_generator(
    student: nn.Module, public: Public, per_class: int, settings: IdealSettings, seed: int
) -> Images:
    """Images of IDEAL's own generator, fitted to the stolen student; the student picks the best."""
    shape = tuple(public.proxies.shape[1:])
    made = synthesise(student, public.n_classes, shape, settings, seed)
    sure = -cross_entropy(predict(student, made.images), made.targets, reduction="none")
    return _best_of_each(made.images, made.targets, sure, per_class)


def _best_of_each(images: Tensor, classes: Tensor, scores: Tensor, most: int) -> Images:
    """The `most` images of highest score in each class that has any, class by class."""
    picks = []
    for c in torch.unique(classes).tolist():
        found = (classes == c).nonzero()[:, 0]
        picks.append(found[scores[found].argsort(descending=True, stable=True)[:most]])
    chosen = torch.cat(picks)
    return Images(images[chosen], classes[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Ideal(Attack[Images, InversionTruth]):
    """Steals a student by one kind of access, and inverts it.

    access: reading ensembles, choosing indices or injecting images. teacher: labels that the
    ensemble would give if nobody abstained, for the agreement alone; it belongs to the evaluator.
    """

    figure_name = "Δ PSNR"
    control_name = "Δ of the public-only target"
    access: ClassVar[Capability]

    prior: Prior
    settings: IdealSettings
    search: InversionSettings
    training: Fit
    classes: Tensor = field(repr=False)
    controls: Mapping[str, Images] = field(repr=False)
    teacher: LabelFunction | None = field(default=None, repr=False)

    @classmethod
    def prepare(
        cls,
        public: Public,
        prior: Prior,
        seed: int,
        settings: IdealSettings | None = None,
        search: InversionSettings | None = None,
        training: Fit | None = None,
        controls: Mapping[str, Images] | None = None,
    ) -> Self:
        """Settle sizes, and make the controls unless another attack has made them."""
        chosen, hard, lesson = settings or DEFAULT, search or InversionSettings(), training or Fit()
        classes = torch.arange(public.n_classes)
        made = controls or inversion_controls(
            public, prior, classes, settings=hard, training=lesson, seed=seed
        )
        return cls(prior, chosen, hard, lesson, classes, made)

    @classmethod
    def for_data(
        cls,
        data: FederatedData,
        seed: int,
        effort: Effort = "full",
    ) -> ModelInversion:
        """Return GMI on these data: the student is inverted with its prior and controls."""
        made: ModelInversion = ModelInversion.for_data(data, seed, effort)
        return made

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Steal from what the run's server reads; nobody answers queries after a run."""
        run.view.require_any(*cls.needs)
        gmi: ModelInversion = run.shared(cls)
        settings = QUICK if run.effort == "quick" else DEFAULT
        search = gmi.settings, gmi.training, gmi.classes, gmi.controls
        return cls(gmi.prior, settings, *search, truth=gmi.truth)

    def estimate(self, view: View, seed: int) -> Images:
        """The stolen student, and reconstructions by every route."""
        view.require_any(*self.needs)
        public = view.public
        theft = self._steal(view, substream(seed, "theft"))
        student, each = theft.student, self.search.per_class
        shown = invert(student, self.prior, self.classes, self.search, substream(seed, "codes"))
        chance = substream(seed, "generator")
        made = from_generator(student, public, each, self.settings, chance)
        pooled = from_pool(theft.asked, each, substream(seed, "pool ties"))
        return replace(
            shown,
            queries=len(theft.asked) if theft.batches else 0,
            details=theft_details(theft.asked, theft.batches),
            caveats=(*CAVEATS, self.caveat),
            others={GENERATOR: made} | ({} if pooled is None else {POOL: pooled}),
            network=student,
            asked=theft.asked.images,
        )

    def score(self, estimate: Images, seed: int) -> AttackResult:
        """Δ through the public prior, with its interval; the other routes and controls beside."""
        known = self.controls
        stolen = estimate.network
        details = {} if stolen is None else student_details(stolen, self.truth, self.teacher)
        against = control_of(known)
        shown = {"attack": estimate, against: known[against], **estimate.others}
        return score_inversion(self, estimate, self.truth, seed, known, details, shown)

    def _steal(self, view: View, seed: int) -> Theft:
        """The student: distilled from what was read, and taught on by what may be asked.

        Who may ask reads first only where the settings say so.
        """
        public, only_reads = view.public, self.access is Capability.READ_ENSEMBLES
        warm = self.settings.warm and Capability.READ_ENSEMBLES in view.capabilities
        reads = only_reads or warm
        known = from_ensembles(view) if reads else empty_pool(public.proxies, public.n_classes)
        if len(known):
            chance = substream(seed, "student")
            student = fit(public.architecture, known.images, known.targets, self.training, chance)
        elif only_reads:
            raise MissingCapabilityError(UNTAUGHT)
        else:
            student = public.architecture(substream(seed, "initial weights"))
        if only_reads:
            return Theft(student, known, ())
        chooses = self.access is Capability.CHOOSE_INDICES
        choose = NearestProxies(public.proxies) if chooses else None
        return steal(student, known, view.oracle(self.access), self.settings, seed, choose)

    @property
    def caveat(self) -> str:
        """What a reader must know of the access: how hard it asked, and from where it started."""
        if self.access is Capability.READ_ENSEMBLES:
            return "no synthetic query: the student knows what was said of public proxies"
        s = self.settings
        start = "started from the ensembles it had read, if any" if s.warm else "started untrained"
        return (
            f"{s.epochs} epochs of {s.batch} queries (published: 100 of 250); the student {start}"
        )


class IdealK1(Ideal):
    """Reads: the student is distilled from the ensembles, and nothing can be asked."""

    name = "ideal-k1"
    title = "IDEAL, reading ensembles"
    access = Capability.READ_ENSEMBLES
    needs = (frozenset({access, Capability.PUBLIC_PROXIES}),)


class IdealK2(Ideal):
    """Chooses indices: asks about the public proxies nearest to what the generator makes."""

    name = "ideal-k2"
    title = "IDEAL, choosing proxies"
    access = Capability.CHOOSE_INDICES
    needs = (frozenset({access, Capability.PUBLIC_PROXIES}),)


class IdealK3(Ideal):
    """Injects: asks about the generated images themselves, as IDEAL does."""

    name = "ideal-k3"
    title = "IDEAL, injecting images"
    access = Capability.INJECT_PROXIES
    needs = (frozenset({access, Capability.PUBLIC_PROXIES}),)
