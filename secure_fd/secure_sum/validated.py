"""The validated sum: every client proves that its votes are in range, and reveals nothing else.

The server is the leader. The helper is a second operator, which the clients elected and which casts
no vote; its machine stands beside the server's here, and the same bytes would pass over a network.
"""

import os

from secure_fd.crypto.keys import AgreementKey, IdentityKey, SecretHolder
from secure_fd.optional import extra
from secure_fd.prio3.parties import Helper, Leader, ReportingClient
from secure_fd.prio3.session import VoteSession
from secure_fd.secagg.session import SESSION_BYTES, PinnedRoster, RoundTerms
from secure_fd.secure_sum.base import SecureSum, SumClient, SumServer
from secure_fd.votes.codec import UnitArray

with extra("prio3"):  # before a run, not in its first round
    import Crypto.Hash.TurboSHAKE128  # noqa: F401


class ValidatedClient(ReportingClient, SumClient):
    """Client role: one message a sum, nothing to set up, nothing to recover."""

    __slots__ = ()

    def load(self, terms: RoundTerms, values: UnitArray) -> list[bytes]:
        """Return the report of these votes [m]; LocalError for votes beyond the terms."""
        return [self.report(terms, values)]


class ValidatedServer(Leader, SumServer):
    """Server role: the leader."""

    __slots__ = ()


class Prio3Sum(SecureSum, SecretHolder):
    """Sums of votes that prove their range, between the server and an elected helper.

    n_clients: voters, numbered from 0: three or more. configuration, proxies: bound into the
    session id.

    >>> Prio3Sum(3).hides
    True
    """

    __slots__ = ("_clients", "_server", "corrupt", "n_clients", "session")

    name = "prio3"
    hides = True
    guarantee = (
        "A server, even one that lies, learns sums of at least a majority of the clients and no "
        "more about any one vote than they give away, and so does the helper, as long as the two "
        "do not collude; together they read all inputs. Every client proves that its values keep "
        "to their range, its rows to one vote each and all of them to the budget: one that does "
        "not is left out and named, by error with a probability below 2^-85 after 2^55 tries. "
        "Keys are agreed with X25519, which a later quantum computer would open. Not covered: "
        "lying votes in range, an aggregator that changes its share of the sum and stays in what "
        "honest votes could give, and state after a restart."
    )

    def __init__(self, n_clients: int, *, configuration: bytes = b"", proxies: bytes = b"") -> None:
        self.n_clients = n_clients
        identities = {k: IdentityKey.generate(os.urandom) for k in range(n_clients)}
        key = AgreementKey.generate(os.urandom)
        session = VoteSession(
            roster=PinnedRoster({k: identity.public.raw for k, identity in identities.items()}),
            helper_key=key.public,
            nonce=os.urandom(SESSION_BYTES),
            configuration=configuration,
            proxies=proxies,
        )
        self.session = session.id
        self.corrupt = session.quorum - 2  # two honest clients are in the smallest sum
        self._server = ValidatedServer(session, Helper(session, key).receive)
        self._clients = [ValidatedClient(k, identities[k], session) for k in identities]
