"""Graph of clients that share masks: the complete graph, or a random k-regular one.

Source: Bell, Bonawitz, Gascón, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020: a Harary graph whose nodes were shuffled.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from secure_fd.crypto.keys import Keystream, derive_key, fields

COMPLETE_UP_TO: Final = 300
"""Clients beyond which a k-regular graph is used. A complete one stands a third of corrupt clients,
whenever they became so; a sparse one a tenth, and only if they were before its seed was known."""
SEED_BYTES: Final = 32
_LABEL: Final = b"secure-fd neighbour graph"
_COMMITTEE_LABEL: Final = b"secure-fd committee"
SECURITY_BITS: Final = 40
"""A sparse graph fails with probability 2^-40 at most, once for each set-up."""
_TRIES_BITS: Final = 64
"""A server may call members late, and so choose among seeds: it is taken to try 2^64 of them."""
_CORRECTNESS_BITS: Final = 30
ONE_IN: Final = 10
"""In a sparse graph one client in ten may be corrupt, and one in ten may drop out."""


def neighbours(members: Sequence[int], degree: int, seed: bytes) -> dict[int, tuple[int, ...]]:
    """Each member's neighbours, ascending; the same for every order of the members.

    members: distinct client numbers. degree: n - 1 or more gives the complete graph; below,
    at least 2, and even unless n is. seed: 32 bytes that no party could choose, and that was
    unknown when the members were fixed.
    """
    ordered, n = sorted(members), len(members)
    if degree >= n - 1:
        return {member: (*ordered[:at], *ordered[at + 1 :]) for at, member in enumerate(ordered)}
    info = fields(n.to_bytes(4, "big"), degree.to_bytes(4, "big"))
    ring = _shuffled(ordered, Keystream(derive_key(seed, salt=_LABEL, info=info)))
    return _circulant(ring, degree)


def committee(members: Sequence[int], size: int, seed: bytes) -> tuple[int, ...]:
    """Choose `size` members, ascending, uniformly: all accept what a threshold of them signs.

    seed: as for `neighbours`, from which the choice is independent.
    """
    ordered, n = sorted(members), len(members)
    if size >= n:
        return tuple(ordered)
    info = fields(n.to_bytes(4, "big"), size.to_bytes(4, "big"))
    stream = Keystream(derive_key(seed, salt=_COMMITTEE_LABEL, info=info))
    return tuple(sorted(_shuffled(ordered, stream)[:size]))


def threshold(holders: int) -> int:
    """Return how many of a secret's `holders` shares restore it.

    A server that lies can show two survivor sets to two parts of the holders, so an honest
    one gives a share of one secret each, a corrupt one of both: floor(2h/3) + 1 keeps the two
    apart while fewer than about a third are corrupt.
    """
    return 2 * holders // 3 + 1


def corrupt_of(n: int) -> int:
    """Corrupt clients that a sum of all n clients stands by default; at least two others are in it.

    >>> corrupt_of(3), corrupt_of(10), corrupt_of(1000)
    (1, 3, 100)
    """
    if n > COMPLETE_UP_TO:
        return -(-n // ONE_IN)
    shares = threshold(n)
    return max(0, min(2 * shares - n - 1, shares - 2))


@lru_cache(maxsize=256)
def default_degree(n: int, roster: int | None = None) -> int:
    """Neighbours per client for n clients: n - 1 up to COMPLETE_UP_TO, beyond about log n.

    roster: of how many clients these n joined, by default n. Whom a lying server leaves out is
    its choice, so one in ten of the roster is taken to be corrupt, and all those to have joined.
    The smallest degree for which, one client in ten being corrupt, by union bounds

    - with probability at most 2^-40 a server that lies can collect both secrets of some
      honest client, have a committee of `degree + 1` sign two survivor sets, or cut the honest
      survivors into parts whose sums it then reads, whomever it declares dropped once it knows
      the graph, and though it tries 2^64 seeds by calling members late;
    - with probability at most 2^-30 a client's secrets cannot be restored, or the committee is
      below its threshold, after one client in ten dropped out; this one takes dropouts that
      ignore the graph and corrupt clients that answer.

    Both take corrupt clients fixed before the seed, clients that unmask only for a survivor set
    that a threshold of the committee signed, and give no share once they are outside it.
    188, 302, 404 and 434 for n = 301, 1,000, 10,000 and 100,000. Counts after Bell et al. are
    110, 144 and 156 for the last three: fewer, because there dropouts ignore the graph, the
    threshold is chosen freely, and no party tries seeds.
    """
    if n <= COMPLETE_UP_TO:
        return n - 1
    tried, lost = 2.0 ** -(SECURITY_BITS + _TRIES_BITS), 2.0**-_CORRECTNESS_BITS
    for degree in range(2, n - 1, 1 + n % 2):
        security, correctness = _failures(n, degree, roster)
        if security <= tried and correctness <= lost:
            return degree
    return n - 1


def _shuffled(items: Sequence[int], stream: Keystream) -> list[int]:
    """A uniform permutation (Fisher and Yates; Knuth, volume 2, algorithm P)."""
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        at = _up_to(last, stream)
        result[last], result[at] = result[at], result[last]
    return result


def _up_to(last: int, stream: Keystream) -> int:
    """Uniform in 0..last by rejection: a remainder would favour the small numbers."""
    mask = (1 << last.bit_length()) - 1
    while (value := int.from_bytes(stream.read(4), "big") & mask) > last:
        pass
    return value


def _circulant(ring: Sequence[int], degree: int) -> dict[int, tuple[int, ...]]:
    """Each member joined to the degree/2 on either side, and across the ring if degree is odd."""
    n, half, odd = len(ring), degree // 2, degree % 2
    thrice = [*ring, *ring, *ring]
    return {
        thrice[at]: tuple(
            sorted(
                thrice[at - half : at]
                + thrice[at + 1 : at + 1 + half]
                + thrice[at + n // 2 : at + n // 2 + odd]
            )
        )
        for at in range(n, 2 * n)
    }


def _failures(n: int, degree: int, roster: int | None = None) -> tuple[float, float]:
    """Upper bounds of the two probabilities of `default_degree`: security, correctness."""
    corrupt, dropped = -(-(roster or n) // ONE_IN), -(-n // ONE_IN)
    holders, half = degree + 1, degree // 2
    t = threshold(holders)
    # Both secrets of a client need 2t shares; c corrupt holders give 2 each, the others 1.
    exposed = n * _tail(n - 1, corrupt, degree, 2 * t - holders)
    split = _tail(n, corrupt, holders, 2 * t - holders)
    # Survivors fall apart only where at two places of the ring `half` in a row are corrupt or
    # dropped. The survivor at the edge of each needs t holders that answer, so holders - t of
    # them at most dropped. Counts in disjoint windows are negatively associated.
    window = n * _tail(n, corrupt, half, half - (holders - t))
    # The client itself counts as dropped, which is the worse case.
    lost = n * _tail(n - 1, dropped, degree, degree - t + 1)
    silent = _tail(n, dropped, holders, holders - t + 1)
    return exposed + split + window**2 / 2, lost + silent


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Probability that `drawn` without replacement hold `least` or more of the marked ones."""
    from scipy.stats import hypergeom  # slow to load, and for sparse graphs only

    return float(hypergeom.sf(least - 1, population, marked, drawn))
