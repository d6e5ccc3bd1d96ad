"""The masked sum in one process, and what it guarantees."""

import os
from collections.abc import Mapping
from types import MappingProxyType

from secure_fd.crypto.keys import (
    AgreementKey,
    IdentityKey,
    RandomBytes,
    SecretHolder,
    draw,
)
from secure_fd.crypto.public_draws import public_nonces
from secure_fd.errors import ConfigurationError
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.graph import COMPLETE_UP_TO, SECURITY_BITS, SEED_BYTES
from secure_fd.secagg.server import MaskingServer
from secure_fd.secagg.session import (
    EPOCH_ROUNDS,
    MIN_CLIENTS,
    SESSION_BYTES,
    Group,
    PinnedRoster,
    Session,
)
from secure_fd.secure_sum.base import SecureSum, SumClient, SumGuarantee, SumServer, Traffic


def set_up(server: MaskingServer, clients: Mapping[int, MaskingClient]) -> Traffic:
    """Run one set-up of all these clients in this process; return what it moved."""
    server.open_setup()
    sent = {k: client.join() for k, client in clients.items()}
    up, down = dict.fromkeys(clients, 0), dict.fromkeys(clients, 0)
    while server.busy:
        for k, messages in sent.items():
            for message in messages:
                up[k] += len(message)
                server.receive(k, message)
        relayed = server.advance()
        for k, answer in relayed.items():
            down[k] += len(answer)
        sent = {k: clients[k].receive(answer) for k, answer in relayed.items()}
    return Traffic(up, down)


class MaskedClient(MaskingClient, SumClient):
    """Client role of the masked sum."""

    __slots__ = ()


class MaskedServer(MaskingServer, SumServer):
    """Server role of the masked sum: a bad input is refused when it comes."""

    __slots__ = ()
    accused: Mapping[int, str] = MappingProxyType({})


class RosterMasks(SumGuarantee):
    """Guarantee of a roster's masked sum before its set-up, if all clients join."""

    name = "masks"
    hides = True

    def __init__(self, session: Session) -> None:
        group = Group(session, tuple(session.roster), b"", bytes(SEED_BYTES))
        self.n_clients, self.corrupt = len(session.roster), group.corrupt
        self.guarantee = masked_guarantee(group, None)


def masked_guarantee(group: Group, public_seed: int | None) -> str:
    """Return what a group's masks guarantee and what they do not.

    docs/explanation/threats_and_limits.md has the reasons.
    """
    session = group.session
    agreement = (
        "X25519 and ML-KEM-768, so that a later quantum computer does not open them"
        if session.hybrid
        else "X25519, which a later quantum computer would open"
    )
    draws = (
        "The clients draw each round's proxies together."
        if public_seed is None
        else f"Each round's proxies follow from the public seed {public_seed}, so that "
        f"rows can be compared; in earnest the clients draw them together."
    )
    return (
        f"A server, even one that lies, {_with_whom(group)}, learns the sums that a round asks "
        f"for, each over at least {group.quorum} clients (it carries the count), and nothing "
        f"more about any one input than they give away, if the identities are pinned; keys are "
        f"agreed with {agreement}. Every input carries a tag, and a signature that is kept for "
        f"disputes. Any party that reads a client's memory in a round opens none of its inputs of "
        f"earlier rounds, but the one that it has not sent yet and those until the next set-up "
        f"(one every {session.epoch} rounds). One client can move a sum by "
        f"{len(session.roster)} times the bound either way, speak for a class that it alone "
        f"holds, and abort rounds without being named. Not covered: a value that only one "
        f"client contributes to, what two sums give away together, lying inputs, and a server "
        f"that corrupts the sum. {draws}"
    )


def _with_whom(group: Group) -> str:
    """Return how many corrupt clients a group withstands, and when they may become so."""
    n, corrupt = len(group.members), group.corrupt
    if group.degree == n - 1:
        return f"together with up to {corrupt} of the {n} clients, whenever it corrupts them"
    return (
        f"together with up to {corrupt} of the {n} clients, corrupt before the graph is drawn "
        f"({group.degree} neighbours each, failure below 2^-{SECURITY_BITS} a set-up; if it "
        f"corrupts {group.tolerated + 1} of one client's neighbours once the graph is known, it "
        f"reads that client)"
    )


class MaskedSum(SecureSum, SecretHolder):
    """Sums under pairwise masks; the server adds words that are uniform to it.

    Args:
        n_clients: The cohort, numbered from 0: three or more.
        random: Source of every key.
        public_seed: Makes the clients' public choices (proxies of a round, graph) repeatable, and
            foreseeable by any party that knows it.
        configuration, proxies: What the session id commits to, beside the roster.
        hybrid: Whether channels add ML-KEM-768 to X25519.
        epoch: Rounds after which clients set up anew.

    >>> sums = MaskedSum(3)
    >>> sums.hides, sums.n_clients
    (True, 3)
    """

    __slots__ = (
        *("_clients", "_server", "caveats", "corrupt", "guarantee"),
        *("n_clients", "seed", "session", "setup_traffic"),
    )

    name = "masks"
    hides = True

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        public_seed: int | None = None,
        configuration: bytes = b"",
        proxies: bytes = b"",
        hybrid: bool = True,
        epoch: int = EPOCH_ROUNDS,
    ) -> None:
        if n_clients < MIN_CLIENTS:
            allowed = f"use {MIN_CLIENTS} or more, since the sum of fewer shows the inputs"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.caveats = _caveats(n_clients, random, public_seed)
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        key = AgreementKey.generate(random)
        roster = PinnedRoster({k: identity.public.raw for k, identity in identities.items()})
        nonce = draw(random, SESSION_BYTES)
        session = Session(
            roster, configuration, proxies, nonce, key.public, hybrid=hybrid, epoch=epoch
        )
        given = [None] * n_clients if public_seed is None else public_nonces(public_seed, n_clients)
        server = MaskedServer(session, key)
        clients = [
            MaskedClient(k, identity, session, random, nonce=given[k])
            for k, identity in identities.items()
        ]
        self.setup_traffic = set_up(server, dict(enumerate(clients)))
        self._clients, self._server, group = clients, server, server.group
        self.session, self.seed, self.corrupt = session.id, group.seed, group.corrupt
        self.guarantee = masked_guarantee(group, public_seed)


def _caveats(n_clients: int, random: RandomBytes, public_seed: int | None) -> tuple[str, ...]:
    found = []
    if random is not os.urandom:
        found.append("keys come from a caller's randomness, for which this package cannot vouch")
    if public_seed is not None and n_clients > COMPLETE_UP_TO:
        found.append(
            f"INSECURE: the graph of who masks with whom follows from the seed {public_seed}; "
            f"corrupt clients can foresee it"
        )
    return tuple(found)
