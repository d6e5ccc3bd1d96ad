"""What a set-up ends with and everybody knows: members, graph, thresholds, joint seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from secure_fd.secagg import graph
from secure_fd.secagg.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The clients of a session that joined it, and who of them masks with whom.

    members: ascending. view: the hash of the member list that all of them signed. seed: 32
    bytes that all of them drew together, public once set-up is over. degree: neighbours of every
    member. threshold: shares that open a secret of a member, of which it and its neighbours hold
    one each. quorum: the fewest members that any sum may have. committee: whose signatures,
    `threshold` of them, say which cohort and which survivors all members speak of.
    """

    session: Session
    members: tuple[int, ...]
    view: bytes
    seed: bytes
    degree: int = field(init=False)
    threshold: int = field(init=False)
    quorum: int = field(init=False)
    committee: tuple[int, ...] = field(init=False, repr=False)
    _neighbours: Mapping[int, tuple[int, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.members)
        degree = self.session.degree_of(n)
        threshold = self.session.threshold_of(n)
        object.__setattr__(self, "degree", degree)
        object.__setattr__(self, "threshold", threshold)
        quorum = threshold if degree == n - 1 else graph.threshold(n)
        object.__setattr__(self, "quorum", quorum)
        signers = graph.committee(self.members, degree + 1, self.seed)
        object.__setattr__(self, "committee", signers)
        object.__setattr__(self, "_neighbours", _graph(self.members, degree, self.seed))

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Whom `client` masks with, ascending."""
        return self._neighbours[client]

    def holders(self, client: int) -> tuple[int, ...]:
        """Who holds a share of `client`'s secrets: itself and its neighbours, ascending."""
        return tuple(sorted((client, *self._neighbours[client])))

    def reaches(self, present: Sequence[int]) -> bool:
        """Whether `present` are a quorum, and every one of them has a threshold of its holders
        among them, and so has the committee of its own.
        """
        there = set(present)
        if len(there) < self.quorum or len(there.intersection(self.committee)) < self.threshold:
            return False
        return self.degree == len(self.members) - 1 or all(
            len(there.intersection(self.holders(client))) >= self.threshold for client in there
        )


@lru_cache(maxsize=4)
def _graph(members: tuple[int, ...], degree: int, seed: bytes) -> Mapping[int, tuple[int, ...]]:
    return graph.neighbours(members, degree, seed)
