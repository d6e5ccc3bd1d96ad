"""Label-only membership (Choquette-Choo et al., ICML 2021): probes by copies, and the gap attack.

`attacks.membership.label_shadows` calibrates the probes for each candidate on shadow runs. The gap
attack asks one question and needs no calibration: it is the baseline. `FinalLabels` asks the final
networks of one run, without shadow runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from attacks.core.base import (
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
from attacks.core.fit import queried
from attacks.core.run import Run, labelled
from attacks.core.scoring import MembershipAttack
from attacks.core.view import Capability, LabelFunction, Public, View
from attacks.membership import overfitted
from secure_fd.data.columns import SPREAD
from secure_fd.data.federated import FederatedData
from secure_fd.data.vision import torchvision
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PublicHead
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.density_ratio import shared_reference
from secure_fd.votes.codec import IntArray

_CONSTANT = "the target answered one class for everything: a constant predictor reveals nothing"


def moved_copies(images: Tensor, rotation: int) -> Iterator[Tensor]:
    """Turn images [N, C, H, W] by every degree of -r..r, and shift them by a pixel each way.

    Bilinear, black outside. There are 2 r + 4 copies, without the image itself.

    Reference: Choquette-Choo et al., ICML 2021, section 4.
    """
    transforms = torchvision().transforms
    turns = [(float(angle), [0, 0]) for angle in range(-rotation, rotation + 1) if angle]
    shifts = [(0.0, move) for move in ([-1, 0], [0, -1], [0, 1], [1, 0])]
    for angle, move in turns + shifts:
        yield transforms.functional.affine(
            images, angle, move, 1.0, [0.0], transforms.InterpolationMode.BILINEAR
        )


def noisy_copies(images: Tensor, sigma: float, copies: int, seed: int) -> Iterator[Tensor]:
    """Add noise of deviation sigma, in units of the pixel range; pixels are cut to [0, 1]."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(copies):
        noise = torch.randn(images.shape, generator=random)
        yield (images + sigma * noise).clamp_(0, 1)


def share_right(ask: LabelFunction, labels: Tensor, copies: Iterable[Tensor]) -> FloatArray:
    """[N] the share of its copies for which a record gets its own label."""
    right = torch.stack([ask(images) == labels for images in copies])
    return np.asarray(right.double().mean(dim=0).numpy())


@dataclass(frozen=True, slots=True, eq=False)
class LabelOnlyGap(MembershipAttack):
    """Call a candidate a member if its label is right (Yeom et al. 2018): the baseline.

    asked: several sets of candidates, each with the view of its own target, in place of one. truth:
    [N] of the candidates of all targets.

    >>> LabelOnlyGap.title
    'Label-only membership: gap'
    """

    name = "label-only-gap"
    title = "Label-only membership: gap"
    needs = (frozenset({Capability.QUERY_FINAL_MODEL}),)

    candidates: Labelled
    asked: tuple[tuple[Labelled, View], ...] = field(default=(), repr=False)

    @classmethod
    def for_data(cls, data: FederatedData, seed: int, effort: Effort = "full") -> float:  # noqa: ARG003 - one size
        """Return the AUC on overfitted clients."""
        return overfitted.area(data, Independent(), cls.of_networks, seed)

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Ask each client's final network about its own records among held-out ones."""
        networks = deployed(run.transcript, run.data.proxies.pixels, run.networks)
        if not networks:
            raise MissingCapabilityError("missing final networks")
        made = cls.of_networks(run.public, challenges_of(run.data, run.seed), networks)
        return replace(made, positive=run.shared(cls))

    @classmethod
    def of_networks(
        cls, public: Public, challenges: Mapping[int, Challenge], networks: Sequence[nn.Module]
    ) -> Self:
        """Return the attack on each client's candidates at its own network."""
        asked = tuple(
            (each.candidates, queried(networks[k], public)) for k, each in challenges.items()
        )
        own, view = asked[0]
        return cls(own, asked, truth=overfitted.truth_of(challenges), view=view)

    def estimate(self, view: View, seed: int) -> Scores:
        """Ask each target. Raises BudgetError where an oracle's budget ends."""
        targets = self.asked or ((self.candidates, view),)
        return pooled(
            [
                self._ask(own, one, substream(seed, f"client {k}"))
                for k, (own, one) in enumerate(targets)
            ]
        )

    def _ask(self, own: Labelled, view: View, seed: int) -> Scores:
        view.require_any(*self.needs)
        ask = view.oracle(Capability.QUERY_FINAL_MODEL)
        before, answers = ask.queries, ask(own.images)
        right = (answers == own.labels).double().numpy()
        values = self._values(ask, own, right, seed)
        constant = bool((answers == answers[0]).all())
        caveats = (_CONSTANT,) if constant else ()
        return Scores(values, queries=ask.queries - before, caveats=caveats)

    def _values(
        self, _ask: LabelFunction, _own: Labelled, right: FloatArray, _seed: int
    ) -> FloatArray:
        """[N] scores from whether the record itself gets its label, and further questions."""
        return right


_SIGMAS, _ROW_SIGMAS = (0.2, 0.4), (0.5 * SPREAD, SPREAD)
"""Deviations of the noise of `FinalLabels`, on pixels and on columns; each on this many copies."""
_COPIES = 4
_MEMBERS = 20
"""Members of a client, where its own network or messages are attacked."""
_NEVER = 1e-30
_ROTATION = 3


@dataclass(frozen=True, slots=True, eq=False)
class FinalLabels(LabelOnlyGap):
    """Score a candidate by how many of its copies get its label, less the mean of its class.

    Copies are noisy, turned or moved by a pixel; the unchanged image counts as much as all copies.
    Copies of a row of a table are noisy in all columns.

    >>> FinalLabels.title
    'Label-only membership, without shadow runs'
    """

    name = "label-only"
    title = "Label-only membership, without shadow runs"
    shown_in = "members, model: this run"

    def _values(
        self, ask: LabelFunction, own: Labelled, right: FloatArray, seed: int
    ) -> FloatArray:
        images, pictures = own.images, own.images.ndim == 4
        copies = [
            [images, *noisy_copies(images, sigma, _COPIES, seed)]
            for sigma in (_SIGMAS if pictures else _ROW_SIGMAS)
        ]
        moved = [moved_copies(images, _ROTATION)] if pictures else []
        asked = [share_right(ask, own.labels, each) for each in (*moved, *copies)]
        return less_class_mean(right + np.mean(asked, axis=0), own.labels.numpy())


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


def challenges_of(data: FederatedData, seed: int, members: int = _MEMBERS) -> dict[int, Challenge]:
    """For each client, at most `members` of its records among as many held-out ones of each class.

    At least one record of a class is taken. Raises MissingCapabilityError where no client holds a
    class of the held-out records.
    """
    most = max(1, members // max(len(client.classes) for client in data.clients))
    made = {}
    for k, (client, share) in enumerate(zip(data.clients, _deal(data), strict=True)):
        if len(share):
            both = match_classes(
                labelled(client.train), labelled(data.held_out[share]), seed + k, most
            )
            made[k] = draw_challenge(*both, seed + k)
    if not made:
        raise MissingCapabilityError("missing held-out records of the classes that clients hold")
    return made


def _deal(data: FederatedData) -> list[Tensor]:
    """Held-out indices by client: each class is dealt in turn to the clients that hold it."""
    dealt = [[torch.zeros(0, dtype=torch.int64)] for _ in data.clients]
    for c in range(data.n_classes):
        holders = [k for k, client in enumerate(data.clients) if c in client.classes]
        found = (data.held_out.labels == c).nonzero()[:, 0]
        for turn, k in enumerate(holders):
            dealt[k].append(found[turn :: len(holders)])
    return [torch.cat(parts) for parts in dealt]


def less_class_mean(scores: FloatArray, labels: IntArray) -> FloatArray:
    """[N] less the mean over the candidates of the same label.

    >>> less_class_mean(np.array([1.0, 3.0, 9.0]), np.array([0, 0, 1])).tolist()
    [-1.0, 1.0, 0.0]
    """
    sums, counts = np.bincount(labels, weights=scores), np.bincount(labels)
    return np.asarray(scores - (sums / np.maximum(counts, 1))[labels])
