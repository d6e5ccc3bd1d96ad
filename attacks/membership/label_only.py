"""Label-only membership (Choquette-Choo et al., ICML 2021): four probes, and the gap attack.

`attacks.membership.label_shadows` calibrates the probes for each candidate on shadow runs. The gap
attack asks one question and needs no calibration: it is the baseline. `FinalLabels` asks the final
networks of one run, without shadow runs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from attacks.core.base import (
    AttackResult,
    BoolArray,
    Challenge,
    Effort,
    FloatArray,
    Labelled,
    Scores,
    draw_challenge,
    match_classes,
    pooled,
    substream,
)
from attacks.core.fit import label_function
from attacks.core.run import REFERENCES, Attack, Run, attack_view, labelled, public_of
from attacks.core.scoring import score_scores
from attacks.core.view import (
    Capability,
    LabelFunction,
    LabelOracle,
    Oracle,
    Public,
    View,
    outsider_view,
    server_view,
)
from attacks.membership import overfitted
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError, MissingCapabilityError
from secure_fd.methods.pooled_heads import PublicHead
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.density_ratio import shared_reference
from secure_fd.votes.codec import IntArray

BitArray = NDArray[np.uint8]
_CONSTANT = "the target answered one class for everything: a constant predictor tells nothing"


def augmentations(rotation: int, shift: int) -> Tensor:
    """[n, 2, 3] affine maps: identity, every degree of -r..r, every shift |i| + |j| = d.

    n = (2 r + 1) + 4 d: identity counted once (Choquette-Choo et al., ICML 2021, section 4).
    Maps are from output to input, shifts in pixels.
    """
    if rotation < 0 or rotation > 45:
        raise ConfigurationError("rotation", rotation, "use 0 to 45 degrees")
    if shift < 0:
        raise ConfigurationError("shift", shift, "use 0 pixels or more")
    turns = [_turn(degrees) for degrees in range(-rotation, rotation + 1) if degrees]
    moves = [
        _move(i, j)
        for i in range(-shift, shift + 1)
        for j in {shift - abs(i), abs(i) - shift}
        if shift
    ]
    return torch.stack([_move(0, 0), *turns, *moves])


def transform(images: Tensor, theta: Tensor) -> Tensor:
    """Images [N, C, H, W] under one map [2, 3]: bilinear, black outside; identity is exact."""
    if torch.equal(theta, _move(0, 0)):
        return images
    height, width = images.shape[2:]
    scale = torch.tensor([2.0 / width, 2.0 / height])
    relative = torch.cat([theta[:, :2], (theta[:, 2] * scale)[:, None]], dim=1)
    grid = affine_grid(relative.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).clamp(0, 1)


def _turn(degrees: int) -> Tensor:
    angle = math.radians(degrees)
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0.0], [s, c, 0.0]])


def _move(right: int, down: int) -> Tensor:
    """Output pixel (x, y) reads input (x - right, y - down)."""
    return torch.tensor([[1.0, 0.0, -float(right)], [0.0, 1.0, -float(down)]])


def noise_robustness(
    ask: LabelFunction, records: Labelled, sigma: float, samples: int, seed: int
) -> FloatArray:
    """[N] share of the image and its noisy copies, cut to [0, 1], that get its own label.

    sigma: of the noise, in units of the pixel range. samples: copies of each image.
    """
    random, images = torch.Generator().manual_seed(seed), records.pixels()
    right = (ask(images) == records.labels).double()
    for _ in range(samples):
        noise = torch.randn(images.shape, generator=random)
        right += ask((images + sigma * noise).clamp_(0, 1)) == records.labels
    return np.asarray((right / (1 + samples)).numpy(), dtype=np.float64)


def still_right(ask: LabelFunction, records: Labelled, rotation: int, shift: int) -> BitArray:
    """[N, n] ones where an augmented copy still gets the record's label; the first is the image."""
    images = records.pixels()
    answers = [ask(transform(images, theta)) for theta in augmentations(rotation, shift)]
    return (torch.stack(answers, dim=1) == records.labels[:, None]).numpy().astype(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyGap(Attack[Scores, BoolArray]):
    """Call a candidate a member if its label is right (Yeom et al. 2018): the baseline.

    >>> LabelOnlyGap.title
    'Label-only membership: gap'
    """

    name = "label-only-gap"
    title = "Label-only membership: gap"
    figure_name = "AUC"
    control_name = "AUC of a coin"
    needs = (frozenset({Capability.QUERY_FINAL_MODEL}),)

    candidates: Labelled

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Members of all clients against as many held-out records of each class."""
        run.view.require_any(*cls.needs)
        sides = match_classes(run.members, run.held_out, run.seed, REFERENCES)
        challenge = draw_challenge(*sides, run.seed)
        return cls(challenge.candidates, truth=challenge.is_member)

    def estimate(self, view: View, seed: int) -> Scores:  # noqa: ARG002 - nothing is drawn
        """Ask one query a candidate. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        oracle = view.oracle(Capability.QUERY_FINAL_MODEL)
        before = oracle.queries
        answers = oracle(self.candidates.images)
        right = (answers == self.candidates.labels).numpy()
        return Scores(
            right.astype(np.float64),
            queries=oracle.queries - before,
            caveats=(_CONSTANT,) if len(np.unique(answers.numpy())) == 1 else (),
        )

    def score(self, estimate: Scores, seed: int) -> AttackResult:
        """Return the AUC with its interval; truth: [N] of the challenge of the candidates."""
        return score_scores(self, estimate, self.truth, seed)


SIGMAS = (0.2, 0.4)
"""Deviations of the noise of `FinalLabels`, each on this many copies."""
_COPIES = 4
MEMBERS = 20
"""Of a client, where its own network or messages are asked about."""
_UNCAPPED, _NEVER = 1_000_000, 1e-30
_ROTATION, _SHIFT = 3, 1


@dataclass(frozen=True, slots=True, eq=False)
class FinalLabels(LabelOnlyGap):
    """Score a candidate by how many of its copies get its label, less the mean of its class.

    Copies are noisy, turned or moved by a pixel; the unchanged image counts as much as all copies.
    A record that is no image has no copies.

    >>> FinalLabels.title
    'Label-only membership, without shadow runs'
    """

    name = "label-only"
    title = "Label-only membership, without shadow runs"
    default = True

    asked: Mapping[int, tuple[Labelled, View]] = field(default_factory=dict, repr=False)

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> float:  # noqa: ARG003 - one size
        """Return the AUC on overfitted clients."""
        public, posed = public_of(data), overfitted.drawn_from(data, seed)
        networks = overfitted.networks(public, posed, seed)
        made = cls.of_networks(public, posed, networks)
        return attack_view(made, made.view or server_view(Transcript(1), public), seed).figure

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Ask each client's final network about its own records among held-out ones."""
        networks = deployed(run.transcript, run.data.proxies.pixels, run.networks)
        if not networks:
            raise MissingCapabilityError("missing final networks")
        challenges = few_of_each(run.data, run.seed, MEMBERS)
        made = cls.of_networks(run.public, challenges, networks)
        return replace(made, positive=run.shared(cls))

    @classmethod
    def of_networks(
        cls, public: Public, challenges: Mapping[int, Challenge], networks: Sequence[nn.Module]
    ) -> Self:
        """Return the attack on each client's candidates at its own network."""
        asked = {}
        for k, each in challenges.items():
            oracle = LabelOracle(label_function(networks[k]), _UNCAPPED)
            held: dict[Capability, Oracle] = {Capability.QUERY_FINAL_MODEL: oracle}
            view = outsider_view(Transcript(public.n_clients), public, held)
            asked[k] = each.candidates, view
        inside = np.concatenate([each.is_member for each in challenges.values()])
        own, view = next(iter(asked.values()))
        return cls(own, asked=asked, truth=inside, view=view)

    def estimate(self, view: View, seed: int) -> Scores:
        """Ask for the labels of all copies, client by client where there are several."""
        if not self.asked:
            return self._ask(view, seed)
        return pooled(
            [
                replace(self, candidates=own, asked={}).estimate(
                    one, substream(seed, f"client {k}")
                )
                for k, (own, one) in self.asked.items()
            ]
        )

    def _ask(self, view: View, seed: int) -> Scores:
        """Ask for the labels of all copies. Raises BudgetError where the oracle's budget ends."""
        view.require_any(*self.needs)
        ask, own = view.oracle(Capability.QUERY_FINAL_MODEL), self.candidates
        before = ask.queries
        right = (ask(own.images) == own.labels).numpy()
        scores = right.astype(np.float64)
        if own.images.ndim == 4:
            copies = [still_right(ask, own, _ROTATION, _SHIFT)[:, 1:].mean(axis=1)]
            copies += [noise_robustness(ask, own, sigma, _COPIES, seed) for sigma in SIGMAS]
            scores += np.mean(copies, axis=0)
        values = less_class_mean(scores, own.labels.numpy())
        return Scores(values, queries=ask.queries - before)


class HeadNetwork(nn.Module):
    """A head on public features, which answers as a network: images -> logits."""

    def __init__(self, head: PublicHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """[N, C] logarithms of its probabilities."""
        answers = torch.from_numpy(self.head.answers(overfitted.as_images(images)))
        return answers.clamp(min=_NEVER).log().float()


def deployed(
    transcript: Transcript, proxies: Tensor, networks: Sequence[nn.Module]
) -> list[nn.Module]:
    """Return what each client answers with in the end: the last head where there are heads."""
    if not transcript.heads or transcript.features is None:
        return list(networks)
    reference = shared_reference(proxies, transcript.features)
    last = transcript.heads[-1].result.astype(np.float64).reshape(reference.n_features, -1)
    head = HeadNetwork(PublicHead(reference.public, reference.fourier, last))
    return [head] * transcript.n_clients


def few_of_each(data: FederatedData, seed: int, members: int) -> dict[int, Challenge]:
    """So many members of a client in all, at most; one a class at least."""
    most = max(1, members // max(len(client.classes) for client in data.clients))
    return challenges_of(data, seed, most)


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


def _deal(data: FederatedData) -> list[Tensor]:
    """Held-out indices by client: each class is dealt in turn to the clients that hold it."""
    dealt: list[list[int]] = [[] for _ in data.clients]
    for c in range(data.n_classes):
        holders = [k for k, client in enumerate(data.clients) if c in client.classes]
        found = (data.held_out.labels == c).nonzero()[:, 0].tolist()
        for position, index in enumerate(found):
            if holders:
                dealt[holders[position % len(holders)]].append(index)
    return [torch.tensor(part, dtype=torch.int64) for part in dealt]


def less_class_mean(scores: FloatArray, labels: IntArray) -> FloatArray:
    """[N] less the mean over the candidates of the same label.

    >>> less_class_mean(np.array([1.0, 3.0, 9.0]), np.array([0, 0, 1])).tolist()
    [-1.0, 1.0, 0.0]
    """
    sums, counts = np.bincount(labels, weights=scores), np.bincount(labels)
    return np.asarray(scores - (sums / np.maximum(counts, 1))[labels])
