"""Where the bytes of keys come from: an argument, the operating system's by default."""

import hashlib
from collections.abc import Callable

from secure_fd.crypto.context import Purpose, context
from secure_fd.crypto.prg import Keystream
from secure_fd.errors import LocalError

RandomBytes = Callable[[int], bytes]
"""size -> that many bytes, which nobody else can predict; os.urandom is one."""


def draw(random: RandomBytes, size: int) -> bytes:
    """`size` bytes of `random`; LocalError where it gave another number."""
    data = random(size)
    if len(data) != size:
        raise LocalError(f"the randomness source gave {len(data)} bytes where {size} were asked")
    return data


def insecure_bytes(seed: int) -> RandomBytes:
    """Bytes that anyone who knows `seed` can repeat: for tests and reproductions only."""
    label = context(Purpose.INSECURE_SEED, session=b"", terms=b"", sender=0, receiver=0)
    stream = Keystream(hashlib.sha256(label + str(seed).encode()).digest())
    return stream.read
