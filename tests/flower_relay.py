"""`secure-fd join`, with a relay between the site and the wire.

It passes answers on; while the file that it is given exists, it flips a bit of those that
carry an input. Arguments: the file, then those of join.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secure_fd.flower import client_app, node
from secure_fd.flower.commands import main

FLAG = Path(sys.argv[1])
_INPUT = 1000
"""Bytes; answers without an input are shorter."""


def relayed(answer: Callable[[bytes], bytes]) -> Any:
    def tampered(push: bytes) -> bytes:
        data = answer(push)
        if not (FLAG.exists() and len(data) > _INPUT):
            return data
        return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]

    return client_app.app_for(tampered)


if __name__ == "__main__":
    node.app_for = relayed
    sys.exit(main(sys.argv[2:], "secure-fd join"))
