"""Format of deliveries in secagg.json: the same for the package's flow and the reader's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.vectors.independent import TYPES

Json = dict[str, Any]


@dataclass(frozen=True)
class Delivery:
    """One message on its way. step: of the scene, from 0."""

    step: int
    sender: int
    receiver: int
    data: bytes

    @property
    def kind(self) -> str:
        """The type that the frame names."""
        number = int.from_bytes(self.data[2:4], "big")
        return TYPES[number - 1] if 0 < number <= len(TYPES) else "none"


def listed(delivery: Delivery, altered: Sequence[Json]) -> Delivery:
    """The delivery as it arrives where these are altered on the way."""
    for one in altered:
        if (one["type"], one["from"], one["to"]) == (
            delivery.kind,
            delivery.sender,
            delivery.receiver,
        ):
            data = bytearray(delivery.data)
            data[one["at"]] ^= one["bits"]
            return replace(delivery, data=bytes(data))
    return delivery


def described(deliveries: Sequence[Delivery], *, compact: bool) -> list[list[Any]]:
    """[type, sender, receivers, message]; the same bytes to one after another stand once.

    compact: SHA-256 of the message in its place.
    """
    found: list[list[Any]] = []
    for one in deliveries:
        data = hashlib.sha256(one.data).digest() if compact else one.data
        line = [one.kind, one.sender, [one.receiver], data.hex()]
        if found and found[-1][:2] == line[:2] and found[-1][3] == line[3]:
            found[-1][2].append(one.receiver)
        else:
            found.append(line)
    return found
