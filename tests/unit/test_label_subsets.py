"""Answers of several symbols on their way through the label unit, the codec and the server."""

import numpy as np
import pytest

from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import Sums
from secure_fd.privacy.events import Response
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protection.label import LabelUnit
from tests.small_federation import all_proxies, federation, run


def prepared(unit: LabelUnit, data: FederatedData) -> LabelUnit:
    unit.prepare(data.proxies.pixels, data.n_classes, [client.train for client in data.clients])
    return unit


def test_each_symbol_of_an_answer_is_one_unit(digits: FederatedData) -> None:
    """Four of eleven symbols, abstain among them or not: three units or four, at most one each."""
    unit = LabelUnit(0.5, 1e-5, random=SeededRandom(8), subset_size=4)
    made = run(federation(digits, protection=unit, schedule=all_proxies(digits)), rounds=1)
    [seen] = made.transcript.distillation
    assert seen.levels == 4
    assert seen.uploads is not None
    units = np.stack(list(seen.uploads.values())).reshape(4, 200, 10)
    assert set(np.unique(units)) == {0, 1}
    assert set(np.unique(units.sum(axis=2))) == {3, 4}
    assert unit.mechanism.event() == Response(0.5, 11, 4)


def test_the_server_takes_votes_of_a_fraction_for_whole_symbols(digits: FederatedData) -> None:
    unit = prepared(LabelUnit(0.5, 1e-5, subset_size=5), digits)
    units = np.arange(5).repeat(2)[None, :]  # 0 to 4 of the four clients' answers hold a class
    clean = unit.debias(Sums(units.sum(axis=1) / 5, units / 5), range(4)).total
    wanted = np.clip(unit.mechanism.debias(units.astype(np.float64), 4), 0.0, None)
    assert clean.tolist() == wanted.tolist()


@pytest.mark.parametrize(("alphabet", "best"), [("full", 3), ("declared", 1)])
def test_the_best_size_is_known_once_the_alphabets_are(
    digits: FederatedData, alphabet: str, best: int
) -> None:
    unit = LabelUnit(1.0, 1e-5, alphabet, subset_size=None)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="no mechanism before it is prepared"):
        unit.levels(1)
    assert prepared(unit, digits).levels(1) == unit.mechanism.subset_size == best


@pytest.mark.parametrize("subset_size", [0, -1])
def test_an_answer_of_no_symbol_is_refused(subset_size: int) -> None:
    with pytest.raises(ConfigurationError, match=r"subset_size: .* is not allowed; use 1 or more"):
        LabelUnit(1.0, 1e-5, subset_size=subset_size)


def test_a_subset_that_a_declared_alphabet_cannot_fill_is_refused(digits: FederatedData) -> None:
    with pytest.raises(ConfigurationError, match="subset_size: 2 is not allowed; use 1 to 1"):
        prepared(LabelUnit(1.0, 1e-5, "declared", subset_size=2), digits)
