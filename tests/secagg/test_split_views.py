"""A server that sends clients different sets never opens more than one sum over a quorum.

The claim (docs/explanation/threats_and_limits.md): with c <= 2t - n - 1 corrupt clients, whatever
cohort and survivors each honest client receives, the server never has both secrets of an honest
client, and reads one sum a round at most, over a quorum of clients, the corrupt ones counted. The
real machines receive every combination of sets here; a corrupt client is in every cohort and every
survivor set, since leaving one out costs the server a signature and gains nothing.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, combinations, product

import pytest

from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.graph import threshold
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import masked_guarantee
from tests.drivers.cohort import Clients, Cohort
from tests.drivers.lying_server import LyingServer, Story

LENGTH, BOUND = 8, 4
Stories = Mapping[int, Story]


def parts(whole: Clients, least: int, of: int) -> Iterator[Clients]:
    """Subsets of at least `least` clients that contain this one."""
    rest = [k for k in whole if k != of]
    sizes = range(max(least - 1, 0), len(rest) + 1)
    for chosen in chain.from_iterable(combinations(rest, size) for size in sizes):
        yield tuple(sorted((of, *chosen)))


def stories_for(client: int, honest: Clients, corrupt: Clients, quorum: int) -> list[Story]:
    """All that a client would go along with."""
    least = quorum - len(corrupt)
    return [
        Story(cohort + corrupt, survivors + corrupt)
        for cohort in parts(honest, least, client)
        for survivors in parts(cohort, least, client)
    ]


class Attack:
    """Many rounds of one cohort, in which a server with c corrupt clients lies."""

    def __init__(self, n: int, c: int, cohort: Cohort | None = None) -> None:
        self.cohort = cohort or Cohort(n)
        self.honest, self.corrupt = tuple(range(n - c)), tuple(range(n - c, n))
        self.quorum = self.cohort.group.quorum
        self.sums = 0
        self._index = 0

    def every_choice(self) -> Iterator[Stories]:
        """Send each honest client each of its stories."""
        each = [stories_for(k, self.honest, self.corrupt, self.quorum) for k in self.honest]
        return (dict(zip(self.honest, chosen, strict=True)) for chosen in product(*each))

    def broken_by(self, stories: Stories) -> list[str]:
        """List the parts of the claim that fail when these stories are sent."""
        self._index += 2  # a gap, so that every round starts with a PREPARE
        server = LyingServer(self.cohort, self.corrupt, RoundTerms(self._index, LENGTH, BOUND))
        server.run(stories)
        read = list(server.readable())
        for chosen in read:
            expected = sum(server.values[k] for k in chosen)
            assert (server.read(chosen) == expected).all(), "the harness opens what it says"
        self.sums += bool(read)
        found = [f"both secrets of {server.both()}"] if server.both() else []
        found += [f"{len(read)} sums"] if len(read) > 1 else []
        small = [chosen for chosen in read if len(chosen) + len(self.corrupt) < self.quorum]
        return found + [f"the sum of {sorted(chosen)} alone" for chosen in small]


def most_corrupt(n: int) -> int:
    """Largest number of corrupt clients in the document; two honest clients must be left."""
    return min(2 * threshold(n) - n - 1, threshold(n) - 2)


@pytest.mark.parametrize("n", [4, 5, 6])
def test_whatever_each_client_receives_one_sum_over_a_quorum_opens_at_most(n):
    attack = Attack(n, most_corrupt(n))
    found = [attack.broken_by(stories) for stories in attack.every_choice()]
    assert not any(found)
    assert len(found) == 125
    assert 0 < attack.sums < len(found)


# The same attacks where they must succeed: the claim is tight, and each part of it is needed.


@pytest.mark.parametrize("n", [5, 6])
def test_one_corrupt_client_more_than_claimed_and_the_attack_reads_one_client(n):
    attack = Attack(n, 2 * threshold(n) - n)
    found = [what for stories in attack.every_choice() for what in attack.broken_by(stories)]
    assert "both secrets of (0,)" in found
    assert "3 sums" in found


ISOLATES_0 = {
    0: Story((0, 1, 2, 5, 6), (0, 1, 2, 5, 6)),
    1: Story((0, 1, 2, 3, 4, 5, 6), (0, 1, 3, 4, 5, 6)),
    2: Story((0, 1, 2, 3, 4, 5, 6), (0, 2, 3, 4, 5, 6)),
    3: Story((0, 1, 2, 3, 4, 5, 6), (0, 3, 4, 5, 6)),
    4: Story((0, 1, 2, 3, 4, 5, 6), (0, 3, 4, 5, 6)),
}
"""Client 0 masks with two honest clients, whom the rest then declare dropped."""


def test_clients_that_check_no_signature_give_away_one_client(monkeypatch):
    assert Attack(7, 2).broken_by(ISOLATES_0) == []
    monkeypatch.setattr(ClientRound, "_check_signatures", lambda *_: None)
    assert Attack(7, 2).broken_by(ISOLATES_0) == ["the sum of [0] alone"]


EVERYONE = (0, 1, 2, 3, 4, 5, 6)
NONE_OR_0_IS_MISSING = {
    **dict.fromkeys((0, 1, 2), Story(EVERYONE, EVERYONE)),
    **dict.fromkeys((3, 4, 5), Story(EVERYONE, EVERYONE[1:])),
}
"""Some unmask at once, under the cohort's signatures; others sign that client 0 has dropped."""


def test_the_fast_path_and_the_slow_one_never_meet_on_one_client():
    server = LyingServer(Cohort(7), corrupt=[6])
    server.run(NONE_OR_0_IS_MISSING)
    assert (len(server.seeds.shares[0]), len(server.roots.shares[0])) == (4, 1)
    assert server.group.threshold == 5
    assert not server.both()
    assert not list(server.readable())


def test_a_threshold_for_an_honest_server_gives_both_secrets_to_a_lying_one(monkeypatch):
    monkeypatch.setattr("secure_fd.secagg.graph.threshold", lambda holders: holders // 2 + 1)
    attack = Attack(7, 1, Cohort(7))
    found = attack.broken_by(NONE_OR_0_IS_MISSING)
    assert {"both secrets of (0,)", "the sum of [0] alone"} <= set(found)


# Corrupting one client's neighbours once a sparse graph is known, which the guarantee names. The
# committee stays honest. The server reports to some of the client's honest holders that none is
# missing, and to the others that the client is; those that it has corrupted give both shares.

VICTIM, CLIENTS, DEGREE = 4, 20, 8


def split(corrupt: int) -> LyingServer:
    """Send the victim and as few holders as it takes a set in which none is missing."""
    cohort = Cohort(CLIENTS, degree=DEGREE)
    near, everyone = cohort.group.neighbours(VICTIM), cohort.group.members
    server = LyingServer(cohort, near[:corrupt])
    full = (VICTIM, *near[corrupt : cohort.group.threshold - 1])
    left = tuple(k for k in everyone if k != VICTIM)
    server.run({k: Story(everyone, everyone if k in full else left) for k in everyone})
    return server


def test_as_many_corrupt_neighbours_as_the_guarantee_names_read_one_client():
    server = split(5)
    group = server.group
    assert 2 * group.threshold - group.degree - 1 == 5
    assert "corrupts 5 of one client's neighbours" in masked_guarantee(group, None)
    assert (server.read([VICTIM]) == server.values[VICTIM]).all()


def test_one_fewer_have_both_secrets_of_no_client():
    """Every honest holder gives one share, whatever it hears: one kind stays too few."""
    server = split(4)
    seeds, roots = server.seeds.shares[VICTIM], server.roots.shares[VICTIM]
    assert len(seeds) == server.group.threshold
    assert len(roots) < server.group.threshold
    assert seeds.keys() | roots.keys() == set(server.group.holders(VICTIM))
    assert not server.both()
