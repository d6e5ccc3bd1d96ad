"""The label unit: every answer passes randomised response once, and is remembered."""

import math
import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.images import Images
from secure_fd.errors import BudgetError, ConfigurationError, LocalError
from secure_fd.knowledge import HARD_LEVELS, Contribution, IntArray, Sums, one_hot
from secure_fd.privacy.alphabet import Alphabet, declaring
from secure_fd.privacy.entropy import Random
from secure_fd.privacy.ledger import LabelLedger
from secure_fd.privacy.randomized_response import RandomizedResponse, sample_symbols
from secure_fd.privacy.units import Guarantee
from secure_fd.protection.base import Answer, check_budget


class LabelUnit:
    """Randomised response over all classes and abstain, or over the classes a client declares.

    epsilon: of one answer; infinite, answers leave as they are. delta: of the composition to
    larger units, which the guarantee states. One object serves one federation.
    """

    name = "label unit"

    def __init__(
        self,
        epsilon: float,
        delta: float,
        alphabet: Literal["full", "declared"] = "full",
        random: Random = os.urandom,
    ) -> None:
        check_budget(epsilon, delta)
        if alphabet not in ("full", "declared"):
            raise ConfigurationError("alphabet", alphabet, "use full or declared")
        self._epsilon = epsilon
        self._delta = delta
        self._declared = alphabet == "declared"
        self._random = random
        self._ledgers: list[LabelLedger] = []

    @property
    def mechanism(self) -> RandomizedResponse:
        """The randomised response in force, public; LocalError before `prepare`."""
        if not self._ledgers:
            raise LocalError("a label unit has no mechanism before it is prepared")
        return self._mechanism

    def levels(self, wanted: int) -> int:
        """One unit, as a response is a class or an abstention; without noise, as wanted."""
        return wanted if math.isinf(self._epsilon) else HARD_LEVELS

    def prepare(self, proxies: Tensor, n_classes: int, records: list[Images]) -> None:
        """Open one ledger a client; only the set of classes is read from the records.

        Raises BudgetError the second time: new ledgers would answer old pairs with new noise.
        """
        if self._ledgers:
            raise BudgetError("a label unit serves one federation: its answers are spent")
        full = Alphabet.full(n_classes)
        self._alphabets = [
            Alphabet(n_classes, tuple(torch.unique(r.labels).tolist())) if self._declared else full
            for r in records
        ]
        self._mechanism = RandomizedResponse.over(self._epsilon, self._alphabets)
        self._n_classes = n_classes
        self._ledgers = [
            LabelLedger(self._mechanism, alphabet, len(proxies)) for alphabet in self._alphabets
        ]

    def release(self, client: int, indices: IntArray, answer: Answer) -> Contribution:
        """One-hot noisy symbols, a zero row for abstain; a pair released before keeps its own.

        A pair counts as released from here on, even where the upload never arrives: nobody can
        tell a lost message from one that somebody kept.
        """
        honest = answer(indices)
        if math.isinf(self._epsilon):
            return honest  # drawing symbols from soft labels would be noise of its own
        symbols = sample_symbols(honest.weights, honest.predictions, self._random)
        noisy = self._ledgers[client].release(indices, symbols, self._random)
        said = noisy < self._n_classes
        rows = one_hot(np.where(said, noisy, 0), self._n_classes) * said[:, None]
        return Contribution(said.astype(np.float64), rows)

    def debias(self, sums: Sums, survivors: Sequence[int]) -> Sums:
        """Unbiased counts a class, clipped at zero: a negative vote teaches nothing.

        Only the survivors' answers carry noise into the sum, so K_c counts those that declare c.
        """
        answering = declaring([self._alphabets[client] for client in survivors])
        votes = np.clip(self._mechanism.debias(sums.total, answering), 0.0, None)
        return Sums(votes.sum(axis=1), votes)

    def guarantee(self) -> Guarantee | None:
        """Of the client that has released most, one that declares its classes before others."""
        if not self._ledgers or math.isinf(self._epsilon):
            return None
        pairs = zip(self._ledgers, self._alphabets, strict=True)
        busiest, _ = max(pairs, key=lambda pair: (pair[0].released, -pair[1].size))
        return busiest.guarantee(self._delta)
