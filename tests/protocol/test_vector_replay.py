"""A vector with a share of noise enters one sum: restarts, and a request that names no sum.

Two sums of the same vectors, with one client missing from the second, differ by the vector of that
client, under its own small share of the noise.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from secure_fd.data.federated import FederatedData
from secure_fd.methods.base import Own
from secure_fd.methods.pooled_heads import HeadClient, PooledHeads
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.protocol.client import Client
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.session import RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.build import fresh_networks
from secure_fd.simulation.federation import Federation
from secure_fd.storage import Store
from secure_fd.training.recipes import Schedule
from secure_fd.votes.codec import IntArray, UnitArray
from secure_fd.wire import Stage
from tests.protocol.test_party_restarts import put_back
from tests.small_federation import faults

SMALL = ReferenceSettings(rank=5, n_features=20)
SCHEDULE = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)


class Sites:
    """Four clients with ledgers and state files, whose processes can all be started again."""

    def __init__(self, data: FederatedData, folder: Path) -> None:
        self.ledgers = {
            k: BudgetLedger.create(folder / f"ledger {k}", f"site {k}", epsilon=9.0, delta=1e-5)
            for k in range(4)
        }
        self.sums, self._data, self._folder = MaskedSum(4, public_seed=0), data, folder
        lost = {0: {2: Stage.UNMASK, 3: Stage.UNMASK}}
        unit = self.unit()
        self.run = Federation(
            fresh_networks(data, 0),
            data.clients,
            data.proxies.pixels,
            PooledHeads(1),
            aggregation=self.sums,
            protection=unit,
            schedule=SCHEDULE,
            dropouts=faults(lost),
        )
        for k, client in enumerate(self.run.clients):
            client._file = Store.create(folder / str(k), "state")

    def unit(self) -> PooledRecordUnit:
        unit = PooledRecordUnit(
            4.0,
            1e-5,
            records=[len(client.train) for client in self._data.clients],
            n_proxies=len(self._data.proxies),
            n_classes=self._data.n_classes,
            sums=2,
            features=SMALL,
            ledgers=self.ledgers,
            session=self.sums.session,
        )
        unit.check_sum(self.sums)
        return unit

    def restart(self) -> None:
        """Replace every client by one that knows what the files hold."""
        unit, run = self.unit(), self.run
        setting = replace(run._setting, protection=unit)
        for k, (model, data) in enumerate(zip(run.models, run.data, strict=True)):
            run.clients[k]._file.close()
            half = run.method.client(setting, Own(k, model, data, k, run._device))
            parts = (self.sums.session, run.server.key, half, self.sums.client(k))
            file = Store.open(self._folder / str(k), "state")
            put_back(run, Client(k, *parts, unit.noise_terms, file=file))


def sent_in_both(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> list[list[IntArray]]:
    """Vectors of all clients, by sum: the first is opened and aborted, then all restart."""
    load = MaskingClient.load
    sent: list[list[IntArray]] = [[], []]

    def watched(self: MaskingClient, terms: RoundTerms, values: UnitArray) -> list[bytes]:
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

    def forgetful(self: HeadClient, index: int, digest: bytes) -> None:  # noqa: ARG001
        self._announced = b"any sum"

    monkeypatch.setattr(HeadClient, "announced", forgetful)
    sites = Sites(digits, tmp_path)
    first, second = sent_in_both(sites, monkeypatch)
    assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
    assert [len(ledger.bookings) for ledger in sites.ledgers.values()] == [1] * 4
    assert np.array_equal(sum(first) - sum(second[1:]), first[0])


def test_class_sums_about_other_proxies_are_another_release(digits, tmp_path):
    """Each client's own noise is enough: a later run is sent the vector of the same request."""
    ledgers = {
        k: BudgetLedger.create(tmp_path / str(k), f"site {k}", epsilon=9.0, delta=1e-5)
        for k in range(4)
    }

    def sent(proxies: Tensor) -> list[UnitArray]:
        unit = PooledRecordUnit(
            4.0,
            1e-5,
            records=[len(client.train) for client in digits.clients],
            n_proxies=len(proxies),
            n_classes=digits.n_classes,
            honest=1,
            features=SMALL,
            ledgers=ledgers,
        )
        parts = fresh_networks(digits, 0), digits.clients, proxies
        run = Federation(*parts, PooledHeads(0), protection=unit, schedule=SCHEDULE)
        run.fit(1)
        return list((run.transcript.heads[0].uploads or {}).values())

    first, again = (sent(digits.proxies.pixels) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sent(digits.proxies.pixels.flip(0)))
    assert all(len(ledger.bookings) == 2 for ledger in ledgers.values())
