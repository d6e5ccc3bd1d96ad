"""What a client may answer about a proxy: the classes that it declares, or that it abstains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import IntArray
from secure_fd.privacy.subsets import BoolArray


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The symbols that one client answers with: its declared classes, and abstain.

    A symbol is a class number in [0, n_classes), or n_classes for "I abstain".
    classes: increasing, public. Declaring fewer than all is a statement that no noise covers.
    """

    n_classes: int
    classes: tuple[int, ...]

    def __post_init__(self) -> None:
        declared = sorted(set(self.classes))
        if not declared or declared[0] < 0 or declared[-1] >= self.n_classes:
            raise ConfigurationError(
                "classes", self.classes, f"declare one or more of 0 to {self.n_classes - 1}"
            )
        if list(self.classes) != declared:
            raise ConfigurationError("classes", self.classes, "use each once, in increasing order")

    @classmethod
    def full(cls, n_classes: int) -> "Alphabet":
        """All classes: nothing about the client's data is declared."""
        return cls(n_classes, tuple(range(n_classes)))

    @property
    def abstain(self) -> int:
        """The symbol that names no class."""
        return self.n_classes

    @property
    def size(self) -> int:
        """Number of symbols, abstain included."""
        return len(self.classes) + 1

    def encode(self, symbols: IntArray, size: int) -> IntArray:
        """Symbols as codes in [0, size): declared classes first, all else as the last code."""
        if symbols.size and not 0 <= symbols.min() <= symbols.max() <= self.n_classes:
            raise LocalError(f"a symbol is outside [0, {self.n_classes}]")
        code = np.full(self.n_classes + 1, size - 1, dtype=np.int64)
        code[list(self.classes)] = np.arange(len(self.classes))
        return code[symbols]

    def decode(self, members: BoolArray) -> BoolArray:
        """[m, C] the declared classes among codes [m, size]; abstain and spare ones are dropped."""
        named = np.zeros((len(members), self.n_classes), dtype=np.bool_)
        named[:, list(self.classes)] = members[:, : len(self.classes)]
        return named


def declaring(alphabets: Sequence[Alphabet]) -> IntArray:
    """[C] the number of clients that declare each class: the K_c that debiasing needs."""
    if len({alphabet.n_classes for alphabet in alphabets}) != 1:
        raise ConfigurationError("alphabets", len(alphabets), "all must have the same classes")
    declared = np.concatenate([np.asarray(a.classes, dtype=np.int64) for a in alphabets])
    return np.bincount(declared, minlength=alphabets[0].n_classes).astype(np.int64)
