"""A client and a server of docs/protocol.md once more: their rounds. See setup_reader.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from cryptography.exceptions import InvalidTag

from tests.vectors import independent as plain
from tests.vectors.independent import EVERYONE, SERVER, WORD
from tests.vectors.setup_reader import (
    Enrolled,
    Group,
    RefusedMessage,
    SetupServer,
    chosen,
    read,
    read_lines,
    require,
    tag_key,
)

ZEROS = bytes(32)


@dataclass(frozen=True)
class RoundTerms:
    """The terms of a round. least: the fewest inputs."""

    index: int
    length: int
    bound: int
    room: int
    least: int
    subject: bytes

    @property
    def encoded(self) -> bytes:
        numbers = (self.index, self.length, self.bound)
        return plain.terms_of(*numbers, self.subject, self.room, self.least)

    def shape(self, group: Group) -> tuple[int, int, int]:
        return len(group.terms.roster), self.bound, self.room

    def size(self, group: Group) -> int:
        """Bytes of the words."""
        return 8 * plain.word_count(self.length, *self.shape(group))


@dataclass(frozen=True)
class Prepared:
    """What a client drew for a round, and what it sends of it."""

    index: int
    root: bytes
    seed: bytes
    private: bytes
    root_shares: list[bytes]
    seed_shares: list[bytes]
    part: bytes

    @property
    def commitment(self) -> bytes:
        return self.part[32:64]


def of_index(group: Group, purpose: str, index: int, client: int, to: int = EVERYONE) -> bytes:
    """A context that holds the index alone."""
    return plain.context(purpose, group.terms.id, plain.eight(index), client, to)


def derived(group: Group, purpose: str, index: int, client: int, root: bytes) -> bytes:
    """Round key or vault key."""
    return plain.hkdf(root, group.terms.id, of_index(group, purpose, index, client))


def part_size(degree: int) -> int:
    return 64 + 32 * degree + 16 + 80 * degree


def last_of_epoch(group: Group, index: int) -> bool:
    return (index + 1) % group.terms.epoch == 0


def prepare(enrolled: Enrolled, client: int, index: int, draws: plain.Draws) -> Prepared:
    group = enrolled.group
    t, holders = group.threshold, group.holders(client)
    root, seed, *coefficients = draws.elements(2 * t)
    dealt = [
        [plain.element(plain.evaluate(polynomial, at + 1)) for at in range(len(holders))]
        for polynomial in ([*coefficients[: t - 1], root], [*coefficients[t - 1 :], seed])
    ]
    encoded = plain.element(root)
    private = derived(group, "round key", index, client, encoded)
    public = plain.agreement_public(private)
    label = of_index(group, "self mask commitment", index, client)
    secrets, sealed = [], []
    for peer in group.near[client]:
        chain = enrolled.chains.get(peer)
        if chain is None:
            secrets.append(bytes(32))
            sealed.append(bytes(80))
            continue
        at = holders.index(peer)
        associated = of_index(group, "sealed shares", index, client, peer) + public
        key = chain.sealing(index, client)
        sealed.append(plain.seal(key, index, dealt[0][at] + dealt[1][at], associated))
        secrets.append(chain.keys(index)[2])
    vault = plain.seal(
        derived(group, "vault key", index, client, encoded), 0, b"".join(secrets), b""
    )
    part = public + plain.sha(label, plain.element(seed)) + vault + b"".join(sealed)
    return Prepared(index, encoded, plain.element(seed), private, dealt[0], dealt[1], part)


def pair_key(
    group: Group, terms: RoundTerms, one: int, other: int, agreed: bytes, secret: bytes
) -> bytes:
    """Of the mask of two clients."""
    low, high = sorted((one, other))
    return plain.pair_mask_key(group.terms.id, terms.encoded, low, high, agreed + secret)


def added(words: Sequence[int], sign: int, mask: Sequence[int]) -> list[int]:
    return [(a + sign * b) % WORD for a, b in zip(words, mask, strict=True)]


def encoded_words(words: Sequence[int]) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in words)


def read_signatures(group: Group, data: bytes) -> dict[int, bytes]:
    found, rest = read_lines(data, group.committee, 64)
    require(not rest, "length")
    return found


@dataclass
class Member:
    """A client for a whole session: its secrets, and what lasts from round to round."""

    number: int
    identity: bytes
    draws: plain.Draws
    enrolled: Enrolled | None = None
    prepared: Prepared | None = None
    unconfirmed: bool = False

    def enrol(self, enrolled: Enrolled) -> None:
        self.enrolled, self.prepared, self.unconfirmed = enrolled, None, False


class RoundClient:
    """One round of a client. values: integers."""

    def __init__(self, member: Member, terms: RoundTerms, values: Sequence[int]) -> None:
        assert member.enrolled is not None
        self.member, self.terms, self.enrolled = member, terms, member.enrolled
        self.group, self.number = member.enrolled.group, member.number
        self._words = plain.pack(values, *terms.shape(self.group))
        kept = member.prepared
        self._again = kept is not None and kept.index == terms.index
        self._expected = "COHORT"
        self.closed: list[int] = []
        self._shares: dict[int, tuple[bytes, bytes]] = {}

    def _message(self, kind: str, body: bytes) -> bytes:
        return plain.frame(kind, self.group.terms.id, self.terms.index, self.number, body)

    def start(self) -> bytes | None:
        member, index = self.member, self.terms.index
        send = not self._again or member.unconfirmed
        if not self._again:
            member.prepared = prepare(self.enrolled, self.number, index, member.draws)
        assert member.prepared is not None
        self.prepared, member.prepared, member.unconfirmed = member.prepared, None, False
        return self._message("PREPARE", self.prepared.part) if send else None

    def receive(self, message: bytes) -> bytes:
        kind, body = read(message, self.group.terms.id, self.terms.index, SERVER)
        require(kind == self._expected, "state")
        if kind == "COHORT":
            return self._mask(body)
        return self._survive(body) if kind == "SURVIVORS" else self._unmask(body)

    def _check_reach(self, present: Sequence[int]) -> None:
        group = self.group
        require(len(present) >= max(group.quorum, 3, self.terms.least), "quorum")
        near = set(present) & set(group.holders(self.number))
        require(len(near) >= group.threshold, "quorum")

    def _mask(self, body: bytes) -> bytes:
        group, index, number = self.group, self.terms.index, self.number
        head = plain.set_size(group.members)
        self.cohort = chosen(body[:head], group.members)
        peers = [peer for peer in group.near[number] if peer in self.cohort]
        require(len(body) == head + 112 * len(peers), "length")
        require(number in self.cohort, "own place")
        require(all(peer in self.enrolled.chains for peer in peers), "channel")
        self._check_reach(self.cohort)
        there = group.holders(number).index(number)
        own = self.prepared
        self._shares[number] = own.root_shares[there], own.seed_shares[there]
        words = added(self._words, 1, plain.stream(self._self_key(), len(self._words)))
        for peer, line in zip(peers, plain.pieces(body[head:], 112), strict=True):
            self._open(peer, line[:32], line[32:])
            words = self._with_pair(words, peer, line[:32])
        following = b""
        if not last_of_epoch(group, index):
            member = self.member
            member.prepared = prepare(self.enrolled, number, index + 1, member.draws)
            member.unconfirmed, following = True, member.prepared.part
        self._expected = "SURVIVORS"
        return self._input(encoded_words(words), following)

    def _self_key(self) -> bytes:
        terms, session = self.terms.encoded, self.group.terms.id
        return plain.self_mask_key(session, terms, self.number, self.prepared.seed)

    def _open(self, peer: int, key: bytes, box: bytes) -> None:
        index = self.terms.index
        associated = of_index(self.group, "sealed shares", index, peer, self.number) + key
        sealing = self.enrolled.chains[peer].sealing(index, peer)
        try:
            text = plain.unseal(sealing, index, box, associated)
        except InvalidTag:
            self.closed.append(peer)
            text = bytes(64)
        self._shares[peer] = text[:32], text[32:]

    def _with_pair(self, words: list[int], peer: int, key: bytes) -> list[int]:
        require(not plain.low_order(key), "bad key")
        secret = self.enrolled.chains[peer].keys(self.terms.index)[2]
        agreed = plain.exchange(self.prepared.private, key)
        made = pair_key(self.group, self.terms, self.number, peer, agreed, secret)
        return added(words, 1 if self.number < peer else -1, plain.stream(made, len(words)))

    def _input(self, words: bytes, following: bytes) -> bytes:
        group, number, member = self.group, self.number, self.member
        session, terms = group.terms.id, self.terms.encoded
        there = plain.member_set(self.cohort, group.members)
        signed = plain.sign(
            member.identity, plain.cohort_text(session, terms, number, group.view, there)
        )
        proof = plain.sign(
            member.identity, plain.input_text(session, terms, number, group.view, there, words)
        )
        closed = plain.member_set(self.closed, group.near[number])
        message = self._message("MASKED", words + closed + signed + proof + following)
        return message + plain.tag(self.enrolled.key, self.terms.index, message)

    def _survive(self, body: bytes) -> bytes:
        group, member = self.group, self.member
        head = plain.set_size(group.members)
        self.survivors = chosen(body[:head], group.members)
        signatures = read_signatures(group, body[head:])
        require(
            self.number in self.survivors and set(self.survivors) <= set(self.cohort), "own place"
        )
        self._check_reach(self.survivors)
        if self.survivors == self.cohort:
            return self._open_all(signatures)
        require(not signatures, "signatures")
        self._expected = "SIGNATURES"
        return self._message("CONSISTENT", plain.sign(member.identity, self._text(self.number)))

    def _text(self, signer: int) -> bytes:
        group, terms = self.group, self.terms.encoded
        there, left = (plain.member_set(s, group.members) for s in (self.cohort, self.survivors))
        if self.survivors == self.cohort:
            return plain.cohort_text(group.terms.id, terms, signer, group.view, there)
        return plain.survivor_text(group.terms.id, terms, signer, group.view, there, left)

    def _unmask(self, body: bytes) -> bytes:
        return self._open_all(read_signatures(self.group, body))

    def _open_all(self, signatures: Mapping[int, bytes]) -> bytes:
        group = self.group
        valid = [
            signer
            for signer, signature in signatures.items()
            if signer in self.survivors
            and group.terms.verify(signer, signature, self._text(signer))
        ]
        require(len(valid) >= group.threshold, "signatures")
        self.member.unconfirmed = False
        self._expected = ""
        alive = set(self.survivors)
        given = [self._shares[owner][owner in alive] for owner in sorted(self._shares)]
        return self._message("UNMASK", b"".join(given))


@dataclass
class Collector:
    """The server for a whole session. private: its X25519 key."""

    private: bytes
    group: Group | None = None
    present: list[int] = field(default_factory=list)
    tags: dict[int, bytes] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)
    prepared: dict[int, bytes] = field(default_factory=dict)
    prepared_for: int = -1

    def enrol(self, setup: SetupServer) -> None:
        self.group, self.present, self.barred, self.prepared = setup.group, setup.present, set(), {}
        self.tags = {
            k: tag_key(setup.group, k, plain.exchange(self.private, setup.channel_key(k)))
            for k in setup.present
        }


class RoundServer:
    """One round of the server."""

    def __init__(self, collector: Collector, terms: RoundTerms) -> None:
        assert collector.group is not None
        self.collector, self.terms, self.group = collector, terms, collector.group
        self.stage = "PREPARE"
        kept = collector.prepared if collector.prepared_for == terms.index else {}
        self.prepared = {k: part for k, part in kept.items() if k not in collector.barred}
        collector.prepared, collector.prepared_for = {}, terms.index + 1
        self._asked = [k for k in collector.present if k not in collector.barred]
        self._spoke: set[int] = set()
        self._accepted: set[tuple[int, bytes]] = set()
        self._out: set[int] = set()
        self._came: dict[str, dict[int, bytes]] = {"CONSISTENT": {}, "UNMASK": {}}
        self.closed: dict[int, list[int]] = {}
        self._signatures: dict[int, bytes] = {}
        self._total = [0] * (terms.size(self.group) // 8)
        self._given: dict[int, dict[int, bytes]] = {}
        self.sum: list[int] = []

    @property
    def finished(self) -> bool:
        return self.stage == "DONE"

    def receive(self, sender: int, message: bytes) -> None:
        if (sender, message) in self._accepted:
            return
        require(sender in self._asked and sender not in self._out, "stranger")
        require(sender not in self._spoke, "repeat")
        try:
            kind, body = read(message, self.group.terms.id, self.terms.index, sender)
            require(kind == self.stage, "state")
            getattr(self, f"_take_{kind.lower()}")(sender, body, message)
        except RefusedMessage:
            self._out.add(sender)
            raise
        self._spoke.add(sender)
        self._accepted.add((sender, message))

    def _take_prepare(self, sender: int, body: bytes, _: bytes) -> None:
        require(len(body) == part_size(self.group.degree), "length")
        require(not plain.low_order(body[:32]), "bad key")
        require(self.prepared.setdefault(sender, body) == body, "repeat")

    def _take_masked(self, sender: int, body: bytes, message: bytes) -> None:
        group, terms = self.group, self.terms
        near, size = group.near[sender], terms.size(group)
        marks = size + plain.set_size(near)
        end = marks + 128
        following = 0 if last_of_epoch(group, terms.index) else part_size(group.degree)
        require(len(body) == end + following + 16, "length")
        made = plain.tag(self.collector.tags[sender], terms.index, message[:-16])
        require(made == message[-16:], "tag")
        closed = chosen(body[size:marks], near)
        if following:
            require(not plain.low_order(body[end : end + 32]), "bad key")
            self.collector.prepared[sender] = body[end:-16]
        self._total = added(self._total, 1, plain.words_of(body[:size]))
        self._signatures[sender] = body[marks : marks + 64]
        self.closed[sender] = closed

    def _take_consistent(self, sender: int, body: bytes, _: bytes) -> None:
        require(len(body) == 64, "length")
        self._came["CONSISTENT"][sender] = body

    def _take_unmask(self, sender: int, body: bytes, _: bytes) -> None:
        owners = [k for k in self.group.holders(sender) if k in self.prepared]
        require(len(body) == 32 * len(owners), "length")
        self._given[sender] = dict(zip(owners, plain.pieces(body, 32), strict=True))

    def close(self) -> dict[int, bytes]:
        spoke = self._spoke | (set(self.prepared) if self.stage == "PREPARE" else set())
        present = [k for k in self._asked if k in spoke and k not in self._out]
        least = self.terms.least if self.stage in ("PREPARE", "MASKED") else 0
        reached = len(present) >= least and self.group.reaches(present)
        require(self.stage == "UNMASK" or reached, "too few")
        kind, bodies = getattr(self, f"_after_{self.stage.lower()}")(present)
        self._asked, self._spoke = present, set()
        session, index = self.group.terms.id, self.terms.index
        return {k: plain.frame(kind, session, index, SERVER, bodies[k]) for k in bodies}

    def _after_prepare(self, cohort: list[int]) -> tuple[str, dict[int, bytes]]:
        group, k = self.group, self.group.degree
        self.prepared = {client: self.prepared[client] for client in cohort}
        boxes = {
            client: dict(
                zip(group.near[client], plain.pieces(part[80 + 32 * k :], 80), strict=True)
            )
            for client, part in self.prepared.items()
        }
        self.stage = "MASKED"
        return "COHORT", {
            client: plain.member_set(cohort, group.members)
            + b"".join(
                self.prepared[peer][:32] + boxes[peer][client]
                for peer in group.near[client]
                if peer in self.prepared
            )
            for client in cohort
        }

    def _after_masked(self, survivors: list[int]) -> tuple[str, dict[int, bytes]]:
        group = self.group
        for owner in group.members:
            accusers = sum(owner in self.closed[k] for k in survivors)
            if accusers > max(1, min(group.foes, group.degree + 1 - group.threshold)):
                self._bar(owner)
            held = len(set(group.holders(owner)) & set(survivors)) - accusers
            require(not accusers or held >= group.threshold, "too few")
        self.survivors = survivors
        complete = survivors == sorted(self.prepared)
        self.stage = "UNMASK" if complete else "CONSISTENT"
        body = plain.member_set(survivors, group.members)
        body += self._listed(self._signatures if complete else {})
        return "SURVIVORS", dict.fromkeys(survivors, body)

    def _after_consistent(self, signers: list[int]) -> tuple[str, dict[int, bytes]]:
        self.stage = "UNMASK"
        return "SIGNATURES", dict.fromkeys(signers, self._listed(self._came["CONSISTENT"]))

    def _listed(self, signatures: Mapping[int, bytes]) -> bytes:
        return plain.signature_list(signatures, self.group.committee)

    def _bar(self, client: int) -> None:
        self.collector.barred.add(client)
        self.collector.prepared.pop(client, None)

    def _after_unmask(self, _: list[int]) -> tuple[str, dict[int, bytes]]:
        wrong: dict[int, set[int]] = {}
        secrets = {owner: self._restored(owner, wrong) for owner in sorted(self.prepared)}
        for client, secret in secrets.items():
            if client in self.survivors:
                key = plain.self_mask_key(self.group.terms.id, self.terms.encoded, client, secret)
                self._total = added(self._total, -1, plain.stream(key, len(self._total)))
            else:
                self._remove_pairs(client, secret)
        for holder, owners in wrong.items():
            if len(owners) > self.group.foes:
                self._bar(holder)
        shape, terms = self.terms.shape(self.group), self.terms
        self.sum, outside = plain.lanes_of(self._total, terms.length, *shape)
        require(max(self.sum) <= len(self.survivors) * terms.bound + terms.room, "limit")
        require(not outside, "lanes")
        self.stage = "DONE"
        return "UNMASK", {}

    def _restored(self, owner: int, wrong: dict[int, set[int]]) -> bytes:
        group, t = self.group, self.group.threshold
        shares = {
            at + 1: int.from_bytes(self._given[holder][owner], "big") % plain.PRIME
            for at, holder in enumerate(group.holders(owner))
            if holder in self._given and owner not in self.closed[holder]
        }
        require(len(shares) >= t, "too few")
        first = plain.combine({at: shares[at] for at in list(shares)[:t]})
        if self._fits(owner, first):
            return plain.element(first)
        found = plain.decoded(shares, t)
        if found is not None and self._fits(owner, found[0]):
            for at in found[1]:
                wrong.setdefault(group.holders(owner)[at - 1], set()).add(owner)
            return plain.element(found[0])
        for part in combinations(shares, t):
            secret = plain.combine({at: shares[at] for at in part})
            if self._fits(owner, secret):
                return plain.element(secret)
        raise RefusedMessage("secret")

    def _fits(self, owner: int, secret: int) -> bool:
        index, part, encoded = self.terms.index, self.prepared[owner], plain.element(secret)
        if owner in self.survivors:
            label = of_index(self.group, "self mask commitment", index, owner)
            return plain.sha(label, encoded) == part[32:64]
        private = derived(self.group, "round key", index, owner, encoded)
        return plain.agreement_public(private) == part[:32]

    def _remove_pairs(self, client: int, root: bytes) -> None:
        group, index, part = self.group, self.terms.index, self.prepared[client]
        private = derived(group, "round key", index, client, root)
        key = derived(group, "vault key", index, client, root)
        vault = plain.unseal(key, 0, part[64 : 80 + 32 * group.degree], b"")
        for peer, secret in zip(group.near[client], plain.pieces(vault, 32), strict=True):
            if peer in self.survivors:
                agreed = plain.exchange(private, self.prepared[peer][:32])
                made = pair_key(group, self.terms, client, peer, agreed, secret)
                mask = plain.stream(made, len(self._total))
                self._total = added(self._total, 1 if client < peer else -1, mask)
