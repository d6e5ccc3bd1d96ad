"""Make all of secagg.json from its inputs, as implementations of docs/reference/protocol.md must.

Nothing of secure_fd is imported.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.vectors import independent as plain
from tests.vectors.independent import SERVER, Refused
from tests.vectors.parties import Client, Server
from tests.vectors.records import Delivery, Json, described, listed

raw = bytes.fromhex


def made(content: Json) -> Json:
    """Return the content of the file; from each part only its inputs are read."""
    return {
        "comment": content["comment"],
        "version": plain.VERSION,
        "contexts": [context_case(case) for case in content["contexts"]],
        "lanes": [lane_case(case) for case in content["lanes"]],
        "sharing": sharing_case(content["sharing"]),
        "corrections": [correction_case(case) for case in content["corrections"]],
        "draws": [draw_case(case) for case in content["draws"]],
        "graphs": [graph_case(case) for case in content["graphs"]],
        "groups": [group_case(case) for case in content["groups"]],
        "ratchet": ratchet_case(content["ratchet"]),
        "flows": [Replay(case).made for case in content["flows"]],
        "refused": [refused_case(content, case) for case in content["refused"]],
    }


def context_case(case: Json) -> Json:
    ends = case["sender"], case["receiver"]
    made = plain.context(raw(case["session"]), raw(case["terms"]), case["purpose"], *ends)
    return {**case, "context": made.hex()}


def lane_case(case: Json) -> Json:
    lanes = plain.Lanes(case["clients"], len(case["values"]), case["bound"], case["room"])
    words = lanes.pack(case["values"])
    assert lanes.read(words, 1) == case["values"]
    return {**case, "bits": lanes.bits, "lanes": lanes.lanes, "words": words.tobytes().hex()}


def sharing_case(case: Json) -> Json:
    stream, t, points = plain.insecure_stream(case["seed"]), case["threshold"], case["points"]
    secret, *coefficients = [stream.element() for _ in range(t)]
    shares = {x: plain.evaluate([*coefficients, secret], x) for x in points}
    last = points[-t:]
    assert plain.combine(shares, last) == secret
    weights = [plain.combine({x: int(x == at) for x in last}, last) for at in last]
    return {
        **case,
        "secret": plain.element(secret).hex(),
        "shares": [plain.element(share).hex() for share in shares.values()],
        "weights_of_the_last": [plain.element(weight).hex() for weight in weights],
    }


def correction_case(case: Json) -> Json:
    shares = {at: int(share, 16) for at, share in zip(case["points"], case["shares"], strict=True)}
    found = plain.decoded(shares, case["threshold"])
    if found is None:
        return {**case, "secret": None, "wrong": None}
    return {**case, "secret": plain.element(found[0]).hex(), "wrong": found[1]}


def draw_case(case: Json) -> Json:
    seed = plain.joint_seed(map(raw, case["nonces"]))
    drawn = plain.drawn_proxies(seed, case["round"], case["population"], case["count"])
    return {**case, "seed": seed.hex(), "indices": drawn}


def graph_case(case: Json) -> Json:
    members, degree, seed = case["members"], case["degree"], raw(case["seed"])
    near = plain.neighbours(seed, members, degree)
    committee = plain.committee(seed, members, degree + 1)
    return {**case, "neighbours": [near[member] for member in members], "committee": committee}


def group_case(case: Json) -> Json:
    numbers = plain.group_numbers(case["members"], case["roster"], case["session_degree"])
    return {**case, **dict(zip(("degree", "threshold", "quorum"), numbers, strict=True))}


def ratchet_case(case: Json) -> Json:
    session = plain.Session(raw(case["session"]), {}, b"", 0, case["epoch"])
    ends, rounds = (case["low"], case["high"]), []
    for one in case["rounds"]:
        state, keys = plain.channel(session, raw(case["chain"]), *ends, one["index"])
        rounds.append({"index": one["index"], "state": state.hex(), "keys": keys.hex()})
    return {**case, "rounds": rounds}


def refused_case(content: Json, case: Json) -> Json:
    """The case with the party that refuses it, None for no party."""
    scene = next(flow for flow in content["flows"] if flow["name"] == case["flow"])
    at = (case["step"], case["type"], case["from"], case["to"])

    def tamper(delivery: Delivery) -> Delivery:
        if (delivery.step, delivery.kind, delivery.sender, delivery.receiver) != at:
            return delivery
        head, end = delivery.data[: case["head"]], len(delivery.data) - case["tail"]
        data = head + raw(case["middle"]) + delivery.data[end:]
        return Delivery(delivery.step, case["sender"], delivery.receiver, data)

    try:
        Replay(scene, tamper, case["step"] + 1)
    except Refused as refusal:
        return {**case, "party": refusal.party, "when": refusal.when, "reason": refusal.reason}
    return {**case, "party": None}


@contextmanager
def at_party(party: int, when: str) -> Iterator[None]:
    """Note in a refusal which party refused, and when."""
    try:
        yield
    except Refused as refusal:
        refusal.party, refusal.when = party, when
        raise


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return value.tobytes().hex()
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


@dataclass
class Replay:
    """One flow of the file, run at once. made: the flow with all that follows from its inputs."""

    case: Json
    tamper: Callable[[Delivery], Delivery] = lambda delivery: delivery
    upto: int | None = None

    def __post_init__(self) -> None:
        given, capsules = self.case["session"], self.case["capsules"]
        hybrid, epoch, degree = given["hybrid"], given["epoch"], given["degree"]
        streams = {
            one["client"]: plain.insecure_stream(one["seed"]) for one in self.case["clients"]
        }
        identities = {
            client: Ed25519PrivateKey.from_private_bytes(stream.read(32))
            for client, stream in streams.items()
        }
        roster = {client: plain.public(identity) for client, identity in identities.items()}
        private = plain.x25519(raw(given["server_private"]))
        server_key = plain.public(private)
        agreed = raw(given["configuration"]), raw(given["proxies"]), server_key
        session_id = plain.session_id(raw(given["nonce"]), hybrid, epoch, roster, *agreed)
        session = plain.Session(session_id, roster, server_key, hybrid, epoch, degree)
        self.server = Server(session, private)
        self.clients = {}
        for client, identity in identities.items():
            sent = {one["to"]: raw(one["capsule"]) for one in capsules if one["from"] == client}
            self.clients[client] = Client(session, client, identity, streams[client], sent)
        self.made: Json = {
            **self.case,
            "id": session_id.hex(),
            "server_public": server_key.hex(),
            "identities": [key.hex() for key in roster.values()],
            "steps": [
                self._take(at, step) for at, step in enumerate(self.case["steps"][: self.upto])
            ],
        }

    def _take(self, at: int, step: Json) -> Json:
        run = _Step(self, at, step)
        made = run.set_up() if step["kind"] == "setup" else run.round()
        return {**step, **as_json(made), **run.messages}


@dataclass
class _Step:
    """One set-up or round of a flow."""

    flow: Replay
    at: int
    step: Json
    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server, self.clients = self.flow.server, self.flow.clients

    @property
    def messages(self) -> Json:
        came, lost = (
            described(part, compact=self.step["compact"]) for part in (self.deliveries, self.lost)
        )
        return {"messages": came, "not_arrived": lost}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Neighbours to whom a channel leads."""
        present, near = self.server.present, self.server.group.neighbours
        return [
            (low, high) for low in present for high in near[low] if low < high and high in present
        ]

    def set_up(self) -> Json:
        self.server.begin_set_up()
        self._run({client: machine.join() for client, machine in self.clients.items()})
        server, group = self.server, self.server.group
        names = ("seed", "view", "members", "degree", "threshold", "quorum", "committee")
        for client in server.present:
            assert self.clients[client].tag_key == server.tag_keys[client]
        return {
            "list_view": server.list_view,
            **{name: getattr(group, name) for name in names},
            "present": server.present,
            "neighbours": [group.neighbours[member] for member in group.members],
            "tag_keys": [server.tag_keys[client] for client in server.present],
            "chains": [(low, high, self.clients[low].chains[high]) for low, high in self.pairs],
        }

    def round(self) -> Json:
        step, server = self.step, self.server
        numbers = (step[name] for name in ("index", "length", "bound", "room", "least"))
        terms = plain.Terms(*numbers, raw(step["subject"]))
        values = dict(zip(server.present, step["values"], strict=True))
        server.begin(terms)
        first = {client: self.clients[client].begin(terms, values[client]) for client in values}
        channels = [self._channel(terms.index, *pair) for pair in self.pairs]
        prepared = [self._prepared(client) for client in values] if step["detail"] else []
        self._run(first)
        ended = {
            "channels": channels,
            "closed": server.closed,
            "survivors": server.survivors,
            "barred": sorted(server.barred),
            "sum": server.sum,
        }
        return {**ended, **self._detail(prepared)} if step["detail"] else ended

    def _channel(self, index: int, low: int, high: int) -> list[Any]:
        client = self.clients[low]
        state, keys = plain.channel(client.session, client.chains[high], low, high, index)
        return [low, high, state, *([keys] if self.step["detail"] else [])]

    def _prepared(self, client: int) -> Json:
        session, one = self.clients[client].session, self.clients[client].prepared
        return {
            "root": plain.element(one.root),
            "seed": plain.element(one.seed),
            "round_private": one.round_key.private_bytes_raw(),
            "round_public": plain.public(one.round_key),
            "commitment": plain.seed_commitment(session, one.index, client, one.seed),
            "vault_key": plain.vault_key(session, one.index, client, one.root),
            "root_shares": [plain.element(share) for share in one.root_shares.values()],
            "seed_shares": [plain.element(share) for share in one.seed_shares.values()],
        }

    def _detail(self, prepared: list[Json]) -> Json:
        present = [self.clients[client] for client in self.server.present]
        return {
            "packed": [client.packed for client in present],
            "prepared": prepared,
            "self_masks": [client.self_mask for client in present],
            "pairs": [(low, high, *self.clients[low].pairs[high]) for low, high in self.pairs],
        }

    def _run(self, up: Mapping[int, bytes | None]) -> None:
        """Deliver and answer messages until the server is done."""
        while self.server.stage:
            for client, message in up.items():
                if message is not None:
                    self._to_server(Delivery(self.at, client, SERVER, message))
            with at_party(SERVER, "close"):
                down = self.server.close()
            up = {client: self._to_client(client, message) for client, message in down.items()}

    def _to_server(self, sent: Delivery) -> None:
        if [sent.kind, sent.sender] in self.step["lost"]:
            self.lost.append(sent)
            return
        came = self._arrived(sent)
        with at_party(SERVER, "receive"):
            self.server.receive(came.sender, came.data)

    def _to_client(self, client: int, message: bytes) -> bytes | None:
        came = self._arrived(Delivery(self.at, SERVER, client, message))
        with at_party(client, "receive"):
            return self.clients[client].receive(came.data)

    def _arrived(self, sent: Delivery) -> Delivery:
        came = self.flow.tamper(listed(sent, self.step["altered"]))
        self.deliveries.append(came)
        return came
