"""A federation in one process in which a client loses a message of an epoch's set-up."""

import pytest
from torch import nn

from secure_fd.data.federated import federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.protocol.client import Client
from secure_fd.secagg.session import MessageType
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from tests.known_words import KnownWords

ALL = (0, 1, 2, 3)
LOST = 2
EPOCH = 4


def federation() -> Federation:
    sizes = Sizes(proxies=10, test=10, held_out=4, local=20)
    data = federate(load("digits"), parse_split("iid"), len(ALL), seed=0, sizes=sizes)
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(784, 10)) for _ in ALL]
    participants = networks, data.clients
    sums = MaskedSum(len(ALL), epoch=EPOCH, hybrid=False)
    return Federation(*participants, data.proxies.pixels, KnownWords(), aggregation=sums)


@pytest.mark.parametrize("kind", [MessageType.MEMBERS, MessageType.AGREED])
def test_a_client_that_loses_a_message_of_a_set_up_is_back_within_two_rounds(kind, monkeypatch):
    made, lost = federation(), list[bytes]()
    read = Client.receive

    def lossy(client: Client, data: bytes) -> list[bytes]:
        if client.number == LOST and not lost and data[2:4] == kind.to_bytes(2, "big"):
            lost.append(data)
            return []
        return read(client, data)

    monkeypatch.setattr(Client, "receive", lossy)
    seen = [report.survivors for report in made.rounds(2 * EPOCH)]
    assert lost
    assert seen == [ALL] * EPOCH + [(0, 1, 3)] * 2 + [ALL] * 2
