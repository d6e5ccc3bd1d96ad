"""A client that comes back from its file follows on; one that forgot answers a second story."""

import numpy as np
import pytest

from secure_fd.errors import LocalError, PeerError
from secure_fd.methods.base import Own
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Server
from secure_fd.storage import Store
from tests.small_federation import federation


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
