"""AFL (He et al., "AFL: A Single-Round Analytic Approach for Federated Learning", CVPR 2025).

Each client sends the Gram matrix of its records' features and their class sums, once; the server
solves least squares for all records together, so that the head is the same for every split. Here
the features are the public map of `selection.density` (the paper has a pretrained backbone), and
both statistics are one vector of D (D + 1) / 2 + D C integers, which can be summed under masks: the
paper sends every client's in clear, from which its records' directions can be read.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from torch import nn

from secure_fd.errors import ConfigurationError
from secure_fd.methods import heads
from secure_fd.methods.base import Method, Own, Setting
from secure_fd.protocol.messages import Ask, ClientTurn, ServerTurn, Share, Void
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.votes.codec import FloatArray


@dataclass(frozen=True, slots=True)
class AFL(Method):
    """ridge: on the mean of phi phi^T, in units of one over the records.

    Clients leave with the head.

    >>> AFL().name
    'AFL'
    """

    ridge: float = 0.05
    features: ReferenceSettings = field(default_factory=ReferenceSettings)

    title: ClassVar[str] = "AFL"
    needs_proxies: ClassVar[bool] = True
    rounds: ClassVar[int] = 1
    """One sum is all."""

    def __post_init__(self) -> None:
        if not self.ridge > 0:
            raise ConfigurationError("ridge", self.ridge, "use a number above 0")

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:  # noqa: ARG002 - any networks serve
        """Raise ConfigurationError without proxies, and for a protection of votes."""
        setting.public_proxies()
        setting.check_no_protection()

    def client(self, setting: Setting, own: Own) -> "AFLClient":
        """The half of one client."""
        return AFLClient(heads.Public.of(self.features, setting), setting, own)

    def server(self, setting: Setting, initial: nn.Module) -> "AFLServer":  # noqa: ARG002 - clients keep their networks
        """The server's half."""
        return AFLServer(self, heads.Public.of(self.features, setting), setting)


def gram_codec(public: heads.Public) -> heads.MeanCodec:
    """Of the Gram matrix: an entry of phi phi^T is at most 2 / D.

    >>> import numpy as np
    >>> codec = heads.MeanCodec((1.0,), limit=2 / 1000)
    >>> float(codec.decode(codec.encode(0, np.array([0.001])), (0,))[0].round(6))
    0.001
    """
    return heads.MeanCodec(public.codec.shares, 2.0 / public.shape[0])


class AFLClient(heads.HeadLearner):
    """Shares the statistics of its records, once a round; takes the head."""

    def __init__(self, public: heads.Public, setting: Setting, own: Own) -> None:
        super().__init__(public, setting, own, "head")
        self._gram = gram_codec(public)

    def round(self, subject: bytes) -> ClientTurn:
        """Share Gram matrix and class sums, take the head, learn from it where steps are due."""
        self.learner.round = heads.read_index(subject)
        try:
            self.take((yield Share(self._statistics(), self._gram.levels)))
        except Void:
            return
        with suppress(Void):
            yield from self.taught()

    def _statistics(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        features, classes = self.public.shape
        gram, sums, count = np.zeros((features, features)), np.zeros((features, classes)), 0
        for part, labels in self.own_records():
            gram += part.T @ part
            sums += part.T @ labels
            count += len(labels)
        upper = gram[np.triu_indices(features)] / count
        number = self._own.number
        sent = self.public.codec.encode(number, (sums / count).ravel())
        return np.concatenate([self._gram.encode(number, upper), sent])


class AFLServer(heads.HeadTeacher):
    """Least squares from both sums."""

    def __init__(self, method: AFL, public: heads.Public, setting: Setting) -> None:
        features = public.shape[0]
        super().__init__(public, setting, "head", before=features * (features + 1) // 2)
        self._gram, self._ridge, self._records = gram_codec(public), method.ridge, setting.records

    def round(self, index: int) -> ServerTurn:
        """Ask for both statistics; sends the head."""
        got = yield Ask(heads.index_subject(index), self.length, self._gram.levels)
        cut = self._before
        upper = self._gram.decode(got.total[:cut], got.survivors)
        sums = self.public.codec.decode(got.total[cut:], got.survivors)
        head = self._solve(upper, sums.reshape(self.public.shape), got.survivors)
        return (yield from self.teach(head, last=True))

    def _solve(self, upper: FloatArray, sums: FloatArray, clients: Sequence[int]) -> FloatArray:
        features = len(sums)
        moment = np.zeros((features, features))
        moment[np.triu_indices(features)] = upper
        records = sum(self._records[k] for k in clients)
        moment[np.diag_indices(features)] += self._ridge / records
        return np.asarray(cho_solve(cho_factor(moment, lower=False), sums))
