"""Least squares over the records of all clients, by conjugate gradients over sums of residuals."""

from typing import Final

import numpy as np

from secure_fd.selection.density_ratio import RatioSolver
from secure_fd.selection.familiarity import expected_in_class_ratio
from secure_fd.votes.codec import FloatArray

LOWEST_ANSWER, HIGHEST_ANSWER = -1.0, 2.0
"""Limit at which a head's answer about a record is cut off."""
LARGEST_RESIDUAL: Final = 2.0
"""Largest distance of such an answer from a label of 0 or 1."""
_MOST_CUT_OFF: Final = 0.01
"""Share of proxies whose answers may be cut off."""
_SHORTEST_STEP: Final = 1 / 64
_JITTER: Final = 1e-10
"""Relative to a small system's trace, in case two directions are nearly one."""


class LeastSquares:
    """Least squares over all records by sums of residuals alone, class by class.

    After directions d_1 .. d_k, for which the residuals gave G d_j, G the records' second moment,
    the head is the minimum over their span, plus (H + beta I)^-1 of the residual there. That step
    is halved until clients have to cut off nearly none of the answers about proxies. When other
    clients answer than before, the search starts again from the head that it has.

    Args:
        solver: (H + beta I)^-1, which makes the first head.
        residual_solver: the same with a smaller beta, for the directions after it.
        proxies: [P, D] features.
        shape: (D, C) of a head.
        noisy: whether sums carry noise. Directions are then not compared, as that amplifies noise.
            A class's later steps are (H + beta I)^-1 of the newest residual over the first head's
            mean answer about the class's own images, where that is more than one: such images are
            rarer among the proxies than among the records, and whole steps would overshoot.
    """

    checkpointed = (
        "head",
        "_clients",
        "_damping",
        "_start",
        "_first",
        "_directions",
        "_images",
        "_inside",
        "_image",
    )

    def __init__(
        self,
        solver: RatioSolver,
        residual_solver: RatioSolver,
        proxies: FloatArray,
        shape: tuple[int, int],
        *,
        noisy: bool,
    ) -> None:
        self._solver, self._residual_solver = solver, residual_solver
        self._proxies, self._noisy = proxies, noisy
        self._clients: tuple[int, ...] = ()
        self._damping: FloatArray | None = None
        self.head: FloatArray = np.zeros(shape)
        self._begin(np.zeros(shape))

    def _begin(self, residual: FloatArray) -> None:
        self._start, self._first = self.head, residual
        self._directions: list[FloatArray] = []
        self._images: list[FloatArray] = []
        self._inside, self._image = np.zeros_like(residual), np.zeros_like(residual)

    def step(self, residual: FloatArray, clients: tuple[int, ...]) -> FloatArray:
        """Return the next head [D, C] after the mean residual [D, C] of these clients' records."""
        if self._noisy or clients != self._clients:
            self._clients = clients
            self._begin(residual)
        else:
            self._images.append(self._first - residual - self._image)
            self._minimise()
        base = self._start + self._inside
        solver = self._residual_solver if self.head.any() else self._solver
        direction = solver.solve(self._first - self._image)
        if self._noisy and self._damping is not None:
            direction = direction / self._damping
        self._directions.append(self._shortened(base, direction))
        self.head = base + self._directions[-1]
        if self._damping is None:
            self._damping = np.maximum(expected_in_class_ratio(self._proxies @ self.head), 1.0)
        return self.head

    def _shortened(self, base: FloatArray, direction: FloatArray) -> FloatArray:
        answers, change = self._proxies @ base, self._proxies @ direction
        part = 1.0
        while part > _SHORTEST_STEP and _cut_off(answers + part * change) > _MOST_CUT_OFF:
            part /= 2
        return part * direction

    def _minimise(self) -> None:
        """Solve (d_i^T G d_j) a = d_i^T r, one system for each class."""
        directions, images = np.stack(self._directions), np.stack(self._images)
        matrix = np.einsum("idc,jdc->cij", directions, images)
        matrix = (matrix + matrix.transpose(0, 2, 1)) / 2
        largest = np.trace(matrix, axis1=1, axis2=2)[:, None, None]
        # A class without records has directions of zeros: any weights do.
        matrix += _JITTER * np.where(largest > 0, largest, 1.0) * np.eye(len(images))
        right = np.einsum("idc,dc->ci", directions, self._first)
        weights = np.linalg.solve(matrix, right[:, :, None])[:, :, 0].T
        self._inside = np.einsum("kc,kdc->dc", weights, directions)
        self._image = np.einsum("kc,kdc->dc", weights, images)


def _cut_off(answers: FloatArray) -> float:
    """Share of answers [P, C] beyond the limits, as rows."""
    return float(((answers < LOWEST_ANSWER) | (answers > HIGHEST_ANSWER)).any(axis=1).mean())
