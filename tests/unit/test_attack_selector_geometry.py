"""Boundaries, spheres and scores on regions that are known exactly."""

import numpy as np
import pytest
import torch

from attacks.base import Images as Guesses
from attacks.images import Originals
from attacks.selector import (
    Asking,
    FlipRadius,
    Informed,
    Margin,
    Mask,
    asking_through,
    crossed,
    crossings,
    first_record_zeroed,
    in_front,
    noiseless_rules,
)
from attacks.statistics import Claim
from attacks.trilateration import SphereSettings, Trilateration, approach, scouted
from attacks.view import Capability, Oracle, Public, server_view
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.privacy.release import release_class_means
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.protection import record as record_unit
from secure_fd.transcript import Transcript

D, INNER = 180, 60
RADIUS = 3.0


def center() -> np.ndarray:
    inside = np.random.default_rng(1).uniform(0, 1, INNER)
    return np.concatenate([inside, np.zeros(D - INNER)])


def ball(points: np.ndarray) -> np.ndarray:
    return ((points - center()) ** 2).sum(axis=1) <= RADIUS**2


def margin() -> Margin:
    public = np.random.default_rng(2).uniform(0, 1, (30, D))
    public[:, INNER:] = 0
    return Margin.of(public)


def near() -> np.ndarray:
    moved = center()
    moved[:INNER] = np.clip(moved[:INNER] + np.random.default_rng(3).normal(0, 0.2, INNER), 0, 1)
    return moved


@pytest.mark.parametrize("bits", [4, 12])
def test_a_crossing_is_as_precise_as_its_bits(bits: int) -> None:
    starts = np.zeros((50, 1))
    ends = np.ones((50, 1))
    edges = np.random.default_rng(0).uniform(0.2, 0.8, 50)
    found = crossings(lambda x: x[:, 0] <= edges, starts, ends, bits)
    assert np.abs(found - edges).max() <= 2.0 ** -(bits + 1)
    assert crossed(found, bits).all()
    nowhere = crossings(lambda x: np.zeros(len(x), dtype=bool), starts, ends, bits)
    everywhere = crossings(lambda x: np.ones(len(x), dtype=bool), starts, ends, bits)
    assert not crossed(nowhere, bits).any()
    assert not crossed(everywhere, bits).any()


def test_heights_up_the_margin_are_squared_distances() -> None:
    found = margin()
    assert found.inner.sum() == INNER
    points = np.stack([near(), center()])
    expected = RADIUS**2 - ((points - center()) ** 2).sum(axis=1)
    np.testing.assert_allclose(found.heights(ball, points, 16), expected, atol=0.01)
    far = np.ones((1, D))
    far[0, INNER:] = 0
    assert found.heights(lambda x: np.zeros(len(x), dtype=bool), far, 8)[0] == 0
    assert found.heights(lambda x: np.ones(len(x), dtype=bool), far, 8)[0] == 0


def test_the_margin_takes_the_darkest_pixels_where_too_few_are_dark() -> None:
    public = np.random.default_rng(0).uniform(0.5, 1, (20, 150))
    public[:, 100:] -= 0.4
    found = Margin.of(public)
    assert found.lift.sum() == 100
    assert found.lift[100:].all()


def test_a_sphere_fit_finds_the_center_of_a_ball() -> None:
    settings = SphereSettings(bits=16, fits=2, step=1.0)
    rng = np.random.default_rng(0)
    found, unexplained = approach(ball, margin(), near(), settings, rng)
    assert np.abs(found - center()).max() < 0.01
    assert unexplained < 1e-3


def test_lines_to_noise_serve_where_the_margin_leads_nowhere() -> None:
    short = np.zeros(D)
    short[-4:] = 1.0  # four pixels end within the ball
    settings = SphereSettings(bits=16, fits=2, surplus=2.0)
    rng = np.random.default_rng(0)
    found, unexplained = approach(ball, Margin(short, short == 0), near(), settings, rng)
    assert unexplained < 1e-3
    assert np.abs(found - center()).max() < 0.01


def test_answers_at_random_leave_the_start() -> None:
    coin = np.random.default_rng(5)
    found, unexplained = approach(
        lambda x: coin.random(len(x)) < 0.5,
        margin(),
        near(),
        SphereSettings(bits=8),
        np.random.default_rng(0),
    )
    np.testing.assert_array_equal(found, near())
    assert unexplained == 1.0


def test_scouting_prefers_a_start_near_one_record() -> None:
    lone, twin = center(), center()
    lone[:INNER], twin[:INNER] = 0.1, 0.9
    other = twin.copy()
    other[: INNER // 4] = 0.3

    def density(points: np.ndarray) -> np.ndarray:
        kernels = [((points - c) ** 2).sum(axis=1) for c in (lone, twin, other)]
        return np.exp(-np.array(kernels) / 2).sum(axis=0) >= np.exp(-(RADIUS**2) / 2)

    middle = (twin + other) / 2  # the deepest start, and the worst
    shifted = lone.copy()
    shifted[:INNER] += np.random.default_rng(0).normal(0, 0.1, INNER).clip(-0.1, 0.1)
    own = np.stack([middle, shifted, twin, other])
    start = scouted(density, margin(), own, SphereSettings())
    np.testing.assert_array_equal(start, shifted)


def test_repeats_follow_the_likelihood_ratio() -> None:
    noise = RandomizedResponse(4.0, 11)
    five = asking_through(noise, 5)
    assert five == Asking(5, 2)
    chosen = np.log(noise.p / noise.q), np.log((1 - noise.p) / (1 - noise.q))
    for named in range(6):
        ratio = named * chosen[0] + (5 - named) * chosen[1]
        assert (ratio >= 0) == (named >= five.needed)
    assert asking_through(noise, 1) == Asking(1, 1)
    with pytest.raises(ConfigurationError, match="needed"):
        Asking(2, 3)


def test_the_mask_reads_a_row_or_the_sum_and_repeats_are_other_images() -> None:
    asked: list[torch.Tensor] = []

    def votes(images: torch.Tensor) -> torch.Tensor:
        asked.append(images)
        answers = torch.zeros(len(images), 2, 3)
        answers[:, 1, 2] = (images.flatten(1).mean(dim=1) > 0.5).float()
        return answers

    points = np.stack([np.full(4, 0.9), np.full(4, 0.1), np.ones(4), np.zeros(4)])
    oracle = Oracle(votes, 100)
    said = [True, False, True, False]
    assert Mask(oracle, (1, 2, 2), 2)(points).tolist() == said
    assert Mask(oracle, (1, 2, 2), 2, row=1)(points).tolist() == said
    assert not Mask(oracle, (1, 2, 2), 2, row=0)(points).any()
    assert not Mask(oracle, (1, 2, 2), 1)(points).any()
    assert oracle.queries == 4
    assert Mask(oracle, (1, 2, 2), 2, asking=Asking(5, 5))(points).tolist() == said
    assert oracle.queries == 20
    seen = torch.cat(asked)
    assert 0 <= seen.min() <= seen.max() <= 1


def test_a_claim_names_what_it_allows() -> None:
    allowed = Claim(4.0, 1e-5, 1.16).bounds()
    assert allowed["auc_bound"] == pytest.approx(0.982, abs=1e-3)
    assert allowed["auc_bound_of_the_noise"] == pytest.approx(0.729, abs=1e-3)
    assert "auc_bound_of_the_noise" not in Claim(4.0, 0.0).bounds()


def test_a_zeroed_record_takes_its_own_features_away_and_nothing_else() -> None:
    features = np.eye(6)[[0, 1, 2, 3]] * 0.5
    labels = np.array([0, 0, 1, 1])

    def means() -> np.ndarray:
        made = record_unit.release_class_means(
            features, labels, 2, epsilon=float("inf"), delta=1e-5
        )
        assert made.n_records == 4
        return made.means

    before = means()
    with first_record_zeroed():
        during = means()
    assert record_unit.release_class_means is release_class_means
    gap = before - during
    assert gap[0, 0] == pytest.approx(0.5 / 4)
    gap[0, 0] = 0
    assert not gap.any()
    assert features[0, 0] == 0.5


def test_rules_without_noise_are_those_of_the_noisy_release() -> None:
    rules, noise = noiseless_rules(4.0, 1e-5, 100), 1.0839 / 100
    assert rules.size(0.0, 1) == record_unit.RecordRules().size(noise, 1)
    assert rules.ridge(0.0, 1000, 1) == record_unit.RecordRules().ridge(noise, 1000, 1)
    assert rules.ridge(0.0, 1000, 1) > record_unit.RecordRules().ridge(0.0, 1000, 1)


def test_a_candidate_is_put_in_front() -> None:
    records = Images(torch.arange(4.0).reshape(4, 1, 1, 1) / 4, torch.arange(4))
    assert in_front(records, 2).labels.tolist() == [2, 0, 1, 3]


def public() -> Public:
    images = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    return Public(images, 2, 2, lambda _: torch.nn.Identity(), torch.tensor([0, 0, 0, 0, 1, 1]))


def test_without_injection_every_attack_is_refused() -> None:
    view = server_view(Transcript(2), public())
    image = public().proxies[0]
    flip = FlipRadius.prepare(public(), image[None], 0)
    silent = Informed(image, 0, lambda x: x, lambda x: x)
    for attack in (Trilateration(0), flip, silent):
        with pytest.raises(MissingCapabilityError, match="injection of proxy images"):
            attack.run(view, 0)


def test_a_class_without_public_images_has_no_start() -> None:
    oracle = Oracle(lambda images: torch.zeros(len(images), 1, 3), 10)
    view = server_view(Transcript(2), public(), {Capability.INJECT_PROXIES: oracle})
    with pytest.raises(LocalError, match="labelled 2"):
        Trilateration(2).run(view, 0)
    with pytest.raises(LocalError, match="class 2 has 0 public images"):
        FlipRadius.prepare(public(), public().proxies[:1], 2)


def test_every_image_needs_its_truth_and_settings_their_range() -> None:
    blank = torch.zeros(1, 16, 16)
    elsewhere = Guesses(blank[None], torch.tensor([3]), details={"unexplained": 1.0})
    truth = Originals({0: public().proxies[:2]}, {0: [public().proxies[2:4]]})
    with pytest.raises(LocalError, match="no class of the reconstructions"):
        Trilateration(0).score(elsewhere, truth, 0)
    with pytest.raises(ConfigurationError, match="surplus"):
        SphereSettings(surplus=1.0)
    with pytest.raises(ConfigurationError, match="bits"):
        SphereSettings(bits=0)
