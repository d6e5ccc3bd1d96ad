"""Signed broadcasts: unsigned, altered, reordered and different ones are refused.

The next input of a client depends on the last broadcast (Pasquini, Francati and Ateniese, CCS
2022): a server that lies to all clients but one reads the vector of that one in the next sum. Every
party keeps a running hash of all broadcasts, which is bound into every sum, so inputs of clients
that received different broadcasts are masked differently, and no sum opens with both.
"""

import os
from dataclasses import replace

import numpy as np
import pytest

from attacks.inversion.one_update import Story
from secure_fd.crypto.keys import SERVER, SIGNATURE_BYTES, IdentityKey, IdentityPublic
from secure_fd.errors import PeerError
from secure_fd.protocol.broadcasts import (
    BROADCAST_BYTES,
    BroadcastChain,
    BroadcastSigner,
    BroadcastVerifier,
)
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import Ensemble, KnowledgeCodec, one_hot
from secure_fd.wire import HEADER_BYTES, Kind, Place, frame, read_header
from tests.small_federation import Unsurveyed, all_proxies, federation, run

SESSION = bytes(32)
KEY, OTHER = (IdentityKey.generate(os.urandom) for _ in range(2))


def read(client, data):
    kind, _, _ = read_header(data, SESSION, SERVER)
    client.read(kind, data)


class Trusting(IdentityPublic):
    """Mutant: every signature is right."""

    def verify(self, signature, message, what):
        """Accept anything."""


def unsigned(data):
    return data[: HEADER_BYTES + 4] + bytes(SIGNATURE_BYTES) + data[BROADCAST_BYTES:]


def by_another(_):
    return BroadcastSigner(SESSION, OTHER).write(Kind.RESULT, 3, b"an ensemble")


def altered(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def as_aborted(data):
    return frame(Kind.ABORTED, Place(SESSION, 3), SERVER, data[HEADER_BYTES:])


def of_another_round(data):
    return frame(Kind.RESULT, Place(SESSION, 4), SERVER, data[HEADER_BYTES:])


def of_another_session(_):
    elsewhere = BroadcastSigner(bytes([1]) * 32, KEY).write(Kind.RESULT, 3, b"an ensemble")
    return frame(Kind.RESULT, Place(SESSION, 3), SERVER, elsewhere[HEADER_BYTES:])


def of_another_place(_):
    signer = BroadcastSigner(SESSION, KEY)
    signer.write(Kind.ABORTED, 0, b"")
    second = signer.write(Kind.RESULT, 3, b"an ensemble")
    return second[:HEADER_BYTES] + bytes(4) + second[HEADER_BYTES + 4 :]


@pytest.mark.parametrize(
    "tamper",
    [
        *(unsigned, by_another, altered, as_aborted),
        *(of_another_round, of_another_session, of_another_place),
    ],
)
def test_a_client_reads_what_its_server_signed_and_nothing_else(tamper):
    """A refusal changes nothing: the true one is read afterwards. The mutant reads the forgery."""
    true = BroadcastSigner(SESSION, KEY).write(Kind.RESULT, 3, b"an ensemble")
    client = BroadcastVerifier(SESSION, KEY.public)
    with pytest.raises(PeerError, match="signature"):
        read(client, tamper(true))
    assert (client.digest, client.count) == (SESSION, 0)
    read(client, true)
    assert client.count == 1
    mutant = BroadcastVerifier(SESSION, Trusting(KEY.public.raw))
    read(mutant, tamper(true))
    assert mutant.count == 1


def test_a_signature_covers_all_broadcasts_before():
    """A client that read something else first refuses what follows, the same bytes or not."""
    one, other = BroadcastSigner(SESSION, KEY), BroadcastSigner(SESSION, KEY)
    one.write(Kind.RESULT, 0, b"one story")
    client = BroadcastVerifier(SESSION, KEY.public)
    read(client, other.write(Kind.RESULT, 0, b"another"))
    with pytest.raises(PeerError, match="signature"):
        read(client, one.write(Kind.RESULT, 1, b"the same"))
    read(client, other.write(Kind.RESULT, 1, b"the same"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        frame(Kind.RESULT, Place(bytes(31) + b"x", 0), SERVER, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), 3, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), SERVER, b"\0"),
        frame(Kind.INPUT, Place(SESSION, 0), SERVER, b"\0\0\0\0"),
        frame(Kind.RESULT, Place(SESSION, 0), SERVER, bytes(60)),  # too long, in this test
    ],
)
def test_a_message_of_another_place_or_form_is_refused(monkeypatch, data):
    monkeypatch.setattr("secure_fd.wire.LIMIT", 60)
    with pytest.raises(PeerError):
        BroadcastVerifier(SESSION, KEY.public).read(read_header(data, SESSION, SERVER)[0], data)


# Whole federations.


class Unsigned(Server):
    """Signs nothing."""

    def begin(self):
        """As a server's, without signatures."""
        return {k: [unsigned(data) for data in sent] for k, sent in super().begin().items()}


def signs_nothing(server):
    server.__class__ = Unsigned


def has_another_key(server):
    server._chain._key = OTHER


@pytest.mark.parametrize("change", [signs_nothing, has_another_key])
@pytest.mark.parametrize("trusting", [False, True])
def test_a_server_without_the_pinned_key_gets_no_votes(digits, change, trusting):
    """Rounds are aborted. The mutant trusts any signature, and votes."""
    made = federation(digits)
    change(made.server)
    if trusting:
        for client in made.clients:
            client._chain._server = Trusting(KEY.public.raw)
    reports = made.fit(1)
    assert [r.aborted for r in reports] == [not trusting]
    assert made.transcript.up.any() == trusting
    if not trusting:
        assert all("signature" in why for _, why in reports[0].refused)


def test_a_relay_that_tampers_costs_the_client_behind_it(digits):
    made = run(federation(digits), rounds=1)
    client = made.clients[1]
    receive = client.receive
    client.receive = lambda data: receive(altered(data))
    [report] = made.fit(1)
    assert report.survivors == (0, 2, 3)
    assert [k for k, why in report.refused if "signature" in why] == [1]


# Different broadcasts to different clients.


class TwoStories(Server):
    """A server that sends all but one client a lie in one round, and keeps both stories up.

    Its own terms are those of the many, so it opens what they sum. To the target it retells every
    broadcast, with the truth in place of the lie, in a chain of its own under its own signature.
    target: the client that receives the truth.
    """

    target: int
    own: BroadcastSigner

    @classmethod
    def install(cls, server, *, target, at, lie):
        """Replace an honest server. at: the round, from 0. lie: of its last message."""
        server.role, server.__class__ = Story(server.role, at, lie), cls
        server.target, server.own = target, BroadcastSigner(server._session, server._chain._key)

    def begin(self):
        return self._with_truth(super().begin())

    def advance(self):
        return self._with_truth(super().advance())

    def _with_truth(self, out):
        if self.target in out:
            out[self.target] = [self._rewrite(data) for data in out[self.target]]
        return out

    def _rewrite(self, data):
        kind, index, _ = read_header(data, self._session, SERVER)
        if kind not in (Kind.ROUND_START, Kind.RESULT, Kind.ABORTED):
            return data
        body, truth = data[BROADCAST_BYTES:], self.role.truth
        if kind == Kind.RESULT and truth is not None:
            body, self.role.truth = truth, None
        return self.own.write(Kind(kind), index, body)


def count_only(self, digest):  # noqa: ARG001 - the fault
    """The mutation: sums are not bound to earlier broadcasts."""
    self.count += 1


def all_is(decoy, codec, proxies, contributors):
    """The ensemble that names one class for every proxy: clients vote so from then on."""
    named = one_hot(np.full(proxies, decoy), codec.n_classes)
    total = (named.reshape(-1) * codec.levels * contributors).astype(np.uint64)
    lie = Ensemble(np.arange(proxies), named, np.ones(proxies, np.bool_))
    message = codec.write(lie, lie.indices, total, contributors)
    return lambda truth: message  # noqa: ARG005 - whatever it is


TARGET, AT = 1, 0
"""AT: the round of the lie; the next sum is read."""


def lied(data, monkeypatch, *, bound):
    """Both rounds' reports, and [P, C - 1] votes beside class 0 as read and as sent.

    All but the target receive "everything is class 0", so that the others vote for nothing else.
    """
    method, sums = Unsurveyed("hard"), MaskedSum(4, public_seed=20)
    inputs, load = {}, MaskingClient.load

    def watched(client, terms, values):
        inputs[client.number, terms.index] = values.astype(np.int64)
        return load(client, terms, values)

    monkeypatch.setattr(MaskingClient, "load", watched)
    schedule = replace(all_proxies(data), proxy_steps=200)
    made = federation(data, method, aggregation=sums, schedule=schedule)
    lie = all_is(0, KnowledgeCodec(data.n_classes, method.levels), len(data.proxies), 4)
    TwoStories.install(made.server, target=TARGET, at=AT, lie=lie)
    if not bound:
        monkeypatch.setattr(BroadcastChain, "_take", count_only)
    reports = made.fit(AT + 2)
    totals = {seen.index: seen.total for seen in made.transcript.distillation}
    read, sent = totals.get(AT + 1), inputs[TARGET, AT + 1].reshape(-1, data.n_classes)[:, 1:]
    return reports, read if read is None else read.reshape(-1, data.n_classes)[:, 1:], sent


def test_nothing_of_the_target_is_read_and_the_round_is_aborted(digits, monkeypatch):
    reports, read, _ = lied(digits, monkeypatch, bound=True)
    assert [report.aborted for report in reports] == [False, True]
    assert [client for client, _ in reports[1].refused] == [TARGET]
    assert read is None


def test_without_the_hash_the_target_s_votes_are_read(digits, monkeypatch):
    reports, read, sent = lied(digits, monkeypatch, bound=False)
    assert not any(report.aborted or report.refused for report in reports)
    assert (sent > 0).sum() > 100
    assert (read.astype(np.int64) == sent)[sent > 0].mean() > 0.99
