"""Least squares over the records of all clients, by conjugate gradients over sums of residuals."""

from typing import Final

import numpy as np

from secure_fd.selection.density_ratio import RatioSolver
from secure_fd.selection.familiarity import expected_in_class_ratio
from secure_fd.votes.codec import FloatArray

LEAST, MOST = -1.0, 2.0
"""Where a head's answer about a record is cut off: a residual is then at most 2."""
_FEW: Final = 0.01
"""Share of proxies whose answers may be cut off."""
_LEAST_PART: Final = 1 / 64
_JITTER: Final = 1e-10
"""Of a small system's trace, where two directions are nearly one."""


class Search:
    """Least squares over all records by sums of residuals alone, class by class.

    After directions d_1 .. d_k, whose images G d_j under the records' second moment G the residuals
    told, the head is the minimum over their span, plus (H + beta I)^-1 of the residual there, or a
    part of it: halved until nearly all answers about proxies [P, D] are ones that no client has to
    cut off. Where other clients answer than before, it starts again from where it is.
    shape: (D, C). plain: no directions are compared, as that would blow up noise in the sums. A
    class's later steps are then (H + beta I)^-1 of the newest residual over what the first head
    says of the class's own images, where that is more than one: these are rarer among the proxies
    than among the records, and whole steps would overshoot.
    """

    def __init__(
        self,
        solver: RatioSolver,
        proxies: FloatArray,
        shape: tuple[int, int],
        *,
        plain: bool = False,
    ) -> None:
        self._solver, self._proxies, self._plain = solver, proxies, plain
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
        """The next head [D, C] after the mean residual [D, C] at the last one."""
        if self._plain or clients != self._clients:
            self._clients = clients
            self._begin(residual)
        else:
            self._images.append(self._first - residual - self._image)
            self._minimise()
        base = self._start + self._inside
        direction = self._solver.solve(self._first - self._image)
        if self._plain and self._damping is not None:
            direction = direction / self._damping
        self._directions.append(self._part(base, direction))
        self.head = base + self._directions[-1]
        if self._damping is None:
            self._damping = np.maximum(expected_in_class_ratio(self._proxies @ self.head), 1.0)
        return self.head

    def _part(self, base: FloatArray, direction: FloatArray) -> FloatArray:
        answers, change = self._proxies @ base, self._proxies @ direction
        part = 1.0
        while part > _LEAST_PART and _cut_off(answers + part * change) > _FEW:
            part /= 2
        return part * direction

    def _minimise(self) -> None:
        """(d_i^T G d_j) a = d_i^T r, one system a class."""
        directions, images = np.stack(self._directions), np.stack(self._images)
        matrix = np.einsum("idc,jdc->cij", directions, images)
        matrix = (matrix + matrix.transpose(0, 2, 1)) / 2
        largest = np.trace(matrix, axis1=1, axis2=2)[:, None, None]
        # A class that nobody holds has directions of nothing: any weights do.
        matrix += _JITTER * np.where(largest > 0, largest, 1.0) * np.eye(len(images))
        right = np.einsum("idc,dc->ci", directions, self._first)
        weights = np.linalg.solve(matrix, right[:, :, None])[:, :, 0].T
        self._inside = np.einsum("kc,kdc->dc", weights, directions)
        self._image = np.einsum("kc,kdc->dc", weights, images)


def _cut_off(answers: FloatArray) -> float:
    """Share of answers [P, C] beyond the limits, as rows."""
    return float(((answers < LEAST) | (answers > MOST)).any(axis=1).mean())
