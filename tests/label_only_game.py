"""One challenge of label-only membership: digits under wrong labels, which nobody guesses."""

from functools import cache, partial

import torch

from attacks.base import Challenge, Labelled, Scores, draw_challenge, match_classes
from attacks.fit import Fit, fit, label_function
from attacks.hop_skip_jump import HopSkipJump
from attacks.label_only import LabelAttack, LabelOnlySettings, Shadows, train_shadows, variants
from attacks.view import Capability, LabelFunction, LabelOracle, Public, outsider_view
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
