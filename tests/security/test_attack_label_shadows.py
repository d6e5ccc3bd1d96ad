"""Label-only membership by shadow runs: a memoriser is caught, one that saw others is not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attacks.core.view import Capability, LabelOracle, View, outsider_view
from attacks.membership.label_shadows import ProbeSettings, ShadowedLabels
from secure_fd.errors import BudgetError, MissingCapabilityError
from tests.security.test_attack_membership import (
    PROXIES,
    Memoriser,
    candidates,
    digits,
    game,
    public,
    scored,
)

SETTINGS = ProbeSettings(rotation=2, samples=1, starts=60)


def attack() -> ShadowedLabels:
    return ShadowedLabels.prepare(public(), candidates(), 0, SETTINGS)


def queried(inside: bool, budget: int = 10_000) -> list[View]:
    """Views of label oracles on memorisers: of the run's own records, or of strangers."""
    views = []
    for run in game().runs:
        own = game().records(run, 0) if inside else digits().take(torch.arange(PROXIES))
        told = LabelOracle(_first(Memoriser(own, run)), budget)
        views.append(outsider_view(public(), {Capability.QUERY_FINAL_MODEL: told}))
    return views


def _first(answer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda images: answer(images).argmax(dim=1)


def test_a_memoriser_is_caught_by_labels_alone():
    result = scored(attack(), queried(inside=True))
    assert result.figure > 0.75
    assert result.interval[0] > 0.5
    assert result.queries > 0


def test_a_target_that_saw_other_records_is_a_coin():
    result = scored(attack(), queried(inside=False))
    assert result.figure == pytest.approx(0.5, abs=0.12)  # four deviations of 400 scores


def test_queries_are_capped_and_a_view_without_them_is_refused():
    with pytest.raises(BudgetError):
        attack().observe(queried(inside=True, budget=39)[0], 0)
    with pytest.raises(MissingCapabilityError, match="label queries to the final model"):
        attack().observe(outsider_view(public()), 0)
