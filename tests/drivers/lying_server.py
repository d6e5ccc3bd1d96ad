"""A server that lies in a round: it has the keys of the corrupt clients, and sends each honest
client any story. It then opens whatever can be opened with all that it has seen."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import SIGNATURE_BYTES, Keystream
from secure_fd.errors import PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.masks import (
    Shares,
    mask_words,
    open_shares,
    open_vault,
    pair_stream,
    point_of,
    round_key,
    self_stream,
)
from secure_fd.secagg.session import Group, MessageType, RoundTerms
from secure_fd.votes.codec import IntArray, WordArray
from tests.drivers.cohort import (
    TERMS,
    Clients,
    Cohort,
    cohort_message,
    line,
    lines,
    random_values,
    read_input,
    sign_story,
    signatures_message,
    survivors_message,
    take_prepare,
)


@dataclass(frozen=True, slots=True)
class Story:
    """Sets that one client receives: who takes part, and whose input arrived."""

    cohort: Clients
    survivors: Clients


@dataclass(slots=True)
class Secrets:
    """Seeds, or roots: by owner, the shares by holder, and the secret once it is known."""

    group: Group
    known: dict[int, int] = field(default_factory=dict)
    shares: dict[int, dict[int, int]] = field(default_factory=dict)

    def add(self, owner: int, holder: int, share: bytes) -> None:
        """Restore the secret as soon as there are shares enough."""
        collected = self.shares.setdefault(owner, {})
        collected[holder] = int.from_bytes(share, "big")
        if len(collected) == self.group.threshold:
            holders = self.group.holders(owner)
            points = [point_of(holders.index(holder)) for holder in collected]
            weights = shamir.weights_at_zero(points)
            self.known.setdefault(owner, shamir.combine(weights, list(collected.values())))


class LyingServer:
    """One round of a cohort. corrupt: whose keys and secrets it has."""

    def __init__(self, cohort: Cohort, corrupt: Collection[int], terms: RoundTerms = TERMS) -> None:
        self.cohort, self.group, self.corrupt = cohort, cohort.group, frozenset(corrupt)
        self.values = random_values(cohort, terms, seed=terms.index)
        self.machines = cohort.open_clients(terms, self.values)
        self.scope = next(iter(self.machines.values())).scope
        self.prepared = {k: take_prepare(machine) for k, machine in self.machines.items()}
        self.seeds, self.roots = Secrets(self.group), Secrets(self.group)
        self.words: dict[int, WordArray] = {}
        self._masked_for: dict[int, Clients] = {}
        self._cohort_signatures: dict[int, bytes] = {}
        for k in self.corrupt:
            self._confiscate(k)

    @property
    def honest(self) -> Clients:
        """Clients whose keys the server does not have."""
        return tuple(k for k in self.machines if k not in self.corrupt)

    def run(self, stories: Mapping[int, Story]) -> None:
        """Send each client its own story, keep every answer, and pass signatures on wherever
        they fit. A client that refuses falls silent."""
        for k, story in stories.items():
            self.collect_input(k, story.cohort)
        signed = {k: self._send_survivors(k, story) for k, story in stories.items()}
        signatures = {k: signature for k, signature in signed.items() if signature is not None}
        for k in signatures:
            signers = signatures.keys() & set(self.group.committee)
            fits = {j: signatures[j] for j in signers if stories[j] == stories[k]}
            message = signatures_message(fits | self._forged(stories[k]), self.machines[k])
            self._collect_shares(k, stories[k], self._ask(k, message))

    def both(self) -> Clients:
        """Honest clients of whom it has both secrets."""
        return tuple(k for k in self.honest if k in self.seeds.known and k in self.roots.known)

    def readable(self) -> Iterator[frozenset[int]]:
        """Sets of honest clients whose summed inputs it can read, the smallest first."""
        opened = set(self.roots.known)
        for size in range(1, len(self.words) + 1):
            for chosen in map(frozenset, combinations(sorted(self.words), size)):
                seeds_there = chosen <= set(self.seeds.known)
                if seeds_there and all(opened.intersection(pair) for pair in self._left(chosen)):
                    yield chosen

    def read(self, chosen: Collection[int]) -> WordArray | IntArray:
        """The summed inputs of a readable set."""
        total = np.zeros(self.scope.words, dtype=np.uint64)
        for k in chosen:
            total += self.words[k]
        own = [self_stream(self.scope, k, self.seeds.known[k]) for k in chosen]
        left = self._left(frozenset(chosen))
        added = [self._pair_stream(k, peer) for k, peer in left if k < peer]
        subtracted = [self._pair_stream(k, peer) for k, peer in left if k > peer]
        mask_words(total, subtracted, [*own, *added])
        terms = self.scope.terms
        return self.scope.layout.unpack(total, terms.length, len(chosen) * terms.bound)

    def _confiscate(self, client: int) -> None:
        """All secrets of a corrupt client, and the shares that it holds of others'."""
        machine = self.machines[client]
        held = machine._held
        secrets = held.prepared.secrets
        self.seeds.known[client], self.roots.known[client] = secrets.seed, secrets.root
        self._keep(client, client, held.prepared.own)
        for peer in self.group.neighbours(client):
            self.open_box(peer, client, machine._enrolment.channels[peer])

    def open_box(self, owner: int, holder: int, channel: Channel) -> None:
        """The shares that one client sealed for another, opened with this end of their channel."""
        sent = line(self.prepared, self.group, holder, owner)
        shares = open_shares(self.scope.place, holder, owner, channel, sent.key, sent.sealed)
        self._keep(owner, holder, shares)

    def _keep(self, owner: int, holder: int, shares: Shares) -> None:
        self.seeds.add(owner, holder, shares.seed)
        self.roots.add(owner, holder, shares.root)

    def collect_input(self, client: int, cohort: Clients) -> None:
        """Send a client its cohort, and keep its masked input."""
        relayed = lines(self.prepared, self.group, client, cohort)
        answer = self._ask(client, cohort_message(relayed, cohort, self.machines[client]))
        if answer is not None:
            masked = read_input(self.machines[client], answer)
            self.words[client], self._masked_for[client] = masked.words, cohort
            self._cohort_signatures[client] = masked.cohort

    def _send_survivors(self, client: int, story: Story) -> bytes | None:
        """The client's signature of the survivors, where it gives one."""
        if story.survivors != story.cohort:
            message = survivors_message(story.survivors, {}, self.machines[client])
            answer = self._ask(client, message)
            place = self.scope.place
            if answer is None:
                return None
            kind = MessageType.CONSISTENT
            return messages.read(answer, place, client, kind, SIGNATURE_BYTES)[0]
        signatures = self._cohort_signatures
        signers = signatures.keys() & set(self.group.committee)
        fits = {k: signatures[k] for k in signers if self._masked_for[k] == story.cohort}
        listed = fits | self._forged(story)
        message = survivors_message(story.survivors, listed, self.machines[client])
        self._collect_shares(client, story, self._ask(client, message))
        return None

    def _forged(self, story: Story) -> dict[int, bytes]:
        """The corrupt clients sign whatever the server wants."""
        keys, sets = self.cohort.identities, (story.cohort, story.survivors)
        signers = self.corrupt.intersection(self.group.committee)
        return {k: sign_story(keys[k], self.scope, self.group, k, *sets) for k in signers}

    def _ask(self, client: int, message: bytes) -> bytes | None:
        if self.machines[client].state is ClientState.ABORTED:
            return None
        try:
            return self.machines[client].receive(message)
        except PeerError:
            return None

    def _collect_shares(self, client: int, story: Story, answer: bytes | None) -> None:
        if answer is None:
            return
        size, owners = shamir.ELEMENT_BYTES, sorted({*story.cohort} & {*self.group.holders(client)})
        sizes, place = [size] * len(owners), self.scope.place
        shares = messages.read(answer, place, client, MessageType.UNMASK, *sizes)
        for owner, share in zip(owners, shares, strict=True):
            kind = self.seeds if owner in story.survivors else self.roots
            kind.add(owner, client, share)

    def _left(self, chosen: frozenset[int]) -> list[tuple[int, int]]:
        """Client and peer of every pair mask that does not cancel within the set."""
        return [
            (k, peer)
            for k in sorted(chosen)
            for peer in self.group.neighbours(k)
            if peer in self._masked_for[k] and not (peer in chosen and k in self._masked_for[peer])
        ]

    def _pair_stream(self, one: int, other: int) -> Keystream:
        opened, peer = (one, other) if one in self.roots.known else (other, one)
        root, place, sent = self.roots.known[opened], self.scope.place, self.prepared
        secrets = open_vault(self.group, place, opened, root, sent[opened].vault)
        key = round_key(place, opened, root)
        return pair_stream(self.scope, opened, peer, key, sent[peer].key, secrets[peer])
