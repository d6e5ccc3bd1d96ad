"""A cohort of the homomorphic sum whose server is the test: honest clients, and any message."""

from collections.abc import Mapping

import numpy as np

from secure_fd.aggregation.bfv import messages, scheme, tags
from secure_fd.aggregation.bfv.client import Client
from secure_fd.aggregation.bfv.keys import Dealer
from secure_fd.aggregation.bfv.messages import Opening
from secure_fd.aggregation.bfv.scope import Scope, Session
from secure_fd.aggregation.bfv.server import Server
from secure_fd.crypto.primitives import IdentityKey, insecure_bytes
from secure_fd.knowledge import WordArray
from secure_fd.secagg.session import Roster, RoundTerms

N = 5
TERMS = RoundTerms(index=3, length=60, bound=7, subject=b"proxies")
LONG = RoundTerms(index=4, length=tags.DATA_SLOTS * 8 + 1, bound=7)  # two ciphertexts a client


class Cohort:
    """Five clients and a server that share a session."""

    def __init__(self, n: int = N, nonce: bytes = b"n") -> None:
        random = insecure_bytes(1)
        self.identities = {k: IdentityKey.generate(random) for k in range(n)}
        roster = Roster({k: identity.public.raw for k, identity in self.identities.items()})
        self.session = Session(roster, b"configuration", b"proxies", nonce)
        dealer = Dealer(self.session, random)
        self.server = Server(self.session)
        self.clients = {
            k: Client(k, identity, self.session, dealer.client_keys(k), dealer.holder_keys(k))
            for k, identity in self.identities.items()
        }


class Play:
    """One round whose server is the test: it holds every input and asks for whatever it likes."""

    def __init__(self, cohort: Cohort, terms: RoundTerms = TERMS) -> None:
        self.cohort = cohort
        self.scope = Scope(cohort.session, terms)
        rng = np.random.default_rng(terms.index)
        size = (len(cohort.clients), terms.length)
        self.values = rng.integers(0, terms.bound, size, np.uint64, endpoint=True)
        self.rounds = {k: client.open_round(terms) for k, client in cohort.clients.items()}
        self.sent = {k: machine.input(self.values[k]) for k, machine in self.rounds.items()}
        self.inputs = {k: messages.decode_input(m, self.scope, k) for k, m in self.sent.items()}

    def consents(self, survivors: tuple[int, ...], asked: tuple[int, ...]) -> dict[int, bytes]:
        """The signatures of those asked, each shown this list."""
        listed = messages.encode_survivors(self.scope, survivors)
        answers = {k: self.rounds[k].consent(listed) for k in asked}
        return {k: answer[-64:] for k, answer in answers.items()}

    def added(self, survivors: tuple[int, ...]) -> WordArray:
        """The honest sum of these inputs."""
        total = self.inputs[survivors[0]].copy()
        for k in survivors[1:]:
            scheme.add(total, self.inputs[k])
        return total

    def read(
        self,
        ciphertexts: WordArray,
        survivors: tuple[int, ...],
        consents: Mapping[int, bytes],
        holder: int = 0,
    ) -> WordArray:
        """What the key holder hands back for this opening."""
        opening = messages.encode_open(self.scope, Opening(survivors, consents, ciphertexts))
        answer = self.rounds[holder].open(opening)
        slots = messages.decode_total(answer, self.scope, holder)
        return self.scope.layout.unpack(slots, self.scope.terms.length)


EVERYONE = tuple(range(N))
