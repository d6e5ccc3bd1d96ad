"""Pushes and answers as messages of Flower, and the ClientApp that declines to take part.

A site lives in one process for the whole run: what opens its inputs is in that process's memory and
on no disk. `secure-fd join` is that process, and answers messages itself; a SuperNode starts a new
process for each message, and code that the server sends, so that there the app declines.
"""

import os
from typing import Any, Final

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from secure_fd.errors import PeerError

RECORD: Final = "secure-fd"
FIELD: Final = "data"


def carried(data: bytes) -> RecordDict:
    """Bytes as the content of a message."""
    return RecordDict({RECORD: ConfigRecord({FIELD: data})})


def carried_by(message: Message) -> bytes:
    """The bytes of a message's content; PeerError where it has none."""
    record = message.content.get(RECORD)
    data = record.get(FIELD) if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise PeerError("a message of Flower carries no push and no answer")
    return data


def _decline(*_: Any) -> Message:  # noqa: ANN401 - message and context
    raise RuntimeError("a site takes part by its own process: secure-fd join --help")


app = ClientApp()
"""What a SuperNode of Flower would run."""
app.query()(_decline)
