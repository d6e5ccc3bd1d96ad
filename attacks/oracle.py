"""A label-only oracle: the attacker hands in images and gets class ids, counted and capped."""

from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Tensor

from secure_fd.errors import BudgetError, ConfigurationError, LocalError

LabelFunction = Callable[[Tensor], Tensor]
"""Images [N, 1, H, W] -> class ids [N]."""


class LabelOracle:
    """Answers with labels only; a repeated image is answered from memory and costs nothing."""

    def __init__(self, predict: LabelFunction, budget: int) -> None:
        if budget < 1:
            raise ConfigurationError("budget", budget, "use 1 query or more")
        self._predict = predict
        self._answers: dict[bytes, int] = {}
        self.budget = budget

    @property
    def queries(self) -> int:
        """Distinct images answered so far."""
        return len(self._answers)

    def __call__(self, images: Tensor) -> Tensor:
        """Class ids [N] int64 of images [N, 1, H, W].

        Raises BudgetError, before anything is asked, where the batch would exceed the budget.
        """
        keys = [_key(image) for image in images]
        new = {key: i for i, key in enumerate(keys) if key not in self._answers}
        if self.queries + len(new) > self.budget:
            raise BudgetError(
                f"{len(new)} new queries after {self.queries} exceed the budget of {self.budget}"
            )
        if new:
            labels = self._predict(images[list(new.values())])
            if labels.shape != (len(new),) or labels.is_floating_point():
                raise LocalError("a label oracle answers with one class id an image")
            self._answers.update(zip(new, labels.tolist(), strict=True))
        return torch.tensor([self._answers[key] for key in keys], dtype=torch.int64)

    def __repr__(self) -> str:
        return f"LabelOracle(queries={self.queries}, budget={self.budget})"


def _key(image: Tensor) -> bytes:
    raw = image.detach().cpu().contiguous().numpy().tobytes()
    return blake2b(raw, digest_size=16).digest()
