"""Gaussian noise in floating point, from a keystream: for libraries that cannot take integers.

Floating point has holes in its low bits (Mironov, CCS 2012), so what carries this noise says so.
What it does not have is a seed that could be searched: torch's generators keep 32 bits of theirs.
"""

import os

import numpy as np

from secure_fd.crypto.prg import Keystream
from secure_fd.crypto.randomness import draw
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import LocalError
from secure_fd.knowledge import FloatArray
from secure_fd.privacy.entropy import Random, unmet_by


class FloatGaussian(SecretHolder):
    """Uniform and normal variates from AES-256-CTR under a key that is drawn once.

    unmet: why a guarantee made with it is void; empty unless the key came from a seed.
    """

    __slots__ = ("_stream", "unmet")

    def __init__(self, random: Random = os.urandom) -> None:
        self._stream = Keystream(draw(random, 32))
        self.unmet = unmet_by(random)

    def uniform(self, count: int) -> FloatArray:
        """[count] values in (0, 1), multiples of 2^-53 shifted by half a step."""
        if count < 0:
            raise LocalError(f"count: {count} is not allowed; use 0 or more")
        words = np.frombuffer(self._stream.read(8 * count), dtype="<u8")
        return np.asarray(((words >> np.uint64(11)) + 0.5) / 2.0**53)

    def normal(self, count: int) -> FloatArray:
        """[count] standard normal values (Box and Muller, 1958); none exceeds 8.6."""
        half = (count + 1) // 2
        radius = np.sqrt(-2.0 * np.log(self.uniform(half)))
        angle = 2.0 * np.pi * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
