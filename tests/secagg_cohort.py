"""A cohort of the masked sum with repeatable keys, for tests that drive the machines by hand."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.randomness import RandomBytes, insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import Client, ClientRound, ClientState
from secure_fd.secagg.messages import encode_roster
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import Roster, RoundTerms, Session

TERMS = RoundTerms(index=3, length=40, bound=4)


class Cohort:
    """n clients and a server that share a session."""

    def __init__(self, n: int = 3, seed: int = 0, nonce: bytes = b"n") -> None:
        self.random: RandomBytes = insecure_bytes(seed)
        self.identities = {k: IdentityKey.generate(self.random) for k in range(n)}
        roster = Roster({k: key.public.raw for k, key in self.identities.items()})
        self.session = Session(roster, b"configuration", b"proxies", nonce)
        self.server = Server(self.session)
        self.clients = {
            k: Client(k, key, self.session, random=self.random)
            for k, key in self.identities.items()
        }

    def open(self, terms: RoundTerms, values: Mapping[int, WordArray] | None = None) -> "Round":
        """A round with values loaded: zeros where none are given."""
        server = self.server.open_round(terms)
        clients = {k: client.open_round(terms) for k, client in self.clients.items()}
        for k, machine in clients.items():
            machine.load(np.zeros(terms.length, np.uint64) if values is None else values[k])
        return Round(server, clients)


@dataclass
class Round:
    """The machines of one round."""

    server: ServerRound
    clients: dict[int, ClientRound]

    def advertise(self) -> dict[int, bytes]:
        """Every advert, given to the server; the rosters it answers."""
        for k, machine in self.clients.items():
            self.server.receive(k, machine.start())
        return dict(self.server.advance())

    def masked(self) -> dict[int, bytes]:
        """Every masked input, not yet given to the server."""
        rosters = self.advertise()
        return {k: machine.receive(rosters[k]) for k, machine in self.clients.items()}

    def finish(self) -> WordArray:
        """The sum."""
        for k, message in self.masked().items():
            self.server.receive(k, message)
        self.server.advance()
        return self.server.total


def round_of(cohort: Cohort | None = None, terms: RoundTerms = TERMS) -> Round:
    """A round of three clients with random values loaded."""
    cohort = cohort or Cohort()
    rng = np.random.default_rng(0)
    size = (terms.length,)
    values = {k: rng.integers(0, terms.bound + 1, size, np.uint64) for k in cohort.clients}
    return cohort.open(terms, values)


def assert_dead(machine: ClientRound) -> None:
    """No input brings it back, and it holds neither key nor words."""
    assert machine.state is ClientState.ABORTED
    assert machine._held is None
    honest = encode_roster([], machine.scope)
    for attempt in (
        machine.start,
        lambda: machine.receive(honest),
        lambda: machine.load(np.zeros(machine.scope.terms.length, np.uint64)),
    ):
        with pytest.raises((LocalError, PeerError)):
            attempt()
    assert machine.state is ClientState.ABORTED
