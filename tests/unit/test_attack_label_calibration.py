"""What label-only attacks ask, and what they choose on shadows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.base import Labelled, substream
from attacks.fit import Fit
from attacks.label_only import (
    Augmentation,
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
)
from secure_fd.errors import ConfigurationError, LocalError
from tests.label_only_game import SETTINGS, attacks, challenge, digits, public, shadows


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
