"""Where a client draws the line between its own distribution and the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError
from secure_fd.selection.density_ratio import (
    FreedWithOwner,
    ProxyReference,
    RatioHead,
    ReferenceSettings,
    Same,
    as_they_are,
    class_means,
    class_shares,
    posterior,
    proxy_leverage,
    shared_reference,
)
from secure_fd.selection.familiarity import OwnRatios
from secure_fd.selection.kulsif import Kulsif
from secure_fd.votes.codec import FloatArray, IntArray

_BINS = 256


def quantile_thresholds(
    ratios: FloatArray, labels: IntArray, classes: tuple[int, ...], quantile: float
) -> FloatArray:
    """tau_client of the paper: for each class, a quantile of its ratio on held-back local data.

    ratios: [n, len(classes)] at the held-back records; labels: [n]. Returns [len(classes)].
    """
    _check_quantile(quantile)
    own = [ratios[labels == c, column] for column, c in enumerate(classes)]
    return np.array([np.quantile(v, quantile) if len(v) else np.inf for v in own])


def _check_quantile(quantile: float) -> None:
    if not 0 <= quantile <= 1:
        raise ConfigurationError("quantile", quantile, "use a number from 0 to 1")


def otsu_thresholds(ratios: FloatArray) -> FloatArray:
    """For each column, the split of the proxies' own scores into two classes of least variance.

    N. Otsu, "A threshold selection method from gray-level histograms", 1979. It reads no private
    record beyond the ratios themselves. ratios: [P, k] at the proxies. Returns [k].
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


# Client selectors, from private records and public proxies to "I answer" or "I abstain".


_STEP = 1 / 255
"""Least deviation of a feature: what its 8 bits resolve."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """A client's verdict on the proxies, one estimator for each class that it holds.

    ratios: [P, classes of the client], the estimated density ratios. thresholds: [classes].
    posterior: [P, classes] in [0, 1], how likely each proxy is of each of these classes.
    knows: [P, classes] whether each proxy is like records of a class (see `OwnRatios`), and
    telling: [classes] where that says anything; None of a selector that does not look at it.
    """

    classes: tuple[int, ...]
    ratios: FloatArray = field(repr=False)
    thresholds: FloatArray = field(repr=False)
    posterior: FloatArray = field(repr=False)
    knows: NDArray[np.bool_] | None = field(default=None, repr=False)
    telling: NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def margins(self) -> FloatArray:
        """[P, classes] each ratio less its threshold."""
        return self.ratios - self.thresholds

    @property
    def scores(self) -> FloatArray:
        """[P] the margin of the best class; higher is more in distribution."""
        return np.asarray(self.margins.max(axis=1))

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """[P] in distribution where any estimator says so (the paper's supplement)."""
        return np.asarray(self.scores >= 0)

    def allowed(self, n_classes: int) -> NDArray[np.bool_]:
        """[P, C] the classes whose own estimator accepts the proxy."""
        mask = np.zeros((len(self.ratios), n_classes), dtype=np.bool_)
        mask[:, list(self.classes)] = self.margins >= 0
        return mask

    def evidence(self, n_classes: int) -> FloatArray:
        """[P, C] the posterior, and zero for classes that the client does not hold."""
        spread = np.zeros((len(self.ratios), n_classes))
        spread[:, list(self.classes)] = self.posterior
        return spread

    def familiar(self, n_classes: int) -> "Familiar | None":
        """The same of what it knows; None where it does not look."""
        if self.knows is None or self.telling is None:
            return None
        return Familiar.of(self.classes, self.knows, self.telling, n_classes)


@dataclass(frozen=True, slots=True, eq=False)
class Familiar:
    """knows: [P, C] whether a proxy is like a client's records of a class.

    holds: [C] the classes of which its records can tell.
    """

    knows: NDArray[np.bool_] = field(repr=False)
    holds: NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(
        cls,
        classes: Sequence[int],
        knows: NDArray[np.bool_],
        telling: NDArray[np.bool_],
        n_classes: int,
    ) -> "Familiar":
        """From what is known of the client's own classes, [P, k], and where that tells, [k]."""
        spread = np.zeros((len(knows), n_classes), dtype=np.bool_)
        holds = np.zeros(n_classes, dtype=np.bool_)
        spread[:, list(classes)], holds[list(classes)] = knows, telling
        return cls(spread, holds)


class FittedSelector(Protocol):
    """A client's selector after it has seen the client's records; it never leaves the client."""

    def judge(self, images: Tensor) -> Selection:
        """The verdict on any images [N, ...], such as proxies that a server injects."""


class ClientSelector(Protocol):
    """Says which proxies are in a client's own distribution."""

    def fit(self, client: ClientData, proxies: Tensor) -> FittedSelector:
        """Estimators and thresholds from a client's records and the public proxies [P, ...]."""

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """The verdict on the public proxies themselves."""


@dataclass(frozen=True, slots=True)
class ProxyRatioSelector:
    """Density ratio against the public proxies (see `density`), one estimator a class.

    threshold: "otsu" splits the proxies' own scores; "quantile" is the paper's tau_client, the
    given quantile of the ratio on held-back local records. prior: how far evidence for a class
    follows its share among the proxies, which the client estimates: exponent in [0, 1], 0 takes all
    classes for equally common.

    >>> ProxyRatioSelector("quantile", 0.1).quantile
    0.1
    """

    threshold: Literal["otsu", "quantile"] = "otsu"
    quantile: float = 0.25
    reference: ReferenceSettings = field(default_factory=ReferenceSettings)
    prior: float = 0.5

    def __post_init__(self) -> None:
        if self.threshold not in ("otsu", "quantile"):
            raise ConfigurationError("threshold", self.threshold, "use otsu or quantile")
        _check_quantile(self.quantile)
        if not 0 <= self.prior <= 1:
            raise ConfigurationError("prior", self.prior, "use a number from 0 to 1")

    def fit(self, client: ClientData, proxies: Tensor) -> "FittedProxyRatio":
        """Ratios from the training records, thresholds and shares of classes from own records."""
        reference, solver = shared_reference(Same(proxies), self.reference)
        head = _head(client, Same(proxies), self.reference)
        ratios = head.ratios(reference.proxy_features)
        # H was fitted on the proxies, not on the records: only leave-one-out ratios compare.
        left_out = ratios / (1.0 - proxy_leverage(Same(reference), Same(solver)))[:, None]
        own = _own(client, Same(proxies), self.reference)
        prior = own.prior(left_out, client.n_classes) if self.prior else 1 / client.n_classes
        weight = (client.n_classes * np.asarray(prior)) ** self.prior
        known = _known(client, len(proxies))
        made = partial(
            FittedProxyRatio,
            *(reference, head, client.n_classes, known, weight, own, ratios, left_out),
        )
        if self.threshold == "otsu":
            return made(ratios, otsu_thresholds(ratios))
        held_back = head.ratios(reference.features(client.validation.pixels))
        labels = client.validation.labels.cpu().numpy()
        return made(left_out, quantile_thresholds(held_back, labels, client.classes, self.quantile))

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """The verdict on the proxies that the estimators were fitted against."""
        return self.fit(client, proxies).on_proxies()


@dataclass(frozen=True, slots=True, eq=False)
class FittedProxyRatio:
    """ratios: [P, classes] at the proxies, left_out: without each of them in H; compared: the same
    as thresholds [classes] see them.

    known: [classes] how far the records reach to speak of each class, see `_known`. common: what
    evidence for each class gains where proxies of it are more common than of others.
    """

    reference: ProxyReference = field(repr=False)
    head: RatioHead = field(repr=False)
    n_classes: int
    known: FloatArray = field(repr=False)
    common: FloatArray = field(repr=False)
    own: OwnRatios = field(repr=False)
    ratios: FloatArray = field(repr=False)
    left_out: FloatArray = field(repr=False)
    compared: FloatArray = field(repr=False)
    thresholds: FloatArray = field(repr=False)

    def judge(self, images: Tensor) -> Selection:
        """The verdict on images that the reference was not fitted on."""
        ratios = self.head.ratios(self.reference.features(images))
        return self._verdict(ratios, ratios)

    def on_proxies(self) -> Selection:
        """The verdict on the proxies."""
        found = self._verdict(self.ratios, self.compared)
        return replace(found, knows=self.own.knows(self.left_out), telling=self.own.telling)

    def _verdict(self, ratios: FloatArray, compared: FloatArray) -> Selection:
        shares = class_shares(self.ratios)  # estimated on the proxies, whatever is asked about
        likely = posterior(ratios, self.n_classes, shares, self.common) * self.known
        return Selection(self.head.classes, compared, self.thresholds, likely)


@dataclass(frozen=True, slots=True)
class KulsifSelector:
    """The paper's selector: exact KuLSIF in pixel space against uniform noise, one a class.

    width: of the Gaussian kernel, in pixels normalised by `mean` and `deviation`; features
    [N, d, 1, 1], in which the paper estimates on CIFAR-10, differ in scale from one to the next and
    are normalised each by its own on the public proxies. share: of the local records that the
    estimate is built from; the threshold is the `quantile` on the rest. beta is n_u^(-1/2).

    >>> KulsifSelector(quantile=0.1).width
    5.0
    """

    quantile: float = 0.25
    width: float = 5.0
    n_reference: int = 250
    share: float = 0.05
    mean: float | FloatArray = 0.1307
    deviation: float | FloatArray = 0.3081
    seed: int = 0

    def __post_init__(self) -> None:
        _check_quantile(self.quantile)
        if not 0 < self.width < np.inf:
            raise ConfigurationError("width", self.width, "use a finite number above 0")
        if self.n_reference < 1:
            raise ConfigurationError("n_reference", self.n_reference, "use 1 or more")
        if not 0 < self.share < 1:
            raise ConfigurationError("share", self.share, "use a number between 0 and 1")

    def fit(self, client: ClientData, proxies: Tensor) -> "FittedKulsif":
        """One estimator a class, from a share of its records; the rest sets its threshold."""
        rng, scaled = np.random.default_rng(self.seed), self._scaled(proxies)
        fitted = tuple(scaled._one(client.train, c, rng) for c in client.classes)
        return FittedKulsif(scaled, client.classes, fitted)

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """The verdict on the proxies."""
        return self.fit(client, proxies).judge(proxies)

    def points(self, pixels: Tensor) -> FloatArray:
        """[N, d] normalised pixels, in which the kernel's width is stated."""
        return np.asarray((as_they_are(pixels) - self.mean) / self.deviation)

    def _scaled(self, proxies: Tensor) -> "KulsifSelector":
        """With the features' own scales; where proxies are images the estimator never sees them."""
        if proxies.shape[2] > 1:
            return self
        features = as_they_are(proxies)
        deviation = np.maximum(features.std(axis=0), _STEP)
        return replace(self, mean=features.mean(axis=0), deviation=deviation)

    def _one(self, records: Images, label: int, rng: np.random.Generator) -> tuple[Kulsif, float]:
        own = rng.permutation(self.points(records.pixels[records.labels == label]))
        size = max(1, round(self.share * len(own)))
        low, high = -self.mean / self.deviation, (1 - self.mean) / self.deviation
        uniform = rng.uniform(low, high, (self.n_reference, own.shape[1]))
        fitted = Kulsif.fit(own[:size], uniform, self.n_reference**-0.5, self.width)
        rest = own[size:] if len(own) > size else own  # a single record must judge itself
        return fitted, float(np.quantile(fitted.score_samples(rest), self.quantile))


@dataclass(frozen=True, slots=True, eq=False)
class FittedKulsif:
    """estimators: one a class, each with its threshold."""

    settings: KulsifSelector
    classes: tuple[int, ...]
    estimators: tuple[tuple[Kulsif, float], ...] = field(repr=False)

    def judge(self, images: Tensor) -> Selection:
        """Ratios in units of their own thresholds' size: classes differ in scale by orders."""
        points = self.settings.points(images)
        # An estimate may be negative: dividing must not flip it.
        units = np.array([abs(threshold) or 1.0 for _, threshold in self.estimators])
        ratios = np.stack([fitted.score_samples(points) for fitted, _ in self.estimators], axis=1)
        thresholds = np.array([threshold for _, threshold in self.estimators]) / units
        # Against uniform noise a ratio is a density: of other classes it says yes or no at most.
        accepted = (ratios / units >= thresholds).astype(np.float64)
        return Selection(self.classes, ratios / units, thresholds, accepted)


def _known(client: ClientData, n_proxies: int) -> FloatArray:
    """[classes] 1, or less where a class has fewer records than proxies are likely to be of it.

    Bayes' rule takes a handful of records for as good a sample as thousands: three clients of 20
    stray records each outvoted one of 5,000 in a Dirichlet split.
    """
    counts = np.bincount(client.train.labels.cpu().numpy(), minlength=client.n_classes)
    return np.minimum(1.0, counts[list(client.classes)] * client.n_classes / n_proxies)


_HEADS: Final = FreedWithOwner()
_OWN: Final = FreedWithOwner()


def _head(client: ClientData, proxies: Same[Tensor], settings: ReferenceSettings) -> RatioHead:
    """A client's head, fitted once for all methods that use it."""

    def fitted() -> RatioHead:
        reference, solver = shared_reference(proxies, settings)
        train, classes = client.train, client.classes
        means = class_means(reference.features(train.pixels), train.labels.cpu().numpy(), classes)
        return solver.head(means, classes)

    return _HEADS.value(client, (proxies, settings), fitted)


def _own(client: ClientData, proxies: Same[Tensor], settings: ReferenceSettings) -> OwnRatios:
    """Ratios at a client's own records, computed once."""

    def found() -> OwnRatios:
        reference, solver = shared_reference(proxies, settings)
        return OwnRatios.of(client, reference, solver, _head(client, proxies, settings))

    return _OWN.value(client, (proxies, settings), found)
