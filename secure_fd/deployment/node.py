"""A site's connection to a SuperLink, in the site's own process, by Flower's Fleet interface.

A SuperNode would look for messages every three seconds, and start a process for each. Here the
process that holds a site's secrets asks by itself, soon and then less often; it goes out to the
server, and nothing listens at a site. A connection that is lost is made again.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
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

from secure_fd.deployment.client_app import carried, carried_by
from secure_fd.errors import LocalError

log = logging.getLogger(__name__)
_PAUSES: Final = (0.02, 0.25)
"""Seconds between two looks for a push: at first, and at most."""
_HEARTBEAT: Final = 10.0
"""Seconds, the least that Flower takes; after two of them a silent node is no longer listed."""
_AGAIN: Final = 1.0
"""Seconds before a lost connection is made again."""
_PATIENCE: Final = 30.0
"""Seconds in which the objects of a message must have come."""
_LOST: Final = (ObjectPullError, ObjectPushError)
"""What Flower raises where a message is lost and the connection is not."""


class Link:
    """A registered and active node of a SuperLink."""

    def __init__(self, client: Any, node: Any) -> None:  # noqa: ANN401 - Flower's own
        self._client, self.node = client, node

    def take(self) -> Any | None:  # noqa: ANN401 - Flower's message
        """The next message, None where there is none now."""
        found = self._client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, name = head.metadata.run_id, head.metadata.message_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self.node, run)
        names = [one.object_id for one in iterate_object_tree(tree)]
        parts = pull_objects(names, pull, max_time=_PATIENCE, initial_backoff=0.05, backoff_cap=0.5)
        make_confirm_message_received_fn_protobuf(
            self._client.ConfirmMessageReceived, self.node, run
        )(name)
        message = inflate_object_from_contents(name, parts)
        message.metadata.__dict__["_message_id"] = name  # as Flower's own SuperNode sets it
        return message

    def give(self, reply: Any, seconds: float) -> None:  # noqa: ANN401 - Flower's message
        """Send a reply and the objects of it that the SuperLink lacks."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            request = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
            answer = self._client.PushMessages(request)
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self.node, reply.metadata.run_id, answer.session_id
            )
            for name in dict.fromkeys(answer.objects_to_push):
                push(name, objects[name].deflate())

    def beat(self, stop: threading.Event) -> None:
        """Say that the node is alive until `stop`; a site that trains is not lost."""
        request = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=_HEARTBEAT)
        while not stop.wait(0.7 * _HEARTBEAT):
            with suppress(httpx.HTTPError):
                self._client.SendNodeHeartbeat(request)


@contextmanager
def linked(address: str, authority: Path, done: Callable[[], bool]) -> Iterator[Link]:
    """Connect, and leave at the end. httpx.HTTPError where the SuperLink cannot be reached.

    Who is done leaves without a word: Flower drops what a node answered that has left, so that the
    server would not know who heard the end. The node is off the list when its heartbeats stop.

    Flower knows a node by a key that is drawn for each connection; who the site is, it proves to
    the server's party by its identity. authority: a file of PEM.
    """
    private, public = generate_key_pairs()
    raw = public_key_to_bytes(public)
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, public),
    ]
    with FleetHttpClient.from_server_address(
        address, False, str(authority), interceptors=interceptors
    ) as client:
        client.RegisterNode(RegisterNodeFleetRequest(public_key=raw))
        active = ActivateNodeRequest(public_key=raw, heartbeat_interval=_HEARTBEAT)
        link = Link(client, Node(node_id=client.ActivateNode(active).node_id))
        stop = threading.Event()
        beats = threading.Thread(target=link.beat, args=(stop,), daemon=True)
        beats.start()
        try:
            yield link
        finally:
            stop.set()
            if not done():
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=link.node.node_id))
                    client.UnregisterNode(UnregisterNodeFleetRequest(node_id=link.node.node_id))


def attend(
    address: str,
    authority: Path,
    answer: Callable[[bytes], bytes],
    done: Callable[[], bool],
    patience: float,
) -> None:
    """Answer pushes until the run is over.

    patience: seconds without a connection after which it gives up with LocalError.
    """
    last = time.monotonic()
    while not done():
        try:
            with linked(address, authority, done) as link:
                log.info("connected", extra={"node": link.node.node_id})
                while not done():
                    _answer_next(link, answer, done)
                    last = time.monotonic()
        except httpx.HTTPError as error:
            log.warning("connection lost", extra={"reason": type(error).__name__})
        if done():
            return
        if time.monotonic() - last > patience:
            raise LocalError(f"the server at {address} could not be reached for {patience:g} s")
        time.sleep(_AGAIN)


def _answer_next(link: Link, answer: Callable[[bytes], bytes], done: Callable[[], bool]) -> None:
    """Wait for a message and answer it; one that is lost is the server's to miss."""
    pause = _PAUSES[0]
    while not done():
        try:
            message = link.take()
            if message is not None:
                begun = time.monotonic()
                link.give(_reply(answer, message), time.monotonic() - begun)
                return
        except _LOST as error:
            log.warning("a message was lost", extra={"reason": type(error).__name__})
            return
        time.sleep(pause)
        pause = min(1.3 * pause, _PAUSES[1])


def _reply(answer: Callable[[bytes], bytes], message: Any) -> Any:  # noqa: ANN401 - Flower's own
    try:
        return Message(carried(answer(carried_by(message))), reply_to=message)
    except Exception as error:  # noqa: BLE001 - the reply says so, and the site goes on
        place = traceback.extract_tb(error.__traceback__)[-1]  # its text might tell of records
        where = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
        log.warning("no answer", extra={"reason": where})
        code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return Message(Error(code=code, reason=type(error).__name__), reply_to=message)
