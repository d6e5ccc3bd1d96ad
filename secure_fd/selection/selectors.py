"""Client selectors: which proxies a client answers, from its private records."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.selection.density_ratio import (
    ProxyReference,
    ReferenceSettings,
    class_means,
    class_shares,
    flat_pixels,
    posterior,
    shared_reference,
    whitened,
)
from secure_fd.selection.familiarity import KnownProxies, OwnRatios, over_classes
from secure_fd.selection.kulsif import Kulsif
from secure_fd.votes.codec import FloatArray, IntArray

_BINS: Final = 256
_STEP: Final = 1 / 255
"""Least deviation of a feature: what its 8 bits resolve."""
_N_REFERENCE: Final = 250
"""Points of uniform noise that KuLSIF compares with, as in the paper."""
_MEAN, _DEVIATION = 0.1307, 0.3081
"""Mean and deviation of MNIST's pixels, in which KuLSIF's kernel width is stated."""


def quantile_thresholds(
    ratios: FloatArray, labels: IntArray, classes: tuple[int, ...], quantile: float
) -> FloatArray:
    """Return tau_client of the paper: for each class, a quantile of its ratio on held-back records.

    Args:
        ratios: [n, classes] at the held-back records.
        labels: [n] of these records.
        classes: those that the client holds.
        quantile: share of its own class that a client gives up.

    Returns:
        [classes] thresholds; infinite for a class without a held-back record.
    """
    own = [ratios[labels == c, column] for column, c in enumerate(classes)]
    return np.array([np.quantile(v, quantile) if len(v) else np.inf for v in own])


def check_quantile(quantile: float) -> None:
    """Raise ConfigurationError unless the quantile is a number from 0 to 1."""
    if not 0 <= quantile <= 1:
        raise ConfigurationError("quantile", quantile, "use a number from 0 to 1")


def otsu_thresholds(ratios: FloatArray) -> FloatArray:
    """Split each column of [P, k] into two groups of least variance; returns [k] thresholds.

    It reads no private record beyond the ratios themselves.

    Reference:
        N. Otsu, "A threshold selection method from gray-level histograms", 1979.
    """
    return np.array([_otsu(column) for column in ratios.T])


def _otsu(values: FloatArray) -> float:
    counts, edges = np.histogram(values, _BINS)
    centres = (edges[1:] + edges[:-1]) / 2
    below = np.cumsum(counts)[:-1]
    above = len(values) - below
    mass = np.cumsum(counts * centres)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = mass[:-1] / below - (mass[-1] - mass[:-1]) / above
    between = np.nan_to_num(below * above * gap**2)
    return float(edges[1:-1][between.argmax()])


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Verdict of a selector on samples, by one estimator for each class that the client holds.

    Attributes:
        classes: those that the client holds.
        ratios: [N, classes] estimated density ratios.
        thresholds: [classes].
        posterior: [N, classes] in [0, 1], how likely each sample is of each class.
        familiar: which proxies are like the client's records; None if the selector does not look.
    """

    classes: tuple[int, ...]
    ratios: FloatArray = field(repr=False)
    thresholds: FloatArray = field(repr=False)
    posterior: FloatArray = field(repr=False)
    familiar: KnownProxies | None = field(default=None, repr=False)

    @property
    def scores(self) -> FloatArray:
        """[N] margin of the best class over its threshold; higher is more in distribution."""
        return np.asarray((self.ratios - self.thresholds).max(axis=1))

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """[N] in distribution where any estimator accepts (the paper's supplement)."""
        return np.asarray(self.scores >= 0)

    def allowed(self, n_classes: int) -> NDArray[np.bool_]:
        """Return the classes whose own estimator accepts each sample, [N, C]."""
        return over_classes(self.ratios >= self.thresholds, self.classes, n_classes)

    def evidence(self, n_classes: int) -> FloatArray:
        """Return the posterior, [N, C], zero for classes that the client does not hold."""
        return over_classes(self.posterior, self.classes, n_classes)


class FittedSelector(ABC):
    """A client's selector, fitted on its records; it never leaves the client."""

    @abstractmethod
    def predict(self, samples: Tensor) -> Selection:
        """Judge any samples [N, ...], such as proxies that a server injects."""


class ClientSelector(ABC):
    """Finds the proxies that are in a client's own distribution."""

    finds_known: ClassVar[bool] = False
    """True if its selections name the proxies that are like the client's records."""

    @abstractmethod
    def fit(self, client: ClientData, proxies: Tensor) -> FittedSelector:
        """Fit estimators and thresholds on a client's records and the public proxies [P, ...]."""

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """Fit, and judge the public proxies themselves."""
        return self.fit(client, proxies).predict(proxies)


@dataclass(frozen=True, slots=True)
class ProxyRatioSelector(ClientSelector):
    """Density ratio to the public proxies (see `density_ratio`), one estimator for each class.

    Attributes:
        quantile: the paper's tau_client, a quantile of the ratio on held-back records; by default
            Otsu's method splits the proxies' own scores.
        reference: sizes of the public feature map.

    >>> ProxyRatioSelector(quantile=0.1).quantile
    0.1
    """

    finds_known: ClassVar[bool] = True

    quantile: float | None = None
    reference: ReferenceSettings = field(default_factory=ReferenceSettings)

    prior: ClassVar[float] = 0.5
    """Exponent of a class's share among the proxies, which the client estimates, in the evidence
    for it; 0 takes all classes for equally common."""

    def __post_init__(self) -> None:
        if self.quantile is not None:
            check_quantile(self.quantile)

    def fit(self, client: ClientData, proxies: Tensor) -> "FittedProxyRatio":
        """Fit ratios on the training records; thresholds and shares of classes on own records."""
        reference = shared_reference(proxies, self.reference)
        head = _fitted_head(client, proxies, self.reference)
        ratios = reference.proxy_features @ head
        # H was fitted on the proxies, not on the records: only leave-one-out ratios compare.
        left_out = ratios / (1.0 - reference.leverage)[:, None]
        own, n_classes = _own_ratios(client, proxies, self.reference), client.n_classes
        compared, thresholds = ratios, otsu_thresholds(ratios)
        if self.quantile is not None:
            held_back, labels = client.validation.pixels, client.validation.labels.cpu().numpy()
            at_own = reference.features(held_back) @ head
            thresholds = quantile_thresholds(at_own, labels, client.classes, self.quantile)
            compared = left_out
        likely = partial(
            posterior,
            n_classes=n_classes,
            shares=class_shares(ratios),
            common=(n_classes * own.prior(left_out, n_classes)) ** self.prior,
            reach=_reach(client, len(proxies)),
        )
        known = own.known(left_out, client.classes, n_classes)
        selection = Selection(client.classes, compared, thresholds, likely(ratios), known)
        return FittedProxyRatio(reference, head, likely, selection)

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """Fit, and judge the proxies that the estimators were fitted against."""
        return self.fit(client, proxies).on_proxies


@dataclass(frozen=True, slots=True, eq=False)
class FittedProxyRatio(FittedSelector):
    """Density ratios of one client.

    Attributes:
        reference: the public features.
        head: [D, classes] coefficients of the ratios.
        likely: from ratios to the posterior.
        on_proxies: the verdict on the proxies.
    """

    reference: ProxyReference = field(repr=False)
    head: FloatArray = field(repr=False)
    likely: Callable[[FloatArray], FloatArray] = field(repr=False)
    on_proxies: Selection

    def predict(self, samples: Tensor) -> Selection:
        """Judge samples that the reference was not fitted on."""
        ratios, seen = self.reference.features(samples) @ self.head, self.on_proxies
        return Selection(seen.classes, ratios, seen.thresholds, self.likely(ratios))


def _reach(client: ClientData, n_proxies: int) -> FloatArray:
    """[classes] 1, or less where a class has fewer records than proxies are likely to be of it.

    Bayes' rule takes a handful of records for as good a sample as thousands: three clients of 20
    stray records each outvoted one of 5,000 in a Dirichlet split.
    """
    counts = np.bincount(client.train.labels.cpu().numpy(), minlength=client.n_classes)
    return np.minimum(1.0, counts[list(client.classes)] * client.n_classes / n_proxies)


@freed_with_owner
def _fitted_head(client: ClientData, proxies: Tensor, settings: ReferenceSettings) -> FloatArray:
    """Fit a client's head once for all methods that use it."""
    reference, train = shared_reference(proxies, settings), client.train
    features = reference.fourier(whitened(train.pixels, reference.public))
    labels = train.labels.cpu().numpy()
    return reference.solver.solve(class_means(features, labels, client.classes).T)


@freed_with_owner
def _own_ratios(client: ClientData, proxies: Tensor, settings: ReferenceSettings) -> OwnRatios:
    """Compute the ratios at a client's own records once."""
    head = _fitted_head(client, proxies, settings)
    return OwnRatios.of(client, shared_reference(proxies, settings), head)


@dataclass(frozen=True, slots=True)
class KulsifSelector(ClientSelector):
    """The paper's selector: exact KuLSIF in pixel space against uniform noise, one for each class.

    Feature vectors [N, d, 1, 1], in which the paper estimates on CIFAR-10, differ in scale from one
    entry to the next: each is normalised by its own mean and deviation on the public proxies.

    Attributes:
        quantile: of the ratios of the local records that no estimator is built from; the threshold.
        width: of the Gaussian kernel, in normalised pixels.
        share: of the local records that estimators are built from.

    >>> KulsifSelector(quantile=0.1).width
    5.0
    """

    quantile: float = 0.25
    width: float = 5.0
    share: float = 0.05

    def __post_init__(self) -> None:
        check_quantile(self.quantile)
        if not 0 < self.width < np.inf:
            raise ConfigurationError("width", self.width, "use a finite number above 0")
        if not 0 < self.share < 1:
            raise ConfigurationError("share", self.share, "use a number between 0 and 1")

    def fit(self, client: ClientData, proxies: Tensor) -> "FittedKulsif":
        """Fit an estimator for each class on a share of its records, its threshold on the rest."""
        mean, deviation = np.array(_MEAN), np.array(_DEVIATION)
        if proxies.shape[2] == 1:  # where proxies are images the estimator does not use them
            features = flat_pixels(proxies)
            mean, deviation = features.mean(axis=0), np.maximum(features.std(axis=0), _STEP)
        rng, records, estimators = np.random.default_rng(0), client.train, []
        for label in client.classes:
            points = (flat_pixels(records.pixels[records.labels == label]) - mean) / deviation
            own = rng.permutation(points)
            size = max(1, round(self.share * len(own)))
            low, high = -mean / deviation, (1 - mean) / deviation
            uniform = rng.uniform(low, high, (_N_REFERENCE, own.shape[1]))
            fitted = Kulsif.fit(own[:size], uniform, _N_REFERENCE**-0.5, self.width)
            rest = own[size:] if len(own) > size else own  # a single record must judge itself
            threshold = float(np.quantile(fitted.score_samples(rest), self.quantile))
            estimators.append((fitted, threshold))
        return FittedKulsif(mean, deviation, client.classes, tuple(estimators))


@dataclass(frozen=True, slots=True, eq=False)
class FittedKulsif(FittedSelector):
    """Fitted KuLSIF selector of one client: an estimator and a threshold for each of its classes.

    Attributes:
        mean, deviation: of the entries that normalise a sample.
        classes: those that the client holds.
        estimators: one for each class, with its threshold.
    """

    mean: FloatArray = field(repr=False)
    deviation: FloatArray = field(repr=False)
    classes: tuple[int, ...]
    estimators: tuple[tuple[Kulsif, float], ...] = field(repr=False)

    def points(self, samples: Tensor) -> FloatArray:
        """Normalise samples to [N, d], in which the kernel's width is stated."""
        return np.asarray((flat_pixels(samples) - self.mean) / self.deviation)

    def predict(self, samples: Tensor) -> Selection:
        """Judge samples; ratios are in units of their thresholds, as classes differ in scale."""
        points = self.points(samples)
        # An estimate may be negative: dividing must not flip it.
        units = np.array([abs(threshold) or 1.0 for _, threshold in self.estimators])
        ratios = np.stack([fitted.score_samples(points) for fitted, _ in self.estimators], axis=1)
        thresholds = np.array([threshold for _, threshold in self.estimators]) / units
        # Against uniform noise a ratio is a density: for other classes it gives yes or no at most.
        accepted = (ratios / units >= thresholds).astype(np.float64)
        return Selection(self.classes, ratios / units, thresholds, accepted)
