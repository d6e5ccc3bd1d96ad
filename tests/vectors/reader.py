"""Makes all of secagg.json again from what it gives, as a second implementation would.

Nothing of secure_fd is imported: what holds here holds for whoever follows docs/protocol.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.vectors import independent as plain
from tests.vectors.independent import SERVER
from tests.vectors.records import Delivery, described, listed
from tests.vectors.round_reader import (
    Collector,
    Member,
    Prepared,
    RoundClient,
    RoundServer,
    RoundTerms,
    pair_key,
    part_size,
)
from tests.vectors.setup_reader import (
    Chain,
    Group,
    RefusedMessage,
    SetupClient,
    SetupServer,
    Terms,
)

Json = dict[str, Any]


def raw(value: str) -> bytes:
    return bytes.fromhex(value)


def made(content: Json) -> Json:
    """The content of the file once more; from each part only what is given is read."""
    return {
        "comment": content["comment"],
        "version": plain.VERSION,
        "contexts": [context_case(case) for case in content["contexts"]],
        "lanes": [lane_case(case) for case in content["lanes"]],
        "sharing": sharing_case(content["sharing"]),
        "draws": [draw_case(case) for case in content["draws"]],
        "graphs": [graph_case(case) for case in content["graphs"]],
        "groups": [group_case(case) for case in content["groups"]],
        "ratchet": ratchet_case(content["ratchet"]),
        "corrections": [correction_case(case) for case in content["corrections"]],
        "flows": [Replay(case).made for case in content["flows"]],
        "refused": [refused_case(content, case) for case in content["refused"]],
    }


def context_case(case: Json) -> Json:
    given = raw(case["session"]), raw(case["terms"]), case["sender"], case["receiver"]
    return {**case, "context": plain.context(case["purpose"], *given).hex()}


def lane_case(case: Json) -> Json:
    shape, values = (case["clients"], case["bound"], case["room"]), case["values"]
    words, bits = plain.pack(values, *shape), plain.lane_bits(*shape)
    assert plain.lanes_of(words, len(values), *shape) == (values, False)
    packed = b"".join(word.to_bytes(8, "little") for word in words)
    return {**case, "bits": bits, "lanes": 64 // bits, "words": packed.hex()}


def sharing_case(case: Json) -> Json:
    t, points = case["threshold"], case["points"]
    secret, *coefficients = plain.Draws(case["seed"]).elements(t)
    shares = [plain.evaluate([*coefficients, secret], point) for point in points]
    last = dict(zip(points[-t:], shares[-t:], strict=True))
    assert plain.combine(last) == secret
    weights = [plain.combine({x: int(x == at) for x in last}) for at in last]
    return {
        **case,
        "secret": plain.element(secret).hex(),
        "shares": [plain.element(share).hex() for share in shares],
        "weights_of_the_last": [plain.element(weight).hex() for weight in weights],
    }


def correction_case(case: Json) -> Json:
    """The secret and the wrong shares' points; null where more are wrong than can be told."""
    shares = {at: int(share, 16) for at, share in zip(case["points"], case["shares"], strict=True)}
    found = plain.decoded(shares, case["threshold"])
    if found is None:
        return {**case, "secret": None, "wrong": None}
    return {**case, "secret": plain.element(found[0]).hex(), "wrong": found[1]}


def draw_case(case: Json) -> Json:
    seed = plain.joint_seed([raw(nonce) for nonce in case["nonces"]])
    given = case["round"], case["population"], case["count"]
    return {**case, "seed": seed.hex(), "indices": plain.drawn_proxies(seed, *given)}


def graph_case(case: Json) -> Json:
    members, degree, seed = case["members"], case["degree"], raw(case["seed"])
    near = plain.neighbours(members, degree, seed)
    return {
        **case,
        "neighbours": [near[member] for member in members],
        "committee": plain.committee(members, degree + 1, seed),
    }


def group_case(case: Json) -> Json:
    given = case["members"], case["roster"], case["session_degree"]
    degree, threshold, quorum = plain.group_numbers(*given)
    return {**case, "degree": degree, "threshold": threshold, "quorum": quorum}


def ratchet_case(case: Json) -> Json:
    """One chain at several rounds of one epoch."""
    session, low, high, epoch = raw(case["session"]), case["low"], case["high"], case["epoch"]
    rounds = []
    for one in case["rounds"]:
        first = one["index"] - one["index"] % epoch
        info = plain.context("channel ratchet", session, plain.eight(first), low, high)
        state = plain.hkdf(raw(case["chain"]), session, info)
        for _ in range(one["index"] - first):
            state = plain.sha(b"secure-fd channel ratchet" + state)
        label = plain.context(
            "channel keys of a round", session, plain.eight(one["index"]), low, high
        )
        keys = plain.hkdf(state, session, label, 96)
        rounds.append({"index": one["index"], "state": state.hex(), "keys": keys.hex()})
    return {**case, "rounds": rounds}


@dataclass
class RefusedHere(Exception):  # noqa: N818 - a refusal is no fault of the program
    """Which party refused a delivery, when, and why."""

    party: int
    when: str
    reason: str


def refused_case(content: Json, case: Json) -> Json:
    """The operation, and what this implementation says to it."""
    scene = next(flow for flow in content["flows"] if flow["name"] == case["flow"])
    at = (case["step"], case["type"], case["from"], case["to"])

    def tamper(delivery: Delivery) -> Delivery:
        if (delivery.step, delivery.kind, delivery.sender, delivery.receiver) != at:
            return delivery
        head, tail = case["head"], len(delivery.data) - case["tail"]
        data = delivery.data[:head] + raw(case["middle"]) + delivery.data[tail:]
        return Delivery(delivery.step, case["sender"], delivery.receiver, data)

    try:
        Replay(scene, tamper, case["step"] + 1)
    except RefusedHere as refusal:
        return {
            **case,
            "party": refusal.party,
            "when": refusal.when,
            "reason": refusal.reason,
        }
    return {**case, "party": None}


@dataclass
class Replay:
    """One flow of the file, by this implementation's own parties. made: what the file holds."""

    case: Json
    tamper: Callable[[Delivery], Delivery] = lambda delivery: delivery
    upto: int | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    lost: list[Delivery] = field(default_factory=list)
    step: int = -1

    def __post_init__(self) -> None:
        case = self.case["session"]
        draws = {one["client"]: plain.Draws(one["seed"]) for one in self.case["clients"]}
        self.members = {k: Member(k, source.take(32), source) for k, source in draws.items()}
        numbers = case["hybrid"], case["epoch"]
        roster = {k: plain.identity_public(one.identity) for k, one in self.members.items()}
        private = raw(case["server_private"])
        public = plain.agreement_public(private)
        agreed = raw(case["configuration"]), raw(case["proxies"]), public
        session = plain.session_id(raw(case["nonce"]), numbers, roster, *agreed)
        self.terms = Terms(session, roster, public, *numbers, case["degree"])
        self.collector = Collector(private)
        self.made: Json = {
            **self.case,
            "id": session.hex(),
            "server_public": public.hex(),
            "identities": [roster[k].hex() for k in self.members],
            "steps": [
                self._take(at, step) for at, step in enumerate(self.case["steps"][: self.upto])
            ],
        }

    def _take(self, at: int, step: Json) -> Json:
        self.step, first, lost = at, len(self.deliveries), len(self.lost)
        made = self._set_up(step) if step["kind"] == "setup" else self._round(step)
        compact = step["compact"]
        return {
            **step,
            **made,
            "messages": described(self.deliveries[first:], compact=compact),
            "not_arrived": described(self.lost[lost:], compact=compact),
        }

    def _set_up(self, step: Json) -> Json:
        server = SetupServer(self.terms)
        machines = {k: self._setup_client(member) for k, member in self.members.items()}
        up: dict[int, bytes | None] = {k: machine.start() for k, machine in machines.items()}
        while not server.finished:
            up = self._stage(server, machines, up, step)
        if not self.terms.hybrid:
            for k in up:
                assert machines[k].done is not None
        self.collector.enrol(server)
        for k, machine in machines.items():
            if machine.done is not None:
                self.members[k].enrol(machine.done)
        group = server.group
        return {
            "list_view": group.list_view.hex(),
            "seed": group.seed.hex(),
            "view": group.view.hex(),
            "members": group.members,
            "present": server.present,
            "degree": group.degree,
            "threshold": group.threshold,
            "quorum": group.quorum,
            "committee": group.committee,
            "neighbours": [group.near[k] for k in group.members],
            "tag_keys": [self.collector.tags[k].hex() for k in server.present],
            "chains": [
                [low, high, self._enrolled_chain(low, high).first.hex()]
                for low, high in self._pairs()
            ],
        }

    def _setup_client(self, member: Member) -> SetupClient:
        capsules = {
            one["to"]: raw(one["capsule"])
            for one in self.case["capsules"]
            if one["from"] == member.number
        }
        return SetupClient(self.terms, member.number, member.identity, member.draws, capsules)

    @property
    def group(self) -> Group:
        assert self.collector.group is not None
        return self.collector.group

    def _pairs(self) -> list[tuple[int, int]]:
        there = self.collector.present
        near = self.group.near
        return [(k, peer) for k in there for peer in near[k] if k < peer and peer in there]

    def _enrolled_chain(self, low: int, high: int) -> Chain:
        enrolled = self.members[low].enrolled
        assert enrolled is not None
        return enrolled.chains[high]

    def _round(self, step: Json) -> Json:
        terms = RoundTerms(
            index=step["index"],
            length=step["length"],
            bound=step["bound"],
            room=step["room"],
            least=step["least"],
            subject=raw(step["subject"]),
        )
        server = RoundServer(self.collector, terms)
        machines = {
            k: RoundClient(self.members[k], terms, values)
            for k, values in zip(self.collector.present, step["values"], strict=True)
        }
        up = {k: machine.start() for k, machine in machines.items()}
        drawn = {k: machine.prepared for k, machine in machines.items()}
        channels = [self._channel(terms.index, *pair, step["detail"]) for pair in self._pairs()]
        detail = self._detail(terms, step, drawn) if step["detail"] else {}
        while not server.finished:
            up = self._stage(server, machines, up, step)
        return {
            **detail,
            "channels": channels,
            "closed": {str(k): closed for k, closed in sorted(server.closed.items()) if closed},
            "survivors": server.survivors,
            "barred": sorted(self.collector.barred),
            "sum": server.sum,
        }

    def _channel(self, index: int, low: int, high: int, detail: bool) -> list[Any]:
        chain = self._enrolled_chain(low, high)
        keys = b"".join(chain.keys(index))
        return [low, high, chain.state.hex(), *([keys.hex()] if detail else [])]

    def _detail(self, terms: RoundTerms, step: Json, drawn: Mapping[int, Prepared]) -> Json:
        group, session, count = self.group, self.terms.id, terms.size(self.group) // 8
        packed = [plain.pack(values, *terms.shape(group)) for values in step["values"]]
        selves = {
            k: plain.self_mask_key(session, terms.encoded, k, one.seed) for k, one in drawn.items()
        }
        return {
            "packed": [b"".join(w.to_bytes(8, "little") for w in words).hex() for words in packed],
            "prepared": [self._prepared(k, one) for k, one in drawn.items()],
            "self_masks": [
                [key.hex(), plain.keystream(key, 8 * count).hex()] for key in selves.values()
            ],
            "pairs": [self._pair(terms, low, high, drawn) for low, high in self._pairs()],
        }

    def _prepared(self, client: int, one: Prepared) -> Json:
        index = plain.eight(one.index)
        vault = plain.context("vault key", self.terms.id, index, client)
        assert len(one.part) == part_size(self.group.degree)
        return {
            "root": one.root.hex(),
            "seed": one.seed.hex(),
            "round_private": one.private.hex(),
            "round_public": one.part[:32].hex(),
            "commitment": one.commitment.hex(),
            "vault_key": plain.hkdf(one.root, self.terms.id, vault).hex(),
            "root_shares": [share.hex() for share in one.root_shares],
            "seed_shares": [share.hex() for share in one.seed_shares],
        }

    def _pair(
        self, terms: RoundTerms, low: int, high: int, drawn: Mapping[int, Prepared]
    ) -> list[Any]:
        agreed = plain.exchange(drawn[low].private, drawn[high].part[:32])
        secret = self._enrolled_chain(low, high).keys(terms.index)[2]
        key = pair_key(self.group, terms, low, high, agreed, secret)
        mask = plain.keystream(key, terms.size(self.group))
        return [low, high, agreed.hex(), key.hex(), mask.hex()]

    def _stage(
        self,
        server: SetupServer | RoundServer,
        machines: Mapping[int, SetupClient] | Mapping[int, RoundClient],
        up: Mapping[int, bytes | None],
        step: Json,
    ) -> dict[int, bytes | None]:
        for k, message in up.items():
            if message is None:
                continue
            sent = Delivery(self.step, k, SERVER, message)
            if [sent.kind, k] in step["lost"]:
                self.lost.append(sent)
                continue
            came = self._arrived(sent, step["altered"])
            try:
                server.receive(came.sender, came.data)
            except RefusedMessage as refusal:
                raise RefusedHere(SERVER, "receive", refusal.reason) from None
        try:
            down = server.close()
        except RefusedMessage as refusal:
            raise RefusedHere(SERVER, "close", refusal.reason) from None
        replies: dict[int, bytes | None] = {}
        for k, message in down.items():
            came = self._arrived(Delivery(self.step, SERVER, k, message), step["altered"])
            try:
                replies[k] = machines[k].receive(came.data)
            except RefusedMessage as refusal:
                raise RefusedHere(k, "receive", refusal.reason) from None
        return replies

    def _arrived(self, sent: Delivery, altered: Sequence[Json]) -> Delivery:
        came = self.tamper(listed(sent, altered))
        self.deliveries.append(came)
        return came
