"""Corrupting one client's neighbours once a sparse graph is known, which the guarantee prints.

The committee stays honest. The server tells some of the client's honest holders that nobody is
missing, and the others that the client is; those that it has corrupted give both shares.
"""

import numpy as np
import pytest

from secure_fd.aggregation.masked import masked_guarantee
from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import SIGNATURE_BYTES
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
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
from secure_fd.secagg.messages import Prepare
from secure_fd.secagg.session import HEADER_BYTES, Floors, set_bytes
from tests.secagg_cohort import (
    TERMS,
    Cohort,
    cohort_message,
    line,
    lines,
    random_values,
    signatures_message,
    survivors_message,
    take_prepare,
)

VICTIM, CLIENTS, DEGREE = 4, 20, 8


class Corruptor:
    """One round of a sparse cohort. corrupt: how many of the victim's neighbours are."""

    def __init__(self, corrupt: int) -> None:
        self.cohort = Cohort(CLIENTS, degree=DEGREE, floors=Floors(degree=DEGREE))
        self.group = self.cohort.group
        near = self.group.neighbours(VICTIM)
        self.corrupt, self.honest = near[:corrupt], near[corrupt:]
        values = random_values(self.cohort)
        self.machines = self.cohort.open_clients(TERMS, values)
        self.scope = self.machines[VICTIM].scope
        self.truth = self.scope.layout.pack(values[VICTIM])
        self.prepared: dict[int, Prepare] = {
            k: take_prepare(machine) for k, machine in self.machines.items()
        }
        self.seeds: dict[int, bytes] = {}
        self.roots: dict[int, bytes] = {}
        for k in self.corrupt:
            shares = self._confiscated(k)
            self.seeds[k], self.roots[k] = shares.seed, shares.root
        self.masked = {k: self._input(k, machine) for k, machine in self.machines.items()}

    def _confiscated(self, holder: int) -> Shares:
        sent = line(self.prepared, self.group, holder, VICTIM)
        channel = self.machines[holder]._enrolment.channels[VICTIM]
        return open_shares(self.scope.place, holder, VICTIM, channel, sent.key, sent.sealed)

    def _input(self, client: int, machine: ClientRound) -> bytes:
        relayed = lines(self.prepared, self.group, client, self.group.members)
        return machine.receive(cohort_message(relayed, self.group.members, machine))

    def split(self) -> None:
        """The victim and as few holders as it takes hear that nobody is missing."""
        needed = self.group.threshold - len(self.seeds) - 1
        hear, everybody = (VICTIM, *self.honest[:needed]), self.group.members
        others = [k for k in everybody if k not in hear]
        left = tuple(k for k in everybody if k != VICTIM)
        at = self.scope.words * 8 + set_bytes(range(DEGREE)) + HEADER_BYTES
        signed = {k: self.masked[k][at : at + SIGNATURE_BYTES] for k in self.group.committee}
        for k in hear:
            machine = self.machines[k]
            self.seeds[k] = self._share(
                k, machine.receive(survivors_message(everybody, signed, machine))
            )
        place, marks = self.scope.place, {}
        for k in others:
            answer = self.machines[k].receive(survivors_message(left, {}, self.machines[k]))
            marks[k] = messages.decode_consistent(answer, place, k)
        listed = {k: mark for k, mark in marks.items() if k in self.group.committee}
        for k in self.honest[needed:]:
            machine = self.machines[k]
            self.roots[k] = self._share(k, machine.receive(signatures_message(listed, machine)))

    def _share(self, holder: int, unmask: bytes) -> bytes:
        at = HEADER_BYTES + shamir.ELEMENT_BYTES * self.group.holders(holder).index(VICTIM)
        return unmask[at : at + shamir.ELEMENT_BYTES]

    def _secret(self, shares: dict[int, bytes]) -> int:
        holders = self.group.holders(VICTIM)
        points = [point_of(holders.index(k)) for k in shares]
        return shamir.combine(
            shamir.weights_at_zero(points), [shamir.decode(share) for share in shares.values()]
        )

    def read(self) -> WordArray:
        """The victim's words, if both of its secrets came out."""
        scope, root, seed = self.scope, self._secret(self.roots), self._secret(self.seeds)
        key = round_key(scope.place, VICTIM, root)
        secrets = open_vault(self.group, scope.place, VICTIM, root, self.prepared[VICTIM].vault)
        words = np.frombuffer(self.masked[VICTIM], "<u8", scope.words, HEADER_BYTES)
        words = words.astype(np.uint64)
        pairs = {
            peer: pair_stream(scope, VICTIM, peer, key, self.prepared[peer].key, secret)
            for peer, secret in secrets.items()
        }
        added = [stream for peer, stream in pairs.items() if peer < VICTIM]
        taken = [stream for peer, stream in pairs.items() if peer > VICTIM]
        mask_words(words, added, [self_stream(scope, VICTIM, seed), *taken])
        return words


def least(corruptor: Corruptor) -> int:
    """Corrupt neighbours that the guarantee names."""
    group = corruptor.group
    return 2 * group.threshold - group.degree - 1


def test_as_many_corrupt_neighbours_as_the_guarantee_names_read_one_client():
    corruptor = Corruptor(5)
    assert least(corruptor) == 5
    assert "corrupts 5 of one client's neighbours" in masked_guarantee(corruptor.group, None)
    corruptor.split()
    np.testing.assert_array_equal(corruptor.read(), corruptor.truth)


def test_one_fewer_have_both_secrets_of_nobody():
    """Every honest holder gives one share, whatever it hears: one kind stays too few."""
    corruptor = Corruptor(4)
    corruptor.split()
    threshold = corruptor.group.threshold
    assert len(corruptor.seeds) == threshold
    assert len(corruptor.roots) < threshold
    holders = {*corruptor.seeds, *corruptor.roots}
    assert holders == set(corruptor.group.holders(VICTIM))
    with pytest.raises(PeerError, match="vault does not open"):
        corruptor.read()
