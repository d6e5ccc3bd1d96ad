"""Corrupting one client's neighbours once a sparse graph is known, which the guarantee prints.

The committee stays honest. The server tells some of the client's honest holders that nobody is
missing, and the others that the client is; those that it has corrupted give both shares.
"""

from secure_fd.secure_sum.masked import masked_guarantee
from tests.drivers.cohort import Cohort
from tests.drivers.lying_server import LyingServer, Told

VICTIM, CLIENTS, DEGREE = 4, 20, 8


def split(corrupt: int) -> LyingServer:
    """The victim and as few holders as it takes hear that nobody is missing."""
    cohort = Cohort(CLIENTS, degree=DEGREE)
    near, everybody = cohort.group.neighbours(VICTIM), cohort.group.members
    server = LyingServer(cohort, near[:corrupt])
    hear = (VICTIM, *near[corrupt : cohort.group.threshold - 1])
    left = tuple(k for k in everybody if k != VICTIM)
    server.run({k: Told(everybody, everybody if k in hear else left) for k in everybody})
    return server


def test_as_many_corrupt_neighbours_as_the_guarantee_names_read_one_client():
    server = split(5)
    group = server.group
    assert 2 * group.threshold - group.degree - 1 == 5
    assert "corrupts 5 of one client's neighbours" in masked_guarantee(group, None)
    assert (server.read([VICTIM]) == server.values[VICTIM]).all()


def test_one_fewer_have_both_secrets_of_nobody():
    """Every honest holder gives one share, whatever it hears: one kind stays too few."""
    server = split(4)
    seeds, roots = server.seeds.shares[VICTIM], server.roots.shares[VICTIM]
    assert len(seeds) == server.group.threshold
    assert len(roots) < server.group.threshold
    assert seeds.keys() | roots.keys() == set(server.group.holders(VICTIM))
    assert not server.both()
