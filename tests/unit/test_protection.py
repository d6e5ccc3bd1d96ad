"""What stands before the wire: released once, within the alphabet, unbiased, and never undone."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import secure_fd.methods.votes
from secure_fd.aggregation.base import Stage
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.federation import Federation
from secure_fd.knowledge import Contribution, FloatArray, IntArray
from secure_fd.methods.base import Labels, WeighedVotes
from secure_fd.methods.fkd import FKD
from secure_fd.methods.independent import Independent
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.privacy.units import PrivacyUnit
from secure_fd.protection.base import NoProtection, Protection, Unguarded
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordGuard, RecordUnit
from tests.small_federation import (
    all_proxies,
    ensembles,
    faults,
    federation,
    parameters,
    run,
    same_ensembles,
)

INF = math.inf


def uploads(made: Federation) -> list[IntArray]:
    """By round, [K, m, C] what every client released."""
    rounds = []
    for seen in made.transcript.distillation:
        assert seen.uploads is not None
        rows = [seen.uploads[k].reshape(len(seen.proxy_indices), -1) for k in sorted(seen.uploads)]
        rounds.append(np.stack(rows).astype(np.int64))
    return rounds


# An infinite epsilon is no protection, to the last bit.


@pytest.mark.parametrize("alphabet", ["full", "declared"])
@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_an_infinite_epsilon_changes_no_bit(
    digits: FederatedData, labels: Labels, alphabet: str
) -> None:
    unit = LabelUnit(INF, 1e-5, alphabet)  # type: ignore[arg-type]
    bare = run(federation(digits, SelectiveFD(labels)))
    noiseless = run(federation(digits, SelectiveFD(labels), protection=unit))
    assert same_ensembles(bare, noiseless)
    assert np.array_equal(parameters(bare), parameters(noiseless))
    assert bare.transcript.up.tolist() == noiseless.transcript.up.tolist()
    assert unit.guarantee() is None
    noisy = run(federation(digits, SelectiveFD(labels), protection=LabelUnit(1.0, 1e-5)))
    assert not same_ensembles(bare, noisy)


def test_an_infinite_epsilon_at_the_record_unit_draws_no_noise(digits: FederatedData) -> None:
    def votes(epsilon: float, seed: int) -> IntArray:
        unit = RecordUnit(epsilon, 1e-5, SeededRandom(seed))
        return uploads(run(federation(digits, protection=unit), rounds=1))[0]

    assert np.array_equal(votes(INF, 1), votes(INF, 2))
    assert not np.array_equal(votes(2.0, 1), votes(2.0, 2))
    unit = prepared(RecordUnit(INF, 1e-5), digits)
    claim = unit.guarantee()
    assert claim is not None
    assert not claim.holds


# The label unit.


@pytest.mark.parametrize("make", [LabelUnit, RecordUnit])
def test_a_protection_serves_one_federation(
    digits: FederatedData, make: Callable[[float, float], Protection]
) -> None:
    """A second federation would get a second release, at a cost that nobody counts."""
    unit = make(1.0, 1e-5)
    run(federation(digits, protection=unit), rounds=1)
    with pytest.raises(BudgetError, match="serves one federation"):
        run(federation(digits, protection=unit), rounds=1)


@pytest.mark.parametrize("alphabet", ["full", "declared"])
def test_released_symbols_are_in_the_alphabet(digits: FederatedData, alphabet: str) -> None:
    unit = LabelUnit(0.1, 1e-5, alphabet, SeededRandom(5))  # type: ignore[arg-type]
    [seen] = uploads(
        run(federation(digits, protection=unit, schedule=all_proxies(digits)), rounds=1)
    )
    assert set(np.unique(seen)) == {0, 1}
    assert seen.sum(axis=2).max() == 1
    named = [set(np.flatnonzero(rows.any(axis=0))) for rows in seen]
    # At epsilon 0.1 every symbol has a chance of 9 % and more: 200 answers miss one with 1e-8.
    wanted = [set(range(10))] * 4 if alphabet == "full" else [{k} for k in range(4)]
    assert named == wanted


def test_symbols_of_a_protection_s_votes_carry_no_fraction(digits: FederatedData) -> None:
    """A soft answer becomes a whole symbol: fractions would carry what the noise does not cover."""
    unit = LabelUnit(4.0, 1e-5, random=SeededRandom(6))
    made = run(federation(digits, SelectiveFD("soft"), protection=unit), rounds=1)
    assert made.transcript.distillation[0].levels == 1
    assert set(np.unique(uploads(made)[0])) == {0, 1}


def test_a_client_has_one_part_and_the_weakest_speaks_for_all(digits: FederatedData) -> None:
    unit = LabelUnit(4.0, 1e-5)
    made = federation(digits, protection=unit, dropouts=faults({1: {2: Stage.PREPARE}}))
    run(made, rounds=2)
    counts = [part.ledger.released for part in unit.parts.values()]
    assert counts[2] < counts[0] == counts[1] == counts[3]
    claim = made.guarantee()
    assert claim == unit.guarantee() == unit.parts[0].guarantee() != unit.parts[2].guarantee()
    with pytest.raises(BudgetError, match="client 2 has its part"):
        unit.client(2)


@pytest.mark.parametrize("method", [FKD(), Independent()])
def test_a_protection_that_nothing_would_use_is_refused(
    digits: FederatedData, method: FKD | Independent
) -> None:
    with pytest.raises(ConfigurationError, match="'record unit' is not allowed"):
        federation(digits, method, protection=RecordUnit(4.0, 1e-5))  # type: ignore[arg-type]


def test_the_guarantee_counts_every_answer(digits: FederatedData) -> None:
    unit = LabelUnit(4.0, 1e-5)
    assert unit.guarantee() is None
    made = run(federation(digits, protection=unit), rounds=2)
    asked = np.concatenate([seen.proxy_indices for seen in made.transcript.distillation])
    claim = made.protection.guarantee()
    assert claim is not None
    assert (claim.unit, claim.epsilon, claim.delta) == (PrivacyUnit.LABEL, 4.0, 0.0)
    assert f"over {len(np.unique(asked))} answers" in claim.accountant
    assert len(np.unique(asked)) < len(asked)
    assert {c.unit for c in claim.composes_to} == {PrivacyUnit.RECORD, PrivacyUnit.CLIENT}
    assert all(4.0 < c.epsilon <= 4.0 * len(asked) and c.delta == 1e-5 for c in claim.composes_to)
    assert "epsilon 4 at delta 0" in claim.sentence()


def test_declared_classes_are_named_as_not_covered(digits: FederatedData) -> None:
    for alphabet, said in (("full", False), ("declared", True)):
        unit = LabelUnit(4.0, 1e-5, alphabet)  # type: ignore[arg-type]
        run(federation(digits, protection=unit), rounds=1)
        claim = unit.guarantee()
        assert claim is not None
        assert any("declares" in item for item in claim.not_covered) is said


def test_protections_tell_which_classes_their_clients_declare(digits: FederatedData) -> None:
    held = {k: client.classes for k, client in enumerate(digits.clients)}
    declare = LabelUnit(4.0, 1e-5, "declared")
    silent = (
        *(LabelUnit(4.0, 1e-5), LabelUnit(INF, 1e-5, "declared")),
        *(RecordUnit(4.0, 1e-5), NoProtection()),
    )
    records = [client.train for client in digits.clients]
    for unit in (declare, RecordUnit(4.0, 1e-5, classes="declared"), *silent):
        unit.prepare(digits.proxies.pixels, digits.n_classes, records)
        assert unit.declared_classes == ({} if unit in silent else held)


def test_seeded_noise_voids_the_guarantee(digits: FederatedData) -> None:
    for unit in (
        LabelUnit(4.0, 1e-5, random=SeededRandom(1)),
        RecordUnit(4.0, 1e-5, SeededRandom(1)),
    ):
        claim = run(federation(digits, protection=unit), rounds=1).protection.guarantee()
        assert claim is not None
        assert not claim.holds
        assert "seeded generator" in claim.sentence()


# The record unit.


def forbidden(indices: IntArray) -> Contribution:
    raise AssertionError(f"the network was asked about {len(indices)} proxies")


def prepared(unit: RecordUnit, data: FederatedData) -> RecordUnit:
    unit.prepare(data.proxies.pixels, data.n_classes, [client.train for client in data.clients])
    return unit


def test_the_record_unit_never_asks_the_network(digits: FederatedData) -> None:
    some = np.array([3, 5, 8])
    unit = prepared(RecordUnit(4.0, 1e-5), digits)
    for client in range(4):
        assert unit.parts[client].release(some).predictions.shape == (3, 10)
    with pytest.raises(TypeError, match="positional arguments"):
        unit.parts[0].release(some, forbidden)  # type: ignore[call-arg]
    with pytest.raises(AssertionError, match="about 3 proxies"):
        Unguarded().release(some, forbidden)


def test_a_federation_with_the_record_unit_asks_no_network_and_no_selector(
    digits: FederatedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> FloatArray:
        raise AssertionError("a network was asked")

    monkeypatch.setattr(secure_fd.methods.votes, "predict", refuse)
    made = run(federation(digits, protection=RecordUnit(4.0, 1e-5)), rounds=2)
    assert any(sent.kept.any() for sent in ensembles(made))
    assert all(made.selector_scores(k) is None for k in range(4))
    with pytest.raises(AssertionError, match="a network was asked"):
        run(federation(digits, protection=NoProtection()), rounds=1)


def test_what_the_record_unit_releases_does_not_depend_on_any_network(
    digits: FederatedData,
) -> None:
    """Other initial weights, other batches: the same uploads; unprotected ones differ."""

    def released(protection: Callable[[Random], Protection], seed: int) -> list[IntArray]:
        unit = protection(SeededRandom(3))
        made = federation(
            digits,
            SelectiveFD("soft", votes="counted", own_classes=False),
            protection=unit,
            schedule=all_proxies(digits),
            seed=seed,
            networks_seed=seed,
        )
        return uploads(run(made, rounds=2))

    def record(random: Random) -> Protection:
        return RecordUnit(4.0, 1e-5, random)

    one, other = released(record, 1), released(record, 2)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(one[0], one[1])
    bare, others = (released(lambda _: NoProtection(), seed) for seed in (1, 2))
    assert not np.array_equal(bare[0], others[0])


def test_the_record_unit_guards_every_record_that_a_client_holds(digits: FederatedData) -> None:
    """Validation records are private too, and the client with fewest records speaks for all."""

    class Recording(RecordUnit):
        def _guard(self, number: int, records: Images | None) -> RecordGuard:
            assert records is not None
            given.append(len(records))
            return super()._guard(number, records)

    given: list[int] = []
    unit = Recording(4.0, 1e-5)
    run(federation(digits, protection=unit), rounds=1)
    assert given == [len(c.train) + len(c.validation) for c in digits.clients]
    claim = unit.guarantee()
    assert claim is not None
    assert (claim.unit, claim.delta) == (PrivacyUnit.RECORD, 1e-5)
    assert 4.0 * (1 - 1e-6) < claim.epsilon <= 4.0


def test_rounds_of_the_record_unit_are_free(digits: FederatedData) -> None:
    claims = []
    for rounds in (1, 4):
        unit = RecordUnit(2.0, 1e-5)
        run(federation(digits, protection=unit, aggregation=MaskedSum(4)), rounds=rounds)
        claims.append(unit.guarantee())
    assert claims[0] == claims[1]
    assert RecordUnit(2.0, 1e-5).guarantee() is None


# Mistakes.


@pytest.mark.parametrize("make", [LabelUnit, RecordUnit])
@pytest.mark.parametrize(
    ("epsilon", "delta", "field"),
    [
        (0.0, 1e-5, "epsilon"),
        (-1.0, 1e-5, "epsilon"),
        (math.nan, 1e-5, "epsilon"),
        (1.0, 0.0, "delta"),
    ],
)
def test_a_wrong_budget_is_refused_before_any_work(
    make: Callable[[float, float], Protection], epsilon: float, delta: float, field: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}: .* is not allowed"):
        make(epsilon, delta)


def test_an_unknown_alphabet_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="alphabet: 'some' is not allowed; use full or"):
        LabelUnit(1.0, 1e-5, "some")  # type: ignore[arg-type]


@pytest.mark.parametrize(("epsilon", "apart"), [(4.0, True), (np.inf, False)])
def test_under_the_label_unit_no_answer_steers_a_later_one(
    digits: FederatedData, monkeypatch: pytest.MonkeyPatch, epsilon: float, apart: bool
) -> None:
    """Trust comes from earlier answers: one changed answer would reach every later weight."""
    trusted: list[float] = []
    said = WeighedVotes.contribution

    def spied(self: WeighedVotes, *given: object) -> Contribution:
        trusted.append(given[-1])  # type: ignore[arg-type]
        return said(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(WeighedVotes, "contribution", spied)
    unit = LabelUnit(epsilon, 1e-5)
    every = all_proxies(digits)
    run(federation(digits, SelectiveFD("hard"), protection=unit, schedule=every), rounds=3)
    assert len(trusted) == 12
    assert (max(trusted) == 0.0) is apart
