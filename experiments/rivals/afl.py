"""AFL (He et al., "AFL: A Single-Round Analytic Approach for Federated Learning", CVPR 2025).

Each client sends the Gram matrix of its records' features and their class sums, once; the server
solves least squares for all records together, so that the head is the same for every split. Here
the features are the public map of `selection.density_ratio` (the paper has a pretrained backbone),
and both statistics are one vector of D (D + 1) / 2 + D C integers, which can be summed under masks:
the paper sends every client's in clear, from which its records' directions can be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from torch import nn

from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Own, Setting, write_index
from secure_fd.methods.pooled_heads import LEVELS, HeadClient, HeadServer, HeadTerms, PooledHeads
from secure_fd.protocol.messages import ServerTurn, SumRequest
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.votes.codec import FloatArray, UnitArray
from secure_fd.votes.fixed_point import FixedPoint


@dataclass(frozen=True, slots=True)
class AFL(PooledHeads):
    """AFL on the public map; clients answer with the head.

    Attributes:
        residual_rounds: none, as one sum is all.
        features: sizes of the public feature map.
        ridge: on the mean of phi phi^T, in units of one over the records.

    >>> AFL().name
    'AFL'
    """

    residual_rounds: int = 0
    features: ReferenceSettings = field(default_factory=ReferenceSettings)
    ridge: float = 0.05

    title: ClassVar[str] = "AFL"
    predictor: ClassVar[str] = "head"

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ConfigurationError("ridge", self.ridge, "use a number above 0")

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError without proxies, and for a privacy unit."""
        setting.public_proxies()
        setting.check_no_protection()

    def surveys(self, setting: Setting) -> bool:  # noqa: ARG002 - as published
        """Networks learn from all proxies."""
        return False

    def client(self, setting: Setting, own: Own) -> "AFLClient":
        """Make the role of one client."""
        return AFLClient(self, setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "AFLServer":  # noqa: ARG002 - clients keep their networks
        """Make the server's role."""
        return AFLServer(self, setting)


def gram_codec(terms: HeadTerms) -> FixedPoint:
    """Make the codec of a Gram matrix: an entry of phi phi^T is 2 / D at most."""
    return replace(terms.codec, limit=2.0 / terms.shape[0])


class AFLClient(HeadClient):
    """Shares the statistics of its records, once a round; takes the head."""

    def _class_sums(self) -> UnitArray:
        """The mean Gram matrix and the class sums, in the place of residual class sums."""
        features, classes = self.terms.shape
        gram, sums, count = np.zeros((features, features)), np.zeros((features, classes)), 0
        for part, labels in self.own_records():
            gram += part.T @ part
            sums += part.T @ labels
            count += len(labels)
        upper = gram[np.triu_indices(features)] / count
        number = self._own.number
        sent = self.terms.codec.encode(number, (sums / count).ravel())
        return np.concatenate([gram_codec(self.terms).encode(number, upper), sent])


class AFLServer(HeadServer):
    """Solves least squares from both sums."""

    def __init__(self, method: AFL, setting: Setting) -> None:
        super().__init__(method, setting)
        self._ridge, self._records = method.ridge, setting.records

    def round(self, index: int) -> ServerTurn:
        """Ask for both statistics; sends the head."""
        features = self.terms.shape[0]
        cut = features * (features + 1) // 2
        got = yield SumRequest(write_index(index), cut + self.terms.length, LEVELS)
        upper = gram_codec(self.terms).decode(got.total[:cut], got.survivors)
        sums = self.terms.codec.decode(got.total[cut:], got.survivors)
        head = self._solve(upper, sums.reshape(self.terms.shape), got.survivors)
        return (yield from self.send(head, past_last=index))

    def _solve(self, upper: FloatArray, sums: FloatArray, clients: Sequence[int]) -> FloatArray:
        features = len(sums)
        moment = np.zeros((features, features))
        moment[np.triu_indices(features)] = upper
        records = sum(self._records[k] for k in clients)
        moment[np.diag_indices(features)] += self._ridge / records
        return np.asarray(cho_solve(cho_factor(moment, lower=False), sums))
