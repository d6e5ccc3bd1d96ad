"""A method of one's own: this file is all that it takes.

    secure-fd compare --quick --methods examples.own_method:Majority

Clients share hard labels; the server teaches a label where enough clients name it. Without more,
clients answer every proxy; see `secure_fd.methods.base.Method` for what else a method decides, and
`secure_fd.methods.base.Exchange` for methods that share something else than votes.
"""

from dataclasses import dataclass
from typing import ClassVar

from secure_fd.methods.base import EverybodyAnswers, Labels
from secure_fd.votes.codec import Ensemble, IntArray, Sums, ensemble_predictions, one_hot


@dataclass(frozen=True, slots=True)
class Majority(EverybodyAnswers):
    """share: of the clients that must name a label, above which it is taught."""

    labels: Labels = "hard"
    share: float = 0.5

    name: ClassVar[str] = "Majority"
    revisits: ClassVar[bool] = False

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The label that most clients name, kept above `share`."""
        means = ensemble_predictions(sums)
        labels = one_hot(means.argmax(axis=1), means.shape[1])
        return Ensemble(indices, labels, means.max(axis=1) > self.share)
