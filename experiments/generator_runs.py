"""Train a generator, or teach one to replay records, and attack it: the cells of its study."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torch import nn

from attacks.base import (
    AttackResult,
    Challenge,
    Labelled,
    draw_challenge,
    match_classes,
    seeded,
    substream,
)
from attacks.generator import GeneratorInversion, GeneratorMembership, replaying_generator
from attacks.inversion import REFERENCES, originals_of
from attacks.statistics import Claim
from attacks.view import Public, client_view
from experiments.generator_leakage import DELTA, FEATURE, IMAGE, MEMBERSHIP, PICTURES
from experiments.leakage import stored
from experiments.measures import ACCURACY
from experiments.study import Progress, Result
from secure_fd import models
from secure_fd.adversarial import AdversarialSettings
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import parse_split
from secure_fd.data.patches import PatchMap
from secure_fd.data.sources import load
from secure_fd.federation import Federation, participants_of
from secure_fd.methods.dafkd import DaFKD
from secure_fd.models import flatten
from secure_fd.recipes import SGD, Schedule, Sizes
from secure_fd.simulation import simulated_ledgers
from secure_fd.transcript import GeneratorRound, Transcript

if TYPE_CHECKING:
    from experiments.generator_leakage import Cell

_CLIENTS: Final = 10
_HELD_OUT: Final = 80
_REPLAYS: Final = 2000
"""Steps of the generator that is taught to replay records."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a run by what its generator makes. generated: x a round; steps: the server's on them."""

    adversarial: AdversarialSettings
    schedule: Schedule
    generated: int
    steps: int


_SGD: Final = SGD(0.02, distillation_batch=128, momentum=0.9)
TERMS: Final[Mapping[str, Terms]] = {
    IMAGE: Terms(
        AdversarialSettings(spread=0.3, judge=64),
        Schedule(warmup_steps=0, local_steps=100, proxy_steps=0, sgd=_SGD),
        generated=1024,
        steps=100,
    ),
    FEATURE: Terms(
        AdversarialSettings(spread=0.1),
        Schedule(warmup_steps=0, local_steps=200, proxy_steps=0, sgd=_SGD),
        generated=4096,
        steps=200,
    ),
}
"""Runs on images are narrower and shorter, to save time."""


def adversarial_of(cell: "Cell") -> AdversarialSettings:
    """With the cell's steps."""
    return replace(TERMS[cell.kind].adversarial, steps=cell.steps)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Who holds which images. features: the public map of the records that the run learns from.

    None where the records are the images.
    """

    images: FederatedData = field(repr=False)
    features: PatchMap | None

    @classmethod
    def of(cls, kind: str, records: int, seed: int) -> "World":
        """So many records of each class, one class a client."""
        sizes = Sizes(proxies=100, test=20, held_out=_HELD_OUT, local=records)
        images = federate(load("mnist5k"), parse_split("strong"), _CLIENTS, seed, sizes)
        return cls(images, PatchMap.fit(images.proxies.pixels) if kind == FEATURE else None)

    def records(self, images: Images) -> Images:
        """What the run knows these images as."""
        if self.features is None or not len(images):
            return images
        return Images(self.features(images.pixels), images.labels)

    @property
    def clients(self) -> list[ClientData]:
        """What each holds of them."""
        return [
            ClientData(self.records(own.train), self.records(own.validation), own.n_classes)
            for own in self.images.clients
        ]

    def sides(self, most: int, seed: int) -> tuple[Images, Images]:
        """Images of members and held-out ones, equally many of each class, `most` or fewer."""
        members = concatenate([client.train for client in self.images.clients])
        chosen = match_classes(labelled(members), labelled(self.images.held_out), seed, most)
        ours, theirs = (Images(side.images, side.labels) for side in chosen)
        return ours, theirs

    def public(self, shown: Images) -> Public:
        """What everybody knows, its proxies as `shown`."""
        known, classes = labelled(shown), self.images.n_classes
        kind = IMAGE if known.images.ndim == 4 else FEATURE
        build = partial(network, kind, classes)
        return Public(known.images, _CLIENTS, classes, build, known.labels)


def labelled(images: Images) -> Labelled:
    """As attacks take them: features of one pixel are vectors."""
    pixels = images.pixels
    features = pixels.shape[2:] == (1, 1)
    return Labelled(pixels.flatten(1) if features else pixels, images.labels)


def network(kind: str, n_classes: int, seed: int) -> nn.Module:
    """The classifier of every client, alike."""
    if kind == FEATURE:
        return models.build("patches-128", n_classes, seed)

    def layers() -> nn.Module:
        first, last = nn.Linear(28 * 28, 64), nn.Linear(64, n_classes)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last)

    return seeded(layers, seed)


def federated(world: World, cell: "Cell") -> Federation:
    """The run whose generator is attacked, to its last round."""
    clients, terms = world.clients, TERMS[cell.kind]
    method = DaFKD(generated=terms.generated, steps=terms.steps, adversarial=adversarial_of(cell))
    if cell.epsilon is not None:
        method = method.trained_privately(
            cell.epsilon,
            DELTA,
            cell.rounds,
            terms.schedule,
            ledgers=simulated_ledgers(_CLIENTS, cell.epsilon, DELTA),
        )
    networks = [network(cell.kind, world.images.n_classes, cell.seed) for _ in clients]
    people = participants_of(networks, clients)
    run = Federation(people, None, method, schedule=terms.schedule, seed=cell.seed)
    run.fit(cell.rounds)
    return run


def replayed(members: Labelled, cell: "Cell") -> Transcript:
    """The transcript of a run whose generator makes the members' records again."""
    classes = int(members.labels.max()) + 1
    made = replaying_generator(members, classes, adversarial_of(cell), _REPLAYS, cell.seed)
    transcript = Transcript(_CLIENTS)
    transcript.generator = GeneratorRound(0, None, flatten(made).numpy())
    return transcript


def measure_cell(_data_dir: Path | None, cell: "Cell", _made: None, progress: Progress) -> Result:
    """Train, and attack as a client that keeps what it was sent: masks would change nothing."""
    start = time.process_time()
    world = World.of(cell.kind, cell.records, cell.seed)
    sides = world.sides(REFERENCES, cell.seed)
    members, held_out = (labelled(world.records(side)) for side in sides)
    figures: dict[str, float] = {}
    notes: dict[str, object] = {}
    if cell.replayed:
        transcript = replayed(members, cell)
    else:
        run = federated(world, cell)
        transcript = run.transcript
        accuracies = run.accuracies(world.records(world.images.test))
        figures[ACCURACY] = sum(accuracies) / len(accuracies)
        claim = run.guarantee()
        notes = {} if claim is None else {"guarantee": claim.sentence()}
    progress(80)
    challenge = draw_challenge(members, held_out, cell.seed)
    found = {
        MEMBERSHIP: _membership(transcript, challenge, world, cell),
        PICTURES: _pictures(transcript, sides, world, cell),
    }
    bare = {name: replace(result, roc=None, images=None) for name, result in found.items()}
    kept, _ = stored(bare)
    seconds = time.process_time() - start
    return Result(cell, figures, seconds, notes=notes, attacks=kept)


def _membership(
    transcript: Transcript, challenge: Challenge, world: World, cell: "Cell"
) -> AttackResult:
    public = world.public(world.records(world.images.proxies))
    seed = substream(cell.seed, MEMBERSHIP)
    claim = None if cell.epsilon is None else Claim(cell.epsilon, DELTA)
    attack = GeneratorMembership.prepare(
        public, challenge.candidates, adversarial_of(cell), seed, claim=claim
    )
    return attack.score(
        attack.run(client_view(transcript, public), seed), challenge.is_member, seed
    )


def _pictures(
    transcript: Transcript, sides: tuple[Images, Images], world: World, cell: "Cell"
) -> AttackResult:
    """On the images behind the members' records and behind those held out."""
    public, seed = world.public(world.images.proxies), substream(cell.seed, PICTURES)
    attack = GeneratorInversion.prepare(public, adversarial_of(cell), seed, world.features)
    truth = originals_of(*map(labelled, sides))
    return attack.score(attack.run(client_view(transcript, public), seed), truth, seed)
