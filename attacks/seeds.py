"""Independent randomness for every purpose of an attack, from one seed."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def substream(seed: int, purpose: str) -> int:
    """A 32-bit seed of its own for one purpose, so that no two draws of an attack share one."""
    return int(np.random.SeedSequence([seed, *purpose.encode()]).generate_state(1)[0])


def seeded(factory: Callable[[], Module], seed: int) -> Module:
    """A module initialised from `seed`, with torch's global generator left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory()
