"""The masked sum in one process: the real clients and server, over the real bytes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from secure_fd.aggregation.base import Stage, SumResult
from secure_fd.aggregation.cohort import absences, agreed_length
from secure_fd.aggregation.conversation import Conversation, Meter, set_up
from secure_fd.crypto import kem
from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.randomness import RandomBytes, draw, insecure_bytes
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.draw import draw_indices, public_nonces
from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import IntArray, UnitArray
from secure_fd.secagg.client import Client
from secure_fd.secagg.floors import MIN_COHORT, Floors
from secure_fd.secagg.graph import COMPLETE_BELOW
from secure_fd.secagg.group import Group
from secure_fd.secagg.server import Server
from secure_fd.secagg.session import (
    NO_NOISE,
    SESSION_BYTES,
    NoiseTerms,
    Roster,
    RoundTerms,
    Session,
)


class MaskedSum(SecretHolder):
    """Sums under pairwise masks; the server adds words that are uniform to it.

    n_clients: the cohort, numbered from 0: three or more, or two with insecure_pair.
    random: the source of every key; insecure_seed makes all keys repeatable instead.
    public_seed: makes the clients' public choices (proxies of a round, graph) repeatable, and
    foreseeable by whoever knows it. configuration, proxies: what the session id commits to,
    beside the roster. degree: neighbours of a client, by default what n_clients needs.
    hybrid: ML-KEM-768 in the channels; by default wherever the library offers it.
    keep_payloads: keep what the server saw of each client for the record.
    """

    __slots__ = (
        "_clients",
        "_group",
        "_identities",
        "_meter",
        "_public_seed",
        "_random",
        "_server",
        "_terms",
        "caveats",
        "keep_payloads",
        "n_clients",
    )

    name: ClassVar[str] = "masks"
    hides: ClassVar[bool] = True

    def __init__(
        self,
        n_clients: int,
        *,
        random: RandomBytes = os.urandom,
        insecure_seed: int | None = None,
        insecure_pair: bool = False,
        public_seed: int | None = None,
        configuration: bytes = b"",
        proxies: bytes = b"",
        degree: int | None = None,
        hybrid: bool | None = None,
        keep_payloads: bool = True,
    ) -> None:
        floors = Floors(cohort=2 if insecure_pair else MIN_COHORT, insecure_pair=insecure_pair)
        if n_clients < floors.cohort:
            allowed = f"use {floors.cohort} or more, since the sum of fewer shows the inputs"
            raise ConfigurationError("n_clients", n_clients, allowed)
        self.n_clients = n_clients
        self.keep_payloads = keep_payloads
        self.caveats = _caveats(n_clients, random, insecure_seed, public_seed)
        self._random = random if insecure_seed is None else insecure_bytes(insecure_seed)
        # The library takes no randomness for an encapsulation, so a seed cannot repeat it.
        offered = kem.available() and insecure_seed is None
        self._terms = _Terms(
            configuration, proxies, degree, offered if hybrid is None else hybrid, floors
        )
        self._public_seed = public_seed
        self._identities = {k: IdentityKey.generate(self._random) for k in range(n_clients)}
        self._meter = Meter()
        self.rekey(range(n_clients))

    def rekey(self, members: Sequence[int]) -> None:
        """Open a new session for these clients, under a new id, with new keys for everything.

        Call it when the membership changes. What the last session agreed on opens nothing of the
        new one. Raises ConfigurationError for fewer members than a sum needs.
        """
        if len(set(members)) < self._terms.floors.cohort:
            allowed = f"use {self._terms.floors.cohort} or more"
            raise ConfigurationError("members", len(set(members)), allowed)
        terms = self._terms
        session = Session(
            roster=Roster({k: self._identities[k].public.raw for k in members}),
            configuration=terms.configuration,
            proxies=terms.proxies,
            nonce=draw(self._random, SESSION_BYTES),
            degree=terms.degree,
            hybrid=terms.hybrid,
        )
        self._server = Server(session)
        self._clients = {
            k: Client(k, self._identities[k], session, terms.floors, self._random)
            for k in session.roster
        }
        nonces = {}
        if self._public_seed is not None:
            nonces = dict(enumerate(public_nonces(self._public_seed, self.n_clients)))
        self._group = set_up(self._server, self._clients, self._meter, nonces)

    @property
    def guarantee(self) -> str:
        """See SecureSum; it names thresholds and key agreement."""
        return masked_guarantee(self._group, self._public_seed)

    def draw(self, round_index: int, population: int, count: int) -> IntArray:
        """See SecureSum.draw: from a nonce of every client, committed to before any was seen."""
        return draw_indices(self._group.seed, round_index, population, count)

    def sum(
        self,
        round_index: int,
        vectors: Mapping[int, UnitArray],
        bound: int,
        *,
        subject: bytes = b"",
        dropouts: Mapping[int, Stage] | None = None,
        noise: NoiseTerms = NO_NOISE,
    ) -> SumResult:
        """See SecureSum.sum. round_index must grow; a round that fails is spent.

        The first sum's traffic includes the set-up.
        """
        length = agreed_length(vectors, self.n_clients)
        silent = absences(vectors, self.n_clients, dropouts)
        terms = RoundTerms(round_index, length, bound, subject, noise)
        clients = {k: c.open_round(terms) for k, c in self._clients.items() if k in vectors}
        for k, client in clients.items():
            client.load(vectors[k])
        server = self._server.open_round(terms)
        talk = Conversation(server, clients, silent, self._meter, self.keep_payloads)
        talk.run()
        outside = {k: Stage.PREPARE for k in range(self.n_clients) if k not in self._clients}
        return SumResult(
            total=server.total,
            traffic=self._meter.read(),
            payloads=talk.payloads,
            readable=False,
            survivors=server.survivors,
            missing=dict(sorted((talk.missing | outside).items())),
        )


@dataclass(frozen=True, slots=True)
class _Terms:
    """What every session of a MaskedSum has in common."""

    configuration: bytes
    proxies: bytes
    degree: int | None
    hybrid: bool
    floors: Floors


def masked_guarantee(group: Group, public_seed: int | None) -> str:
    """What a group's masks promise, and what they do not."""
    session, n, t = group.session, len(group.members), group.threshold
    holders = group.degree + 1
    corrupt = max(0, min(2 * t - holders - 1, group.quorum - 2))
    with_whom = (
        f"together with up to {corrupt} of the {n} clients"
        if group.degree == n - 1
        else f"together with a tenth of the {n} clients, fixed before the graph is drawn "
        f"({group.degree} neighbours each, failure below 2^-40 a set-up)"
    )
    agreement = (
        "X25519 and ML-KEM-768, so that a later quantum computer does not open them"
        if session.hybrid
        else "X25519, which a later quantum computer would open"
    )
    draws = (
        "The clients draw each round's proxies together."
        if public_seed is None
        else f"Each round's proxies follow from the public seed {public_seed}, so that rows can be "
        f"compared; in earnest the clients draw them together."
    )
    return (
        f"A server, even one that lies, {with_whom}, learns in each round one sum over at least "
        f"{group.quorum} clients (which carries the count) and nothing more about any one input "
        f"than that sum gives away, if the identities are pinned; keys are agreed with "
        f"{agreement}. Not covered: a value that only one client contributes to, what two "
        f"rounds' sums give away together, a client whose memory is read while the session lasts, "
        f"lying inputs, and a server that corrupts the sum. {draws}"
    )


def _caveats(
    n_clients: int, random: RandomBytes, seed: int | None, public_seed: int | None
) -> tuple[str, ...]:
    found = []
    if seed is not None and random is not os.urandom:
        raise ConfigurationError("insecure_seed", seed, "give a seed or a random source, not both")
    if seed is not None:
        found.append(
            f"INSECURE: all keys are derived from the seed {seed}; whoever knows it unmasks"
        )
    elif random is not os.urandom:
        found.append("keys come from a caller's randomness, for which this package cannot vouch")
    if public_seed is not None and n_clients >= COMPLETE_BELOW:
        found.append(
            f"INSECURE: the graph of who masks with whom follows from the seed {public_seed}; "
            f"corrupt clients can foresee it"
        )
    if n_clients < MIN_COHORT:
        found.append("INSECURE: of two clients, each reads the other's input from the sum")
    return tuple(found)
