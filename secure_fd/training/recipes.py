"""Schedules and named recipes of training. Nothing here imports torch.

A recipe follows from what is public: how many classes clients hold, and how many proxies
there are; not from the name of a split.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from secure_fd.data.image_sets import IMAGE_SETS, Tuned
from secure_fd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent, without momentum as in the paper, or with Nesterov's.

    Attributes:
        learning_rate: of the first step.
        local_batch: private records of a local step.
        distillation_batch: proxies of a distillation step.
        own_batch: private records that join every distillation batch, so that a step minimises
            both losses of the paper's equation before (3) at once.
        momentum: in [0, 1).
        smoothing: share of every distillation target that all classes divide, as ensembles err
            where private labels do not.

    >>> SGD(learning_rate=0.05, momentum=0.9).local_batch
    64
    """

    learning_rate: float = 0.1
    local_batch: int = 64
    distillation_batch: int = 512
    own_batch: int = 0
    momentum: float = 0.0
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check(self, ("learning_rate",), 0, math.inf, "use a finite number of 0 or more")
        _check(self, ("local_batch", "distillation_batch"), 1, math.inf, "use 1 or more")
        _check(self, ("own_batch",), 0, math.inf, "use 0 or more")
        _check(self, ("momentum", "smoothing"), 0, 1, "use a number in [0, 1)")


def _check(
    settings: object, names: tuple[str, ...], least: float, below: float, allowed: str
) -> None:
    for name in names:
        if not least <= (value := getattr(settings, name)) < below:
            raise ConfigurationError(name, value, allowed)


_ASKED = 512
"""Most proxies of a round by default."""
_PAPER_BATCHES = {"chest_xray": 128, "cifar10": 32}
"""Image set -> proxies of a step in the paper, where they are not 512."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of a run, by default as in the paper's supplement.

    Attributes:
        warmup_steps: on private records, before the first round.
        local_steps: on private records, in a round.
        proxy_steps: of distillation, in a round.
        proxies_per_round: proxies that are answered in a round, by default 512, or all where there
            are fewer.
        remember: whether clients distil every ensemble that they received so far, not that of the
            newest round alone; it costs no message.
        anneal_over: rounds in which the learning rate falls to zero along half a cosine, or None.
        anneal_warmup: whether the rate falls to zero in the warm-up too, so that networks come to
            rest before they first answer.
        augment: name of the random view of each batch (see `view_named`).
        sgd: rates and batches.

    >>> Schedule(local_steps=2, proxy_steps=8).fedavg_steps
    10
    """

    warmup_steps: int = 200
    local_steps: int = 1
    proxy_steps: int = 10
    proxies_per_round: int = _ASKED
    remember: bool = True
    anneal_over: int | None = None
    anneal_warmup: bool = False
    augment: str = "none"
    sgd: SGD = field(default_factory=SGD)

    def __post_init__(self) -> None:
        steps = ("warmup_steps", "local_steps", "proxy_steps")
        _check(self, steps, 0, math.inf, "use 0 or more")
        _check(self, ("proxies_per_round",), 1, math.inf, "use 1 or more")
        if self.anneal_over is not None and self.anneal_over < 1:
            raise ConfigurationError("anneal_over", self.anneal_over, "use 1 or more, or None")

    def fitted(self, proxies: int) -> "Schedule":
        """Return the schedule for this many proxies: all, where there are fewer than by default.

        >>> Schedule().fitted(100).proxies_per_round
        100
        """
        if self.proxies_per_round != _ASKED or not 0 < proxies < _ASKED:
            return self
        return replace(self, proxies_per_round=proxies)

    def rate(self, round_index: int, done: float = 0.5) -> float:
        """Return the learning rate of a round, counted from 0, when this share of it is done."""
        if self.anneal_over is None:
            return self.sgd.learning_rate
        return self.sgd.learning_rate * _half_cosine((round_index + done) / self.anneal_over)

    def rates(self, round_index: int, steps: int) -> Iterator[tuple[int, float]]:
        """Yield the distillation steps of a round in parts: their number and their rate."""
        for part, done in _parts(steps):
            yield part, self.rate(round_index, done)

    @property
    def warmup_rates(self) -> Iterator[tuple[int, float]]:
        """The steps of the warm-up, in parts: their number and their rate."""
        for part, done in _parts(self.warmup_steps):
            falling = _half_cosine(done) if self.anneal_warmup else 1.0
            yield part, self.sgd.learning_rate * falling

    @property
    def fedavg_steps(self) -> int:
        """Local steps a round of FedAvg, as many as a distilling client takes in all."""
        return self.local_steps + self.proxy_steps


_MOST_AT_ONE_RATE = 25
"""Steps at one learning rate while it falls."""


def _parts(steps: int) -> Iterator[tuple[int, float]]:
    """Steps in parts of nearly equal size, each with the share that is done at its middle."""
    count = math.ceil(steps / _MOST_AT_ONE_RATE)
    for index in range(count):
        first, last = steps * index // count, steps * (index + 1) // count
        yield last - first, (index + 0.5) / count


def _half_cosine(done: float) -> float:
    """From 1 to 0 as `done` goes from 0 to 1, and 0 beyond."""
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


# Named recipes: how long and how clients train.


@dataclass(frozen=True, slots=True)
class Recipe:
    """A number of rounds of one schedule.

    >>> Recipe(rounds=3, schedule=Schedule()).schedule.warmup_steps
    200
    """

    rounds: int
    schedule: Schedule


_BATCH, _MOST_OWN = 128, 64
_SMOOTHING = 0.1
_ALL = 0.95
"""From this share of the classes on, as if evenly held, a client counts as holding all."""
_FEW, _MANY = 900, 5000


def _tuned(name: str) -> Tuned:
    return IMAGE_SETS[name].tuned if name in IMAGE_SETS else Tuned()


def ours(
    n_classes: int, n_proxies: int, held: float, *, image_set: str = "", rounds: int | None = None
) -> Recipe:
    """Return this package's recipe for Selective-FD.

    Nesterov momentum, a rate that falls to zero, random views where they keep a label, private
    records in every distillation batch, as many as a client's classes would have in it, and no
    warm-up: alone with one or two classes, networks run so far towards them that some never come
    back. Where clients hold all classes it is the other way round: networks that learnt alone
    first, and came to rest, label the proxies better than the selector does; so all proxies are
    answered once, in one round, and learnt until the rate is zero.

    Args:
        n_classes: of the federation.
        n_proxies: in all.
        held: classes that a client holds, as if evenly (1 / sum of squared shares), mean over
            clients; one that holds each class in useful number counts with all (see
            `trainer.classes_held`).
        image_set: a named one for which steps were tuned; others take those of the small sets.
        rounds: by default the recipe's own; the learning rate falls to zero over them.

    >>> ours(10, 6000, 1.0, image_set="mnist").rounds
    50
    >>> ours(10, 6000, 10.0, image_set="mnist").schedule.warmup_steps
    1500
    """
    known, whole = _tuned(image_set), held >= _ALL * n_classes
    count = rounds or (1 if whole else known.rounds)
    own = min(_MOST_OWN, round(_BATCH * held / n_classes))
    smoothing = _SMOOTHING if whole else 0.0
    schedule = Schedule(
        warmup_steps=known.warmup if whole else 0,
        local_steps=0,
        proxy_steps=known.whole_steps if whole else 10,
        proxies_per_round=n_proxies if whole else min(known.proxies, n_proxies),
        anneal_over=count,
        anneal_warmup=whole,
        augment=known.whole_views if whole else known.views,
        sgd=SGD(0.05, 64, _BATCH, own_batch=own, momentum=0.9, smoothing=smoothing),
    )
    return Recipe(count, schedule)


def few_rounds() -> Recipe:
    """Return DaFKD's and FedDF's recipe: few rounds of many local steps, each distilled once.

    >>> few_rounds().schedule.fedavg_steps
    200
    """
    sgd = SGD(0.02, distillation_batch=_BATCH, momentum=0.9)
    return Recipe(5, Schedule(warmup_steps=0, local_steps=200, proxy_steps=0, sgd=sgd))


def distil_once(n_proxies: int, *, image_set: str = "", sums: int = 4) -> Recipe:
    """Return the recipe of methods whose head labels all proxies once, after the last sum.

    200 steps below 900 proxies, 1,500 from 5,000 on, else 500, under views, at a rate that ends at
    zero.

    >>> distil_once(6000, image_set="mnist").schedule.proxy_steps
    1500
    """
    schedule = Schedule(
        warmup_steps=0,
        local_steps=0,
        proxy_steps=200 if n_proxies < _FEW else 1500 if n_proxies >= _MANY else 500,
        anneal_over=1,
        augment=_tuned(image_set).labelled_views,
        sgd=SGD(0.05, distillation_batch=_BATCH, momentum=0.9),
    )
    return Recipe(sums, schedule)


def plain(n_proxies: int = 0) -> Recipe:
    """Return the recipe of methods without one of their own; 0 for methods without proxies.

    >>> plain().rounds
    30
    """
    return Recipe(30, Schedule().fitted(n_proxies))


def paper(n_classes: int, n_proxies: int, held: float, *, image_set: str = "") -> Recipe:
    """Return the steps and the rate of the paper's supplement.

    200 steps of warm-up, then 1 local and 10 proxy steps a round (5 and 6 where clients hold all
    classes), plain SGD at .1 on the round's proxies alone, in batches of 512, of 128 for chest
    X-rays and of 32 for CIFAR-10.

    Reference: Shao, Wu and Zhang (2023), supplement.

    >>> [paper(10, 6000, 1.0, image_set=x).schedule.sgd.distillation_batch
    ...  for x in ("mnist", "chest_xray", "cifar10_features")]
    [512, 128, 32]
    """
    local, proxy = (5, 6) if held >= _ALL * n_classes else (1, 10)
    proxies = min(_ASKED, n_proxies)
    sgd = SGD(distillation_batch=_PAPER_BATCHES.get(image_set.removesuffix("_features"), 512))
    schedule = Schedule(
        local_steps=local, proxy_steps=proxy, proxies_per_round=proxies, remember=False, sgd=sgd
    )
    return Recipe(500, schedule)
