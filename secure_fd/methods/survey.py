"""Survey before the first vote: a sum that finds the proxies that at least one client knows.

Where all clients abstain, an average of their votes still names a class. So each client first sends
one bit for each proxy and class, whether the proxy is like its own records of that class (see
`selection.familiarity`), and one bit for each class, whether it can judge it. The server reads the
sums alone, in clear and under masks.

**Threshold.** A proxy is known if in any class at least a share t of the holders know it. Clients
that hold the same class may still differ in scanner or person, and then each knows little but its
own proxies, so no fixed t is right. It is found from the sums:

    R[x, c] = share of the holders of class c that know proxy x
    K(t)    = share of proxies x with R[x, c] >= t in any class c
    G_c(t)  = share of proxies x with R[x, c] >= t, among those whose largest R is in another class
    F(t)    = 1 - prod_c (1 - G_c(t))

A proxy is of one class, so what is known of it in other classes is a false alarm, and F(t)
estimates how often false alarms alone reach t at a proxy of no client's class. If a share s of the
proxies is of the clients' classes, K <= s + (1 - s) F, so

    s >= 1 - (1 - K(t)) / (1 - F(t)).

The estimate of s is the largest such bound over all t with F(t) <= .9, less one standard error of
the number of proxies that do not reach t.

At t the proxies of the clients' classes that are kept are K - (1 - s) F of all, the others
(1 - s) F. The threshold is the largest t <= 1/2 at which the difference of the two is within a
tenth of its maximum. Where sites are alike, nine tenths of the holders know a proxy of their
class, and t is 1/2. Where sites differ, few proxies reach 1/2 and more reach a smaller t than false
alarms explain, so t falls. A binomial law of false alarms would not do, as they coincide: of the
bits that ten clients with all classes of MNIST-5k send about another set's images, .95 % are false
alarms; by that, three holders of one class would know .1 % of these images, but they know 8 %.

**Gate.** If all proxies are of the clients' classes, all of them are used.
Where sites are alike, of a class's own proxies as many are known as of its records, so that s is
the mean of the largest R over .9. Where they differ that is too low; the larger of this and the
estimate above counts. All are used as well if too few proxies would be left to learn from; the
logger "secure_fd" then receives a warning.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import PeerError
from secure_fd.selection.familiarity import MOST_CHECKED, UNTYPICAL, KnownProxies
from secure_fd.votes.codec import FloatArray, UnitArray

BOUND = 1
_FEW = 0.05
"""Share of unknown proxies that is not looked for: what is left of it is not worth the loss."""
_ERRORS = 3.0
_HALF = 0.5
_LOSS = 0.1
"""Share of the gain that a larger threshold may cost: estimates of F are low for some images."""
_MOST_ALARMS = 0.9
"""Above it nearly everything reaches a threshold, and 1 - F is too small to divide by."""
_FEWEST = 50
"""Proxies below which a network learns too little; so does it below the share `_FEW` of them."""
_LOG = logging.getLogger("secure_fd")


def known_proxies(rates: FloatArray, error: float) -> NDArray[np.bool_]:
    """Find the proxies that may be used for distillation, [P]; see the module.

    Args:
        rates: [P, k] share of the holders that know a proxy, for each class that has holders.
        error: one standard error of the estimated share of proxies of the clients' classes.

    >>> known_proxies(np.repeat([[0.0], [1.0], [0.7]], 50, axis=0), 0.02)[[0, 50, 100]].tolist()
    [False, True, True]
    """
    largest, (threshold, beyond) = rates.max(axis=1), _separated(rates)
    share = max(float(largest.mean()) / (1.0 - UNTYPICAL), beyond)
    known = largest >= threshold
    if 1.0 - share <= max(_FEW, _ERRORS * error):
        return np.ones_like(known)
    if known.sum() < max(_FEWEST, _FEW * len(known)):
        _LOG.warning(
            "clients know %d of %d proxies, too few to learn from: all proxies are used, "
            "known or not; use proxies that are like the clients' records",
            *(known.sum(), len(known)),
        )
        return np.ones_like(known)
    return np.asarray(known)


def _separated(rates: FloatArray) -> tuple[float, float]:
    """Threshold t and share s, from rates R [P, k]; see the module."""
    other = np.ones(rates.shape, dtype=np.bool_)
    np.put_along_axis(other, rates.argmax(axis=1)[:, None], False, axis=1)
    elsewhere = np.maximum(other.sum(axis=0), 1)
    thresholds = np.unique([*rates[(rates > 0) & (rates < _HALF)], _HALF])
    known, alarms = np.zeros((2, len(thresholds)))
    for index, threshold in enumerate(thresholds):
        reached = rates >= threshold
        known[index] = reached.any(axis=1).mean()
        alarms[index] = 1.0 - np.prod(1.0 - (reached & other).sum(axis=0) / elsewhere)
    telling, count = alarms <= _MOST_ALARMS, len(rates)
    unknown = count * (1.0 - known[telling])
    bounds = 1.0 - (unknown + np.sqrt(unknown + 1.0)) / (count * (1.0 - alarms[telling]))
    share = float(np.max(bounds, initial=0.0))
    gain = known - 2.0 * (1.0 - share) * alarms
    good = gain >= (1.0 - _LOSS) * gain.max() if gain.max() > 0 else thresholds == _HALF
    return float(thresholds[good].max()), share


@dataclass(frozen=True, slots=True)
class Survey:
    """The form of the sum: P C bits, then C for the classes that a client can judge.

    >>> from secure_fd.selection.familiarity import KnownProxies
    >>> asked = Survey(n_proxies=1, n_classes=2)
    >>> holder = KnownProxies(np.array([[True, False]]), np.array([True, False]))
    >>> asked.encode(holder).tolist()
    [1, 0, 1, 0]
    """

    n_proxies: int
    n_classes: int

    @property
    def length(self) -> int:
        """Integers of a client."""
        return (self.n_proxies + 1) * self.n_classes

    def encode(self, familiar: KnownProxies | None) -> UnitArray:
        """Return the [length] bits; zeros of a client that cannot judge."""
        if familiar is None:
            return np.zeros(self.length, dtype=np.uint64)
        return np.concatenate([familiar.known.reshape(-1), familiar.has_class]).astype(np.uint64)

    def known(
        self, total: UnitArray, contributors: int, records: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Find the known proxies, [P].

        Args:
            total: [length] sums.
            contributors: to the sums.
            records: of each client, for the standard error.

        Raises:
            PeerError: a sum is larger than its clients can give.
        """
        bits = total.astype(np.float64).reshape(-1, self.n_classes)
        knowing, holders = bits[:-1], bits[-1]
        if holders.max() > contributors or (knowing > holders).any():
            raise PeerError(f"a survey has more than its {contributors} contributors can give")
        held = holders > 0
        if not held.any():
            return np.ones(self.n_proxies, dtype=np.bool_)
        asked = sum(min(count, MOST_CHECKED) for count in records)
        parts = 1.0 / self.n_proxies + 1.0 / max(1, asked)
        error = math.sqrt(UNTYPICAL / (1.0 - UNTYPICAL) * parts)
        return known_proxies(knowing[:, held] / holders[held], error)
