"""The neighbour graph has the shape that the bounds take for granted, and the bounds hold.

The committee is uniform, independent of the graph, and unknown before the nonces are.

Statistics: a graph on six members of degree two is one of 60 rings, and four items have 24
orders; over 6,000 seeds the chi-square of each count is refused below ALPHA, so a sound shuffle
is refused with probability 2e-6. The seeds are fixed, so a verdict never changes. Power: two
well-known biased shuffles are refused by both.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from secure_fd.crypto.keys import Keystream
from secure_fd.crypto.public_draws import joint_seed
from secure_fd.secagg import graph
from secure_fd.secagg.graph import committee, neighbours, threshold
from tests.drivers.cohort import Cohort

ALPHA = 1e-6
SEED = bytes(range(32))
Graph = Mapping[int, Sequence[int]]


def seed_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def parts(edges: Graph, nodes: set[int]) -> list[set[int]]:
    """The connected parts of the graph on these nodes alone."""
    left, found = set(nodes), []
    while left:
        part, border = set(), {left.pop()}
        while border:
            part |= border
            border = {peer for node in border for peer in edges[node]} & left
            left -= border
        found.append(part)
    return found


# Shape


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[int], int]:
    """Members with any numbers, and a degree that they allow."""
    members = draw(st.lists(st.integers(0, 2**32 - 3), min_size=1, max_size=60, unique=True))
    n = len(members)
    degrees = [k for k in range(2, n + 2) if k >= n - 1 or k * n % 2 == 0]
    return members, draw(st.sampled_from(degrees or [n - 1]))


@settings(max_examples=200, deadline=None)
@given(order=orders(), seed=st.binary(min_size=32, max_size=32))
def test_it_is_regular_symmetric_connected_and_the_same_for_all(order, seed):
    members, degree = order
    edges = neighbours(members, degree, seed)
    assert set(edges) == set(members)
    for member, peers in edges.items():
        assert len(peers) == min(degree, len(members) - 1)
        assert list(peers) == sorted(set(peers))
        assert member not in peers
        assert all(member in edges[peer] for peer in peers)
    assert len(parts(edges, set(members))) == 1
    assert neighbours(sorted(members, reverse=True), degree, seed) == edges


# The shuffle


def p_value(samples: Iterable[Hashable], cells: int) -> float:
    """Return the p value of the hypothesis that the samples are uniform over `cells` values."""
    counts = Counter(samples)
    return float(chisquare([*counts.values(), *[0] * (cells - len(counts))]).pvalue)


def p_value_of_rings() -> float:
    rings = (neighbours(range(6), 2, seed_of(number)) for number in range(6000))
    return p_value((tuple(ring.values()) for ring in rings), 60)


def p_value_of_orders() -> float:
    streams = (Keystream(seed_of(number)) for number in range(6000))
    return p_value((tuple(graph._shuffled(range(4), stream)) for stream in streams), 24)


def test_every_ring_and_every_order_is_equally_likely():
    assert p_value_of_rings() >= ALPHA
    assert p_value_of_orders() >= ALPHA


def swaps_with_anyone(items: Sequence[int], stream: Keystream) -> list[int]:
    result = list(items)
    for here in range(len(result)):
        at = graph._up_to(len(result) - 1, stream)
        result[here], result[at] = result[at], result[here]
    return result


def takes_remainders(items: Sequence[int], stream: Keystream) -> list[int]:
    result = list(items)
    for last in range(len(result) - 1, 0, -1):
        at = (stream.read(1)[0] & 7) % (last + 1)
        result[last], result[at] = result[at], result[last]
    return result


@pytest.mark.parametrize("biased", [swaps_with_anyone, takes_remainders])
def test_a_biased_shuffle_is_caught(biased, monkeypatch):
    monkeypatch.setattr(graph, "_shuffled", biased)
    assert p_value_of_rings() < ALPHA
    assert p_value_of_orders() < ALPHA


@pytest.mark.parametrize("holders", range(1, 40))
def test_two_survivor_sets_need_a_third_of_the_holders(holders):
    # Each honest holder serves one of the two secrets, each corrupt one both: the best split.
    t = threshold(holders)
    for corrupt in range(holders + 1):
        honest = holders - corrupt
        collected = any(
            min(to_one + corrupt, honest - to_one + corrupt) >= t for to_one in range(honest + 1)
        )
        assert collected == (corrupt >= 2 * t - holders)
        assert not collected or 3 * corrupt >= holders - 1


def ring_of(n: int, degree: int, seed: bytes) -> list[int]:
    """The order in which the members stand on the ring of this graph."""
    caught: list[list[int]] = []

    def catches(ring: list[int], _degree: int) -> dict[int, tuple[int, ...]]:
        caught.append(ring)
        return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "_circulant", catches)
        neighbours(range(n), degree, seed)
    return caught[0]


def cut_has_windows(n: int, degree: int, extra: int, rng: np.random.Generator) -> bool | None:
    """Check that a cut that the server can read has its two windows; None if there is no cut.

    extra: how many more corrupt clients a window is asked for than the bound asks.
    """
    seed, t, half = rng.bytes(32), threshold(degree + 1), degree // 2
    edges, ring = neighbours(range(n), degree, seed), ring_of(n, degree, seed)
    kind = rng.choice(["honest", "corrupt", "dropped"], size=n, p=[0.45, 0.3, 0.25])
    honest = {node for node in range(n) if kind[node] == "honest"}
    dropped = {node for node in range(n) if kind[node] == "dropped"}
    readable = [
        part
        for part in parts(edges, honest)
        if all(len({node, *edges[node]} - dropped) >= t for node in part)
    ]
    if not any(part < honest for part in readable):
        return None
    needed = half - (degree + 1 - t) + extra
    windows = [{ring[(at + step) % n] for step in range(half)} for at in range(n)]
    full = [one for one in windows if sum(kind[node] == "corrupt" for node in one) >= needed]
    return any(not one & other for one, other in combinations(full, 2))


@pytest.mark.parametrize(("n", "degree"), [(16, 5), (20, 6)])
def test_a_cut_that_the_server_can_read_needs_two_corrupt_windows(n, degree):
    def verdicts(extra: int) -> Counter[bool | None]:
        rng = np.random.default_rng(n)
        return Counter(cut_has_windows(n, degree, extra, rng) for _ in range(1500))

    found = verdicts(0)
    assert found[True] > 20
    assert found[False] == 0
    # A bound that asked for one corrupt client more would be wrong, and is seen to be.
    assert verdicts(1)[False] > 0


# The committee.

SEEDS = [bytes([high, low]) * 16 for high in range(8) for low in range(250)]


def deviation(chosen: list[tuple[int, ...]]) -> float:
    """p-value of the hypothesis that each of 20 members is chosen as often as the others."""
    counts = np.bincount(np.concatenate(chosen), minlength=20)
    expected = counts.sum() / 20
    # Without replacement a count varies less than a multinomial one, by (20 - 7) / (20 - 1).
    statistic = ((counts - expected) ** 2 / expected).sum() / ((20 - 7) / (20 - 1))
    return float(chi2.sf(statistic, df=19))


def test_members_are_chosen_alike_and_a_favourite_is_noticed():
    """2,000 draws of 7 of 20; rejected below 1e-6, so a sound draw fails one time in a million.

    Power: the mutation puts member 3 in one committee in five that it was not drawn for.
    """
    drawn = [committee(range(20), 7, seed) for seed in SEEDS]
    assert deviation(drawn) > 1e-6
    mutated = [
        (3, *who[1:]) if at % 5 == 0 and 3 not in who else who for at, who in enumerate(drawn)
    ]
    assert deviation(mutated) < 1e-6


def test_the_committee_says_nothing_of_the_graph():
    """Two of the committee are neighbours as often as any two: within five standard errors."""
    pairs = [
        sum(b in graph[a] for a in who for b in who)
        for seed in SEEDS[:600]
        for who, graph in [(committee(range(20), 7, seed), neighbours(range(20), 6, seed))]
    ]
    expected = 7 * 6 * 6 / 19
    error = np.std(pairs) / np.sqrt(len(pairs))
    assert abs(np.mean(pairs) - expected) < 5 * error


def always_chosen(set_ups: int = 16) -> set[int]:
    """The members that were in the committee of every one of the set-ups.

    Of 12 members 7 are drawn, so a given one is in all 16 with probability 2e-4, and any of them
    with 2e-3; the nonces come from a fixed seed, so the verdict never changes.
    """
    found = set(range(12))
    for seed in range(set_ups):
        cohort = Cohort(12, seed, degree=6)
        found &= set(cohort.group.committee)
    return found


def test_a_server_cannot_know_a_committee_before_every_member_has_revealed_its_nonce():
    """It follows from the joint seed, in which every honest member has a part."""
    assert always_chosen() == set()
    group = Cohort(12, degree=6).group
    assert group.committee == committee(group.members, group.degree + 1, group.seed)
    nonces = [bytes([k]) * 32 for k in range(12)]
    seeds = [joint_seed([*nonces[:11], bytes([own]) * 32]) for own in range(40)]
    assert len({committee(range(12), 7, seed) for seed in seeds}) > 30


def test_mutation_whose_committee_follows_from_the_members_alone_is_caught(monkeypatch):
    """It would look random, and be known before any client joins."""
    monkeypatch.setattr(
        graph, "committee", lambda members, size, _: committee(members, size, bytes(32))
    )
    assert len(always_chosen()) == 7


@pytest.mark.parametrize(("n", "degree"), [(300, 299), (301, 188), (1000, 302), (10_000, 404)])
def test_neighbours_are_as_many_as_the_bounds_ask_for(n, degree):
    assert graph.default_degree(n) == degree
