"""The proven sum: every client shows that its votes are in range, and shows nothing else of them.

The server is the leader. The helper is a second operator, which the clients elected and which casts
no vote; its machine stands beside the server's here, and the same bytes would pass over a network.
"""

import os
from collections.abc import Callable, Mapping

from secure_fd.crypto.keys import AgreementKey, IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import ConfigurationError
from secure_fd.prio3.parties import Helper, Leader, VoteClient, joint_sum
from secure_fd.prio3.session import MIN_VOTES, VoteSession
from secure_fd.secagg.session import SESSION_BYTES, Roster, RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.votes.codec import UnitArray
from secure_fd.wire import Sum


class ProvenClient(SumClient, SecretHolder):
    """A client's half: one message a sum, nothing to set up, nothing to recover."""

    __slots__ = ("_client", "gave")

    gave: bool

    def __init__(self, client: VoteClient) -> None:
        self._client, self.gave = client, False

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """The report; from then on the aggregators can read the sum without this client."""
        report = self._client.report(terms, values)
        self.gave = True
        return [report]


class ProvenServer(SumServer):
    """The server's half: the leader. helper: takes a message and gives its answer."""

    busy = False
    opened = False
    result: Sum | None = None

    def __init__(
        self, session: VoteSession, leader: Leader, helper: Callable[[bytes], bytes]
    ) -> None:
        self._session, self._leader, self._helper = session, leader, helper

    @property
    def waiting(self) -> set[int]:
        """The clients without a report."""
        return set(self._session.roster) - set(self._leader.reported)

    @property
    def accused(self) -> dict[int, str]:
        """The clients whose proof does not hold."""
        return self._leader.refused

    def open(self, terms: RoundTerms) -> Mapping[int, bytes]:
        """Wait for reports. A report is all that a sum takes: the round counts as opened."""
        self._leader.open(terms)
        self.busy, self.opened, self.result = True, True, None
        return {}

    def receive(self, sender: int, data: bytes) -> None:
        """Take a report; PeerError for anything else."""
        self._leader.take(sender, data)

    def advance(self) -> Mapping[int, bytes]:
        """Close uploads and verify; MissingClientError where too few reports came, or hold."""
        self.busy = False
        self.result = joint_sum(self._leader, self._helper)
        return {}


class Prio3Sum(SecureSum, SecretHolder):
    """Sums of votes that prove their range, between the server and an elected helper.

    n_clients: those who vote, numbered from 0: three or more. The helper has the next number.
    random: of every key, share and proof. configuration, proxies: what the session id commits to.

    >>> Prio3Sum(3).hides
    True
    """

    __slots__ = (
        *("_clients", "_helper", "_server"),
        *("caveats", "corrupt", "n_clients", "session"),
    )

    name = "prio3"
    guarantee = (
        "A server, even one that lies, learns sums of at least a majority of the clients and no "
        "more about any one vote than they give away, and so does the helper, as long as the two "
        "do not collude; together they read everybody. Every client proves that its values keep "
        "to their range, its rows to one vote each and all of them to the budget: one that does "
        "not is left out and named, by error with a probability below 2^-85 after 2^55 tries. "
        "Keys are agreed with X25519, which a later quantum computer would open. Not covered: "
        "lying votes in range, an aggregator that changes its share of the sum and stays in what "
        "honest votes could give, and state after a restart."
    )

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        configuration: bytes = b"",
        proxies: bytes = b"",
    ) -> None:
        if n_clients < MIN_VOTES:
            raise ConfigurationError("n_clients", n_clients, f"use {MIN_VOTES} or more")
        self.n_clients = n_clients
        foreign = "keys and shares come from a caller's randomness; nothing vouches for it"
        self.caveats = () if random is os.urandom else (foreign,)
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        key = AgreementKey.generate(random)
        session = VoteSession(
            roster=Roster({k: identity.public.raw for k, identity in identities.items()}),
            helper=n_clients,
            helper_key=key.public,
            nonce=draw(random, SESSION_BYTES),
            configuration=configuration,
            proxies=proxies,
        )
        self.session = session.id
        self.corrupt = session.quorum - 2  # two honest clients are in the smallest sum
        self._helper = Helper(session, key, random)
        self._server = ProvenServer(session, Leader(session, random), self._helper.receive)
        self._clients = [
            ProvenClient(VoteClient(k, identities[k], session, random)) for k in identities
        ]

    def client(self, number: int) -> ProvenClient:
        """The half of client `number`."""
        return self._clients[number]

    def server(self) -> ProvenServer:
        """The server's half."""
        return self._server
