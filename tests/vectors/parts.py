"""Vectors of single steps: lanes, sharing, the graph, joint draws, a hybrid channel."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import (
    WORD,
    AgreementKey,
    Purpose,
    derive_key,
    draw_indices,
    insecure_bytes,
    joint_seed,
)
from secure_fd.knowledge import LaneLayout, WordArray
from secure_fd.secagg import masks as masking
from secure_fd.secagg import masks as secrets
from secure_fd.secagg import messages as channel
from secure_fd.secagg.graph import neighbours
from secure_fd.secagg.messages import Channel
from secure_fd.secagg.session import Place


def hexed(words: WordArray) -> str:
    """Words as bytes, little-endian."""
    return words.astype(WORD).tobytes().hex()


@contextmanager
def recorded_keys() -> Iterator[dict[bytes, bytes]]:
    """By info, every key that is derived meanwhile."""
    keys: dict[bytes, bytes] = {}

    def recorded(secret: bytes, *, salt: bytes, info: bytes, length: int = 32) -> bytes:
        keys[info] = derive_key(secret, salt=salt, info=info, length=length)
        return keys[info]

    with ExitStack() as stack:
        for module in (channel, masking, secrets):
            stack.enter_context(patch.object(module, "derive_key", recorded))
        yield keys


def lanes() -> list[dict[str, Any]]:
    found = []
    shapes = ((10, 1, 0, 33), (10, 4095, 0, 9), (3, 2**40, 0, 3), (50, 6, 0, 25))
    noisy = ((10, 1, 60, 33), (10, 4095, 9000, 9), (3, 2**40, 2**44, 3), (10_000, 6, 7000, 25))
    for n, bound, room, length in (*shapes, *noisy):
        layout = LaneLayout(n, bound, room)
        values = (np.arange(length) * 7919) % (bound + 2 * room + 1) - room
        found.append(
            {
                "clients": n,
                "bound": bound,
                "room": room,
                "bits": layout.bits,
                "lanes": layout.lanes,
                "values": values.tolist(),
                "words": hexed(layout.pack(values if room else values.astype(np.uint64))),
            }
        )
    return found


def sharing() -> dict[str, Any]:
    random, points = insecure_bytes(1), [1, 2, 5, 7, 50]
    secret = shamir.draw_element(random)
    shares = shamir.split(secret, points, 3, random)
    return {
        "seed": 1,
        "threshold": 3,
        "points": points,
        "secret": shamir.encode(secret).hex(),
        "shares": [shamir.encode(share).hex() for share in shares],
        "weights_of_last_three": [
            shamir.encode(weight).hex() for weight in shamir.weights_at_zero(points[-3:])
        ],
    }


def graph() -> dict[str, Any]:
    seed = bytes(range(32))
    near = neighbours(range(50), 20, seed)
    return {
        "members": 50,
        "degree": 20,
        "seed": seed.hex(),
        "neighbours": [near[k] for k in range(50)],
    }


def joint() -> dict[str, Any]:
    nonces = [bytes([client]) * 32 for client in range(3)]
    seed = joint_seed(nonces)
    return {
        "nonces": [nonce.hex() for nonce in nonces],
        "seed": seed.hex(),
        "draws": [
            {"round": index, "population": 200, "count": 20, "indices": indices.tolist()}
            for index in (0, 1)
            if (indices := draw_indices(seed, index, 200, 20)) is not None
        ],
    }


def hybrid_channel() -> dict[str, Any]:
    random = insecure_bytes(2)
    given = {
        name: random(size)
        for name, size in (
            ("session", 32),
            ("view", 32),
            ("low_private", 32),
            ("high_private", 32),
            ("kem_secret", 32),
            ("ciphertext", 1088),
        )
    }
    low, high = (AgreementKey.derive(given[name]) for name in ("low_private", "high_private"))
    secret = low.exchange(high.public) + given["kem_secret"]
    bound = given["view"] + hashlib.sha256(given["ciphertext"]).digest()
    with recorded_keys() as keys:
        end = Channel(given["session"], 3, 8, secret, bound)
        pair = end.pair_secret(5)
    place = Place(given["session"])
    made = keys[place.context(Purpose.CHANNEL, 3, 8) + bound]
    return {
        **{name: value.hex() for name, value in given.items()},
        **{"low": 3, "high": 8, "round": 5},
        **channel_keys(made),
        "pair_secret": pair.hex(),
        "sealed_upward": end.seal(5, b"text", b"context").hex(),
    }


def channel_keys(made: bytes) -> dict[str, str]:
    names = ("upward", "downward", "pair")
    return {name: made[at : at + 32].hex() for name, at in zip(names, (0, 32, 64), strict=True)}
