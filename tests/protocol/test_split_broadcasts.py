"""A server that tells clients different things: refused, and read once the digest is left out.

The next input of a client depends on the last broadcast (Pasquini, Francati and Ateniese, CCS
2022): a server that lies to all clients but one reads the vector of that one in the next sum. Every
party keeps a running hash of all broadcasts, which is bound into every sum, so inputs of clients
that received different broadcasts are masked differently, and no sum opens with both.
"""

from dataclasses import replace

import numpy as np

from attacks.inversion.one_update import Story
from secure_fd.crypto.keys import SERVER
from secure_fd.protocol.broadcasts import BROADCAST_BYTES, BroadcastChain, BroadcastSigner
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.votes.codec import Ensemble, KnowledgeCodec, one_hot
from secure_fd.wire import Kind, read_header
from tests.small_federation import Unsurveyed, all_proxies, federation


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
