"""Selective-FD as its authors run it: the baseline that this package's Selective-FD is measured by.

Shao, Wu and Zhang (2023) and their code: KuLSIF in pixel space against uniform noise, one estimator
a class; a client answers where any of them accepts, and its network may then name any class; every
answer counts the same; clients are taught the mean of the answers, also where labels are hard, for
every proxy that anybody answered. tau_server is in the paper's text and not in the code's runs.
With `recipes.paper` the steps are theirs too.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from torch import Tensor

from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import CountedVotes, Labels
from secure_fd.methods.votes import VotingMethod
from secure_fd.selection.selectors import KulsifSelector
from secure_fd.votes.codec import Ensemble, IntArray, Sums, ensemble_predictions

_SHARE: Final = 0.05
_SHARE_OF_SEVERAL: Final = 0.1
"""Of the records that an estimator is built from: where a client holds one class, and several."""


@dataclass(frozen=True, slots=True)
class SelectiveFDAsPublished(VotingMethod):
    """labels: what clients share. quantile: tau_client, of the ratio on the client's other records.

    >>> SelectiveFDAsPublished("hard").name
    'Selective-FD as published, hard'
    """

    title: ClassVar[str] = "Selective-FD as published,"

    labels: Labels = "soft"
    quantile: float = 0.25

    def __post_init__(self) -> None:
        VotingMethod.__post_init__(self)
        if not 0 <= self.quantile <= 1:
            raise ConfigurationError("quantile", self.quantile, "use a number from 0 to 1")

    def opinion(self, client: ClientData, proxies: Tensor) -> CountedVotes:
        """An answer of weight one, and of any class, where an estimator accepts."""
        share = _SHARE if len(client.classes) == 1 else _SHARE_OF_SEVERAL
        found = KulsifSelector(self.quantile, share=share).select(client, proxies)
        return CountedVotes(found.accepted.astype(np.float64), scores=found.scores)

    def ensemble(self, indices: IntArray, sums: Sums) -> Ensemble:
        """The mean of the answers, ties and all; hard ones are not made one-hot again."""
        return Ensemble(indices, ensemble_predictions(sums), sums.count > 0)
