"""The generator that all parties hold leaks what it replays, and nothing that it never saw.

Seeds are fixed. Where a figure has to agree with chance, its 95 % interval has to hold one half: a
right attack fails so for one seed in twenty.
"""

from dataclasses import replace
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from attacks.core.base import AttackResult, Labelled, draw_challenge, match_classes
from attacks.core.run import Run
from attacks.core.view import Public
from attacks.server.generator import GeneratorMembership
from secure_fd.methods.generator import AdversarialSettings, Generator
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.training.models import flatten
from tests.attack_games import client_view, mlp
from tests.attack_games import digits as written
from tests.small_dafkd import SmallDaFKD
from tests.small_federation import federation

SETTINGS = AdversarialSettings(hidden=64, discriminator=16, sums=1, steps=2)


def part(start: int, stop: int) -> Labelled:
    """Digits of 8 x 8 pixels."""
    return written(8).take(torch.arange(start, stop))


def public() -> Public:
    known = part(0, 200)
    return Public(known.images, 2, 10, mlp, known.labels)


def sides(start: int) -> tuple[Labelled, Labelled]:
    """Four records a class from each of two parts of the digits that no other party uses."""
    return match_classes(part(start, start + 150), part(start + 150, start + 300), 0, 4)


def transcript(generator: nn.Module) -> Transcript:
    made = Transcript(2)
    made.generator = ObservedRound(0, flatten(generator).numpy())
    return made


@cache
def replaying() -> Generator:
    """The positive control: a generator trained to make the members of a part, and no others.

    Each record owns the z that point most nearly its own random way, among those of its class.
    """
    records = sides(300)[0]
    made = Generator(tuple(records.images.shape[1:]), 10, SETTINGS, 0)
    random = torch.Generator().manual_seed(0)
    ways = functional.normalize(torch.randn(len(records), made.latent, generator=random))
    optimizer = torch.optim.Adam(made.parameters(), 2e-3)
    for _ in range(600):
        z = torch.randn(128, made.latent, generator=random)
        drawn = torch.randint(len(records), (128,), generator=random)
        asked = records.labels[drawn]
        others = records.labels != asked[:, None]
        owner = (z @ ways.T).masked_fill(others, -torch.inf).argmax(dim=1)
        optimizer.zero_grad()
        functional.mse_loss(made(z, asked), records.images[owner]).backward()
        optimizer.step()
    return made


def attacked(start: int) -> AttackResult:
    challenge = draw_challenge(*sides(start), 0)
    attack = GeneratorMembership(challenge.candidates, SETTINGS)
    estimate = attack.estimate(client_view(transcript(replaying()), public()), 0)
    return attack.with_truth(challenge.is_member).score(estimate, 0)


def test_members_are_found_where_the_generator_replays_them():
    """Control: the same generator reveals nothing of records that it never saw."""
    found, blind = attacked(300), attacked(700)
    assert found.figure > 0.85
    assert found.interval[0] > found.control
    assert blind.interval[0] < 0.5 < blind.interval[1]
    assert blind.n_members == blind.n_non_members == found.n_members == 40


def test_a_run_with_a_generator_is_attacked_by_name(digits):
    run = federation(digits, SmallDaFKD())
    run.fit(1)
    found = replace(Run.of(digits, run, 0), effort="quick").attack(GeneratorMembership.name)
    assert found.figure_name == "AUC"
    assert found.n_members == found.n_non_members > 0
