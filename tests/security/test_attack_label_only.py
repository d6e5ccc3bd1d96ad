"""Label-only membership, every variant: a memorising target is caught, a stranger not.

Targets learn digits under wrong labels, which nobody guesses.
"""

import pickle
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import Tensor

from attacks.base import (
    Challenge,
    Labelled,
    Scores,
    draw_challenge,
    match_classes,
    pooled,
    substream,
)
from attacks.fit import Fit, fit, label_function
from attacks.hop_skip_jump import NOISE_STARTS, HopSkipJump
from attacks.label_only import (
    VARIANTS,
    Augmentation,
    LabelAttack,
    LabelOnly,
    LabelOnlyGap,
    LabelOnlySettings,
    NoiseRobustness,
    Shadow,
    Shadows,
    augmentations,
    calibrate,
    train_shadows,
    transform,
    variants,
)
from attacks.view import Capability, LabelFunction, LabelOracle, Public, outsider_view
from secure_fd.errors import BudgetError, ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.transcript import Transcript
from tests import attack_games as games

digits = partial(games.digits, 8)
mlp = partial(games.perceptron, 64, 64, 10)
SETTINGS = LabelOnlySettings(
    rotation=2,
    shift=1,
    training=Fit(epochs=40, learning_rate=1e-2),
    shadows=2,
    records=100,
    samples=7,
    sigmas=(0.1, 0.3, 0.7),
    boundary=HopSkipJump(budget=120),
    starts=60,
    attacked=None,
    calibration=100,
)


@cache
def wrong() -> Labelled:
    """All records under wrong labels drawn at random: nobody guesses those."""
    off = torch.randint(1, 10, (1797,), generator=torch.Generator().manual_seed(0))
    return Labelled(digits().images, (digits().labels + off) % 10)


@cache
def public() -> Public:
    shared = wrong().take(torch.arange(400))  # as the target's records are, so shadows resemble it
    return Public(shared.images, 2, 10, mlp, shared.labels)


def challenged(records: Labelled) -> Challenge:
    inside, outside = (records.take(torch.arange(*part)) for part in ((400, 600), (600, 1300)))
    return draw_challenge(*match_classes(inside, outside, seed=0, most=12), seed=0)


@cache
def challenge() -> Challenge:
    return challenged(wrong())


@cache
def shadows() -> Shadows:
    return train_shadows(public(), SETTINGS, seed=0)


@cache
def attacks() -> dict[str, LabelAttack]:
    made = variants(public(), challenge().candidates, seed=0, settings=SETTINGS)
    return {attack.name: attack for attack in made}


@cache
def memorising(records: str) -> LabelFunction:
    """A network that knows some records by heart: the challenge's members, or others."""
    known = {
        "members": lambda: challenge().candidates.take(torch.from_numpy(challenge().is_member)),
        "others": lambda: wrong().take(torch.arange(1300, 1540)),
        "others, rightly labelled": lambda: digits().take(torch.arange(1300, 1420)),
    }[records]()
    training = Fit(epochs=60, learning_rate=1e-2)
    return label_function(fit(mlp, known.images, known.labels, training, seed=3))


def run(attack: LabelAttack, target: LabelFunction, budget: int = 100_000) -> Scores:
    oracle = LabelOracle(target, budget)
    view = outsider_view(Transcript(2), public(), {Capability.QUERY_FINAL_MODEL: oracle})
    return attack.run(view, 0)


@cache
def memorised(name: str) -> Scores:
    return run(attacks()[name], memorising("members"))


NAMES = [kind.name for kind in VARIANTS]
FOUR_SIGMA = 0.15  # of an area with 120 a side at chance: deviation .037
every_variant = pytest.mark.parametrize("name", NAMES)


@every_variant
def test_a_memorising_target_is_caught(name: str) -> None:
    attack = attacks()[name]
    result = attack.score(memorised(name), challenge().is_member, 0)
    assert result.figure > 0.9
    assert result.interval[0] > 0.85
    assert result.details["p_value"] < 0.005
    assert result.details["gap_attack_accuracy"] > 0.9
    assert result.details["advantage"] > 0.5
    assert result.control == pytest.approx(0.5, abs=FOUR_SIGMA)  # it saw no member
    assert (result.n_members, result.n_non_members) == (120, 120)
    assert 240 <= result.queries <= attack.queries_needed
    assert result.details["queries_per_candidate"] == result.queries / 240
    assert result.roc is not None


def test_queries_are_those_of_the_papers() -> None:
    needed = {name: attack.queries_needed for name, attack in attacks().items()}
    assert needed == {
        "label-only-gap": 240,
        "label-only": 240 * (2 * 2 + 1 + 4 * 1),
        "label-only-noise": 240 * (1 + 7),
        "label-only-boundary": 240 * 120 + 60 + NOISE_STARTS,
    }
    assert memorised("label-only").queries == needed["label-only"]


@every_variant
def test_shuffled_membership_is_a_coin(name: str) -> None:
    shuffled = np.random.default_rng(0).permutation(challenge().is_member)
    result = attacks()[name].score(memorised(name), shuffled, 0)
    low, high = result.interval
    assert result.figure == pytest.approx(0.5, abs=FOUR_SIGMA)
    assert low < 0.5 < high
    assert result.details["shuffled_membership_auc"] == pytest.approx(0.5, abs=0.01)


@every_variant
@pytest.mark.parametrize("right", [False, True])
def test_a_target_that_memorised_other_records_is_a_coin(name: str, right: bool) -> None:
    posed = challenged(digits()) if right else challenge()
    target = memorising("others, rightly labelled" if right else "others")
    attack = replace(attacks()[name], candidates=posed.candidates)
    estimate = run(attack, target)
    assert len(np.unique(estimate.values)) > 1
    result = attack.score(estimate, posed.is_member, 0)
    assert result.figure == pytest.approx(0.5, abs=FOUR_SIGMA)
    assert abs(result.details["advantage"]) < 2 * FOUR_SIGMA


def test_an_oracle_attack_scores_one() -> None:
    truth = challenge().is_member
    attack = attacks()["label-only-gap"]
    known = Scores(truth.astype(float), right=truth, threshold=attack.calibrated.threshold)
    result = attack.score(known, truth, 0)
    assert (result.figure, result.details["advantage"]) == (1.0, 1.0)
    assert result.details["tpr_at_0.01_fpr"] == 1.0
    assert any("0.1 % FPR: not resolvable with 120" in words for words in result.caveats)


@every_variant
def test_a_constant_predictor_is_named_and_leaves_a_coin(name: str) -> None:
    attack = attacks()[name]
    estimate = run(attack, lambda images: torch.zeros(len(images), dtype=torch.int64))
    result = attack.score(estimate, challenge().is_member, 0)
    assert any("constant predictor" in words for words in result.caveats)
    assert result.details["gap_attack_accuracy"] == 0.5  # classes are matched: exactly chance
    assert result.details["advantage"] == 0.0
    assert result.figure == pytest.approx(0.5, abs=FOUR_SIGMA)


def test_one_label_for_all_candidates_is_not_yet_a_constant_predictor() -> None:
    same = Labelled(challenge().candidates.images, torch.zeros(240, dtype=torch.int64))

    def dark(images: Tensor) -> Tensor:
        return (images.flatten(1).mean(dim=1) < 0.05).long()

    attack = replace(attacks()["label-only-boundary"], candidates=same)
    blank = replace(attack.calibrated.probe, starts=torch.zeros(1, 1, 8, 8))
    attack = replace(attack, calibrated=replace(attack.calibrated, probe=blank))
    estimate = run(attack, dark)
    assert estimate.right.all()
    assert not estimate.caveats
    assert estimate.values.max() < 8.0  # and so every distance is finite


@every_variant
def test_the_threshold_is_the_shadows_and_the_truth_changes_no_score(name: str) -> None:
    attack, truth = attacks()[name], challenge().is_member
    before = memorised(name).values.copy()
    one, other = (attack.score(memorised(name), t, 0) for t in (truth, ~truth))
    assert one.details["threshold"] == other.details["threshold"] == attack.calibrated.threshold
    assert one.figure + other.figure == pytest.approx(1.0, abs=0.06)  # but for ties
    assert one.details["advantage"] == pytest.approx(-other.details["advantage"])
    assert np.array_equal(before, memorised(name).values)
    again = type(attack).from_shadows(shadows(), challenge().candidates, 0)
    assert again.calibrated.threshold == attack.calibrated.threshold
    assert again.calibrated.shadow_auc == attack.calibrated.shadow_auc


@every_variant
def test_the_run_stops_at_the_budget(name: str) -> None:
    with pytest.raises(BudgetError, match="budget of 100"):
        run(attacks()[name], memorising("members"), budget=100)


@every_variant
def test_without_queries_or_labels_it_is_refused(name: str) -> None:
    with pytest.raises(MissingCapabilityError, match="label queries to the final model"):
        attacks()[name].run(outsider_view(Transcript(2), public()), 0)
    unlabelled = Public(public().proxies, 2, 10, mlp)
    with pytest.raises(MissingCapabilityError, match="labels of public proxy images"):
        type(attacks()[name]).prepare(unlabelled, challenge().candidates, 0, SETTINGS)


def test_some_candidates_only_are_attacked_and_the_report_says_so() -> None:
    attack = replace(attacks()["label-only-boundary"], most=50)
    estimate = run(attack, memorising("members"))
    assert estimate.mask.sum() == len(estimate.values) == len(estimate.right) == 50
    assert estimate.queries <= attack.queries_needed == 50 * 120 + 60 + NOISE_STARTS
    both = pooled([estimate, memorised("label-only-boundary")])
    truth = np.concatenate([challenge().is_member] * 2)
    result = attack.score(both, truth, 0)
    assert result.n_members + result.n_non_members == 290
    assert result.figure > 0.9  # scores and truth stay side by side
    assert any("290 of 480 candidates were attacked" in words for words in result.caveats)
    assert result.queries == estimate.queries + memorised("label-only-boundary").queries


def test_the_control_of_posed_candidates_is_known_and_of_others_made_anew() -> None:
    attack = attacks()["label-only-noise"]
    posed = attack.against(challenge().candidates, seed=5)
    assert posed.known_control is not None
    kept = run(posed, memorising("members")).control
    assert np.array_equal(kept, posed.known_control.scores)
    fewer = posed.candidates.take(torch.arange(10))
    assert len(run(replace(posed, candidates=fewer), memorising("members")).control) == 10


def test_a_pickled_attack_finds_the_same() -> None:
    for name in NAMES:
        attack = pickle.loads(pickle.dumps(attacks()[name]))  # noqa: S301 - our own bytes
        assert np.array_equal(run(attack, memorising("members")).values, memorised(name).values)


def test_candidates_must_be_matched_and_disjoint() -> None:
    some = digits().take(torch.arange(20))
    with pytest.raises(LocalError, match="use equal numbers"):
        draw_challenge(some, digits().take(torch.arange(20, 41)), 0)
    same_size = Labelled(digits().images[20:40], (some.labels + 1) % 10)
    with pytest.raises(LocalError, match="use equal numbers"):
        draw_challenge(some.take(torch.arange(3)), same_size.take(torch.arange(3)), 0)
    with pytest.raises(LocalError, match="20 held-out images are members too"):
        draw_challenge(some, some, 0)
    with pytest.raises(LocalError, match="share no class"):
        match_classes(some.take(some.labels == 1), some.take(some.labels == 2), 0)


def test_truth_must_be_half_members() -> None:
    attack = attacks()["label-only-gap"]
    with pytest.raises(LocalError, match="use half of 240"):
        attack.score(memorised("label-only-gap"), np.ones(240, dtype=bool), 0)


def coded(n: int, by_class: bool) -> Shadows:
    """The middle pixel is the answer, right for members; by class, in class 0 for the others."""
    labels = torch.arange(2 * n) % 2

    def side(member: bool) -> Labelled:
        right = (labels == 1) == member if by_class else torch.full((2 * n,), member)
        answers = torch.where(right, labels, 1 - labels)
        images = answers.float()[:, None, None, None].expand(-1, 1, 3, 3)
        return Labelled(images, labels)

    def answer(images: Tensor) -> Tensor:
        return images[:, 0, 1, 1].round().long()

    settings = LabelOnlySettings(rotation=0, shift=0)
    return Shadows(
        (Shadow(answer, side(True), side(False)),), answer, torch.rand(3, 1, 3, 3), settings
    )


@pytest.mark.parametrize(
    ("n", "by_class", "models"), [(60, True, 2), (60, False, 0), (12, True, 0)]
)
def test_classes_get_models_of_their_own_where_the_shadows_say_so(
    n: int, by_class: bool, models: int
) -> None:
    found = LabelOnly.calibrate(coded(n, by_class), 0)
    assert isinstance(found.probe, Augmentation)
    assert len(found.probe.reader.by_class) == models  # 12 a class leave 8 a fold: too few
    if models or not by_class:
        assert found.shadow_auc > 0.95
    else:
        assert found.shadow_auc < 0.8


def test_sigma_is_the_one_whose_area_on_the_shadows_is_largest() -> None:
    chosen = attacks()["label-only-noise"].calibrated
    assert isinstance(chosen.probe, NoiseRobustness)
    areas = {s: one_sigma(s) for s in SETTINGS.sigmas}
    assert chosen.shadow_auc == max(areas.values())
    assert areas[chosen.probe.sigma] == chosen.shadow_auc


def one_sigma(sigma: float) -> float:
    probe = NoiseRobustness(sigma, SETTINGS.samples)
    return calibrate(probe, shadows(), substream(0, "label-only-noise")).shadow_auc


def test_the_share_of_noisy_copies_is_the_normal_probability() -> None:
    def bright(images: Tensor) -> Tensor:
        return (images[:, 0, 0, 0] > 0.5).long()

    image = torch.full((1, 1, 1, 1), 0.6)
    share = NoiseRobustness(0.2, 4000).scores(bright, Labelled(image, torch.tensor([1])), 0)
    assert share[0] == pytest.approx(0.6915, abs=4 * 0.0073)  # Phi(.1 / .2), four deviations


def test_several_shadows_of_the_size_that_is_asked_for() -> None:
    settings = replace(SETTINGS, shadows=3, records=40, training=Fit(epochs=1))
    made = train_shadows(public(), settings, 0)
    assert (
        [len(s.members) for s in made.each] == [len(s.non_members) for s in made.each] == [40] * 3
    )
    for shadow in made.each:
        inside = {image.numpy().tobytes() for image in shadow.members.images}
        assert not any(image.numpy().tobytes() in inside for image in shadow.non_members.images)
    assert not torch.equal(made.each[0].members.images, made.each[1].members.images)
    with pytest.raises(LocalError, match="400 labelled ones are not allowed for shadows of 201"):
        train_shadows(public(), replace(settings, records=201), 0)
    with pytest.raises(ConfigurationError, match="shadows"):
        LabelOnlySettings(shadows=0)
    with pytest.raises(ConfigurationError, match="sigmas"):
        LabelOnlySettings(sigmas=(0.1, 0.0))


def test_prepare_makes_what_variants_make() -> None:
    alone = LabelOnlyGap.prepare(public(), challenge().candidates, 0, SETTINGS)
    together = attacks()["label-only-gap"].calibrated
    assert alone.calibrated.threshold == together.threshold
    assert alone.calibrated.shadow_auc == together.shadow_auc


def test_augmentations_count_and_move_as_the_paper_says() -> None:
    assert len(augmentations(9, 0)) == 19
    assert len(augmentations(0, 3)) == 13
    assert len(augmentations(9, 1)) == 23
    maps = augmentations(0, 2)
    assert len({tuple(m.flatten().tolist()) for m in maps}) == 9
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 4, 4] = 1.0
    for theta in maps[1:]:
        moved = transform(image, theta)
        y, x = (moved[0, 0] > 0.999).nonzero()[0].tolist()
        assert abs(y - 4) + abs(x - 4) == 2
        assert moved.sum() == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(ConfigurationError, match="rotation"):
        augmentations(90, 0)


def test_a_small_turn_keeps_the_middle_and_back_again_keeps_the_image() -> None:
    smooth = digits().images[:4].repeat_interleave(4, 2).repeat_interleave(4, 3)
    there, back = augmentations(5, 0)[[1, 10]]
    returned = transform(transform(smooth, there), back)
    assert (returned - smooth).abs().mean() < 0.05 < (transform(smooth, there) - smooth).abs().max()
