"""The real parties of a masked sum, of which the server shows clients different things."""

import os
from collections.abc import Mapping

from secure_fd.aggregation.masked import set_up
from secure_fd.crypto.primitives import AgreementKey, IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.knowledge import UnitArray, WordArray
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import SESSION_BYTES, Roster, RoundTerms, Session


class SplitCohort(SecretHolder):
    """The real clients and server of a masked sum, of which the server lies.

    It follows the protocol but for what it shows, goes on with those that answer, and tries to open
    what it has. Its terms are those of the clients with the decoy: they are the many.
    """

    __slots__ = ("_clients", "_index", "_server")

    def __init__(self, n_clients: int, random: RandomBytes = os.urandom) -> None:
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        key = AgreementKey.generate(random)
        session = Session(
            roster=Roster({k: key.public.raw for k, key in identities.items()}),
            configuration=b"",
            proxies=b"",
            nonce=draw(random, SESSION_BYTES),
            server=key.public,
        )
        self._server = Server(session, key)
        self._clients = {k: Client(k, key, session, random=random) for k, key in identities.items()}
        self._index = -1
        set_up(self._server, self._clients)

    def ask(
        self,
        vectors: Mapping[int, WordArray],
        subjects: Mapping[int, bytes],
        bound: int,
        own: bytes,
    ) -> UnitArray | None:
        """One round: the sum, or None where it did not open.

        subjects: by client the digest of what it was shown. own: of what the server claims.
        """
        # Every second round, so that each starts with a PREPARE of its own.
        self._index += 2
        length = len(next(iter(vectors.values())))
        machines = {
            k: client.open_round(RoundTerms(self._index, length, bound, subjects[k]))
            for k, client in self._clients.items()
        }
        for k, machine in machines.items():
            machine.load(vectors[k])
        self._server.barred.clear()  # a liar bars nobody
        server = self._server.open_round(RoundTerms(self._index, length, bound, own))
        return _opened(server, machines)


def _opened(server: ServerRound, clients: Mapping[int, ClientRound]) -> UnitArray | None:
    """Carry messages; a client that refuses is silent from then on."""
    for k, client in clients.items():
        message = client.start()
        if message is not None:
            server.receive(k, message)
    try:
        while not server.finished:
            for k, question in server.advance().items():
                answer = _answer(clients[k], question)
                if answer is not None:
                    server.receive(k, answer)
    except (PeerError, MissingClientError):
        return None
    return server.total


def _answer(client: ClientRound, question: bytes) -> bytes | None:
    try:
        return client.receive(question)
    except PeerError:
        return None
