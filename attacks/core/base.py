"""Results, estimates and records of attacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attacks.core.result import AttackResult as AttackResult  # noqa: PLC0414 - a public name
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.votes.codec import IntArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
ImageArray = NDArray[np.float32]

Effort = Literal["quick", "short", "full"]
"""Length of an attack's search and training: a quick look, the comparison's, the suite's."""


ABSTAIN: Final = -1
"""In place of a class: no vote."""
NEVER: Final = -2
"""In place of a class: unknown, or not claimed."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Estimate:
    """Fields that the three kinds of estimate share; all are known without the truth.

    queries: to oracles. target: words that a report appends to the title. details, caveats: of
    this run, for the report. control_name: in place of the attack's own.
    """

    queries: int = 0
    target: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    control_name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Images(Estimate):
    """Reconstructions. images: [n, C, H, W] in [0, 1], or feature vectors [n, D].

    groups: [n] the class, the update or the record that each is about, as the truth is keyed.
    others: the same by other routes, by name. network: what was stolen on the way.

    >>> Images(torch.zeros(2, 1, 8, 8), torch.tensor([3, 7])).of(7).images.shape
    torch.Size([1, 1, 8, 8])
    """

    images: Tensor = field(repr=False)
    groups: Tensor = field(repr=False)
    others: "Mapping[str, Images]" = field(default_factory=dict, repr=False, kw_only=True)
    network: nn.Module | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.groups.shape != self.images.shape[:1] or len(self.images) == 0:
            raise LocalError(f"{len(self.groups)} classes for {len(self.images)} reconstructions")

    def of(self, group: int) -> "Images":
        """Those about one group. LocalError where there are none."""
        chosen = self.groups == group
        return Images(self.images[chosen], self.groups[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Scores(Estimate):
    """Membership scores, one for each candidate; a larger one: more likely a member.

    values: [N], or [R, N] of N candidates in R runs.
    """

    values: FloatArray = field(repr=False)

    def __post_init__(self) -> None:
        if self.values.ndim not in (1, 2) or not self.values.size:
            raise LocalError(f"scores: {self.values.shape} is not allowed; use [N] or [R, N]")
        if not np.isfinite(self.values).all():
            raise LocalError("scores: one is not finite")


@dataclass(frozen=True, slots=True, eq=False)
class Distributions(Estimate):
    """Rows in the simplex. rows: [K, C] shares of classes; or class ids [n] or [G, ...].

    A row that is certain of one class is written as its id: ABSTAIN, or NEVER where nothing is
    claimed. guess: [C], or as `rows`, what no access gives. read: [K] which rows rest on what was
    read of that client; the others are the guess. others: further estimates, by name.

    >>> Distributions(np.array([[0.5, 0.5]]), np.array([1.0, 0.0])).rows.shape
    (1, 2)
    """

    rows: FloatArray | IntArray = field(repr=False)
    guess: FloatArray | IntArray = field(repr=False)
    read: BoolArray | None = field(default=None, repr=False, kw_only=True)
    others: "Mapping[str, Distributions]" = field(default_factory=dict, repr=False, kw_only=True)


def pooled(estimates: Sequence[Scores]) -> Scores:
    """One attack on several targets, each with candidates of its own, scored as one.

    The truths concatenate in the same order. Caveats are those that all estimates share.

    >>> pooled([Scores(np.array([1.0])), Scores(np.array([2.0]))]).values
    array([1., 2.])
    """
    return Scores(
        np.concatenate([e.values for e in estimates]),
        queries=sum(e.queries for e in estimates),
        caveats=tuple(c for c in estimates[0].caveats if all(c in e.caveats for e in estimates)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Records. images: [N, C, H, W] float32 in [0, 1], or feature vectors [N, D]. labels: [N].

    >>> len(Labelled(torch.zeros(3, 3, 8, 8), torch.tensor([0, 1, 1])))
    3
    """

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.images.ndim not in (2, 4) or self.labels.shape != self.images.shape[:1]:
            raise LocalError(
                f"images {tuple(self.images.shape)} and labels {tuple(self.labels.shape)} are not "
                "allowed; use [N, C, H, W] or [N, D], and [N]"
            )

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self) -> Tensor:
        """The images [N, C, H, W]; MissingCapabilityError where the records are vectors."""
        if self.images.ndim != 4:
            raise MissingCapabilityError("missing records that are images: these are vectors")
        return self.images

    def of(self, label: int) -> Tensor:
        """The images [n, ...] of one class."""
        return self.images[self.labels == label]

    def take(self, indices: Tensor) -> "Labelled":
        """The records at [n] indices, or where a [N] mask is True."""
        return Labelled(self.images[indices], self.labels[indices])


def joined(parts: Iterable[Labelled]) -> Labelled:
    """The records of all parts, in their order."""
    images, labels = zip(*((part.images, part.labels) for part in parts), strict=True)
    return Labelled(torch.cat(images), torch.cat(labels))


@dataclass(frozen=True, slots=True, eq=False)
class Challenge:
    """candidates: what the attacker gets, shuffled. is_member: [N] bool, for scoring only."""

    candidates: Labelled
    is_member: NDArray[np.bool_] = field(repr=False)


def match_classes(
    members: Labelled, held_out: Labelled, seed: int, most: int | None = None
) -> tuple[Labelled, Labelled]:
    """Equally many records of every class from both sides, drawn by `seed`.

    most: the largest number a class. Raises LocalError where no class is on both sides.
    """
    random = torch.Generator().manual_seed(seed)
    inside: list[Tensor] = []
    outside: list[Tensor] = []
    for c in torch.unique(members.labels).tolist():
        ours, theirs = (_shuffled_class(side, c, random) for side in (members, held_out))
        n = min(len(ours), len(theirs), len(ours) if most is None else most)
        inside.append(ours[:n])
        outside.append(theirs[:n])
    if sum(map(len, inside)) == 0:
        raise LocalError("members and held-out records share no class")
    return members.take(torch.cat(inside)), held_out.take(torch.cat(outside))


def draw_challenge(members: Labelled, held_out: Labelled, seed: int) -> Challenge:
    """Members and held-out records in random order.

    Raises LocalError unless they are class by class equally many, and no image is on both sides:
    otherwise a guess from the label alone would score.
    """
    classes = int(max(members.labels.max(), held_out.labels.max())) + 1
    counts = [torch.bincount(side.labels, minlength=classes) for side in (members, held_out)]
    if not torch.equal(counts[0], counts[1]):
        raise LocalError(
            f"members {counts[0].tolist()} and held-out records {counts[1].tolist()} a class are "
            "not allowed; use equal numbers (match_classes)"
        )
    require_disjoint(members, held_out)
    order = torch.randperm(
        len(members) + len(held_out), generator=torch.Generator().manual_seed(seed)
    )
    return Challenge(joined((members, held_out)).take(order), (order < len(members)).numpy())


def require_disjoint(members: Labelled, held_out: Labelled) -> None:
    """Raise LocalError where one image is both a member and held out."""
    inside = {image.numpy().tobytes() for image in members.images}
    shared = sum(image.numpy().tobytes() in inside for image in held_out.images)
    if shared:
        raise LocalError(f"{shared} held-out images are members too; the two must be disjoint")


def _shuffled_class(side: Labelled, label: int, random: torch.Generator) -> Tensor:
    found = (side.labels == label).nonzero()[:, 0]
    return found[torch.randperm(len(found), generator=random)]


Module = TypeVar("Module", bound=nn.Module)


def substream(seed: int, purpose: str) -> int:
    """A 32-bit seed of its own for one purpose, so that no two draws of an attack share one."""
    return int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0])


def seeded(factory: Callable[[], Module], seed: int) -> Module:
    """A module initialised from `seed`, with torch's global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
