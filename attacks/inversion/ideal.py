"""IDEAL: a student stolen from a federation by reading or injecting, then inverted."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad

from attacks.core.base import Images, seeded, substream
from attacks.core.fit import NO_ENSEMBLE, fit, kept_answers
from attacks.core.view import Capability, Oracle, View
from attacks.inversion.gmi import ModelInversion
from secure_fd.errors import LocalError, MissingCapabilityError

_GENERATOR_RATE, _STUDENT_RATE, _MOMENTUM, _DECAY = 1e-3, 0.01, 0.9, 5e-4
_BALANCE = 5.0
"""Weight of mean(p log p)."""
_SILENCE = 0.1
"""Weight of an unanswered image, whose target is the uniform distribution."""


@dataclass(frozen=True, slots=True)
class IdealSettings:
    """Settings of the extraction. An epoch makes one batch of images and queries the teacher on it.

    epochs: of one batch each, so queries = epochs * batch. latent, channels: of the generator.
    passes: over the pool, after each batch. warm: start from the ensembles that the view holds, and
    keep them in the pool.
    """

    epochs: int = 6
    batch: int = 50
    generator_steps: int = 30
    latent: int = 64
    channels: int = 8
    passes: int = 2
    warm: bool = True

    @property
    def queries(self) -> int:
        """Most images that the teacher is asked about."""
        return self.epochs * self.batch


DEFAULT = IdealSettings()
"""300 queries and 8 channels; published for MNIST, with mirrored images: 25,000 and 64."""
QUICK = IdealSettings(epochs=2, batch=40, generator_steps=10, passes=2)
"""For tests that everything runs; its figures mean little."""


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


def from_votes(images: Tensor, votes: Tensor, n_classes: int) -> Pool:
    """The ensembles of votes [N, R, C]: their sum over R, normalised.

    Where noise made a class's total negative, it counts as zero, as at the server. LocalError for
    answers of another shape.
    """
    if votes.ndim != 3 or (len(votes), votes.shape[2]) != (len(images), n_classes):
        shape = f"[{len(images)}, R, {n_classes}]"
        raise LocalError(f"votes: {tuple(votes.shape)} is not allowed; use {shape}")
    sums = votes.sum(dim=1).clamp(min=0).double()
    count = sums.sum(dim=1, keepdim=True)
    uniform = torch.full_like(sums, 1 / votes.shape[2])
    targets = torch.where(count > 0, sums / count.clamp(min=torch.finfo(count.dtype).tiny), uniform)
    return Pool(images, targets.float(), count[:, 0] > 0)


def from_ensembles(view: View) -> Pool:
    """The proxies whose ensembles were kept for teaching, each with its newest answer."""
    indices, targets = kept_answers(view)
    every = torch.ones(len(indices), dtype=torch.bool)
    return Pool(view.public.proxies[indices], targets, every)


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


def generator_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """CE(S(x), y) + balance * mean(p log p), the mean over images and classes.

    The second term is a negative entropy: it keeps the student from being sure beyond need, so
    that images stay near where classes meet. logits: [N, C]; targets: [N] class ids.
    """
    log_p = log_softmax(logits, dim=1)
    return cross_entropy(logits, targets) + _BALANCE * (log_p.exp() * log_p).mean()


def synthesise(
    student: nn.Module, n_classes: int, shape: tuple[int, ...], settings: IdealSettings, seed: int
) -> Tensor:
    """[batch, C, H, W]: the best batch of a new generator, trained against the student alone.

    shape: (C, H, W) of an image; MissingCapabilityError for feature vectors. Targets are balanced
    over classes, and the codes stay fixed, as released. The student is left in evaluation mode.
    """
    if len(shape) != 3:
        raise MissingCapabilityError("missing proxies that are images: feature vectors have none")
    random = torch.Generator().manual_seed(substream(seed, "codes and shifts"))
    generator = seeded(
        lambda: Synthesiser(settings, shape[-1], shape[0]), substream(seed, "generator")
    )
    optimizer = torch.optim.Adam(generator.parameters(), _GENERATOR_RATE, betas=(0.5, 0.999))
    z = torch.randn(settings.batch, settings.latent, generator=random)
    targets = torch.arange(settings.batch) % n_classes
    student.requires_grad_(False).eval()
    best, least = torch.empty(0), float("inf")
    for _ in range(settings.generator_steps):
        images = generator(z)
        loss = generator_loss(student(shifted(images, random)), targets)
        if float(loss.detach()) < least or not len(best):
            best, least = images.detach(), float(loss.detach())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    student.requires_grad_(True)
    return best


def shifted(images: Tensor, random: torch.Generator) -> Tensor:
    """Every image [N, C, side, side] shifted by up to four pixels over black."""
    n, side = len(images), images.shape[-1]
    padded = pad(images, (_PADDING,) * 4)
    starts = torch.randint(0, 2 * _PADDING + 1, (2, n, 1), generator=random)
    rows, columns = starts + torch.arange(side)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def steal(
    student: nn.Module, known: Pool, teacher: Oracle, settings: IdealSettings, seed: int
) -> Pool:
    """Train `student` in place; return what the teacher was asked about, one batch an epoch.

    known: answers that the attacker has already; they stay in the pool and cost nothing.
    """
    shape, n_classes = tuple(known.images.shape[1:]), known.targets.shape[1]
    asked = empty_pool(known.images, n_classes)
    shuffle = torch.Generator().manual_seed(substream(seed, "pool"))
    optimizer = torch.optim.SGD(  # its momentum lasts over epochs
        student.parameters(), _STUDENT_RATE, momentum=_MOMENTUM, weight_decay=_DECAY
    )
    for epoch in range(settings.epochs):
        chance = substream(seed, f"epoch {epoch}")
        images = synthesise(student, n_classes, shape, settings, chance)
        asked = asked.joined(from_votes(images, teacher(images), n_classes))
        for _ in range(settings.passes):
            _learn(student, known.joined(asked), optimizer, settings.batch, shuffle)
    student.eval()
    return asked


def _learn(
    student: nn.Module,
    pool: Pool,
    optimizer: torch.optim.Optimizer,
    size: int,
    shuffle: torch.Generator,
) -> None:
    """A pass over the pool in batches of `size`.

    Cross-entropy: to a distribution it differs from the KL divergence by a constant.
    """
    weights = torch.where(pool.answered, 1.0, _SILENCE)
    student.train()
    for batch in torch.split(torch.randperm(len(pool), generator=shuffle), size):
        losses = cross_entropy(student(pool.images[batch]), pool.targets[batch], reduction="none")
        optimizer.zero_grad()
        torch.autograd.backward((weights[batch] * losses).mean())
        optimizer.step()


POOL = "pool"
"""A route beside the public prior: the images to which the teacher gave a class."""


def from_pool(pool: Pool, per_class: int, seed: int) -> Images | None:
    """The answered images that the teacher is surest of, `per_class` of each class it named.

    Ties, which hard labels make of everything, fall at random. None where nothing was answered.
    """
    shuffle = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    order = shuffle[pool.answered[shuffle]]
    if not len(order):
        return None
    sure, named = pool.targets[order].max(dim=1)
    picks = []
    for c in torch.unique(named).tolist():
        found = (named == c).nonzero()[:, 0]
        picks.append(found[sure[found].argsort(descending=True, stable=True)[:per_class]])
    chosen = torch.cat(picks)
    return Images(pool.images[order[chosen]], named[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Ideal(ModelInversion):
    """Attack "IDEAL": extracts a student from the federation's answers, then inverts it by GMI.

    A server that may inject proxies asks about generated images; any other reader distils the
    student from the ensembles. theft: of the server that asks.

    >>> Ideal.title
    'IDEAL: a stolen student, inverted'
    """

    name = "ideal"
    title = "IDEAL: a stolen student, inverted"
    needs = (
        frozenset({Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES}),
        frozenset({Capability.INJECT_PROXIES, Capability.PUBLIC_PROXIES}),
    )
    shown_in = ""

    theft: IdealSettings = field(default=DEFAULT, kw_only=True)

    def estimate(self, view: View, seed: int) -> Images:
        """Reconstructions from the stolen student, and the images that the teacher named."""
        view.require_any(*self.needs)
        injects = Capability.INJECT_PROXIES in view.capabilities
        student, asked = self._steal(view, substream(seed, "theft"), injects=injects)
        shown = self.against(student, "injecting images" if injects else "reading ensembles", seed)
        pooled = from_pool(asked, self.settings.per_class, substream(seed, "pool ties"))
        answers = {"answers": float(asked.answered.sum())}
        return replace(
            shown,
            queries=len(asked) if injects else 0,
            details=answers | ({"acceptance_rate": asked.acceptance} if injects else {}),
            caveats=(_SILENT, self.caveat if injects else _READ_ONLY),
            others={} if pooled is None else {POOL: pooled},
        )

    def _steal(self, view: View, seed: int, *, injects: bool) -> tuple[nn.Module, Pool]:
        """The student, distilled from what was read and trained on by what may be asked.

        A server that asks reads first only if the settings have `warm`.
        """
        public = view.public
        warm = self.theft.warm and Capability.READ_ENSEMBLES in view.capabilities
        reads = warm or not injects
        known = from_ensembles(view) if reads else empty_pool(public.proxies, public.n_classes)
        if len(known):
            chance = substream(seed, "student")
            student = fit(public.architecture, known.images, known.targets, self.training, chance)
        elif injects:
            student = public.architecture(substream(seed, "initial weights"))
        else:
            raise MissingCapabilityError(NO_ENSEMBLE)
        if not injects:
            return student, known
        oracle = view.oracle(Capability.INJECT_PROXIES)
        return student, steal(student, known, oracle, self.theft, seed)

    @property
    def caveat(self) -> str:
        """Number of queries of a server that may inject, and its starting point."""
        s = self.theft
        start = "started from the ensembles it had read, if any" if s.warm else "started untrained"
        return (
            f"{s.epochs} epochs of {s.batch} queries (published: 100 of 250); the student {start}"
        )


_READ_ONLY = "no synthetic query: the student trains on predictions for public proxies only"
_SILENT = "an answer is not the selector's consent where noise can make one of silence"
