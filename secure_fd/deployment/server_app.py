"""The ServerApp: the server's rounds over Flower's grid, with a poll of its own.

Flower's `send_and_receive` looks every three seconds; a round of two stages would take six.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from secure_fd.deployment.client_app import carried, carried_by
from secure_fd.deployment.loop import Arrived
from secure_fd.deployment.roster import read
from secure_fd.deployment.serving import serve_rounds
from secure_fd.errors import PeerError

_PAUSES: Final = (0.02, 0.2)
"""Seconds between two looks for answers: at first, and at most."""
_GRACE: Final = 5.0
"""Seconds beyond a stage after which the SuperLink drops a message that nobody fetched."""


class GridCourier:
    """A `Courier` over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """Those that the SuperLink holds for reachable."""
        return [int(node) for node in self._grid.get_node_ids()]

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[Arrived]:
        """Hand over one message a node; answers as they come, errors left out."""
        if not messages:
            return
        begun, pause, ttl = time.monotonic(), _PAUSES[0], deadline + _GRACE
        made = [
            Message(carried(data), dst_node_id=node, message_type="query", ttl=ttl)
            for node, data in messages.items()
        ]
        handed = zip(self._grid.push_messages(made), messages, strict=True)
        asked = {name: node for name, node in handed if name is not None}
        while asked and time.monotonic() - begun < deadline:
            replies = list(self._grid.pull_messages(list(asked)))
            for reply in replies:
                node = asked.pop(reply.metadata.reply_to_message_id, None)
                data = _data(reply)
                if node is not None and data is not None:
                    yield Arrived(node, data, time.monotonic() - begun)
            pause = _PAUSES[0] if replies else min(1.5 * pause, _PAUSES[1])
            if asked:
                time.sleep(pause)


def _data(reply: Message) -> bytes | None:
    if reply.has_error():
        return None
    try:
        return carried_by(reply)
    except PeerError:
        return None


def look_soon(patience: float) -> None:
    """Let Flower look again soon for an object that is announced and not there yet.

    By default it waits a second or more, which nearly every answer would meet, and up to two hours
    for one that never comes, in which a single site would hold up all the others. patience: seconds
    instead of the two hours.
    """
    defaults: dict[str, Any] = pull_objects.__kwdefaults__
    defaults.update(initial_backoff=0.05, backoff_cap=0.25, max_time=patience)


def main(grid: Grid, context: Context) -> None:
    """Run all rounds of the home that the run's configuration names."""
    home, roster, proxies = (
        Path(str(context.run_config[name])) for name in ("home", "roster", "proxies")
    )
    look_soon(read(roster).terms.deadline / 2)
    serve_rounds(home, roster, proxies, GridCourier(grid))


app = ServerApp()
app.main()(main)
