"""A vector with a share of noise enters one sum: restarts, and a request that names no sum.

Two sums of the same vectors, with one client missing from the second, differ by the vector of that
client, under its own small share of the noise.
"""

from dataclasses import replace

import numpy as np
import torch

from secure_fd.methods.base import Own
from secure_fd.methods.pooled_heads import HeadClient, PooledHeads
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.protocol.client import Client
from secure_fd.secagg.client import MaskingClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.storage import Store
from secure_fd.wire import Stage
from tests.protocol.test_party_restarts import kept, put_back
from tests.small_federation import STILL, faults, federation, record_unit, run


def ledgers_in(folder):
    return {
        k: BudgetLedger.create(folder / f"ledger {k}", f"site {k}", epsilon=9.0, delta=1e-5)
        for k in range(4)
    }


class Sites:
    """Four clients with ledgers and state files, whose processes can all be started again."""

    def __init__(self, data, folder):
        self.ledgers, self.sums = ledgers_in(folder), MaskedSum(4, public_seed=0)
        self._data, self._folder = data, folder
        self.run = federation(
            data,
            PooledHeads(1),
            aggregation=self.sums,
            protection=self.unit(),
            schedule=STILL,
            dropouts=faults({0: {2: Stage.UNMASK, 3: Stage.UNMASK}}),
        )
        for k in range(4):
            kept(self.run, k, folder / str(k))

    def unit(self):
        unit = record_unit(self._data, sums=2, ledgers=self.ledgers, session=self.sums.session)
        unit.check_sum(self.sums)
        return unit

    def restart(self):
        """Replace every client by one that knows what the files hold."""
        unit, run = self.unit(), self.run
        setting = replace(run._setting, protection=unit)
        for k, (model, data) in enumerate(zip(run.models, run.data, strict=True)):
            run.clients[k]._file.close()
            half = run.method.client(setting, Own(k, model, data, k, run._device))
            parts = (self.sums.session, run.server.key, half, self.sums.client(k))
            file = Store.open(self._folder / str(k), "state")
            put_back(run, Client(k, *parts, unit.noise_terms, file=file))


def sent_in_both(sites, monkeypatch):
    """Vectors of all clients, by sum: the first is opened and aborted, then all restart."""
    load = MaskingClient.load
    sent = [[], []]

    def watched(self, terms, values):
        sent[terms.index].append(np.asarray(values, dtype=np.int64))
        return load(self, terms, values)

    monkeypatch.setattr(MaskingClient, "load", watched)
    [first] = sites.run.fit(1)
    assert first.aborted
    assert sites.run.server.sums.opened
    sites.restart()
    [second] = sites.run.fit(1)
    assert second.survivors == (0, 1, 2, 3)
    return sent


def test_a_vector_of_an_aborted_sum_enters_no_later_sum_after_all_sites_restart(
    digits, tmp_path, monkeypatch
):
    sites = Sites(digits, tmp_path)
    first, second = sent_in_both(sites, monkeypatch)
    assert not any(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    assert [len(ledger.bookings) for ledger in sites.ledgers.values()] == [2] * 4


def test_a_request_without_index_and_announcement_sends_the_same_vectors_again(
    digits, tmp_path, monkeypatch
):
    """The mutation: one booking, and the difference of the two sums is a client's own vector."""

    def forgetful(self, index, digest):  # noqa: ARG001
        self._announced = b"any sum"

    monkeypatch.setattr(HeadClient, "announced", forgetful)
    sites = Sites(digits, tmp_path)
    first, second = sent_in_both(sites, monkeypatch)
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    assert [len(ledger.bookings) for ledger in sites.ledgers.values()] == [1] * 4
    assert np.array_equal(sum(first) - sum(second[1:]), first[0])


def test_class_sums_about_other_proxies_are_another_release(digits, tmp_path):
    """Each client's own noise is enough: a later run is sent the vector of the same request."""
    ledgers = ledgers_in(tmp_path)

    def sent(data):
        unit = record_unit(data, honest=1, ledgers=ledgers)
        made = run(federation(data, PooledHeads(0), protection=unit, schedule=STILL), rounds=1)
        return list(made.transcript.heads[0].uploads.values())

    first, again = sent(digits), sent(digits)
    assert np.array_equal(first, again)
    backwards = digits.proxies[torch.arange(199, -1, -1)]
    assert not np.array_equal(first, sent(replace(digits, proxies=backwards)))
    assert all(len(ledger.bookings) == 2 for ledger in ledgers.values())
