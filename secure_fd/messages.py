"""What the server sends about proxies, as bytes: ensembles each round; sizes of the proxies."""

import struct
import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_fd.errors import PeerError
from secure_fd.knowledge import (
    Ensemble,
    FloatArray,
    IntArray,
    KnowledgeCodec,
    UnitArray,
    ensemble_predictions,
    one_hot,
)

_HEAD: Final = struct.Struct(">BI")


class _Form(IntEnum):
    """How the rows of kept proxies are written; each gives back what the server holds."""

    CLASSES = 0
    """One-hot rows: the class, in as many bytes as the classes need."""
    SUMS = 1
    """The integers that were summed: every client divides by itself, without a rounding."""
    FLOATS = 2
    """float32, in which networks learn."""


def ensemble_message(
    ensemble: Ensemble, codec: KnowledgeCodec, total: UnitArray, contributors: int
) -> bytes:
    """A round's ensemble as every client gets it; its proxies are those that all parties drew.

    total: [m * C] the summed integers of so many contributors, sent as they are where the ensemble
    is their plain mean. Only kept proxies have rows.
    """
    rows, kept = ensemble.predictions[ensemble.kept], np.packbits(ensemble.kept)
    form, body = _Form.FLOATS, rows.astype("<f4").tobytes()
    units = total.reshape(-1, codec.n_classes)[ensemble.kept]
    if (rows.max(axis=1, initial=0.0) == 1.0).all() and (rows.sum(axis=1) == 1.0).all():
        named = rows.argmax(axis=1) if len(rows) else np.zeros(0, dtype=np.int64)
        form, body = _Form.CLASSES, named.astype(wire_type(codec.n_classes)).tobytes()
    elif units.min(initial=0) >= 0 and np.array_equal(rows, _mean(units, codec)):
        written = units.astype(wire_type(contributors * codec.levels))
        form, body = _Form.SUMS, written.tobytes()
    return _HEAD.pack(form, contributors) + kept.tobytes() + body


def read_ensemble(message: bytes, indices: IntArray, codec: KnowledgeCodec) -> Ensemble:
    """The ensemble of a message about the proxies at `indices` [m]; zero rows where none is kept.

    PeerError for a message of another form or length.
    """
    flags = -(-len(indices) // 8)
    if len(message) < _HEAD.size + flags:
        raise PeerError(f"an ensemble of {len(message)} bytes is too short")
    form, contributors = _HEAD.unpack_from(message)
    bits = np.frombuffer(message, np.uint8, flags, _HEAD.size)
    kept = np.unpackbits(bits, count=len(indices)).astype(np.bool_)
    body, count = message[_HEAD.size + flags :], int(kept.sum())
    rows = np.zeros((len(indices), codec.n_classes))
    rows[kept] = _rows(form, body, count, codec, contributors)
    return Ensemble(indices, rows, kept)


def _rows(
    form: int, body: bytes, count: int, codec: KnowledgeCodec, contributors: int
) -> FloatArray:
    classes = codec.n_classes
    types: Mapping[int, tuple[np.dtype[np.generic], int]] = {
        _Form.CLASSES: (wire_type(classes), 1),
        _Form.SUMS: (wire_type(contributors * codec.levels), classes),
        _Form.FLOATS: (np.dtype("<f4"), classes),
    }
    if form not in types or len(body) != count * types[form][1] * types[form][0].itemsize:
        raise PeerError(f"an ensemble of {count} rows has {len(body)} bytes in form {form}")
    values = np.frombuffer(body, types[form][0])
    if form == _Form.CLASSES:
        if values.size and int(values.max()) >= classes:
            raise PeerError(f"an ensemble names a class beyond {classes - 1}")
        return one_hot(values.astype(np.int64), classes)
    if form == _Form.SUMS:
        return _mean(values.reshape(count, classes).astype(np.int64), codec)
    found = values.reshape(count, classes).astype(np.float64)
    if not np.isfinite(found).all():
        raise PeerError("an ensemble holds a value that is not finite")
    return found


def _mean(units: UnitArray, codec: KnowledgeCodec) -> FloatArray:
    """[k, C] S / N of integers [k, C], with the operations of `KnowledgeCodec.decode`."""
    return ensemble_predictions(codec.votes(units.reshape(-1)))


def wire_type(largest: int) -> "np.dtype[np.unsignedinteger]":
    """Little-endian, and as wide as the largest value needs."""
    return np.min_scalar_type(largest).newbyteorder("<")


def proxy_bytes(proxies: Tensor) -> int:
    """Bytes of the proxy set as 8-bit pixels; every client gets it once."""
    return pixel_bytes(proxy_pixels(proxies))


def pixel_bytes(pixels: NDArray[np.uint8]) -> int:
    """Bytes of 8-bit pixels, losslessly compressed."""
    return len(zlib.compress(pixels.tobytes(), level=6))


def proxy_pixels(proxies: Tensor) -> NDArray[np.uint8]:
    """[P, ...] 8-bit pixels as they are sent, from floats in [0, 1]."""
    return np.asarray((proxies * 255).round().byte().cpu().numpy())
