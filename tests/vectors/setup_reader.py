"""A client and a server of docs/protocol.md once more: what they agree on, and their set-up.

Nothing of secure_fd is imported. Every failure is a RefusedMessage that names the check.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, InvalidTag

from tests.vectors import independent as plain
from tests.vectors.independent import EVERYONE, HEADER, SERVER, SETUP


class RefusedMessage(Exception):  # noqa: N818 - a refusal is no fault of the program
    """reason: the check that noticed it, in the words of docs/protocol.md."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def require(holds: bool, reason: str) -> None:
    """RefusedMessage for this reason unless it holds."""
    if not holds:
        raise RefusedMessage(reason)


@dataclass(frozen=True)
class Terms:
    """What a session's parties agreed on. degree: in place of the default, 0 for that."""

    id: bytes
    roster: Mapping[int, bytes]
    server: bytes
    hybrid: int
    epoch: int
    degree: int

    @property
    def least(self) -> int:
        """Of members in a set-up."""
        return 2 * len(self.roster) // 3 + 1

    @property
    def keys(self) -> int:
        """Bytes of K."""
        return 32 + (1216 if self.hybrid else 0)

    def set_up(self, purpose: str, sender: int, receiver: int = EVERYONE) -> bytes:
        """A context without terms."""
        return plain.context(purpose, self.id, b"", sender, receiver)

    def verify(self, client: int, signature: bytes, text: bytes) -> bool:
        try:
            plain.verify(self.roster[client], signature, text)
        except InvalidSignature:
            return False
        return True


def read(message: bytes, session: bytes, index: int, sender: int) -> tuple[str, bytes]:
    """Type and body, in the order of checks that the page has."""
    require(len(message) >= HEADER, "length")
    require(int.from_bytes(message[:2], "big") == plain.VERSION, "version")
    require(0 < int.from_bytes(message[2:4], "big") <= len(plain.TYPES), "type")
    kind, there, number, claimed, body = plain.read_frame(message)
    require(there == session, "session")
    require(number == index, "round")
    require(claimed == sender, "sender")
    return kind, body


def chosen(data: bytes, members: Sequence[int]) -> list[int]:
    """A set of a message."""
    try:
        return plain.read_set(data, members)
    except ValueError:
        raise RefusedMessage("set") from None


def read_lines(body: bytes, members: Sequence[int], size: int) -> tuple[dict[int, bytes], bytes]:
    """A set, then so many bytes for each of it; and what follows."""
    head = plain.set_size(members)
    require(len(body) >= head, "length")
    named = chosen(body[:head], members)
    end = head + size * len(named)
    require(len(body) >= end, "length")
    return dict(zip(named, plain.pieces(body[head:end], size), strict=True)), body[end:]


@dataclass(frozen=True)
class Group:
    """What all members know after AGREED. joined: the list of MEMBERS."""

    terms: Terms
    list_view: bytes
    joined: list[int]
    members: list[int]
    seed: bytes

    def __post_init__(self) -> None:
        terms, n = self.terms, len(self.members)
        revealed = plain.member_set(self.members, self.joined)
        agreed = plain.fields(terms.set_up("group", SERVER), self.list_view, revealed, self.seed)
        degree, threshold, quorum = plain.group_numbers(n, len(terms.roster), terms.degree)
        for name, value in (
            ("view", plain.sha(agreed)),
            ("degree", degree),
            ("threshold", threshold),
            ("quorum", quorum),
            ("committee", plain.committee(self.members, degree + 1, self.seed)),
            ("near", plain.neighbours(self.members, degree, self.seed)),
        ):
            object.__setattr__(self, name, value)

    view: bytes = field(init=False)
    degree: int = field(init=False)
    threshold: int = field(init=False)
    quorum: int = field(init=False)
    committee: list[int] = field(init=False)
    near: dict[int, list[int]] = field(init=False)

    def holders(self, client: int) -> list[int]:
        return sorted([client, *self.near[client]])

    def reaches(self, present: Sequence[int]) -> bool:
        there = set(present)
        if len(there) < self.quorum or len(there & set(self.committee)) < self.threshold:
            return False
        return self.degree == len(self.members) - 1 or all(
            len(there & set(self.holders(client))) >= self.threshold for client in present
        )

    @property
    def foes(self) -> int:
        """So many holders of a secret may be corrupt."""
        return 2 * self.threshold - self.degree - 2


class Chain:
    """The secret of two neighbours; it moves on with every round. made: state, keys by round."""

    def __init__(self, terms: Terms, one: int, other: int, secret: bytes, view: bytes) -> None:
        self._terms, self.ends = terms, (min(one, other), max(one, other))
        info = terms.set_up("channel chain", *self.ends) + view
        self.first = self.state = plain.hkdf(secret, terms.id, info)
        self._at: int | None = None

    def _mixed(self, purpose: str, index: int, length: int) -> bytes:
        info = plain.context(purpose, self._terms.id, plain.eight(index), *self.ends)
        return plain.hkdf(self.state, self._terms.id, info, length)

    def keys(self, index: int) -> tuple[bytes, bytes, bytes]:
        """Sealing key upward, sealing key downward, pair secret of a round."""
        if self._at is None:
            self._at = index - index % self._terms.epoch
            self.state = self._mixed("channel ratchet", self._at, 32)
        if not 0 <= index - self._at < self._terms.epoch:
            raise ValueError(f"no keys for round {index} at {self._at}")
        for _ in range(index - self._at):
            self.state = plain.sha(b"secure-fd channel ratchet", self.state)
        self._at = index
        made = self._mixed("channel keys of a round", index, 96)
        return made[:32], made[32:64], made[64:]

    def sealing(self, index: int, sender: int) -> bytes:
        """The key of what `sender` seals for the other."""
        return self.keys(index)[self.ends.index(sender)]


@dataclass(frozen=True)
class Enrolled:
    """What a client takes from a set-up. key: of its tags."""

    group: Group
    chains: dict[int, Chain]
    key: bytes


class SetupClient:
    """One set-up of a client. capsules: what it sends, by receiver, since sealing is random."""

    def __init__(
        self,
        terms: Terms,
        number: int,
        identity: bytes,
        draws: plain.Draws,
        capsules: Mapping[int, bytes],
    ) -> None:
        self.terms, self.number, self._identity, self._draws = terms, number, identity, draws
        self._capsules = capsules
        self.nonce, self.private = draws.take(32), draws.take(32)
        self._hpke = (draws.take(64), draws.take(32)) if terms.hybrid else None
        self.public = plain.agreement_public(self.private)
        if self._hpke:
            self.public += plain.capsule_public(*self._hpke)
        label = terms.set_up("nonce commitment", number)
        self.line = plain.sha(self.public) + plain.sha(label, self.nonce)
        self.done: Enrolled | None = None
        self._expected = "MEMBERS"
        self._keys: dict[int, bytes] = {}
        self._secrets: dict[int, bytes] = {}

    def _message(self, kind: str, body: bytes) -> bytes:
        return plain.frame(kind, self.terms.id, SETUP, self.number, body)

    def start(self) -> bytes:
        """JOIN."""
        body = self.public + self.line[32:]
        text = self.terms.set_up("join signature", self.number) + body
        return self._message("JOIN", body + plain.sign(self._identity, text))

    def receive(self, message: bytes) -> bytes | None:
        kind, body = read(message, self.terms.id, SETUP, SERVER)
        require(kind == self._expected, "state")
        if kind == "MEMBERS":
            return self._reveal(body)
        if kind == "AGREED":
            return self._agree(body)
        self._finish(self._opened(body))
        return None

    def _reveal(self, body: bytes) -> bytes:
        roster = self.terms.roster
        self._lines, rest = read_lines(body, sorted(roster), 64)
        require(not rest, "length")
        require(self._lines.get(self.number) == self.line, "own line")
        require(len(self._lines) >= self.terms.least, "few members")
        self._view = plain.sha(self.terms.set_up("member list", SERVER), body)
        text = self.terms.set_up("reveal signature", self.number) + self._view + self.nonce
        self._expected = "AGREED"
        return self._message("REVEAL", self.nonce + plain.sign(self._identity, text))

    def _agree(self, body: bytes) -> bytes | None:
        terms, joined = self.terms, list(self._lines)
        head = plain.set_size(joined)
        members = chosen(body[:head], joined)
        end = head + 96 * len(members)
        nonces = [line[:32] for line in plain.pieces(body[head:end], 96)]
        group = Group(terms, self._view, joined, members, plain.joint_seed(nonces))
        require(len(body) == end + group.degree * terms.keys, "length")
        require(self.number in members, "own place")
        require(len(members) >= terms.least, "few members")
        for client, line in zip(members, plain.pieces(body[head:end], 96), strict=True):
            check_reveal(terms, client, self._view, line, self._lines[client][32:])
        near = group.near[self.number]
        self._keys = dict(zip(near, plain.pieces(body[end:], terms.keys), strict=True))
        for peer, key in self._keys.items():
            require(plain.sha(key) == self._lines[peer][:32], "keys")
        self._group = group
        if not terms.hybrid:
            self._finish(dict.fromkeys(near, b""))
            return None
        self._expected = "CAPSULES"
        higher = [peer for peer in near if peer > self.number]
        self._secrets = {peer: self._draws.take(32) for peer in higher}
        return self._message("CAPSULES", b"".join(self._capsules[peer] for peer in higher))

    def _agreed(self, peer: int) -> bytes:
        return plain.exchange(self.private, self._keys[peer][:32])

    def capsule_info(self, peer: int) -> bytes:
        """Of the capsule of this pair."""
        terms, ends = self.terms, sorted((self.number, peer))
        view = self._group.view
        info = terms.set_up("capsule key", *ends) + view
        return (
            terms.set_up("capsule", *ends) + view + plain.hkdf(self._agreed(peer), terms.id, info)
        )

    def _opened(self, body: bytes) -> dict[int, bytes]:
        members, near = self._group.members, self._group.near[self.number]
        head = plain.set_size(members)
        present = chosen(body[:head], members)
        lower = [peer for peer in near if peer < self.number and peer in present]
        require(len(body) == head + 1168 * len(lower), "length")
        require(len(present) >= self.terms.least, "few members")
        secrets = {peer: secret for peer, secret in self._secrets.items() if peer in present}
        assert self._hpke is not None
        for peer, capsule in zip(lower, plain.pieces(body[head:], 1168), strict=True):
            try:
                secrets[peer] = plain.open_capsule(capsule, *self._hpke, self.capsule_info(peer))
            except (InvalidTag, ValueError):  # ValueError: its curve part is of low order
                secrets[peer] = self._draws.take(32)
        return secrets

    def _finish(self, secrets: Mapping[int, bytes]) -> None:
        """secrets: by neighbour that went on to the end, that of its capsule."""
        terms, view = self.terms, self._group.view
        chains = {
            peer: Chain(terms, self.number, peer, self._agreed(peer) + secret, view)
            for peer, secret in secrets.items()
        }
        secret = plain.exchange(self.private, terms.server)
        self.done = Enrolled(self._group, chains, tag_key(self._group, self.number, secret))


def tag_key(group: Group, client: int, secret: bytes) -> bytes:
    """secret: of the client's channel key and the server's key."""
    info = group.terms.set_up("input authentication key", client, SERVER) + group.view
    return plain.hkdf(secret, group.terms.id, info)


def check_reveal(terms: Terms, client: int, view: bytes, line: bytes, commitment: bytes) -> None:
    """line: nonce and signature."""
    text = terms.set_up("reveal signature", client) + view + line[:32]
    require(terms.verify(client, line[32:], text), "signature")
    label = terms.set_up("nonce commitment", client)
    require(plain.sha(label, line[:32]) == commitment, "commitment")


class SetupServer:
    """One set-up of the server."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.stage = "JOIN"
        self._came: dict[str, dict[int, bytes]] = {"JOIN": {}, "REVEAL": {}, "CAPSULES": {}}
        self._accepted: set[tuple[int, bytes]] = set()
        self._out: set[int] = set()
        self._group: Group | None = None

    @property
    def finished(self) -> bool:
        return self.stage == "DONE"

    @property
    def group(self) -> Group:
        assert self._group is not None
        return self._group

    @property
    def present(self) -> list[int]:
        """The members to whom channels lead."""
        return sorted(self._came["CAPSULES" if self.terms.hybrid else "REVEAL"])

    def channel_key(self, client: int) -> bytes:
        return self._came["JOIN"][client][:32]

    def receive(self, sender: int, message: bytes) -> None:
        if (sender, message) in self._accepted:
            return
        require(sender in self.terms.roster and sender not in self._out, "stranger")
        require(sender not in self._came[self.stage], "repeat")
        try:
            kind, body = read(message, self.terms.id, SETUP, sender)
            require(kind == self.stage, "state")
            getattr(self, f"_check_{kind.lower()}")(sender, body)
        except RefusedMessage:
            self._out.add(sender)
            raise
        self._came[kind][sender] = body
        self._accepted.add((sender, message))

    def _check_join(self, sender: int, body: bytes) -> None:
        require(len(body) == self.terms.keys + 96, "length")
        require(not plain.low_order(body[:32]), "bad key")
        require(not self.terms.hybrid or plain.is_capsule_key(body[32:-96]), "bad key")
        text = self.terms.set_up("join signature", sender) + body[:-64]
        require(self.terms.verify(sender, body[-64:], text), "signature")

    def _check_reveal(self, sender: int, body: bytes) -> None:
        require(sender in self._came["JOIN"], "stranger")
        require(len(body) == 96, "length")
        check_reveal(self.terms, sender, self._view, body, self._came["JOIN"][sender][-96:-64])

    def _check_capsules(self, sender: int, body: bytes) -> None:
        require(sender in self.group.members, "stranger")
        require(len(body) == 1168 * len(self._higher(sender)), "length")

    def _higher(self, client: int) -> list[int]:
        return [peer for peer in self.group.near[client] if peer > client]

    def close(self) -> dict[int, bytes]:
        came = self._came[self.stage]
        require(len(came) >= self.terms.least, "too few")
        kind, bodies = getattr(self, f"_after_{self.stage.lower()}")(sorted(came))
        return {
            client: plain.frame(kind, self.terms.id, SETUP, SERVER, bodies[client])
            for client in sorted(came)
        }

    def _after_join(self, came: list[int]) -> tuple[str, dict[int, bytes]]:
        joins = self._came["JOIN"]
        body = plain.member_set(came, sorted(self.terms.roster))
        body += b"".join(plain.sha(joins[k][:-96]) + joins[k][-96:-64] for k in came)
        self._joined = came
        self._view = plain.sha(self.terms.set_up("member list", SERVER), body)
        self.stage = "REVEAL"
        return "MEMBERS", dict.fromkeys(came, body)

    def _after_reveal(self, came: list[int]) -> tuple[str, dict[int, bytes]]:
        reveals = self._came["REVEAL"]
        seed = plain.joint_seed([reveals[k][:32] for k in came])
        group = self._group = Group(self.terms, self._view, self._joined, came, seed)
        head = plain.member_set(came, self._joined) + b"".join(reveals[k] for k in came)
        self.stage = "CAPSULES" if self.terms.hybrid else "DONE"
        return "AGREED", {
            k: head + b"".join(self._came["JOIN"][peer][:-96] for peer in group.near[k])
            for k in came
        }

    def _after_capsules(self, came: list[int]) -> tuple[str, dict[int, bytes]]:
        boxes: dict[int, bytes] = dict.fromkeys(self.group.members, b"")
        for sender in came:
            sent = plain.pieces(self._came["CAPSULES"][sender], 1168)
            for peer, capsule in zip(self._higher(sender), sent, strict=True):
                boxes[peer] += capsule
        head = plain.member_set(came, self.group.members)
        self.stage = "DONE"
        return "CAPSULES", {client: head + boxes[client] for client in came}
