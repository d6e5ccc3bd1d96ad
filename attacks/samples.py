"""Labelled images, and the fair challenge that a membership attack has to solve."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.errors import LocalError


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """images: [N, 1, H, W] float32 in [0, 1]. labels: [N] int64."""

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.shape != self.images.shape[:1]:
            raise LocalError(
                f"images {tuple(self.images.shape)} and labels {tuple(self.labels.shape)} are not "
                "allowed; use [N, 1, H, W] and [N]"
            )

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> "Labelled":
        """The records at [n] indices, or where a [N] mask is True."""
        return Labelled(self.images[indices], self.labels[indices])


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
    both = Labelled(
        torch.cat([members.images, held_out.images]), torch.cat([members.labels, held_out.labels])
    )
    return Challenge(both.take(order), (order < len(members)).numpy())


def require_disjoint(members: Labelled, held_out: Labelled) -> None:
    """Raise LocalError where one image is both a member and held out."""
    inside = {image.numpy().tobytes() for image in members.images}
    shared = sum(image.numpy().tobytes() in inside for image in held_out.images)
    if shared:
        raise LocalError(f"{shared} held-out images are members too; the two must be disjoint")


def _shuffled_class(side: Labelled, label: int, random: torch.Generator) -> Tensor:
    found = (side.labels == label).nonzero()[:, 0]
    return found[torch.randperm(len(found), generator=random)]
