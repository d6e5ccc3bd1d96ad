"""Sizes and contents of what the server sends to every client: proxies once, ensembles a round."""

import zlib

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.knowledge import Ensemble

_STEPS = 65535


def ensemble_message(ensemble: Ensemble, labels: str) -> bytes:
    """Indices of the kept proxies (4 bytes each), then a class (1) or C steps of 2^-16 (2 each).

    Hard labels whose ensemble is a mean of votes (FedMD's, say) need the steps as well.
    """
    kept = ensemble.predictions[ensemble.kept]
    indices = ensemble.indices[ensemble.kept].astype("<u4").tobytes()
    if labels == "hard" and (kept.max(axis=1) == 1.0).all():
        return bytes(indices + kept.argmax(axis=1).astype(np.uint8).tobytes())
    return bytes(indices + np.rint(kept * _STEPS).astype("<u2").tobytes())


def ensemble_bytes(ensemble: Ensemble, labels: str) -> int:
    """Bytes that one client receives for a round: its proxies' indices, and the ensemble."""
    return 4 * len(ensemble.indices) + len(ensemble_message(ensemble, labels))


def proxy_bytes(proxies: Tensor) -> int:
    """Bytes of the proxy set as 8-bit pixels; every client gets it once."""
    return pixel_bytes(proxy_pixels(proxies))


def pixel_bytes(pixels: NDArray[np.uint8]) -> int:
    """Bytes of 8-bit pixels, losslessly compressed."""
    return len(zlib.compress(pixels.tobytes(), level=6))


def proxy_pixels(proxies: Tensor) -> NDArray[np.uint8]:
    """[P, ...] 8-bit pixels as they are sent, from floats in [0, 1]."""
    return np.asarray((proxies * 255).round().byte().cpu().numpy())
