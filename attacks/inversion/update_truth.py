"""Records behind the updates of FedAvg clients: the truth that scores an inversion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attacks.core.base import Images, Labelled, require_disjoint
from attacks.core.images import Originals
from secure_fd.errors import LocalError

EVERYONE = -1
"""In place of a client: the update is the mean over all of them."""
_REFERENCES = 32
"""Held-out records, over all sets, that an update's guesses are compared with, or one set."""


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """What stands behind updates. private: by client, the distinct records that it trained on.
    held_out: by client, one or more sets of records outside all training sets, each class by class
    as many; or of no client at all, where Δ is not asked for.
    """

    private: Mapping[int, Labelled] = field(repr=False)
    held_out: Mapping[int, Sequence[Labelled]] = field(repr=False)

    def __post_init__(self) -> None:
        for client, ours in self.private.items() if self.held_out else ():
            if not self.held_out[client]:
                raise LocalError(f"client {client}: no held-out records")
            for theirs in self.held_out[client]:
                if not torch.equal(ours.labels.sort().values, theirs.labels.sort().values):
                    raise LocalError(f"client {client}: held-out records differ in labels")
                require_disjoint(ours, theirs)

    def originals(self, groups: Tensor) -> Originals:
        """The truth about updates of single clients, or of the mean over EVERYONE."""
        names = torch.unique(groups).tolist()
        behind = {g: sorted(self.private) if g == EVERYONE else [g] for g in names}
        known = {g: ks for g, ks in behind.items() if set(ks) <= self.private.keys()}
        return Originals(
            {g: _joined(self.private, ks) for g, ks in known.items()},
            {g: self._sets(ks) for g, ks in known.items()} if self.held_out else {},
            matched=True,
        )

    def records(self, group: int) -> Labelled:
        """Return the records behind an update."""
        clients = sorted(self.private) if group == EVERYONE else [group]
        labels = torch.cat([self.private[k].labels for k in clients])
        return Labelled(_joined(self.private, clients), labels)

    def _sets(self, clients: Sequence[int]) -> list[Tensor]:
        """The held-out sets that every one of the clients has, and no more than are needed."""
        wanted = max(1, _REFERENCES // sum(len(self.private[k]) for k in clients))
        sets = list(zip(*(self.held_out[k] for k in clients), strict=False))[:wanted]
        return [torch.cat([part.images for part in parts]) for parts in sets]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTruth(Behind):
    """control: the attack on updates made of other records."""

    control: Images


def distinct(records: Labelled) -> Labelled:
    """The records without repeats of one image, in the order of their first use."""
    first = {
        image.numpy().tobytes(): place for place, image in reversed([*enumerate(records.images)])
    }
    return records.take(torch.tensor(sorted(first.values())))


def references(private: Labelled, pool: Labelled, seed: int) -> tuple[Labelled, ...]:
    """Sets of the pool's records, each with as many of every class as the private ones have.

    A set of one record is a coarse reference, so small sets come in numbers; sets may share
    records. Raises LocalError where the pool has too few of a class.
    """
    random = torch.Generator().manual_seed(seed)
    sets = max(1, _REFERENCES // len(private))
    return tuple(_reference_set(private, pool, random) for _ in range(sets))


def _reference_set(private: Labelled, pool: Labelled, random: torch.Generator) -> Labelled:
    chosen = []
    for c, wanted in zip(*torch.unique(private.labels, return_counts=True), strict=True):
        found = (pool.labels == c).nonzero()[:, 0]
        if len(found) < wanted:
            raise LocalError(f"held-out: {len(found)} of class {int(c)}, but {int(wanted)} needed")
        chosen.append(found[torch.randperm(len(found), generator=random)[:wanted]])
    return pool.take(torch.cat(chosen))


def _joined(records: Mapping[int, Labelled], clients: Sequence[int]) -> Tensor:
    return torch.cat([records[client].images for client in clients])
