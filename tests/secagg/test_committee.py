"""The committee is one for all clients, uniform, and independent of the graph."""

import numpy as np
import pytest
from scipy.stats import chi2

from secure_fd.crypto.public_draws import joint_seed
from secure_fd.secagg import graph
from secure_fd.secagg.graph import committee, neighbours
from tests.drivers.cohort import Cohort

SEEDS = [bytes([high, low]) * 16 for high in range(8) for low in range(250)]


def test_all_are_the_committee_of_a_complete_graph():
    assert committee([4, 1, 9], 3, SEEDS[0]) == (1, 4, 9)
    assert Cohort(5).group.committee == (0, 1, 2, 3, 4)


def test_every_client_knows_the_same_committee():
    cohort = Cohort(12, degree=6)
    groups = [client._enrolment.group for client in cohort.clients.values() if client._enrolment]
    assert len(groups) == 12
    assert len({group.committee for group in groups}) == 1
    assert len(groups[0].committee) == groups[0].degree + 1 == 7
    assert set(groups[0].committee) < set(groups[0].members)


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


def test_mutation_whose_committee_has_the_lowest_numbers_is_caught(monkeypatch):
    """A server that corrupts those signs whatever it wants, in every set-up."""
    monkeypatch.setattr(graph, "committee", lambda members, size, _: tuple(sorted(members)[:size]))
    assert always_chosen() == set(range(7))


def test_mutation_whose_committee_follows_from_the_members_alone_is_caught(monkeypatch):
    """It would look random, and be known before any client joins."""
    monkeypatch.setattr(
        graph, "committee", lambda members, size, _: committee(members, size, bytes(32))
    )
    assert len(always_chosen()) == 7


@pytest.mark.parametrize("holders", [5, 7, 27, 63, 153])
def test_two_stories_need_more_corrupt_members_than_the_bound_allows(holders):
    t = 2 * holders // 3 + 1
    most = 2 * t - holders - 1
    honest = holders - most
    # Each honest member signs one story; corrupt ones sign both.
    best = max(min(first + most, honest - first + most) for first in range(honest + 1))
    assert best < t
    assert min(honest // 2 + most + 1, honest - honest // 2 + most + 1) >= t
