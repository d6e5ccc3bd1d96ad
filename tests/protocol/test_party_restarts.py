"""A client that comes back from its file follows on; one that forgot answers a second story."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.base import Own
from secure_fd.methods.pooled_heads import HeadClient, PooledHeads
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Server
from secure_fd.secagg.client import MaskingClient
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.storage import Store
from secure_fd.wire import Stage
from tests.small_federation import STILL, faults, federation, record_unit, run


def reborn(made, number, file):
    """A client with a fresh half, and what its file knows."""
    old = made.clients[number]
    made.protection.parts.pop(number, None)  # another process has a protection of its own
    own = Own(number, made.models[number], made.data[number], 1000 + number, made._device)
    half = made.method.client(made._setting, own)
    sums, key = made.aggregation.client(number), made.server.key
    back = Client(number, made.aggregation.session, key, half, sums, file=file)
    assert back.number == old.number
    return back


def put_back(made, client):
    """Hand it over to the courier, as one that was away."""
    made.clients[client.number] = client
    made.server.returned(client.number, client.position)
    made._ask(client.number, client.start)
    made._work()


def kept(made, number, path):
    """Give a client a file, before any message was sent."""
    made.clients[number]._file = Store.create(path, "state")


@pytest.mark.parametrize("limit", [None, 2])
def test_it_goes_on_where_it_stood(digits, tmp_path, limit):
    made = federation(digits, releases_per_pair=limit)
    kept(made, 1, tmp_path / "client")
    made.fit(3)
    stopped = made.clients[1]
    stopped._file.close()
    back = reborn(made, 1, Store.open(tmp_path / "client", "state"))
    assert (back.position, back._chain.digest) == (stopped.position, stopped._chain.digest)
    new, old = back.role, stopped.role
    assert new.memory() == old.memory()
    put_back(made, back)
    reports = made.fit(2)
    assert [report.survivors for report in reports] == [(0, 1, 2, 3)] * 2
    assert not any(report.refused for report in reports)


def second_story(made, client):
    """Return a client's answer to a server that begins the session once more."""
    half, key = made.method.server(made._setting, made.models[0]), made.server._chain._key
    session, sums = made.aggregation.session, made.aggregation.server()
    server = Server((0, 1, 2, 3), session, key, half, sums)
    if client.position == 0:
        client.start()
        client.work = None
    answers = [client.receive(data) for data in server.begin()[client.number]]
    return [answer for part in answers for answer in part]


def test_it_takes_no_second_story_and_its_mutant_does(digits, tmp_path):
    made = federation(digits)
    kept(made, 1, tmp_path / "client")
    made.fit(2)
    with pytest.raises(PeerError, match="does not follow"):
        second_story(made, made.clients[1])
    made.clients[1]._file.close()
    with pytest.raises(PeerError, match="does not follow"):
        second_story(made, reborn(made, 1, Store.open(tmp_path / "client", "state")))
    [vote] = second_story(made, reborn(made, 1, None))
    assert len(vote) > 100


def test_a_file_is_of_one_session_and_of_one_process(digits, tmp_path):
    made, other = federation(digits), federation(digits)
    kept(made, 0, tmp_path / "client")
    made.fit(1)
    file = made.clients[0]._file
    with pytest.raises(LocalError, match="another session"):
        reborn(other, 0, file)
    half = made.clients[0].role
    before = half.memory()
    with pytest.raises(LocalError, match="bytes"):
        half.recall(before[:-1600])
    assert np.array_equal(half.memory(), before)


def test_a_file_of_an_earlier_version_is_not_taken_for_a_new_one(digits, tmp_path):
    """A client would forget what it released, and answer a second story."""
    made = federation(digits)
    kept(made, 1, tmp_path / "client")
    made.fit(1)
    file = made.clients[1]._file
    place, role = file.get("place"), file.get("role")
    file.put({"told": place, "half": role}, drop=("place", "role"))
    with pytest.raises(LocalError, match="earlier version"):
        reborn(made, 1, file)


# A vector with a share of noise enters one sum, also after restarts.


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
