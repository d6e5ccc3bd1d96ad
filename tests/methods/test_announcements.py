"""Round announcements that no honest server sends are refused by the clients of every method."""

import numpy as np
import pytest

from secure_fd.errors import PeerError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fkd import FKD
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.training.models import flatten
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import SMALL, federation, networks

INDEX, SIZE = bytes(8), len(flatten(networks(1)[0]))
NOT_FINITE = np.full(SIZE, np.inf, "<f4").tobytes()


@pytest.mark.parametrize(
    ("method", "announcement"),
    [
        *((made, b"abc") for made in (SelectiveFD("hard"), FKD(), PooledHeads(1, features=SMALL))),
        *((FedAvg(), INDEX[:5]), (FedAvg(), INDEX), (FedAvg(), INDEX + bytes(12))),
        (FedAvg(), INDEX + NOT_FINITE),
        *((SmallDaFKD(), each) for each in (b"short", INDEX, bytes(11), INDEX + b"n123")),
        (SmallDaFKD(), INDEX + b"n" + NOT_FINITE),
    ],
)
def test_an_announcement_that_cannot_be_is_refused(digits, method, announcement):
    made = federation(digits, method)
    with pytest.raises(PeerError):
        next(made.clients[0].role.round(announcement))
