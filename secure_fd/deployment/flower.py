"""Adapter to Flower: the only module that imports flwr, private modules included.

The server's rounds run in a ServerApp, over Flower's grid. A site connects to the SuperLink from
its own process, by Flower's Fleet interface, because round secrets are in that process's memory
only: a SuperNode would start a new process for each message. Flower's own loops look for messages
every three seconds; those here look soon and then less often.
"""

import logging
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import httpx
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.inflatable import inflatable_protobuf_utils as requests
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from secure_fd.deployment.loop import Transport, serve_rounds
from secure_fd.errors import PeerError, SecureFDError

log = logging.getLogger(__name__)
_PAUSES: Final = (0.02, 0.25)
"""Seconds between two looks for messages: at first, and at most."""
_HEARTBEAT: Final = 10.0
"""Seconds, the least that Flower takes; after two of them a silent node is no longer listed."""
_RECONNECT: Final = 1.0
"""Seconds before a lost connection is made again."""
_WARNED: Final = 60.0
"""Seconds between two lines about a server that cannot be reached."""
_OBJECTS: Final = 30.0
"""Seconds in which the objects of a message must have come."""
_GRACE: Final = 5.0
"""Seconds beyond a stage after which the SuperLink drops a message that was not fetched."""


def _content(data: bytes) -> RecordDict:
    return RecordDict({"secure-fd": ConfigRecord({"data": data})})


def _data(message: Message) -> bytes:
    """Return the bytes that a message carries; PeerError if there are none."""
    record = None if message.has_error() else message.content.get("secure-fd")
    data = record.get("data") if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise PeerError("a message of Flower carries no push and no answer")
    return data


# The server


class GridTransport(Transport):
    """Pushes over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> Sequence[int]:
        """Nodes that the SuperLink lists as reachable."""
        return [int(node) for node in self._grid.get_node_ids()]

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[tuple[int, bytes]]:
        """Send one message a node; yield answers as they come, without errors."""
        begun, pause, ttl = time.monotonic(), _PAUSES[0], deadline + _GRACE
        made = [
            Message(_content(data), dst_node_id=node, message_type="query", ttl=ttl)
            for node, data in messages.items()
        ]
        sent = zip(self._grid.push_messages(made) if made else (), messages, strict=True)
        asked = {name: node for name, node in sent if name is not None}
        while asked and time.monotonic() - begun < deadline:
            replies = list(self._grid.pull_messages(list(asked)))
            for reply in replies:
                node = asked.pop(reply.metadata.reply_to_message_id, None)
                with suppress(PeerError):
                    if node is not None:
                        yield node, _data(reply)
            pause = _PAUSES[0] if replies else min(1.5 * pause, _PAUSES[1])
            if asked:
                time.sleep(pause)


def _end_with_parent() -> None:
    """End this process with the SuperLink: it would hold the state file for minutes."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(grid: Grid, context: Context) -> None:
    """Run all rounds of the home that the run's configuration names."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # By default Flower waits a second or more for an object that is announced and not there yet,
    # and up to two hours for one that never comes, in which one site would block all others.
    defaults: dict[str, Any] = pull_objects.__kwdefaults__
    defaults.update(initial_backoff=0.05, backoff_cap=0.25, max_time=_OBJECTS)
    home, roster, proxies = (
        Path(str(context.run_config[name])) for name in ("home", "roster", "proxies")
    )
    min_sites = int(context.run_config["min-sites"])
    serve_rounds(home, roster, proxies, GridTransport(grid), min_sites)


server_app = ServerApp()
server_app.main()(main)
client_app = ClientApp()
"""Required by Flower's configuration; it answers nothing, as a site takes part by `join`."""


# A site


class Link:
    """A registered and active node of a SuperLink."""

    def __init__(self, client: Any, public: bytes) -> None:  # noqa: ANN401 - of Flower
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        active = ActivateNodeRequest(public_key=public, heartbeat_interval=_HEARTBEAT)
        self._client, self._node = client, Node(node_id=client.ActivateNode(active).node_id)

    def receive(self) -> Any | None:  # noqa: ANN401 - a message of Flower
        """Return the next message, or None if there is none now."""
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, name = head.metadata.run_id, head.metadata.message_id
        pull = requests.make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        names = [one.object_id for one in objects.iterate_object_tree(tree)]
        parts = pull_objects(names, pull, max_time=_OBJECTS, initial_backoff=0.05, backoff_cap=0.5)
        confirm = self._client.ConfirmMessageReceived
        requests.make_confirm_message_received_fn_protobuf(confirm, self._node, run)(name)
        message = inflate_object_from_contents(name, parts)
        message.metadata.__dict__["_message_id"] = name  # as Flower's own SuperNode sets it
        return message

    def send(self, reply: Any) -> None:  # noqa: ANN401 - a message of Flower
        """Send a reply and the objects of it that the SuperLink lacks."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with objects.no_object_id_recompute():
            tree, parts = objects.get_object_tree(reply), objects.get_all_nested_objects(reply)
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[0.0],
            )
            answer, run = self._client.PushMessages(request), reply.metadata.run_id
            push = requests.make_push_object_fn_protobuf(
                self._client.PushObject, self._node, run, answer.session_id
            )
            for name in dict.fromkeys(answer.objects_to_push):
                push(name, parts[name].deflate())

    def send_heartbeats(self, stop: threading.Event) -> None:
        """Keep the node on the SuperLink's list until `stop`, also while the site trains."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT)
        while not stop.wait(0.7 * _HEARTBEAT):
            with suppress(httpx.HTTPError):
                self._client.SendNodeHeartbeat(request)


@contextmanager
def _linked(address: str, certificate: Path) -> Iterator[Link]:
    """Connect as a node; httpx.HTTPError where the SuperLink cannot be reached.

    The key of a node is drawn for each connection: a site proves to the server's party who it is
    by its own identity. A node never unregisters, since Flower drops the answers of one that did;
    it leaves the list when its heartbeats stop.
    """
    private, public = generate_key_pairs()
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, public),
    ]
    with FleetHttpClient.from_server_address(
        address, False, str(certificate), interceptors=interceptors
    ) as client:
        link, stop = Link(client, public_key_to_bytes(public)), threading.Event()
        threading.Thread(target=link.send_heartbeats, args=(stop,), daemon=True).start()
        try:
            yield link
        finally:
            stop.set()


def attend(
    address: str,
    certificate: Path,
    answer: Callable[[bytes], bytes],
    done: Callable[[], bool],
    patience: float,
    check: Callable[[], Iterable[object]],
) -> None:
    """Answer pushes until the run is over, and make a lost connection again.

    Args:
        address: HOST:PORT of the SuperLink.
        certificate: file with its certificate, in PEM.
        answer: from the bytes of a push to those of its answer.
        done: returns whether the run is over.
        patience: seconds without a connection after which TimeoutError is raised.
        check: its iteration raises a SecureFDError with the reason if the server cannot be reached.
    """
    last, warned = time.monotonic(), -math.inf
    while not done():
        try:
            with _linked(address, certificate) as link:
                log.info("connected")
                pause = _PAUSES[0]
                while not done():
                    pause = _PAUSES[0] if _answer_next(link, answer) else 1.3 * pause
                    last = time.monotonic()
                    time.sleep(min(pause, _PAUSES[1]))
        except httpx.HTTPError as error:
            if time.monotonic() - warned > _WARNED:
                log.warning(f"{_reason(check, error)}; trying again")
                warned = time.monotonic()
            if time.monotonic() - last > patience:
                message = f"the server at {address} could not be reached for {patience:g} s"
                raise TimeoutError(message) from error
            time.sleep(_RECONNECT)


def _reason(check: Callable[[], Iterable[object]], error: Exception) -> str:
    try:
        list(check())
    except SecureFDError as found:
        return str(found)
    return f"the connection was lost ({type(error).__name__})"


def _answer_next(link: Link, answer: Callable[[bytes], bytes]) -> bool:
    """Answer the next message, if there is one; return whether there was."""
    try:
        if (message := link.receive()) is None:
            return False
        link.send(_reply(answer, message))
    except (ObjectPullError, ObjectPushError) as error:  # the server misses this answer
        log.warning(f"a message was lost: {type(error).__name__}")
    return True


def _reply(answer: Callable[[bytes], bytes], message: Any) -> Any:  # noqa: ANN401 - of Flower
    try:
        return Message(_content(answer(_data(message))), reply_to=message)
    except Exception as error:  # noqa: BLE001 - the reply says so, and the site goes on
        place = traceback.extract_tb(error.__traceback__)[-1]  # its text might name records
        log.warning(f"no answer: {type(error).__name__} in {place.name}, line {place.lineno}")
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code=code, reason=type(error).__name__), reply_to=message)
