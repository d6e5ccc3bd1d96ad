"""The shipped rules of the record unit, and what else they could have been, one at a time."""

from dataclasses import dataclass, field

from secure_fd.knowledge import FloatArray
from secure_fd.protection.record import RecordRules
from secure_fd.selection.client import otsu_thresholds, top_share_thresholds
from secure_fd.selection.density import ReferenceSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to make votes of records. share: of the budget (in zCDP) that the head gets.

    private_quantile: the threshold is this quantile of the records' own ratios, bought with the
    rest of the budget; None: by the rules, and the rest buys nothing.
    """

    name: str
    rules: RecordRules = field(default_factory=RecordRules)
    share: float = 1.0
    private_quantile: float | None = None


def _noise(noise: float, n_proxies: int, n_classes: int) -> float:  # noqa: ARG001 - the others' rule
    return max(1.0 / n_proxies, noise)


def _noise_above_floor(noise: float, n_proxies: int, n_classes: int) -> float:  # noqa: ARG001 - the others' rule
    return max(1e-3, noise)


def _otsu(ratios: FloatArray, n_classes: int) -> FloatArray:  # noqa: ARG001 - the others' rule
    return otsu_thresholds(ratios)


def _narrow(ratios: FloatArray, n_classes: int) -> FloatArray:
    return top_share_thresholds(ratios, 0.75 / n_classes)


def _wide(ratios: FloatArray, n_classes: int) -> FloatArray:
    return top_share_thresholds(ratios, 1.25 / n_classes)


def _large(noise: float, n_classes: int) -> ReferenceSettings:  # noqa: ARG001 - the others' rule
    return ReferenceSettings((100, 60), 2000)


def _small(noise: float, n_classes: int) -> ReferenceSettings:  # noqa: ARG001 - the others' rule
    return ReferenceSettings((40, 20), 1000)


def _few(noise: float, n_classes: int) -> ReferenceSettings:  # noqa: ARG001 - the others' rule
    return ReferenceSettings((20, 10), 500)


SHIPPED = Choice("as shipped")
CHOICES = (
    SHIPPED,
    Choice("threshold: Otsu on the ratios", RecordRules(thresholds=_otsu)),
    Choice("threshold: top .75 / C", RecordRules(thresholds=_narrow)),
    Choice("threshold: top 1.25 / C", RecordRules(thresholds=_wide)),
    Choice(
        "threshold: private 25 % quantile, a tenth of the budget", share=0.9, private_quantile=0.25
    ),
    Choice("ridge: max(1 / P, z / n)", RecordRules(ridge=_noise)),
    Choice("ridge: max(1e-3, z / n)", RecordRules(ridge=_noise_above_floor)),
    Choice("size: ranks 100 + 60, D 2,000", RecordRules(size=_large)),
    Choice("size: ranks 40 + 20, D 1,000", RecordRules(size=_small)),
    Choice("size: ranks 20 + 10, D 500", RecordRules(size=_few)),
    Choice("budget: half on the head", share=0.5),
    Choice(
        "Otsu, max(1 / P, z / n), ranks 100 + 60, D 2,000",
        RecordRules(size=_large, ridge=_noise, thresholds=_otsu),
    ),
)
