"""The fewest inputs that a noisy sum may have: a floor of the clients' own, on every path.

With noise of many clients in a sum, fewer inputs are too little noise. The floor of the group's
quorum is lower, and it is what a lying server would go down to.
"""

from dataclasses import replace

import pytest

from secure_fd.errors import PeerError
from secure_fd.secagg import client as client_round
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.session import NoiseTerms, RoundTerms
from tests.drivers.cohort import TERMS, Cohort, assert_dead, random_values
from tests.drivers.lying_server import LyingServer, Story

EVERYONE, FIVE = (0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 6)
NOISY = replace(TERMS, noise=NoiseTerms(room=70, survivors=6))
CORRUPT = (6,)


def without_floor(terms: RoundTerms) -> RoundTerms:
    return replace(terms, noise=replace(terms.noise, survivors=0))


def opened(terms: RoundTerms, story: Story) -> tuple[LyingServer, list[frozenset[int]]]:
    """Run a server with one story for all its honest clients; return it and the sums it reads."""
    server = LyingServer(Cohort(7), CORRUPT, terms)
    honest = [k for k in story.survivors if k in server.honest]
    server.run(dict.fromkeys(honest, story))
    return server, list(server.readable())


# What a server says: two of seven are missing, so that five inputs, the quorum, are left.
MISSING = {"recovery": Story(EVERYONE, FIVE), "at once": Story(FIVE, FIVE)}


@pytest.mark.parametrize("path", MISSING)
def test_no_honest_client_helps_to_open_fewer_inputs_than_the_noise_asks_for(path):
    server, found = opened(NOISY, MISSING[path])
    assert found == []
    refused = [server.machines[k] for k in FIVE if k in server.honest]
    assert len(refused) == 4
    for machine in refused:
        assert_dead(machine)
    assert server.seeds.shares.keys() - CORRUPT == set(EVERYONE) - set(CORRUPT)
    assert {len(held) for k, held in server.seeds.shares.items() if k not in CORRUPT} == {1}


@pytest.mark.parametrize("path", MISSING)
def test_the_same_story_opens_the_sum_of_five_where_nothing_asks_for_six(path):
    server, found = opened(without_floor(NOISY), MISSING[path])
    honest = frozenset(FIVE) - set(CORRUPT)
    assert honest in found
    assert (server.read(honest) == sum(server.values[k] for k in honest)).all()


@pytest.mark.parametrize("path", MISSING)
def test_mutation_that_forgets_the_floor_opens_it_too(path, monkeypatch):
    honest_check = ClientRound._check_reach

    def forgetful(self: ClientRound, present: tuple[int, ...], what: str) -> None:
        scope, self.scope = self.scope, replace(self.scope, terms=without_floor(self.scope.terms))
        honest_check(self, present, what)
        self.scope = scope

    monkeypatch.setattr(client_round.ClientRound, "_check_reach", forgetful)
    _, found = opened(NOISY, MISSING[path])
    assert frozenset(FIVE) - set(CORRUPT) in found


# The floor is a client's own: no message carries it, and all that is signed or masked is bound
# to it.


def test_a_server_with_a_lower_floor_of_its_own_gets_no_further():
    cohort = Cohort(7)
    current = cohort.open(NOISY, random_values(cohort, NOISY))
    current.server.scope = replace(current.server.scope, terms=without_floor(NOISY))
    inbound = current.deliver(current.masked(), without=(1, 4))
    assert len(inbound) == 5
    for k, message in inbound.items():
        with pytest.raises(PeerError, match="survivors: 5 clients are below the quorum of 6"):
            current.clients[k].receive(message)
        assert_dead(current.clients[k])
