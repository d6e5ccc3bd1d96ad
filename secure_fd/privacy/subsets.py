"""All subsets of one size of a small alphabet, as tables: what the code of an answer stands for."""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from secure_fd.errors import ConfigurationError
from secure_fd.knowledge import IntArray

BoolArray = NDArray[np.bool_]

MOST_ENTRIES = 1 << 20  # 8 MiB a table: 1,024 symbols one by one, or 18 in subsets of any size


@dataclass(frozen=True, slots=True, eq=False)
class Subsets:
    """The N subsets of d of A symbols, coded 0 to N - 1 in lexicographic order; N is the empty set.

    members: [N + 1, A] whether a subset holds a symbol. order: [A, N + 1] for each truth, the
    codes of the subsets without it, then of those with it, then N. With d = 1 a code is a symbol.
    """

    members: BoolArray
    order: IntArray


def fits(alphabet_size: int, subset_size: int) -> bool:
    """Whether the tables of these subsets are small enough to be made."""
    return math.comb(alphabet_size, subset_size) * alphabet_size <= MOST_ENTRIES


@lru_cache(maxsize=16)
def subsets_of(alphabet_size: int, subset_size: int) -> Subsets:
    """The tables, read-only, since all mechanisms of these sizes share them.

    Raises ConfigurationError where there are too many subsets.
    """
    if not fits(alphabet_size, subset_size):
        count = math.comb(alphabet_size, subset_size)
        raise ConfigurationError(
            "subset_size", subset_size, f"its {count:,} subsets of {alphabet_size} are too many"
        )
    chosen = np.array(list(itertools.combinations(range(alphabet_size), subset_size)))
    members = np.zeros((len(chosen) + 1, alphabet_size), dtype=np.bool_)
    np.put_along_axis(members[:-1], chosen, True, axis=1)
    order = np.full((alphabet_size, len(members)), len(chosen), dtype=np.int64)
    order[:, :-1] = np.argsort(members[:-1].T, axis=1, kind="stable")
    members.setflags(write=False)
    order.setflags(write=False)
    return Subsets(members, order)
