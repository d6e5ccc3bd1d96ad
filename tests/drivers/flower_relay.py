"""`secure-fd join`, with a relay between the site and the wire.

It passes answers on; while the file that it is given exists, it flips a bit of those that
carry an input. Arguments: the file, then those of join.
"""

import sys
from pathlib import Path

from secure_fd.deployment.commands import main
from secure_fd.deployment.site import Site

FLAG = Path(sys.argv[1])
_INPUT = 1000
"""Bytes; answers without an input are shorter."""
_answer = Site.answer


def tampered(site: Site, push: bytes) -> bytes:
    data = _answer(site, push)
    if not (FLAG.exists() and len(data) > _INPUT):
        return data
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


if __name__ == "__main__":
    Site.answer = tampered
    sys.exit(main(sys.argv[2:], "secure-fd join"))
