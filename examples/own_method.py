"""A user-supplied method: this file is all that it takes.

    secure-fd compare --quick --methods examples.own_method:Majority

Clients share hard labels; the server keeps a label where enough clients name it. By default all
clients answer every proxy. `secure_fd.VotingMethod` has all that such a method can decide, and
`secure_fd.Method` is the base of methods that share something else than votes.
"""

from dataclasses import dataclass
from typing import ClassVar

from secure_fd.methods.base import Labels
from secure_fd.methods.votes import VotingMethod
from secure_fd.votes.codec import Ensemble, IntArray, Sums, one_hot


@dataclass(frozen=True, slots=True)
class Majority(VotingMethod):
    """share: of the clients that must name a label, above which it is kept."""

    title: ClassVar[str] = "Majority"

    labels: Labels = "hard"
    share: float = 0.5

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The label that most clients name, kept above `share`."""
        means = sums.mean
        labels = one_hot(means.argmax(axis=1), means.shape[1])
        return Ensemble(indices, labels, means.max(axis=1) > self.share)
