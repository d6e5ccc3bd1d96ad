"""What an attack reports, and the interface that every attack has."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attacks.view import Capability, Public, View
from secure_fd.errors import LocalError

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
ImageArray = NDArray[np.float32]

EstimateT = TypeVar("EstimateT")


@dataclass(frozen=True, slots=True, eq=False)
class RocCurve:
    """A receiver operating characteristic: rates in [0, 1], both rising."""

    fpr: FloatArray
    tpr: FloatArray

    def sums(self) -> dict[str, float]:
        """Of either side: not finite where one of its rates is not."""
        return {"roc.fpr": float(self.fpr.sum()), "roc.tpr": float(self.tpr.sum())}


@dataclass(frozen=True, slots=True, eq=False)
class AttackResult:
    """One attack's figure beside the same figure without access.

    figure, control, interval: in `unit`; interval is (low, high) at 95 %. queries: to the
    oracle. n_members, n_non_members: how many private and held-out records scored it.
    details: further figures by name. roc, images (name -> [n, H, W] in [0, 1]): for plots.
    Raises LocalError where a number is not finite.
    """

    name: str
    title: str
    figure: float
    figure_name: str
    unit: str
    interval: tuple[float, float]
    control: float
    control_name: str
    queries: int = 0
    n_members: int = 0
    n_non_members: int = 0
    caveats: tuple[str, ...] = ()
    details: Mapping[str, float] = field(default_factory=dict)
    roc: RocCurve | None = field(default=None, repr=False)
    images: Mapping[str, ImageArray] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        numbers = {
            "figure": self.figure,
            "interval": sum(self.interval),
            "control": self.control,
            **self.details,
            **({} if self.roc is None else self.roc.sums()),
        }
        for name, value in numbers.items():
            if not math.isfinite(value):
                raise LocalError(f"{self.name}: {name} is {value}, which no report can show")

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; without the images."""
        return {
            "name": self.name,
            "title": self.title,
            "figure": float(self.figure),
            "figure_name": self.figure_name,
            "unit": self.unit,
            "interval": [float(end) for end in self.interval],
            "control": float(self.control),
            "control_name": self.control_name,
            "queries": self.queries,
            "n_members": self.n_members,
            "n_non_members": self.n_non_members,
            "caveats": list(self.caveats),
            "details": {name: float(value) for name, value in self.details.items()},
            "roc": None
            if self.roc is None
            else {"fpr": self.roc.fpr.tolist(), "tpr": self.roc.tpr.tolist()},
        }

    @classmethod
    def from_json(
        cls, content: Mapping[str, Any], images: Mapping[str, ImageArray] | None = None
    ) -> Self:
        """What `to_json` gave, with the images again. LocalError where a field is not known."""
        names = {field.name for field in fields(cls)} - {"images"}
        if set(content) != names:
            raise LocalError(f"an attack's result has other fields: {sorted(set(content) ^ names)}")
        roc = content["roc"]
        low, high = content["interval"]
        return cls(
            **{
                **content,
                "interval": (low, high),
                "caveats": tuple(content["caveats"]),
                "roc": roc and RocCurve(np.asarray(roc["fpr"]), np.asarray(roc["tpr"])),
                "images": images,
            }
        )


class Attack(ABC, Generic[EstimateT]):
    """An attack: what it needs, and a run that never meets the truth.

    name: the word of the command line and the report. title: a few words for a table. needs:
    alternative sets of capabilities, one of which suffices. figure_name, control_name: what it
    reports, and the same figure without access. Every attack also has
    `score(estimate, truth, seed) -> AttackResult`.
    """

    __slots__ = ()

    name: ClassVar[str]
    title: ClassVar[str]
    needs: ClassVar[tuple[frozenset[Capability], ...]]
    figure_name: ClassVar[str]
    control_name: ClassVar[str]

    @classmethod
    def prepare(cls, public: Public, *settings: Any, **named: Any) -> Self:  # noqa: ANN401, ARG003 - each attack's own
        """Do once what needs no transcript: priors, shadows, controls. Here nothing."""
        return cls(*settings, **named)

    @abstractmethod
    def run(self, view: View, seed: int) -> EstimateT:
        """The attacker's estimate; MissingCapabilityError where the view has too little."""


# Labelled images, and the fair challenge that a membership attack has to solve.


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


# Independent randomness for every purpose of an attack, from one seed.


Module = TypeVar("Module", bound=nn.Module)


def substream(seed: int, purpose: str) -> int:
    """A 32-bit seed of its own for one purpose, so that no two draws of an attack share one."""
    return int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0])


def seeded(factory: Callable[[], Module], seed: int) -> Module:
    """A module initialised from `seed`, with torch's global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
