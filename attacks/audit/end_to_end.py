"""Audits from real images to what leaves: mislabelled canaries, each included by a fair coin.

A canary is a real image, or a whole client, with wrong labels: nothing but its presence explains
an answer that repeats them. A canary that is not included is left out; how many records a client
holds is public in every claim, and the attacker is told.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from attacks.audit.bounds import Finding, Kind, bold, printed, prove_named, prove_one_run
from attacks.audit.setting import Setting, masked_unit, replaced, tapped
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.images import Images, concatenate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, participants_of
from secure_fd.knowledge import (
    Contribution,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    Released,
    one_hot,
)
from secure_fd.methods import fedavg
from secure_fd.models import Standardise
from secure_fd.privacy.calibration import calibrate, epsilon
from secure_fd.privacy.plans import ClientPlan, RecordPlan, TrainingPlan
from secure_fd.privacy.release import NoisyClassMeans
from secure_fd.privacy.samplers import Random
from secure_fd.privacy.units import Guarantee, PrivacyUnit
from secure_fd.private_training import PrivateSGD, PrivateTrainer
from secure_fd.protection import record as record_unit
from secure_fd.protection.label import LabelUnit
from secure_fd.recipes import SGD, Sizes
from secure_fd.selection.density import ProxyReference
from secure_fd.training import Trainer, predicted_labels

_SIZES = Sizes(proxies=40, test=10, held_out=100, local=100)  # of each class
_CLIENTS = 2
_STEPS, _BATCH = 30, 64
_MEMORISING = 400
_FLEET, _ASKED, _OWN = 400, 40, 10


def record_release(setting: Setting) -> Finding:
    """Canaries among one client's records, read off its release with everything else known."""
    canaries, included = _mislabelled(setting)
    data = _images().clients[0]
    known = concatenate([data.train, data.validation])
    held = _with(known, canaries, included)
    reference, released = _tapped(held, setting)
    expected = one_hot(known.labels.numpy(), 10).T @ reference.features(known.pixels)
    unexplained = released.means * released.n_records - expected
    scores = _read(unexplained, reference.features(canaries.pixels), canaries.labels.numpy())
    plan = RecordPlan(n_records=len(held), noise=released.noise_multiplier)
    name, mu = "release of real images", 1 / released.noise_multiplier
    return _judged(PrivacyUnit.RECORD, name, plan, mu, scores, included, setting)


def record_training(setting: Setting) -> Finding:
    """Canaries among one client's records, read off the loss of FedAvg's last model."""
    canaries, included = _mislabelled(setting)
    first, second = _images().clients
    train = _with(first.train, canaries, included)
    data = [ClientData(train, first.validation, 10), second]
    optimiser = PrivateSGD(setting.epsilon, setting.delta, _STEPS, batch=_BATCH)
    with replaced(fedavg, "PrivateTrainer", _trainer_with(setting.random)):
        federation = Federation(
            participants_of([_network() for _ in data], data),
            None,
            fedavg.FedAvg(optimiser, 10),
        )
    federation.fit(_STEPS // 10)
    with torch.no_grad():
        logits = federation.models[0](canaries.pixels)
        losses = functional.cross_entropy(logits, canaries.labels, reduction="none")
    plan = TrainingPlan(len(train), _BATCH, _STEPS)
    plan = plan.with_noise(calibrate(setting.epsilon, setting.delta, plan))
    mu = plan.sample_rate * _STEPS**0.5 / plan.noise
    scores, name = -losses.double().numpy(), "FedAvg with DP-SGD"
    return _judged(PrivacyUnit.RECORD, name, plan, mu, scores, included, setting)


def label_answers(setting: Setting) -> Finding:
    """A network that memorises canaries is asked about each of them once.

    Claimed is what one answer costs, on the assumption that an image moves the answer about itself
    alone; what all answers together cost a record stands beside it.
    """
    setting = setting.loose
    canaries, included = _mislabelled(setting)
    held = _with(_images().clients[0].train, canaries, included)
    network = _network(hidden=256)
    trainer = Trainer(network, held, SGD(learning_rate=0.2), 0, torch.device("cpu"))
    trainer.local_steps(_MEMORISING)
    truths = one_hot(predicted_labels(network, canaries.pixels).numpy(), 10)
    named, claim = _asked(truths, held, canaries, setting)
    each = np.arange(len(named))
    scores = named[each, canaries.labels.numpy()] - named[each, _images().held_out.labels.numpy()]
    proof = prove_named(scores, included, setting.miss)
    record = next(c for c in claim.composes_to if c.unit is PrivacyUnit.RECORD)
    return Finding.of(
        proof,
        Kind.END_TO_END,
        PrivacyUnit.LABEL,
        "memorised images",
        claim.epsilon,
        claim.delta,
        setting.miss,
        assumes="an image moves the answer about itself alone",
        also=((f"claimed for a record, at delta {record.delta:g}", record.epsilon),),
    )


def client_votes(setting: Setting) -> Finding:
    """A fleet whose every client is a canary: its labels are permuted by a rule of its own.

    The attacker knows what each client would say, not whether it was there.
    """
    spoken, included = _fleet_votes(setting), setting.coins(_FLEET)
    plan = ClientPlan(clients=_FLEET, proxies=_ASKED, rounds=1, classes=10)
    unit = masked_unit(setting, plan, setting.random)
    codec = KnowledgeCodec(10, unit.levels(1))
    total = np.zeros(_ASKED * 10, dtype=np.int64)
    for client, said in enumerate(spoken):
        weights = np.full(_ASKED, included[client])
        units = codec.encode(Released(weights, one_hot(said, 10)))
        total += unit.perturb(client, units).astype(np.int64)
    expected = np.stack([one_hot(said, 10).ravel() for said in spoken])
    scores = (expected - expected.mean(axis=0)) @ (total / unit.levels(1))
    name, mu = "mislabelled clients", 1 / unit.plan.noise
    return _judged(PrivacyUnit.CLIENT, name, unit.plan, mu, scores, included, setting)


def _judged(
    unit: PrivacyUnit,
    name: str,
    plan: RecordPlan | TrainingPlan | ClientPlan,
    mu: float,
    scores: FloatArray,
    included: FloatArray,
    setting: Setting,
) -> Finding:
    """The boldest guesses, as many as pay against Gaussian noise of this mu."""
    setting = setting.loose
    delta, miss = setting.one_run_delta, setting.miss
    claimed = epsilon(plan, delta)
    guesses = bold(len(scores), mu, delta, miss, claimed)
    proof = prove_one_run(scores, included, guesses, delta, miss)
    return Finding.of(proof, Kind.END_TO_END, unit, name, claimed, delta, miss)


@lru_cache(maxsize=1)
def _images() -> FederatedData:
    return federate(load("mnist5k"), Split("iid"), _CLIENTS, seed=0, sizes=_SIZES)


def _mislabelled(setting: Setting) -> tuple[Images, FloatArray]:
    """Held-out images with wrong labels, and which of them are included."""
    held = _images().held_out
    shift = torch.from_numpy(setting.generator().integers(1, 10, len(held)))
    return Images(held.pixels, (held.labels + shift) % 10), setting.coins(len(held))


def _with(records: Images, canaries: Images, included: FloatArray) -> Images:
    return concatenate([records, canaries[torch.from_numpy(np.flatnonzero(included))]])


def _tapped(held: Images, setting: Setting) -> tuple[ProxyReference, NoisyClassMeans]:
    """The public feature map, and the means that one client releases, as they pass by."""
    unit = record_unit.RecordUnit(setting.epsilon, setting.delta, random=setting.random)
    with (
        tapped(record_unit, "shared_reference") as maps,
        tapped(record_unit, "release_class_means") as releases,
    ):
        unit.prepare(_images().proxies.pixels, 10, [held])
    return maps[0][0], releases[0]


def _read(noisy: FloatArray, features: FloatArray, labels: IntArray) -> FloatArray:
    """[m] how much of each canary is in its class's noisy sum [C, D], others' overlap undone."""
    scores = np.empty(len(labels))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        rows = features[own]
        gram = rows @ rows.T + np.eye(len(own))  # unit noise against inclusion by a coin
        scores[own] = np.linalg.solve(gram, rows @ noisy[label])
    return scores


def _network(hidden: int | None = None) -> nn.Module:
    """A softmax regression, or a perceptron of one hidden layer; always the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        last: list[nn.Module] = [nn.Linear(784, 10)]
        if hidden is not None:
            last = [nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
        return nn.Sequential(Standardise(), nn.Flatten(), *last)


def _trainer_with(random: Random) -> type[PrivateTrainer]:
    """The trainer that FedAvg makes, with the audit's source of noise."""

    class Trained(PrivateTrainer):
        def __init__(
            self, model: nn.Module, train: Images, settings: PrivateSGD, device: torch.device
        ) -> None:
            super().__init__(model, train, settings, device, random)

    return Trained


def _asked(
    truths: FloatArray, held: Images, canaries: Images, setting: Setting
) -> tuple[FloatArray, Guarantee]:
    """[m, C] the answers about every canary, and what is claimed for them."""
    unit = LabelUnit(setting.epsilon, setting.delta, random=setting.random)
    claimed = LabelUnit(setting.epsilon, setting.delta)
    for made in (claimed, unit):
        made.prepare(canaries.pixels, 10, [held])
        released = made.release(
            0,
            np.arange(len(truths)),
            lambda asked: Contribution(np.ones(len(asked)), truths[asked]),
        )
    votes = np.asarray(released.weights[:, None] * released.predictions)
    return votes, printed(claimed.guarantee())


def _fleet_votes(setting: Setting) -> IntArray:
    """[K, m] labels that every client's network gives to the proxies that a round asks about."""
    data = _images()
    pool = concatenate([part for d in data.clients for part in (d.train, d.validation)])
    generator = setting.generator()
    proxies = data.proxies.pixels[:_ASKED]
    said = []
    for _ in range(_FLEET):
        own = pool[torch.from_numpy(generator.integers(0, len(pool), _OWN * 10))]
        wrong = torch.from_numpy(generator.permutation(10))
        network = _network()
        wronged = Images(own.pixels, wrong[own.labels])
        Trainer(network, wronged, SGD(), 0, torch.device("cpu")).local_steps(_STEPS)
        said.append(predicted_labels(network, proxies).numpy())
    return np.stack(said).astype(np.int64)
