"""Who took part gives labels away through real masks; of one record the record unit tells little.

False-alarm rates are stated where a test could fail by chance; noise and keys are not seeded.
"""

import numpy as np
import pytest
import torch
from torch import nn

from attacks.base import AttackResult, FloatArray
from attacks.label_distribution import Participation
from attacks.view import Public, server_view
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.federation import Dropouts
from secure_fd.knowledge import KnowledgeCodec
from secure_fd.protection.record import RecordUnit
from secure_fd.transcript import Transcript
from tests.attack_games import add_round
from tests.small_federation import federation, run


def public(n_proxies: int, n_clients: int) -> Public:
    return Public(torch.zeros(n_proxies, 1, 4, 4), n_clients, 10, lambda _: nn.Linear(1, 1))


def histograms(data: FederatedData) -> FloatArray:
    rows = [np.bincount(c.train.labels.numpy(), minlength=10) for c in data.clients]
    return np.stack(rows).astype(np.float64)


def disaggregated(data: FederatedData, drop: float) -> AttackResult:
    made = run(
        federation(
            data,
            aggregation=MaskedSum(4, public_seed=0, hybrid=False),
            dropouts=Dropouts(drop, seed=3),
        ),
        rounds=30,
    )
    attack, view = (
        Participation(),
        server_view(made.transcript, public(len(data.proxies), len(data.clients))),
    )
    return attack.score(attack.run(view, 0), histograms(data), 0)


def test_masks_do_not_hide_labels_from_who_took_part(digits: FederatedData) -> None:
    result = disaggregated(digits, drop=0.25)
    assert result.figure < result.control - 0.4


def test_without_dropouts_sums_tell_no_client_from_another(digits: FederatedData) -> None:
    result = disaggregated(digits, drop=0.0)
    assert result.details["clients_told_apart"] == 0
    assert result.figure == pytest.approx(result.control, abs=0.01)


# The record unit: the shares found by least squares hang little on any one record.

TRIALS = 40


def share_found(data: FederatedData, records: Images, epsilon: float) -> float:
    """The share of class 0 that participation gives a client of two classes, by its votes alone."""
    unit = RecordUnit(epsilon, 1e-5)
    unit.prepare(data.proxies.pixels, data.n_classes, [records])
    every = np.arange(len(data.proxies))
    levels = unit.levels(1)
    units = KnowledgeCodec(data.n_classes, levels).encode(unit.parts[0].release(every))
    history = Transcript(2)
    for survivors in [(0, 1), (1,)]:  # client 1 always abstains
        add_round(
            history, units * np.uint64(0 in survivors), 10, levels=levels, survivors=survivors
        )
    view = server_view(history, public(len(every), 2))
    return float(Participation().run(view, 0).rows[0, 0])


def worlds(data: FederatedData) -> tuple[Images, Images]:
    """Records of two classes, and the same with one of them replaced."""
    zero, one = (data.clients[k].train for k in (0, 1))
    pixels = torch.cat([zero.pixels[:8], one.pixels[:8]])
    labels = torch.cat([zero.labels[:8], one.labels[:8]])
    other_pixels, other_labels = pixels.clone(), labels.clone()
    other_pixels[3], other_labels[3] = one.pixels[9], one.labels[9]  # the one that shows most
    return Images(pixels, labels), Images(other_pixels, other_labels)


def advantage(data: FederatedData, epsilon: float) -> float:
    """Of a threshold found on half of the runs, its advantage on the other half."""
    found = np.array(
        [[share_found(data, world, epsilon) for _ in range(TRIALS)] for world in worlds(data)]
    )
    known, fresh = found[:, : TRIALS // 2], found[:, TRIALS // 2 :]
    cut, sign = known.mean(), np.sign(known[0].mean() - known[1].mean())
    above = (sign * (fresh - cut) > 0).mean(axis=1)
    return float(above[0] - above[1])


def test_one_record_hardly_moves_what_participation_finds(digits: FederatedData) -> None:
    # A replaced record is two zeroed ones, so an advantage is at most tanh(eps) + 2 delta = .1; of
    # 20 runs a world its deviation is at most .16, so .7 is exceeded with chance 1e-4.
    assert advantage(digits, 0.1) < 0.7


def test_a_record_is_found_where_the_release_has_no_noise(digits: FederatedData) -> None:
    # Means lie six deviations of the release's rounding apart: four misses of 40 come at 1e-7.
    assert advantage(digits, 1e6) >= 0.8
