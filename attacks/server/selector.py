"""A server that injects proxies asks a client's selector about its raw records: membership."""

from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import FloatArray, Scores, substream
from attacks.core.run import Run
from attacks.core.scoring import MembershipAttack
from attacks.core.view import Capability, Oracle, View
from secure_fd.errors import LocalError, MissingCapabilityError

_LINES, _BITS = 4, 12
"""Lines from a candidate, and queries a line."""
_REFERENCES = 20
"""Public images that give the unit of a score, at most."""
_TINY = 1e-9
CAVEATS: Final = (
    "the server must be able to inject proxies: where they are committed to, it cannot",
    "members are the records that the estimator is built from; others only move its threshold",
)


@dataclass(frozen=True, slots=True, eq=False)
class FlipRadius(MembershipAttack):
    """Around a record that a selector was built from, it answers further out.

    Lines run from each candidate towards images of noise; a few bits a line find how far along it
    the client still answers, and the mean squared radius is the score. Such lines leave all other
    records behind alike. Thresholds differ: scores are in deviations of those of public images of
    the class, which are no members.

    The attack on candidates [N, C, H, W] of class `column`. The oracle answers images with the
    votes that the server reads.
    """

    name = "selector-membership"
    title = "Membership from the selector's mask bits"
    needs = (
        frozenset({
            Capability.INJECT_PROXIES,
            Capability.PUBLIC_PROXIES,
            Capability.LABELLED_PUBLIC,
        }),
    )  # fmt: skip

    candidates: Tensor = field(repr=False)
    column: int

    @classmethod
    def for_run(cls, run: Run) -> Self:
        """Refuse: no client of a finished run answers injected images."""
        run.view.require_any(*cls.needs)
        raise MissingCapabilityError("missing a client that answers injected images")

    def estimate(self, view: View, seed: int) -> Scores:
        """Scores of every candidate.

        Raises:
            BudgetError: the oracle's budget ends.
            LocalError: the class has fewer than two public images.
        """
        view.require_any(*self.needs)
        own = view.public.pixels()[view.public.require_labels() == self.column]
        if len(own) < 2:
            count = f"class {self.column} has {len(own)} public images"
            raise LocalError(f"labels: {count}; 2 are needed")
        oracle = view.oracle(Capability.INJECT_PROXIES)
        rng = np.random.default_rng(substream(seed, "lines"))
        half = len(own) // 2
        before = oracle.queries  # answers about the references are answers too
        unit = self._squared_radii(oracle, own[half : half + _REFERENCES], rng)
        radii = self._squared_radii(oracle, self.candidates, rng)
        values = (radii - unit.mean()) / (unit.std() + _TINY)
        return Scores(values, queries=oracle.queries - before, caveats=CAVEATS)

    def _squared_radii(
        self, oracle: Oracle, images: Tensor, rng: np.random.Generator
    ) -> FloatArray:
        """[N] mean squared flip radius.

        A selector accepts an image where its density estimate reaches a threshold: bisecting a line
        finds the boundary, and a bit halves the uncertainty. Half a step's error is 2^-(bits + 1).
        A start that is rejected gives nearly 0, an end that is accepted nearly 1.
        """
        starts = np.repeat(images.flatten(1).double().numpy(), _LINES, axis=0)
        ends = rng.integers(0, 2, starts.shape).astype(np.float64)
        low, high = np.zeros(len(starts)), np.ones(len(starts))
        for _ in range(_BITS):
            middle = (low + high) / 2
            points = (starts + middle[:, None] * (ends - starts)).astype(np.float32)
            votes = oracle(torch.from_numpy(points).reshape(-1, *images.shape[1:]))
            inside = (votes[:, :, self.column].double().sum(dim=1) > 0).numpy()
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        values = ((low + high) / 2) ** 2 * ((ends - starts) ** 2).sum(axis=1)
        return np.asarray(values.reshape(len(images), -1).mean(axis=1))
