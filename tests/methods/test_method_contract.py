"""Contract of every method in the table: masks, seeds, rounds, bytes, absent clients."""

import numpy as np
import pytest

from experiments.rivals.afl import AFL
from experiments.rivals.edgefd import EdgeFD
from secure_fd.data.images import pixel_bytes, proxy_pixels
from secure_fd.errors import PeerError
from secure_fd.methods.dafkd import DaFKD, FedDF
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.feded import FedED
from secure_fd.methods.fkd import FKD
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.registry import METHODS, load
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.client import Client
from secure_fd.protocol.server import Server
from secure_fd.secagg.setup import ServerSetup
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.simulate import simulate
from secure_fd.training.models import flatten
from secure_fd.wire import Stage
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import SMALL, faults, federation, networks, parameters

RIVALS = AdversarialSettings(hidden=16, discriminator=16, sums=2, steps=2)
CASES = {
    **{name: load(name)() for name in ("fedavg", "independent", "fkd")},
    **{name: load(name)("soft") for name in ("fedmd", "ds-fl", "selective-fd")},
    **{f"{name} hard": load(name)("hard") for name in ("fedmd", "ds-fl", "selective-fd")},
    **{name: load(name)("hard") for name in ("pls", "selective-fd-published")},
    "feded": FedED("soft", networks(1, 9)[0]),
    "heads": PooledHeads(2, features=SMALL),
    "dafkd": DaFKD(generated=32, steps=3, adversarial=RIVALS),
    "feddf": FedDF(generated=32, steps=3, adversarial=RIVALS),
    "afl": AFL(features=SMALL),
    "edgefd": EdgeFD("hard"),
}
SILENT = CASES["independent"].name
every_method = pytest.mark.parametrize("name", CASES)
masked_or_not = pytest.mark.parametrize("masked", [False, True], ids=["clear", "masked"])
ABSENT = faults({r: {r % 4: stage} for r, stage in enumerate(Stage)})
"""One of four clients is lost in each of the first rounds, at every stage; then all are there."""
EARLY = faults({0: {0: Stage.PREPARE}, 1: {1: Stage.INPUT}})
"""Without late faults: who falls silent late in the first of many sums misses the masked others."""


def made_of(data, name, masked=False, plan=None, seed=0):
    sums = MaskedSum(4, public_seed=0) if masked else PlainSum(4)
    return federation(data, CASES[name], aggregation=sums, dropouts=plan, seed=seed)


def ends(made):
    """Networks, and what clients remember beside them."""
    kept = [getattr(client.role, "memory", bytes)() for client in made.clients]
    return parameters(made), kept


def same(one, other):
    (networks_of, kept), (theirs, remembered) = ends(one), ends(other)
    return np.array_equal(networks_of, theirs) and kept == remembered


def test_every_method_of_the_table_is_here_and_is_made_by_its_name(digits):
    assert set(METHODS) <= set(CASES)
    for name, known in METHODS.items():
        method = simulate(digits, method=name).federation.method
        assert method.name.startswith(known.title)
        assert method.shares_parameters == known.averages


@every_method
def test_masks_change_no_bit_with_any_client_missing(digits, name):
    plan = EARLY if isinstance(CASES[name], DaFKD | PooledHeads | AFL) else ABSENT
    clear, masked = (made_of(digits, name, masked, plan) for masked in (False, True))
    reports = [made.fit(len(Stage) + 1) for made in (clear, masked)]
    assert [r.survivors for r in reports[0]] == [r.survivors for r in reports[1]]
    assert same(clear, masked)
    if clear.global_parameters is not None:  # also at who was away before
        assert all(np.array_equal(own, clear.global_parameters) for own in parameters(clear))
    read = []
    for where in ("distillation", "parameters", "generated", "heads"):
        seen, hidden = (getattr(made.transcript, where) for made in (clear, masked))
        assert len(seen) == len(hidden)
        assert all(one.uploads is None for one in hidden)
        read += [one.uploads for one in seen if one.uploads]
    assert bool(read) == (clear.method.name != SILENT)
    if clear.transcript.survey is not None and masked.transcript.survey is not None:
        assert np.array_equal(clear.transcript.survey.total, masked.transcript.survey.total)
        bits = list(clear.transcript.survey.uploads.values())
        assert np.array_equal(np.sum(bits, axis=0), clear.transcript.survey.total)
        assert masked.transcript.survey.uploads is None
    if clear.method.name != SILENT:
        assert [len(r.survivors) for r in reports[0]] == [3, 3, 4, 4, 4]


@every_method
def test_a_run_follows_from_its_seed_and_goes_on_where_it_ended(digits, name):
    whole, pieces, other = (made_of(digits, name, seed=seed) for seed in (0, 0, 1))
    for made in (whole, other):
        made.fit(2)
    assert [r.index for count in (1, 1) for r in pieces.rounds(count)] == [0, 1]
    assert same(whole, pieces)
    assert whole.transcript.down.tolist() == pieces.transcript.down.tolist()
    assert not np.array_equal(parameters(whole), parameters(other))


@every_method
@masked_or_not
def test_bytes_are_those_of_the_messages(digits, name, masked, monkeypatch):
    """Counted a second time where messages enter the parties; a client comes back in the second."""
    up, down = np.zeros(4, dtype=int), np.zeros(4, dtype=int)

    def tap(owner, method, note):
        real = getattr(owner, method)

        def tapped(self, *given):
            found = real(self, *given)
            note(self, found, *given)
            return found

        monkeypatch.setattr(owner, method, tapped)

    def sent(_, __, client, message):
        up[client] += len(message)

    def received(client, _, message):
        down[client.number] += len(message)

    def set_up(_, messages):
        down[list(messages)] += [len(message) for message in messages.values()]

    tap(Server, "receive", sent)
    tap(ServerSetup, "receive", sent)
    tap(Client, "receive", received)
    tap(ServerSetup, "advance", set_up)
    made = made_of(digits, name, masked, EARLY)
    made.fit(0)
    begun = made.transcript.up.copy(), made.transcript.down.copy()
    handed = pixel_bytes(proxy_pixels(digits.proxies.pixels)) if made.method.needs_proxies else 0
    assert begun[0].tolist() == up.tolist()
    assert begun[1].tolist() == (down + handed).tolist()
    up[:] = down[:] = 0
    reports = made.fit(2)
    assert (made.transcript.up - begun[0]).tolist() == up.tolist()
    assert (made.transcript.down - begun[1]).tolist() == down.tolist()
    assert reports[-1].bytes_up == made.transcript.up.mean()
    assert {bool(sent) for sent in up} == {made.method.name != SILENT}


@every_method
@masked_or_not
def test_a_round_without_clients_changes_nothing_and_the_next_goes_on(digits, name, masked):
    plan = faults({1: dict.fromkeys(range(4), Stage.PREPARE)})
    made = made_of(digits, name, masked, plan)
    made.fit(1)
    before, kept = ends(made)
    sent, received = made.transcript.up.copy(), made.transcript.down.copy()
    [away] = made.fit(1)
    if made.method.name == SILENT:
        return
    assert (away.aborted, away.survivors, away.kept) == (True, (), 0.0)
    assert np.array_equal(parameters(made), before)
    assert ends(made)[1] == kept
    assert np.array_equal(made.transcript.up, sent)
    assert np.array_equal(made.transcript.down, received)
    [after] = made.fit(1)
    assert after.survivors == (0, 1, 2, 3)
    assert made.transcript.aborted_rounds == 1


# Announcements that no honest server sends.

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
