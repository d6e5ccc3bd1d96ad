"""The sphere fit behind trilateration, and where to start it.

Near one training image x the region that a kernel density accepts is a ball around it, of a radius
that the threshold sets. Boundary points b of that ball satisfy

    |b - x|^2 = r^2    that is    2 b . x - (|x|^2 - r^2) = |b|^2,

linear in x and in one further unknown: d + 1 boundary points determine the image. Where several
training images are near, the same fit gives their mean, weighted by how near each is; repeating it
from there isolates one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from attacks.base import Attack, AttackResult, BoolArray, FloatArray, Images, substream
from attacks.images import Originals
from attacks.scoring import score_images
from attacks.selector import Accepts, Asking, Margin, Mask, crossed, crossings, flat
from attacks.statistics import Rate, mean
from attacks.view import Capability, View
from secure_fd.errors import ConfigurationError, LocalError

_SCOUTS, _SCOUT_BITS = 6, 10
_CHECKS = 40
_TRIMS, _OUTLYING = 4, 5.0
_TOLERATED, _WORTHLESS = 2.0, 0.5
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class SphereSettings:
    """surplus: boundary points for an unknown. bits: of one point. fits: repetitions.

    starts: public images scouted for one that is near a single record. step: how far the pixels
    are moved between points, in pixels' L2. overshoot: beyond a fit, away from what else is near.
    """

    surplus: float = 1.3
    bits: int = 13
    fits: int = 3
    starts: int = 16
    step: float = 2.0
    overshoot: float = 0.7

    def __post_init__(self) -> None:
        if self.surplus <= 1:
            raise ConfigurationError("surplus", self.surplus, "use a number above 1")
        if min(self.bits, self.fits, self.starts) < 1:
            raise ConfigurationError("bits, fits, starts", 0, "use 1 or more of each")


QUICK = SphereSettings(surplus=1.15, bits=11, fits=2, starts=6)


def approach(
    accepts: Accepts,
    margin: Margin,
    start: FloatArray,
    settings: SphereSettings,
    rng: np.random.Generator,
) -> tuple[FloatArray, float]:
    """The best fit's image [d], and the share of variance that it leaves unexplained.

    The start, and 1, where no fit explains half of it or has a center that is accepted.
    """
    best, least = start, 1.0
    at = np.where(margin.inner, start, 0.0)
    for _ in range(settings.fits):
        fitted = _fit(accepts, margin, at, settings, rng)
        if fitted is None or fitted[1] > _WORTHLESS:  # nothing to stand on from here
            break
        center, unexplained = fitted
        image = np.clip(center, 0.0, 1.0)
        if not accepts(image[None])[0]:  # a record, or a mean of near ones, would be accepted
            break
        if unexplained < _TOLERATED * least:  # later fits stand nearer, so they win near-ties
            best, least = image, unexplained
        at = np.clip(center + settings.overshoot * (center - at), 0.0, 1.0)
        at = np.where(margin.inner, at, 0.0)
    return best, least


def _fit(
    accepts: Accepts,
    margin: Margin,
    at: FloatArray,
    settings: SphereSettings,
    rng: np.random.Generator,
) -> tuple[FloatArray, float] | None:
    """The center [d] of the sphere through boundary points around `at`; None without enough.

    |b - x|^2 = r^2 for b = at + o is |o|^2 = 2 o . (x - at) + const.
    """
    room = float(margin.heights(accepts, at[None], settings.bits)[0])
    free = margin.inner if room else np.ones_like(margin.inner)
    unknowns = int(free.sum()) + 1
    count = int(np.ceil(settings.surplus * unknowns)) + _CHECKS
    if room:
        offsets, seen = _up_the_margin(accepts, margin, at, room, count, settings, rng)
    else:
        offsets, seen = _towards_noise(accepts, at, count, settings, rng)
    rows = np.concatenate([2 * offsets[:, free], np.ones((count, 1))], axis=1)
    right = (offsets**2).sum(axis=1)
    fitted, checked = seen.copy(), seen.copy()
    fitted[-_CHECKS:], checked[:-_CHECKS] = False, False
    if fitted.sum() <= unknowns or checked.sum() < _CHECKS // 2:
        return None
    solution = _trimmed(rows[fitted], right[fitted])
    center = at.copy()
    center[free] += solution[:-1]
    missed = right[checked] - rows[checked] @ solution
    return center, float(min(1.0, missed.var() / max(right[checked].var(), _TINY)))


def _up_the_margin(
    accepts: Accepts,
    margin: Margin,
    at: FloatArray,
    room: float,
    count: int,
    settings: SphereSettings,
    rng: np.random.Generator,
) -> tuple[FloatArray, BoolArray]:
    """Boundary points less `at` [n, d]: many pixels moved at once, then up; and which are any."""
    moves = np.where(margin.inner, rng.integers(0, 2, (count, len(at))) - at, 0.0)
    # A move costs its own square of the room that is left below the boundary.
    moves *= min(settings.step, 0.5 * room**0.5) / np.linalg.norm(moves, axis=1, keepdims=True)
    heights = margin.heights(accepts, at + moves, settings.bits)
    up = margin.lift / np.linalg.norm(margin.lift)
    return moves + np.sqrt(heights)[:, None] * up, heights > 0


def _towards_noise(
    accepts: Accepts,
    at: FloatArray,
    count: int,
    settings: SphereSettings,
    rng: np.random.Generator,
) -> tuple[FloatArray, BoolArray]:
    """The same where the margin leads to no boundary: along lines to images of noise.

    All of one length: a boundary at one share of every line would else look like a sphere.
    """
    away = rng.integers(0, 2, (count, len(at))) - at
    lengths = np.linalg.norm(away, axis=1, keepdims=True)
    away *= lengths.min() / lengths
    share = crossings(accepts, np.broadcast_to(at, away.shape), at + away, settings.bits)
    return share[:, None] * away, crossed(share, settings.bits)


def _trimmed(rows: FloatArray, right: FloatArray) -> FloatArray:
    """Least squares without the points far outside the spread of the rest: noise makes a few."""
    keep = np.ones(len(rows), dtype=np.bool_)
    solution = np.linalg.lstsq(rows, right, rcond=None)[0]
    for _ in range(_TRIMS):
        missed = np.abs(right - rows @ solution)
        kept = missed <= _OUTLYING * 1.4826 * np.median(missed)
        if kept.sum() <= rows.shape[1] or (kept == keep).all():
            break
        keep = kept
        solution = np.linalg.lstsq(rows[keep], right[keep], rcond=None)[0]
    return np.asarray(solution)


def scouted(
    accepts: Accepts, margin: Margin, own: FloatArray, settings: SphereSettings
) -> FloatArray:
    """The accepted public image of the class [d] that seems nearest to a single record.

    Towards other images of the class, a single record's parabola bends by -2 |e|^2; a second one
    bends it less. Among rejected images any serves as well: the first.
    """
    heights = margin.heights(accepts, own, _SCOUT_BITS)
    order = np.argsort(-heights)[: settings.starts]
    starts = order[heights[order] > 0]
    if len(starts) < 2:
        return np.asarray(own[order[0]])
    bends = np.array([_bend(accepts, margin, own, i, heights[i]) for i in starts])
    return np.asarray(own[starts[bends.argmin()]])


def _bend(accepts: Accepts, margin: Margin, own: FloatArray, at: int, height: float) -> float:
    """How much less than a single record's the heights bend; infinite where nothing is measured."""
    others = np.delete(np.arange(len(own)), at)
    others = others[np.linspace(0, len(others) - 1, min(_SCOUTS, len(others))).astype(int)]
    moves = own[others] - own[at]
    size = 0.3 * height**0.5
    moves *= np.minimum(0.5, size / np.maximum(np.linalg.norm(moves, axis=1), 1e-9))[:, None]
    once, twice = (
        margin.heights(accepts, own[at] + times * moves, _SCOUT_BITS) for times in (1, 2)
    )
    seen = (once > 0) & (twice > 0)
    if not seen.any():
        return float("inf")
    squares = (moves[seen] ** 2).sum(axis=1)
    return float(((twice - 2 * once + height)[seen] / squares + 2).mean())


REBUILT = 40.0
"""dB from which an image counts as rebuilt: an error of one hundredth of a pixel's range."""


def joined(found: Sequence[Images]) -> Images:
    """Images rebuilt one by one as one estimate, the i-th about group i."""
    groups = torch.arange(len(found))
    return Images(
        torch.cat([one.images for one in found]),
        groups,
        queries=sum(one.queries for one in found),
        details={
            "unexplained": float(np.mean([one.details["unexplained"] for one in found])),
            "queries_per_image": sum(one.queries for one in found) / len(found),
        },
        others={
            name: Images(torch.cat([one.others[name].images for one in found]), groups)
            for name in found[0].others
        },
    )


@dataclass(frozen=True, slots=True, eq=False)
class Trilateration(Attack[Images, Originals]):
    """Rebuild one training image of class `column`; row: of the client, None for the sum."""

    name = "selector-reconstruction"
    title = "Reconstruction from the selector's mask bits"
    figure_name = "Δ PSNR"
    control_name = "Δ of the public images that the attack starts from"
    needs = (
        frozenset({
            Capability.INJECT_PROXIES,
            Capability.PUBLIC_PROXIES,
            Capability.LABELLED_PUBLIC,
        }),
    )  # fmt: skip

    column: int
    row: int | None = None
    settings: SphereSettings = field(default_factory=SphereSettings)
    asking: Asking = field(default_factory=Asking)

    def run(self, view: View, seed: int) -> Images:
        """The image of the fit that predicts further boundary points best, the start if none.

        unexplained: the share of the variance of boundary points outside the fit that it misses; 1
        where it explains none. `joined` makes one estimate of several.
        """
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.INJECT_PROXIES)
        before = oracle.queries
        public, shape = view.public, tuple(view.public.pixels().shape[1:])
        mask = Mask(oracle, shape, self.column, self.row, self.asking)
        margin = Margin.of(flat(public.proxies))
        rng = np.random.default_rng(substream(seed, "trilateration"))
        own = public.proxies[public.require_labels() == self.column]
        if len(own) == 0:
            raise LocalError(f"labels: no public image is labelled {self.column}; it starts there")
        start = scouted(mask, margin, flat(own), self.settings)
        image, unexplained = approach(mask, margin, start, self.settings, rng)
        made, began = (
            torch.from_numpy(p.astype(np.float32)).reshape(1, *shape) for p in (image, start)
        )
        return Images(
            made,
            torch.zeros(1, dtype=torch.int64),
            queries=oracle.queries - before,
            details={"unexplained": unexplained},
            others={
                name: Images(guess, torch.zeros(1, dtype=torch.int64))
                for name, guess in (
                    (_START, began),
                    ("black", torch.zeros_like(made)),
                    ("public class mean", own.mean(dim=0, keepdim=True)),
                )
            },
        )

    def score(self, estimate: Images, truth: Originals, seed: int) -> AttackResult:
        """Δ over the images, group i of the truth behind the i-th; the starts are the control."""
        close = truth.closeness(estimate)
        nearest = [truth.private[i][int(one.private.argmax())] for i, one in enumerate(close)]
        return score_images(
            self,
            estimate,
            truth,
            substream(seed, "leakage"),
            controls=estimate.others,
            against=_START,
            details=_summary(np.concatenate([c.private.max(axis=1) for c in close]), seed),
            caveats=_CAVEATS,
            shown={
                "attack": estimate.images,
                _START: estimate.others[_START].images,
                "nearest private": torch.stack(nearest),
            },
        )


_START = "start"
_CAVEATS = (
    "the server must be able to inject proxies: where they are committed to, it cannot",
    "one class a client, so an answer names the client's class and any network gives the same one",
    "images are those nearest to a public start; not every record was tried",
)


def _summary(best: FloatArray, seed: int) -> dict[str, float]:
    average: Rate = mean(best, substream(seed, "A"))
    return {
        "A_low": average.interval[0],
        "A_high": average.interval[1],
        "A_least": float(best.min()),
        "A_median": float(np.median(best)),
        "A_most": float(best.max()),
        "rebuilt_at_40_dB": float((best >= REBUILT).mean()),
    }
