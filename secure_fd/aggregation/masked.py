"""The masked sum in one process: the real clients and server, over the real bytes."""

import os
from collections.abc import Mapping
from typing import ClassVar

from secure_fd.aggregation.base import SumResult, Traffic
from secure_fd.aggregation.cohort import agreed_length
from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.randomness import RandomBytes, draw, insecure_bytes
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import WordArray
from secure_fd.secagg.client import MIN_COHORT, Client, ClientRound, Floors
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import SESSION_BYTES, Roster, RoundTerms, Session


class MaskedSum(SecretHolder):
    """Sums under pairwise masks; the server adds words that are uniform to it.

    n_clients: the cohort, numbered from 0: three or more, or two with insecure_pair.
    random: the source of every key; insecure_seed makes all keys repeatable instead.
    configuration, proxies: what the session id commits to, beside the roster.
    """

    __slots__ = ("_clients", "_server", "caveats", "n_clients")

    name: ClassVar[str] = "masks"
    guarantee: ClassVar[str] = (
        "A server that follows the protocol learns the sum over all clients in each round "
        "(which carries the count) and nothing more about any one input than that sum gives "
        "away, if the identities are pinned, every client answers, and at least two clients "
        "do not pool what they know with it; a value that only one client contributes to, "
        "what two rounds' sums give away together, lying inputs, and a server that corrupts "
        "the sum are not covered."
    )

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        insecure_seed: int | None = None,
        insecure_pair: bool = False,
        configuration: bytes = b"",
        proxies: bytes = b"",
    ) -> None:
        floors = Floors(cohort=2 if insecure_pair else MIN_COHORT, insecure_pair=insecure_pair)
        if n_clients < floors.cohort:
            allowed = f"use {floors.cohort} or more, since the sum of fewer shows the inputs"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.caveats = _caveats(n_clients, random, insecure_seed)
        if insecure_seed is not None:
            random = insecure_bytes(insecure_seed)
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        roster = Roster({k: identity.public.raw for k, identity in identities.items()})
        session = Session(roster, configuration, proxies, nonce=draw(random, SESSION_BYTES))
        self._server = Server(session)
        self._clients = {k: Client(k, identities[k], session, floors, random) for k in roster}

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, WordArray],
        bound: int,
        *,
        subject: bytes = b"",
    ) -> SumResult:
        """See SecureSum.sum. round_index must grow; a round that fails is spent.

        subject: a hash of what the values are about; clients that differ in it cannot sum.
        """
        length = agreed_length(vectors, self.n_clients)
        terms = RoundTerms(round_index, length, bound, subject)
        server = self._server.open_round(terms)
        clients = {k: client.open_round(terms) for k, client in self._clients.items()}
        for k, values in vectors.items():
            clients[k].load(values)
        traffic = _converse(server, {k: clients[k] for k in sorted(vectors)})
        return SumResult(server.total, traffic, server.payloads, readable=False)


def _converse(server: ServerRound, clients: Mapping[int, ClientRound]) -> Traffic:
    """Carry messages between the parties, stage by stage, until the server has the sum."""
    up, down, stages = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0), 0
    outbound = {k: client.start() for k, client in clients.items()}
    while not server.finished:
        for k, message in outbound.items():
            up[k] += len(message)
            server.receive(k, message)
        inbound = server.advance()
        for k, message in inbound.items():
            down[k] += len(message)
        outbound = {k: clients[k].receive(message) for k, message in inbound.items()}
        stages += 1
    return Traffic(up, down, stages)


def _caveats(n_clients: int, random: RandomBytes, seed: int | None) -> tuple[str, ...]:
    found = []
    if seed is not None and random is not os.urandom:
        raise ConfigurationError("insecure_seed", seed, "give a seed or a random source, not both")
    if seed is not None:
        found.append(
            f"INSECURE: all keys are derived from the seed {seed}; whoever knows it unmasks"
        )
    elif random is not os.urandom:
        found.append("keys come from a caller's randomness, for which this package cannot vouch")
    if n_clients < MIN_COHORT:
        found.append("INSECURE: of two clients, each reads the other's input from the sum")
    return tuple(found)
