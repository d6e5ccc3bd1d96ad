"""Label-only membership (Choquette-Choo et al., ICML 2021): augmentation, noise, distance, gap."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from attacks.base import Attack, AttackResult, BoolArray, FloatArray, Labelled, Scores, substream
from attacks.fit import QUICK as QUICK_FIT
from attacks.fit import Fit, fit, label_function
from attacks.hop_skip_jump import NOISE_STARTS, HopSkipJump, boundary_distances
from attacks.scoring import score_scores
from attacks.statistics import Rate, auc, rank
from attacks.view import Capability, LabelFunction, Public, View
from secure_fd.errors import ConfigurationError, LocalError

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression


def augmentations(rotation: int, shift: int) -> Tensor:
    """[n, 2, 3] affine maps: identity, every degree of -r..r, every shift |i| + |j| = d.

    n = (2 r + 1) + 4 d: identity counted once (Choquette-Choo et al., ICML 2021, section 4).
    Maps are from output to input, shifts in pixels.
    """
    if rotation < 0 or rotation > 45:
        raise ConfigurationError("rotation", rotation, "use 0 to 45 degrees")
    if shift < 0:
        raise ConfigurationError("shift", shift, "use 0 pixels or more")
    turns = [_turn(degrees) for degrees in range(-rotation, rotation + 1) if degrees]
    moves = [
        _move(i, j)
        for i in range(-shift, shift + 1)
        for j in {shift - abs(i), abs(i) - shift}
        if shift
    ]
    return torch.stack([_move(0, 0), *turns, *moves])


def transform(images: Tensor, theta: Tensor) -> Tensor:
    """Images [N, C, H, W] under one map [2, 3]: bilinear, black outside; identity is exact."""
    if torch.equal(theta, _move(0, 0)):
        return images
    height, width = images.shape[2:]
    scale = torch.tensor([2.0 / width, 2.0 / height])
    relative = torch.cat([theta[:, :2], (theta[:, 2] * scale)[:, None]], dim=1)
    grid = affine_grid(relative.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0, 1)


def _turn(degrees: int) -> Tensor:
    angle = math.radians(degrees)
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0]])


def _move(right: int, down: int) -> Tensor:
    """Output pixel (x, y) reads input (x - right, y - down)."""
    return torch.tensor([[1.0, 0.0, -float(right)], [0.0, 1.0, -float(down)]])


@dataclass(frozen=True, slots=True)
class LabelOnlySettings:
    """rotation: degrees r, from -r to r. shift: pixels d, |i| + |j| = d. training: of shadows.

    shadows: networks, trained on `records` random labelled proxies each, by default on half of
    them; an attacker who knows how many a client has takes as many. samples: noisy copies of an
    image. sigmas: of their noise, in units of the pixel range, one of which the shadows choose.
    boundary: of the distance; starts: public images it starts from; attacked: candidates of one
    target that it attacks, None for all. calibration: records a side, from all shadows together, on
    which noise and distance are calibrated. Raises ConfigurationError for a number below 1, or for
    no sigma.
    """

    rotation: int = 9
    shift: int = 1
    training: Fit = field(default_factory=Fit)
    shadows: int = 1
    records: int | None = None
    samples: int = 15
    sigmas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    boundary: HopSkipJump = field(default_factory=HopSkipJump)
    starts: int = 200
    attacked: int | None = 60
    calibration: int = 150

    def __post_init__(self) -> None:
        for known in fields(self):
            value = getattr(self, known.name)
            if known.name not in ("rotation", "shift") and isinstance(value, int) and value < 1:
                raise ConfigurationError(known.name, value, "use 1 or more")
        if not self.sigmas or min(self.sigmas) <= 0:
            raise ConfigurationError("sigmas", self.sigmas, "use one or more numbers above 0")


QUICK = LabelOnlySettings(
    rotation=3,
    training=QUICK_FIT,
    samples=5,
    sigmas=(0.1, 0.3, 0.7),
    boundary=HopSkipJump(budget=100, evaluations=20, halvings=4),
    starts=100,
    attacked=20,
    calibration=50,
)
"""For a look: every variant asks less, and the figures of the distance are blunter."""


_LEAST_RECORDS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """A network's labels, the records that it learnt, and as many of the same kind that it did not.

    Both sides are in random order.
    """

    ask: LabelFunction = field(repr=False)
    members: Labelled
    non_members: Labelled


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """What all variants are calibrated on. control: a network of all public records.

    starts: [S, C, H, W] public images in random order.
    """

    each: tuple[Shadow, ...]
    control: LabelFunction = field(repr=False)
    starts: Tensor = field(repr=False)
    settings: LabelOnlySettings


def train_shadows(public: Public, settings: LabelOnlySettings, seed: int) -> Shadows:
    """Train shadows and control on the labelled proxies alone.

    Raises MissingCapabilityError where they have no labels, LocalError where they are too few.
    """
    records = Labelled(public.proxies, public.require_labels())
    learnt = settings.records or len(records) // 2
    if len(records) < max(2 * learnt, _LEAST_RECORDS):
        raise LocalError(
            f"proxies: {len(records)} labelled ones are not allowed for shadows of {learnt}; use "
            f"{_LEAST_RECORDS} or more, and twice a shadow's records"
        )

    def train(chosen: Labelled, purpose: str) -> LabelFunction:
        own = substream(seed, purpose)
        network = fit(public.architecture, chosen.images, chosen.labels, settings.training, own)
        # Small convolutions answer in half the time with the channels last in memory.
        return label_function(network.to(memory_format=torch.channels_last))  # type: ignore[call-overload]

    shadows = []
    for index in range(settings.shadows):
        order = _shuffled(records, substream(seed, f"records {index}"))
        members, non_members = (order.take(torch.arange(i, i + learnt)) for i in (0, learnt))
        shadows.append(Shadow(train(members, f"shadow {index}"), members, non_members))
    starts = _shuffled(records, substream(seed, "starts")).images[: settings.starts]
    return Shadows(tuple(shadows), train(records, "control"), starts, settings)


def area(members: FloatArray, non_members: FloatArray, seed: int) -> Rate:
    """AUC on shadow records and its interval, ties broken at random."""
    ranks = rank(members, non_members, substream(seed, "shadow ties"))
    return auc(ranks, substream(seed, "shadow area"))


def best_threshold(members: FloatArray, non_members: FloatArray) -> float:
    """The score from which on to say "member", where TPR - FPR on shadow records is largest."""
    levels = np.unique(np.concatenate([members, non_members]))
    missed = np.searchsorted(np.sort(members), levels) / len(members)
    spared = np.searchsorted(np.sort(non_members), levels) / len(non_members)
    return float(levels[np.argmax(spared - missed)])


def _shuffled(records: Labelled, seed: int) -> Labelled:
    return records.take(torch.randperm(len(records), generator=torch.Generator().manual_seed(seed)))


class Probe(Protocol):
    """What one variant asks, and what it makes of the answers."""

    def scores(self, ask: LabelFunction, records: Labelled, seed: int) -> FloatArray:
        """[N] scores, larger for a likelier member."""

    def queries(self, records: int) -> int:
        """The most queries that scores of so many records take."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A probe with all choices made on shadows.

    threshold: the score from which on it says "member". shadow_auc: its area on shadow records.
    """

    probe: Probe = field(repr=False)
    threshold: float
    shadow_auc: float


def calibrate(probe: Probe, shadows: Shadows, seed: int) -> Calibrated:
    """Threshold and area from `calibration` members of the shadows and as many non-members."""
    share = math.ceil(shadows.settings.calibration / len(shadows.each))
    members: list[FloatArray] = []
    others: list[FloatArray] = []
    for index, shadow in enumerate(shadows.each):
        for scores, side in ((members, shadow.members), (others, shadow.non_members)):
            own = substream(seed, f"calibration {index} {side is shadow.members}")
            some = side.take(torch.arange(min(len(side), share)))
            scores.append(probe.scores(shadow.ask, some, own))
    inside, outside = np.concatenate(members), np.concatenate(others)
    return Calibrated(probe, best_threshold(inside, outside), area(inside, outside, seed).value)


@dataclass(frozen=True, slots=True)
class Gap:
    """A record with the right label is called a member (Yeom et al. 2018): one query a record."""

    def scores(self, ask: LabelFunction, records: Labelled, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N] 1 where the record gets its own label, else 0."""
        return np.asarray((ask(records.images) == records.labels).numpy(), dtype=np.float64)

    def queries(self, records: int) -> int:
        """One a record."""
        return records


@dataclass(frozen=True, slots=True)
class NoiseRobustness:
    """samples noisy copies of each image; sigma: of the noise, in units of the pixel range."""

    sigma: float
    samples: int

    def scores(self, ask: LabelFunction, records: Labelled, seed: int) -> FloatArray:
        """[N] share of the image and its noisy copies, cut to [0, 1], that get its own label."""
        random, images = torch.Generator().manual_seed(seed), records.pixels()
        right = (ask(images) == records.labels).double()
        for _ in range(self.samples):
            noise = torch.randn(images.shape, generator=random)
            noisy = (images + self.sigma * noise).clamp_(0, 1)
            right += ask(noisy) == records.labels
        return np.asarray((right / (1 + self.samples)).numpy(), dtype=np.float64)

    def queries(self, records: int) -> int:
        """The image and its copies."""
        return records * (1 + self.samples)


BitArray = NDArray[np.uint8]


FOLDS = 3
LEAST_PER_CLASS = 10
"""Members, and non-members, that a class needs for an attack model of its own."""
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """P[member | vector]. A class without a model of its own in `by_class` uses the shared one."""

    shared: "LogisticRegression" = field(repr=False)
    by_class: Mapping[int, "LogisticRegression"] = field(default_factory=dict, repr=False)

    def __call__(self, bits: BitArray, labels: IntArray) -> FloatArray:
        """[N] probabilities for vectors [N, n] of records with labels [N]."""
        read = np.asarray(self.shared.predict_proba(bits)[:, 1], dtype=np.float64)
        for label, model in self.by_class.items():
            own = labels == label
            if own.any():
                read[own] = model.predict_proba(bits[own])[:, 1]
        return read


@dataclass(frozen=True, slots=True, eq=False)
class Augmentation:
    """Robustness to rotated and shifted copies: zeros and ones, read by a model.

    rotation, shift: as in `augmentations`; the reader has learnt on shadows. As in the paper every
    class can have a reader of its own. On few public records that costs more than it gives, so the
    shadows decide: classes get their own if that has an area above the 95 % interval of one for
    all, both on shadow records held out by cross-validation.
    """

    rotation: int
    shift: int
    reader: Reader

    def scores(self, ask: LabelFunction, records: Labelled, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N] P[member] as the reader sees it."""
        bits = still_right(ask, records, self.rotation, self.shift)
        return self.reader(bits, records.labels.numpy())

    def queries(self, records: int) -> int:
        """2 r + 1 + 4 d a record."""
        return records * len(augmentations(self.rotation, self.shift))


Learn = Callable[[BitArray, IntArray, BoolArray], Reader]


def still_right(ask: LabelFunction, records: Labelled, rotation: int, shift: int) -> BitArray:
    """[N, n] ones where an augmented copy still gets the record's label; the first is the image."""
    images = records.pixels()
    answers = [ask(transform(images, theta)) for theta in augmentations(rotation, shift)]
    return (torch.stack(answers, dim=1) == records.labels[:, None]).numpy().astype(np.uint8)


def _vectors(shadows: Shadows) -> tuple[BitArray, IntArray, BoolArray]:
    """Bits [N, n], labels [N] and membership [N] of all shadows' records."""
    known = shadows.settings
    sides = [
        (side, still_right(shadow.ask, side, known.rotation, known.shift), member)
        for shadow in shadows.each
        for side, member in ((shadow.members, True), (shadow.non_members, False))
    ]
    return (
        np.concatenate([bits for _, bits, _ in sides]),
        np.concatenate([side.labels.numpy() for side, _, _ in sides]),
        np.concatenate([np.full(len(side), member) for side, _, member in sides]),
    )


def _one_reader(bits: BitArray, labels: IntArray, member: BoolArray) -> Reader:  # noqa: ARG001 - one for all
    return Reader(_fit(bits, member))


def _readers_by_class(bits: BitArray, labels: IntArray, member: BoolArray) -> Reader:
    own: dict[int, LogisticRegression] = {}
    for label in np.unique(labels).tolist():
        here = labels == label
        if min((here & member).sum(), (here & ~member).sum()) >= LEAST_PER_CLASS:
            own[label] = _fit(bits[here], member[here])
    return Reader(_fit(bits, member), own)


def _held_out(
    learn: Learn,
    bits: BitArray,
    labels: IntArray,
    member: BoolArray,
) -> FloatArray:
    """[N] scores of records by a reader that learnt on the other folds.

    Both sides of every shadow are in random order, so that every FOLDS-th record is a fair fold.
    """
    scores = np.empty(len(bits))
    for fold in range(FOLDS):
        out = np.arange(len(bits)) % FOLDS == fold
        reader = learn(bits[~out], labels[~out], member[~out])
        scores[out] = reader(bits[out], labels[out])
    return scores


def _fit(bits: BitArray, member: BoolArray) -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression  # slow to import

    return LogisticRegression().fit(bits, member)


@dataclass(frozen=True, slots=True, eq=False)
class BoundaryDistance:
    """starts: [S, C, H, W] public images that the search starts from."""

    search: HopSkipJump
    starts: Tensor = field(repr=False)

    def scores(self, ask: LabelFunction, records: Labelled, seed: int) -> FloatArray:
        """[N] L2 distances to the nearest point found with another label; 0 where already wrong."""
        return boundary_distances(ask, records, self.starts, self.search, seed)

    def queries(self, records: int) -> int:
        """The budget of every record, and the starts once."""
        return records * self.search.budget + len(self.starts) + NOISE_STARTS


@dataclass(frozen=True, slots=True, eq=False)
class KnownControl:
    """Scores [M] of these candidates against the control, which no run changes."""

    candidates: Labelled
    scores: FloatArray = field(repr=False)


@dataclass(slots=True, eq=False)
class _Recorder:
    """Asks, and keeps the labels that were ever answered."""

    ask: LabelFunction
    seen: set[int] = field(default_factory=set)

    def __call__(self, images: Tensor) -> Tensor:
        answers = self.ask(images)
        self.seen.update(answers.tolist())
        return answers


@dataclass(frozen=True, slots=True, eq=False)
class LabelAttack(Attack[Scores, BoolArray]):
    """The attack on given candidates; build it with `prepare`, which needs no transcript.

    calibrated: the probe, with all its choices made on shadows. control: a network of public
    records, which saw no member. most: candidates that are attacked, drawn at random; None for all.
    """

    figure_name = "AUC"
    control_name = "AUC of the same attack on a model that saw no member"
    needs = (frozenset({Capability.QUERY_FINAL_MODEL, Capability.LABELLED_PUBLIC}),)

    candidates: Labelled
    calibrated: Calibrated
    control: LabelFunction = field(repr=False)
    most: int | None = None
    known_control: KnownControl | None = field(default=None, repr=False)

    @classmethod
    @abstractmethod
    def calibrate(cls, shadows: Shadows, seed: int) -> Calibrated:
        """Choose the probe and its threshold on the shadows."""

    @classmethod
    def most_attacked(cls, settings: LabelOnlySettings) -> int | None:  # noqa: ARG003 - a variant limits itself
        """Candidates of one target that this variant can afford; None for all."""
        return None

    @classmethod
    def prepare(
        cls,
        public: Public,
        candidates: Labelled,
        seed: int,
        settings: LabelOnlySettings | None = None,
    ) -> Self:
        """Train shadows and control on labelled public records, and calibrate on them.

        Raises MissingCapabilityError where the public records have no labels. For several variants
        use `variants`, which trains once.
        """
        shadows = train_shadows(public, settings or LabelOnlySettings(), seed)
        return cls.from_shadows(shadows, candidates, seed)

    @classmethod
    def from_shadows(cls, shadows: Shadows, candidates: Labelled, seed: int) -> Self:
        """The attack of shadows that are trained already."""
        calibrated = cls.calibrate(shadows, substream(seed, cls.name))
        return cls(candidates, calibrated, shadows.control, cls.most_attacked(shadows.settings))

    def against(self, candidates: Labelled, seed: int) -> Self:
        """This attack on other candidates, with the control's scores of them made now.

        Every run on them then saves the control's half of the work.
        """
        posed = replace(self, candidates=candidates, known_control=None)
        return replace(posed, known_control=KnownControl(candidates, posed._control_scores(seed)))

    @property
    def attacked(self) -> BoolArray:
        """[N] the candidates that are asked about, drawn by their number and nothing else."""
        n = len(self.candidates)
        order = np.random.default_rng(n).permutation(n)
        return np.asarray(order < (n if self.most is None else self.most))

    @property
    def queries_needed(self) -> int:
        """The most queries that one run asks for, before the oracle's memory."""
        return self.calibrated.probe.queries(int(self.attacked.sum()))

    def run(self, view: View, seed: int) -> Scores:
        """Scores of the candidates. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.QUERY_FINAL_MODEL)
        before = oracle.queries
        records = self._records()
        ask = _Recorder(oracle)
        scores = self.calibrated.probe.scores(ask, records, substream(seed, "probe"))
        return Scores(
            scores,
            control=self._control_scores(seed),
            right=(ask(records.images) == records.labels).numpy(),
            chosen=self.attacked,
            threshold=self.calibrated.threshold,
            queries=oracle.queries - before,
            details={"shadow_auc": self.calibrated.shadow_auc},
            caveats=(_CONSTANT,) if len(ask.seen) == 1 else (),
        )

    def score(self, estimate: Scores, truth: BoolArray, seed: int) -> AttackResult:
        """AUC with its interval; truth: [N] of the challenge that gave the candidates."""
        return score_scores(self, estimate, truth, seed)

    def _records(self) -> Labelled:
        return self.candidates.take(torch.from_numpy(self.attacked))

    def _control_scores(self, seed: int) -> FloatArray:
        known = self.known_control
        if known is not None and known.candidates is self.candidates:
            return known.scores
        own = substream(seed, "control probe")
        return self.calibrated.probe.scores(self.control, self._records(), own)


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnly(LabelAttack):
    """Robustness to rotation and translation, read by an attack model."""

    name = "label-only"
    title = "Label-only membership: augmentation"

    @classmethod
    def calibrate(cls, shadows: Shadows, seed: int) -> Calibrated:
        """Learn to read on the shadows; threshold and area are of records that folds held out."""
        known = shadows.settings
        vectors = _vectors(shadows)
        bits, labels, member = vectors
        learn: Learn = _one_reader
        held = _held_out(learn, *vectors)
        found = area(held[member], held[~member], seed)
        by_class = _held_out(_readers_by_class, *vectors)
        other = area(by_class[member], by_class[~member], seed)
        if other.value > found.interval[1]:
            learn, held, found = _readers_by_class, by_class, other
        probe = Augmentation(known.rotation, known.shift, learn(bits, labels, member))
        return Calibrated(probe, best_threshold(held[member], held[~member]), found.value)


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyNoise(LabelAttack):
    """Robustness to Gaussian noise."""

    name = "label-only-noise"
    title = "Label-only membership: Gaussian noise"

    @classmethod
    def calibrate(cls, shadows: Shadows, seed: int) -> Calibrated:
        """The sigma whose area on the shadows is largest; that area is flattered a little."""
        known = shadows.settings
        probes = [NoiseRobustness(sigma, known.samples) for sigma in known.sigmas]
        tried = [calibrate(probe, shadows, seed) for probe in probes]
        return max(tried, key=lambda found: found.shadow_auc)


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyBoundary(LabelAttack):
    """L2 distance to the decision boundary, by HopSkipJump."""

    name = "label-only-boundary"
    title = "Label-only membership: boundary distance"

    @classmethod
    def calibrate(cls, shadows: Shadows, seed: int) -> Calibrated:
        """Choose the threshold on the shadows' distances."""
        probe = BoundaryDistance(shadows.settings.boundary, shadows.starts)
        return calibrate(probe, shadows, seed)

    @classmethod
    def most_attacked(cls, settings: LabelOnlySettings) -> int | None:
        """As many as the settings say: a distance takes hundreds of queries."""
        return settings.attacked


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyGap(LabelAttack):
    """Right or wrong: the baseline."""

    name = "label-only-gap"
    title = "Label-only membership: gap"

    @classmethod
    def calibrate(cls, shadows: Shadows, seed: int) -> Calibrated:
        """The threshold is 1, unless the shadows have no gap."""
        return calibrate(Gap(), shadows, seed)


_CONSTANT = "the target answered one class for everything: a constant predictor tells nothing"

VARIANTS: tuple[type[LabelAttack], ...] = (
    LabelOnlyGap,
    LabelOnly,
    LabelOnlyNoise,
    LabelOnlyBoundary,
)
"""Cheapest first."""


def variants(
    public: Public, candidates: Labelled, seed: int, settings: LabelOnlySettings | None = None
) -> tuple[LabelAttack, ...]:
    """Every variant, calibrated on the same shadows, which are trained once.

    Raises MissingCapabilityError where the public records have no labels.
    """
    shadows = train_shadows(public, settings or LabelOnlySettings(), seed)
    return tuple(kind.from_shadows(shadows, candidates, seed) for kind in VARIANTS)
