"""DS-FL (Itahara et al., 2021): the server sharpens the mean before distillation.

Entropy reduction aggregation sends softmax(h(x) / T) for the mean prediction h(x), with T = 0.1.
Because a softmax keeps the order, the class that h(x) names stays the target. Near the
uniform answer of C classes it stretches differences by 1 / (C T): with ten classes T = 0.1 leaves
a uniform mean as it is, and sharpens one that most clients agree on.

Hard labels are not in the paper. Here clients share one-hot votes, and the same rule sharpens
their mean.

The paper's round is local steps, prediction, aggregation, distillation. Here it starts at the
prediction, and the local steps come before the distillation, so that it ends where theirs ends.
The paper also distils a global model at the server. No client learns from it, so it is left out.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from scipy.special import softmax

from secure_fd.methods.base import Labels
from secure_fd.methods.votes import VotingMethod
from secure_fd.votes.codec import Ensemble, IntArray, Sums

_TEMPERATURE: Final = 0.1
"""T; the lower, the sharper."""


@dataclass(frozen=True, slots=True)
class DSFL(VotingMethod):
    """labels: what clients share.

    >>> DSFL().name
    'DS-FL soft'
    """

    title: ClassVar[str] = "DS-FL"

    labels: Labels = "soft"

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """Return the sharpened mean, for every proxy that a client answered."""
        sharpened = np.asarray(softmax(sums.mean / _TEMPERATURE, axis=1))
        return Ensemble(indices, sharpened, sums.count > 0)
