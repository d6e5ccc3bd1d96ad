"""The attacks of a comparison on a finished run: what each attacker sees, and what scores it.

    arsenal = prepare(("tracing", "inversion"), data, seed)
    found = arsenal.attack("tracing", run)

Whatever needs no transcript is made once and serves all runs on the same data. Attacks of one's own
are named package.module:Name, see the server's view, and are scored with a `Truth`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from attacks import OF_UPDATES, ON_A_RUN, load
from attacks.core import fit
from attacks.core.base import (
    Attack,
    AttackResult,
    BoolArray,
    Challenge,
    Labelled,
    draw_challenge,
    match_classes,
    pooled,
    seeded,
    substream,
)
from attacks.core.scoring import score_scores
from attacks.core.view import Capability, LabelOracle, Public, outsider_view, server_view
from attacks.inversion import gmi
from attacks.inversion import prior as priors
from attacks.inversion.gmi import (
    REFERENCES,
    InversionTruth,
    ModelInversion,
    inversion_truth,
)
from attacks.inversion.one_update import SET_UPS, one_update
from attacks.inversion.update_of_run import UpdateOfRun
from attacks.inversion.updates_attack import Behind
from attacks.membership import overfitted
from attacks.membership.label_only import FinalLabels
from attacks.membership.server_members import CLASS_SUMS, IN_CLEAR, UPDATES, ServerMembers
from attacks.server import generator as generators
from attacks.server.class_sums import SumNoise
from attacks.server.label_distribution import LabelDistribution
from attacks.server.tracing import Blocks, Tracing
from attacks.server.votes import undoing
from secure_fd.cache import freed_with_owner
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import image_set, own_shape
from secure_fd.data.images import Images, concatenate
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.methods.dafkd import DaFKD
from secure_fd.methods.fedavg import AveragesParameters, FedAvg
from secure_fd.methods.generator import AdversarialSettings
from secure_fd.methods.pooled_heads import PublicHead
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit, RandomizedResponse
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.density_ratio import shared_reference
from secure_fd.simulation.federation import Federation
from secure_fd.training import models
from secure_fd.training.recipes import Schedule

_SEARCH = gmi.InversionSettings(steps=150, restarts=2)
"""Of the comparison. The suite searches longer, and finds as little."""
_MEMBERS = 20
"""Of a client, where its own messages are asked about."""
_OVERFITTED = 12
"""Records of a client that overfits, about."""
_UNCAPPED, _NEVER = 1_000_000, 1e-30
_QUICK_STEPS = 50
"""Of the generator of public records, the control of attacks on generators."""
POSITIVE = "positive_control"
"""The detail of a result that holds what the attack reaches where nothing protects clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What an attack needs of a run.

    data: who holds what, for the truth and for what is public of it. response: the mechanism of the
    label unit, whose parameters everybody knows. private: DP-SGD of shared parameters.
    adversarial: of a method that has a generator. noise: of pooled sums, what is public. networks:
    of every client, after the last round.
    """

    data: FederatedData = field(repr=False)
    transcript: Transcript = field(repr=False)
    seed: int
    response: RandomizedResponse | None = None
    private: PrivateSGD | None = None
    adversarial: AdversarialSettings | None = None
    noise: SumNoise | None = None
    networks: tuple[nn.Module, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, data: FederatedData, federation: Federation, seed: int) -> Self:
        """A federation as it is now."""
        unit, method = federation.protection, federation.method
        return cls(
            data,
            federation.transcript,
            seed,
            unit.mechanism if isinstance(unit, LabelUnit) else None,
            method.private if isinstance(method, AveragesParameters) else None,
            method.adversarial if isinstance(method, DaFKD) else None,
            SumNoise.of(unit) if isinstance(unit, PooledRecordUnit) else None,
            tuple(federation.models),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What scores an attack of one's own: clients' records, and held-out ones.

    histograms: [clients, classes], training records.
    """

    clients: tuple[Labelled, ...] = field(repr=False)
    held_out: Labelled = field(repr=False)
    histograms: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = field(repr=False)

    @classmethod
    def of(cls, data: FederatedData) -> Self:
        """The truth about a division of images."""
        clients = tuple(labelled(client.train) for client in data.clients)
        return cls(clients, labelled(data.held_out), histograms(data))


@dataclass(frozen=True, slots=True, eq=False)
class Arsenal:
    """Attacks by name, ready for any run on the data that they were made for.

    public, histograms: of these data; [clients, classes] training records.
    """

    public: Public
    histograms: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = field(repr=False)
    ready: Mapping[str, Callable[[Run], AttackResult]] = field(repr=False)

    def attack(self, name: str, run: Run) -> AttackResult:
        """The result of one attack; MissingCapabilityError where the attacker sees too little."""
        return self.ready[name](run)


def attack(name: str, run: Run) -> AttackResult:
    """The result of one attack, with all that it needs made for this run alone.

    Raises ConfigurationError for an unknown name, MissingCapabilityError where the attacker sees
    too little of this run.
    """
    return prepare((name,), run.data, run.seed).attack(name, run)


def prepare(
    names: Sequence[str],
    data: FederatedData,
    seed: int,
    *,
    quick: bool = False,
    compared: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Arsenal:
    """Train the public prior, shadows and controls of these attacks. quick: small ones.

    compared: as the comparison has them, a shorter search, and tracing beside a positive control.
    progress(n): n percent done. Raises ConfigurationError for an unknown name.
    """
    search = gmi.QUICK if quick else _SEARCH if compared else gmi.InversionSettings()
    lesson = fit.QUICK if quick else fit.Fit()
    taught = _QUICK_STEPS if quick else generators.LESSON
    ways: dict[str, Callable[[], Callable[[Run], AttackResult]]] = {
        "label-distribution": lambda: partial(_label_distribution, _labels_in_clear(data, seed)),
        "inversion": lambda: _inversion(data, seed, search, lesson, progress),
        **{name: partial(_update_inversion, name, data, seed) for name in OF_UPDATES},
        "generator-membership": lambda: partial(_who_taught, taught),
        ServerMembers.name: lambda: _server_members(data, seed, progress),
        FinalLabels.name: lambda: _final_labels(data, seed),
        UpdateOfRun.name: lambda: _update_of_run(data, seed),
        "tracing": lambda: _traced_beside if compared else _traced,
    }
    made = {name: ways[name]() if name in ways else _of_ones_own(name, data) for name in names}
    return Arsenal(public_of(data), histograms(data), made)


def _of_ones_own(name: str, data: FederatedData) -> Callable[[Run], AttackResult]:
    """An attack that needs the server's view and a `Truth` alone."""
    if ":" not in name:
        allowed = f"use one of {', '.join(ON_A_RUN)}, or package.module:Name for one of your own"
        raise ConfigurationError("attack", name, allowed)
    return partial(_by_view, load(name).prepare(public_of(data)))


def _label_distribution(in_clear: float, run: Run) -> AttackResult:
    made = LabelDistribution(undoing(run.response) if run.response else None)
    estimate = made.run(server_view(run.transcript, public_of(run.data)), run.seed)
    return _with_positive(made.score(estimate, histograms(run.data), run.seed), in_clear)


def _labels_in_clear(data: FederatedData, seed: int) -> float:
    """The error of the attack on two rounds of one plain step of a linear model, all in clear."""
    public = replace(
        public_of(data),
        architecture=partial(_linear, data.proxies.pixels[0].numel(), data.n_classes),
    )
    networks = [public.architecture(seed) for _ in data.clients]
    run = Federation(
        networks,
        data.clients,
        None,
        FedAvg(),
        schedule=Schedule(local_steps=1, proxy_steps=0),
        seed=seed,
    )
    run.fit(2)
    made = LabelDistribution()
    estimate = made.run(server_view(run.transcript, public), seed)
    return made.score(estimate, histograms(data), seed).figure


def _linear(inputs: int, n_classes: int, seed: int) -> nn.Module:
    """For records of any form."""
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, n_classes)), seed)


def _inversion(
    data: FederatedData,
    seed: int,
    search: gmi.InversionSettings,
    lesson: fit.Fit,
    progress: Callable[[int], None],
) -> Callable[[Run], AttackResult]:
    public = public_of(data)
    prior = priors.train_prior(
        public.proxies,
        priors.QUICK_PRIOR,  # a finer one takes half a minute, and no row leaves its control
        seed,
        lambda share: progress(int(60 * share)),
    )
    made = ModelInversion.prepare(public, prior, seed, search, lesson)
    members = labelled(concatenate([client.train for client in data.clients]))
    truth = inversion_truth(members, labelled(data.held_out), public, lesson, seed)
    return partial(_inverted, made, truth)


def _inverted(made: ModelInversion, truth: InversionTruth, run: Run) -> AttackResult:
    estimate = made.run(server_view(run.transcript, public_of(run.data)), run.seed)
    return made.score(estimate, truth, run.seed)


def _by_view(made: Attack[Any, Any], run: Run) -> AttackResult:
    """An attack of one's own, on what the server sees."""
    view = server_view(run.transcript, public_of(run.data))
    view.require_any(*made.needs)
    return made.score(made.run(view, run.seed), Truth.of(run.data), run.seed)


def _update_inversion(name: str, data: FederatedData, seed: int) -> Callable[[Run], AttackResult]:
    """Positive control: the same set-up in clear, which is all there is to a plain FedAvg run.

    Raises MissingCapabilityError for records that are no images.
    """
    public_of(data).pixels()
    return partial(_inverted_update, name, _one_inverted(name, data, seed))


def _inverted_update(name: str, clear: AttackResult, run: Run) -> AttackResult:
    """With the protection of the run, whose own rounds must show updates at all."""
    if not run.transcript.parameters:
        raise MissingCapabilityError("missing an update: no parameters cross the boundary (server)")
    private = run.private
    masks = run.transcript.parameters[-1].uploads is None
    result = clear
    if private and SET_UPS[name].batch > 1:
        raise MissingCapabilityError("noise hides more of many records than of one, which is shown")
    if private or masks:
        result = _one_inverted(name, run.data, run.seed, private=private, masks=masks)
    return _with_positive(result, clear.figure)


def _one_inverted(
    name: str,
    data: FederatedData,
    seed: int,
    *,
    private: PrivateSGD | None = None,
    masks: bool = False,
) -> AttackResult:
    made = one_update(SET_UPS[name], data, seed, private=private, masks=masks)
    attack = SET_UPS[name].attack(made.public)
    result = attack.score(attack.run(made.view, seed), made.records, seed)
    return replace(result, caveats=(*result.caveats, *made.caveats))


def _with_positive(result: AttackResult, figure: float) -> AttackResult:
    """With the figure that the attack reaches where nothing stands before it."""
    return replace(result, details={**result.details, POSITIVE: figure})


def _traced(run: Run) -> AttackResult:
    """Records of all clients against as many held-out ones of each class."""
    view = server_view(run.transcript, public_of(run.data))
    view.require_any(*Tracing.needs)
    members = labelled(concatenate([client.train for client in run.data.clients]))
    sides = match_classes(members, labelled(run.data.held_out), run.seed)
    challenge = draw_challenge(*sides, run.seed)
    made = Tracing(challenge.candidates, run.noise)
    truth = Blocks(challenge.is_member, histograms(run.data))
    return made.score(made.run(view, run.seed), truth, run.seed)


def _traced_beside(run: Run) -> AttackResult:
    """The same, beside what the sums of 30 records a client tell in clear."""
    return _with_positive(_traced(run), _overfitted_auc(run.data, run.seed, CLASS_SUMS))


def _server_members(
    data: FederatedData, seed: int, progress: Callable[[int], None]
) -> Callable[[Run], AttackResult]:
    """Each client's own records among held-out ones, about as many of each client."""
    progress(90)
    challenges = _few_of_each(data, seed, _MEMBERS)
    candidates = {k: challenge.candidates for k, challenge in challenges.items()}
    made = ServerMembers.prepare(public_of(data), candidates)
    return partial(_members_read, made, [each.is_member for each in challenges.values()])


def _few_of_each(data: FederatedData, seed: int, members: int) -> dict[int, Challenge]:
    """So many members of a client in all, at most; one a class at least."""
    most = max(1, members // max(len(client.classes) for client in data.clients))
    return challenges_of(data, seed, most)


def _members_read(made: ServerMembers, inside: Sequence[BoolArray], run: Run) -> AttackResult:
    """Class sums are traced, all records of all clients; else see `ServerMembers`."""
    view = server_view(run.transcript, public_of(run.data))
    if Tracing.needs[0] <= view.capabilities:
        return replace(_traced_beside(run), name=made.name, title=f"{made.title} ({CLASS_SUMS})")
    estimate = made.run(view, run.seed)
    read = IN_CLEAR.get(estimate.target, estimate.target)
    found = made.score(estimate, np.concatenate(inside), run.seed)
    return _with_positive(found, _overfitted_auc(run.data, run.seed, read))


def _final_labels(data: FederatedData, seed: int) -> Callable[[Run], AttackResult]:
    """The candidates of `_server_members`, asked about at the final network of their client."""
    challenges = _few_of_each(data, seed, _MEMBERS)
    return partial(_labels_asked, challenges, _overfitted_auc(data, seed, FinalLabels.name))


def _labels_asked(challenges: Mapping[int, Challenge], positive: float, run: Run) -> AttackResult:
    proxies = run.data.proxies.pixels
    networks = deployed(run.transcript, proxies, run.networks)
    public = public_of(run.data)
    return _with_positive(_by_labels(public, challenges, networks, run.seed), positive)


def _by_labels(
    public: Public, challenges: Mapping[int, Challenge], networks: Sequence[nn.Module], seed: int
) -> AttackResult:
    """Each client's candidates at its own network."""
    if not networks:
        raise MissingCapabilityError("missing final networks")
    made = {k: FinalLabels(each.candidates) for k, each in challenges.items()}
    found = []
    for k, attack_one in made.items():
        oracle = LabelOracle(fit.label_function(networks[k]), _UNCAPPED)
        asked = {Capability.QUERY_FINAL_MODEL: oracle}
        view = outsider_view(Transcript(public.n_clients), public, asked)
        found.append(attack_one.run(view, substream(seed, f"client {k}")))
    inside = np.concatenate([each.is_member for each in challenges.values()])
    return next(iter(made.values())).score(pooled(found), inside, seed)


class HeadNetwork(nn.Module):
    """A head on public features, which answers as a network: images -> logits."""

    def __init__(self, head: PublicHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[N, C] logarithms of its probabilities."""
        answers = torch.from_numpy(self.head.answers(overfitted.as_images(images)))
        return answers.clamp(min=_NEVER).log().float()


def deployed(
    transcript: Transcript, proxies: torch.Tensor, networks: Sequence[nn.Module]
) -> list[nn.Module]:
    """Return what each client answers with in the end: the last head where there are heads."""
    if not transcript.heads or transcript.features is None:
        return list(networks)
    reference = shared_reference(proxies, transcript.features)
    last = transcript.heads[-1].result.astype(np.float64).reshape(reference.n_features, -1)
    head = HeadNetwork(PublicHead(reference.public, reference.fourier, last))
    return [head] * transcript.n_clients


def _update_of_run(data: FederatedData, seed: int) -> Callable[[Run], AttackResult]:
    """Positive control: the same attack on one step of a fully connected network, in clear."""
    made = UpdateOfRun.prepare(public_of(data), min(len(c.train) for c in data.clients))
    clear = one_update(SET_UPS["update-inversion"], data, seed)
    alone = UpdateOfRun(clear.public, 1)
    reached = alone.score(alone.run(clear.view, seed), clear.records, seed).figure
    return partial(_update_read, made, reached)


def _update_read(made: UpdateOfRun, positive: float, run: Run) -> AttackResult:
    view = server_view(run.transcript, public_of(run.data))
    private = {k: labelled(client.train) for k, client in enumerate(run.data.clients)}
    found = made.score(made.run(view, run.seed), Behind(private, {}), run.seed)
    return _with_positive(found, positive)


@freed_with_owner
def _overfitted_auc(data: FederatedData, seed: int, read: str) -> float:
    """Return the AUC of the same attack on overfitted clients, all in clear."""
    public = public_of(data)
    members = labelled(concatenate([client.train for client in data.clients]))
    few = max(1, _OVERFITTED // data.n_classes)
    posed = overfitted.posed(members, labelled(data.held_out), seed, few)
    if read == FinalLabels.name:
        return _by_labels(public, posed, overfitted.networks(public, posed, seed), seed).figure
    inside = np.concatenate([each.is_member for each in posed.values()])
    if read == CLASS_SUMS:
        every = [each.candidates for each in posed.values()]
        images, labels = ([getattr(own, side) for own in every] for side in ("images", "labels"))
        traced = Tracing(Labelled(torch.cat(images), torch.cat(labels)))
        found = traced.run(overfitted.class_sums(public, posed, seed), seed)
        return score_scores(traced, found, inside, seed).figure
    made = ServerMembers.prepare(public, {k: each.candidates for k, each in posed.items()})
    shown = overfitted.updates if read == UPDATES else overfitted.votes
    return made.score(made.run(shown(public, posed, seed), seed), inside, seed).figure


def _who_taught(lesson: int, run: Run) -> AttackResult:
    """Members and held-out records by class, as `REFERENCES` caps them."""
    view = server_view(run.transcript, public_of(run.data))
    view.require_any(*generators.NEEDS)
    if run.adversarial is None:
        raise ConfigurationError("adversarial", None, "give the settings of the method's generator")
    members = labelled(concatenate([client.train for client in run.data.clients]))
    held_out = labelled(run.data.held_out)
    challenge = draw_challenge(*match_classes(members, held_out, run.seed, REFERENCES), run.seed)
    made = generators.GeneratorMembership.prepare(
        view.public, challenge.candidates, run.adversarial, run.seed, lesson=lesson
    )
    return made.score(made.run(view, run.seed), challenge.is_member, run.seed)


def public_of(data: FederatedData) -> Public:
    """What every attacker knows: proxies, numbers of clients and classes, the shared network."""
    own = own_shape(data.name) is not None
    shared = image_set(data.name).architectures[0] if own else models.SHARED
    unlabelled = bool((data.proxies.labels < 0).any())
    return Public(
        labelled(data.proxies).images,
        len(data.clients),
        data.n_classes,
        partial(models.build, shared, data.n_classes),
        None if unlabelled else data.proxies.labels,
    )


def histograms(data: FederatedData) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[clients, classes] training records of each class."""
    rows = [np.bincount(c.train.labels.numpy(), minlength=data.n_classes) for c in data.clients]
    return np.stack(rows).astype(np.float64)


def challenges_of(data: FederatedData, seed: int, most: int | None) -> dict[int, Challenge]:
    """For each client its own records and, class by class, its share of the held-out ones.

    Raises MissingCapabilityError where no client has a share.
    """
    made = {}
    for k, (client, share) in enumerate(zip(data.clients, _deal(data), strict=True)):
        if len(share):
            members, outside = match_classes(
                labelled(client.train), labelled(data.held_out[share]), seed + k, most
            )
            made[k] = draw_challenge(members, outside, seed + k)
    if not made:
        raise MissingCapabilityError("missing held-out records of the classes that clients hold")
    return made


def _deal(data: FederatedData) -> list[torch.Tensor]:
    """Held-out indices by client: each class is dealt in turn to the clients that hold it."""
    dealt: list[list[int]] = [[] for _ in data.clients]
    for c in range(data.n_classes):
        holders = [k for k, client in enumerate(data.clients) if c in client.classes]
        found = (data.held_out.labels == c).nonzero()[:, 0].tolist()
        for position, index in enumerate(found):
            if holders:
                dealt[holders[position % len(holders)]].append(index)
    return [torch.tensor(part, dtype=torch.int64) for part in dealt]


def labelled(images: Images) -> Labelled:
    """A run's images as attacks take them: feature maps of one pixel are vectors."""
    pixels = images.pixels
    features = pixels.shape[2:] == (1, 1)
    return Labelled(pixels.flatten(1) if features else pixels, images.labels)
