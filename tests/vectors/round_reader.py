"""One round of secagg.json, read as a second implementation would; see reader.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.vectors import independent as plain
from tests.vectors.independent import SERVER, WORD

Json = Mapping[str, Any]
Bodies = dict[tuple[str, int, int], bytes]


@dataclass(frozen=True)
class Drawn:
    """What a client drew for a round, and what follows; its fields are those of the file."""

    root: bytes
    seed: bytes
    round_private: bytes
    round_public: bytes
    commitment: bytes
    vault_key: bytes
    root_shares: list[bytes]
    seed_shares: list[bytes]


class SessionFacts(Protocol):
    """What a round needs to know of its session."""

    content: Json
    id: bytes
    view: bytes
    members: list[int]
    threshold: int
    identities: dict[int, bytes]
    channels: dict[tuple[int, int], tuple[bytes, bytes, bytes]]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All of a lower and a higher number."""

    def read(self, messages: Sequence[Json], index: int | None) -> Bodies:
        """Bodies by type, sender and receiver."""

    def draw(self, index: int, client: int) -> Drawn:
        """What a client draws for a round."""


def raw(value: str) -> bytes:
    return bytes.fromhex(value)


class RoundReader:
    """first: whether its PREPAREs came alone, not with the inputs of the round before."""

    def __init__(self, session: SessionFacts, case: Json, *, first: bool) -> None:
        self.session, self.case, self.first = session, case, first
        self.index = case["index"]
        self.drawn = {client: session.draw(self.index, client) for client in session.members}
        self.shape = (len(session.members), case["bound"], case["room"])
        self.place = {client: at for at, client in enumerate(session.members)}
        numbers, noise = (self.index, case["length"], case["bound"]), (case["room"], case["least"])
        self.terms = plain.terms_of(*numbers, raw(case["subject"]), *noise)
        self.came = session.read(case["messages"], self.index)
        self.lost = session.read(case["lost"], self.index)
        self.survivors = [k for k in session.members if ("MASKED", k, SERVER) in self.came]

    def check(self) -> None:
        """See reader.check."""
        assert self.case["survivors"] == self.survivors
        assert len(self.survivors) >= self.case["least"]
        self._check_masks()
        self._check_cohort()
        self._check_inputs()
        self._check_survivors()
        self._check_unmasking()

    def _peers(self, client: int) -> list[int]:
        return [peer for peer in self.session.members if peer != client]

    def _pair_secret(self, index: int, one: int, other: int) -> bytes:
        low, high = sorted((one, other))
        key = self.session.channels[low, high][2]
        return plain.pair_secret(self.session.id, index, low, high, key)

    def _check_masks(self) -> None:
        size, session = len(raw(self.case["packed"][0])), self.session.id
        for client, case in zip(self.session.members, self.case["self_masks"], strict=True):
            seed = self.drawn[client].seed
            key = plain.self_mask_key(session, self.terms, client, seed)
            assert (raw(case["key"]), raw(case["mask"])) == (key, plain.keystream(key, size))
        assert [(case["low"], case["high"]) for case in self.case["pairs"]] == self.session.pairs
        for case in self.case["pairs"]:
            low, high = case["low"], case["high"]
            private = self.drawn[low].round_private
            agreed = plain.exchange(private, self.drawn[high].round_public)
            secret = self._pair_secret(self.index, low, high)
            key = plain.pair_mask_key(session, self.terms, low, high, agreed + secret)
            assert (raw(case["agreed"]), raw(case["pair_secret"])) == (agreed, secret)
            assert (raw(case["key"]), raw(case["mask"])) == (key, plain.keystream(key, size))

    def check_part(self, index: int, client: int, part: bytes) -> list[bytes]:
        """A PREPARE's content P against what was drawn; the sealed shares, by neighbour."""
        peers = self._peers(client)
        k, session = len(peers), self.session.id
        key, commitment, rest = part[:32], part[32:64], part[64:]
        vault, sealed = rest[: 32 * k + 16], rest[32 * k + 16 :]
        pieces = [sealed[at : at + 80] for at in range(0, len(sealed), 80)]
        assert len(pieces) == k
        drawn = self.session.draw(index, client)
        assert (key, commitment) == (drawn.round_public, drawn.commitment)
        secrets = b"".join(self._pair_secret(index, client, peer) for peer in peers)
        assert plain.unseal(drawn.vault_key, 0, vault, b"") == secrets
        for peer, piece in zip(peers, pieces, strict=True):
            upward, downward, _ = self.session.channels[min(client, peer), max(client, peer)]
            label = plain.shares_label(session, index, client, peer, key)
            shares = plain.unseal(upward if client < peer else downward, index, piece, label)
            assert (
                shares == drawn.root_shares[self.place[peer]] + drawn.seed_shares[self.place[peer]]
            )
        return pieces

    def _check_cohort(self) -> None:
        """Everybody is in it; each gets what its neighbours sealed for it."""
        members = self.session.members
        parts = {k: self._part_for_this_round(k) for k in members}
        sealed = {k: self.check_part(self.index, k, part) for k, part in parts.items()}
        there = plain.member_set(members, members)
        for client in members:
            relayed = b"".join(
                parts[peer][:32] + sealed[peer][self._peers(peer).index(client)]
                for peer in self._peers(client)
            )
            assert self.came["COHORT", SERVER, client] == there + relayed

    def _part_for_this_round(self, client: int) -> bytes:
        if self.first:
            return self.came["PREPARE", client, SERVER]
        before = self.session.content["rounds"][0]
        body = self.session.read(before["messages"], self.index - 1)["MASKED", client, SERVER]
        return body[len(raw(before["packed"][0])) + 64 :]

    def _check_inputs(self) -> None:
        self.signatures = {}
        masks = [plain.words_of(raw(case["mask"])) for case in self.case["self_masks"]]
        for at, client in enumerate(self.session.members):
            words = plain.pack(self.case["values"][at], *self.shape)
            assert words == plain.words_of(raw(self.case["packed"][at]))
            total = [a + b for a, b in zip(words, masks[at], strict=True)]
            for case in self.case["pairs"]:
                sign = (client == case["low"]) - (client == case["high"])
                mask = plain.words_of(raw(case["mask"]))
                total = [(a + sign * b) % WORD for a, b in zip(total, mask, strict=True)]
            body = (self.came | self.lost)["MASKED", client, SERVER]
            size = 8 * len(words)
            assert plain.words_of(body[:size]) == total
            there = plain.member_set(self.session.members, self.session.members)
            text = plain.cohort_text(self.session.id, self.terms, client, self.session.view, there)
            self.signatures[client] = body[size : size + 64]
            plain.verify(self.session.identities[client], self.signatures[client], text)
            self.check_part(self.index + 1, client, body[size + 64 :])

    def _check_survivors(self) -> None:
        members, session = self.session.members, self.session
        everybody, there = (plain.member_set(who, members) for who in (members, self.survivors))
        complete = self.survivors == members
        signed = plain.signature_list(self.signatures) if complete else b""
        marks = {}
        for client in self.survivors:
            assert self.came["SURVIVORS", SERVER, client] == there + signed
            if not complete:
                marks[client] = self.came["CONSISTENT", client, SERVER]
                sets = (everybody, there)
                text = plain.survivor_text(session.id, self.terms, client, session.view, *sets)
                plain.verify(session.identities[client], marks[client], text)
        for client in marks:
            assert self.came["SIGNATURES", SERVER, client] == plain.signature_list(marks)

    def _check_unmasking(self) -> None:
        """From the messages alone: restore what was opened, and take the masks off the sum."""
        members, t = self.session.members, self.session.threshold
        given = {
            holder: plain.pieces(self.came["UNMASK", holder, SERVER], 32)
            for holder in self.survivors
        }
        size = len(raw(self.case["packed"][0]))
        total = [0] * (size // 8)
        for client in self.survivors:
            words = plain.words_of(self.came["MASKED", client, SERVER][:size])
            total = [a + b for a, b in zip(total, words, strict=True)]
        for owner in members:
            drawn, alive = self.drawn[owner], owner in self.survivors
            shares = {self.place[k]: given[k][self.place[owner]] for k in self.survivors}
            expected = drawn.seed_shares if alive else drawn.root_shares
            assert shares == {at: expected[at] for at in shares}
            opened = {at + 1: int.from_bytes(share, "big") for at, share in [*shares.items()][:t]}
            secret = plain.combine(opened).to_bytes(32, "big")
            assert secret == (drawn.seed if alive else drawn.root)
            for sign, mask in self._masks_to_remove(owner):
                total = [(a - sign * b) % WORD for a, b in zip(total, mask, strict=True)]
        values = [self.case["values"][self.place[k]] for k in self.survivors]
        exact = [sum(column) for column in zip(*values, strict=True)]
        assert plain.unpack(total, self.case["length"], *self.shape) == self.case["sum"] == exact

    def _masks_to_remove(self, owner: int) -> list[tuple[int, list[int]]]:
        """A survivor's self mask; of a dropped client, what survivors did with its pairs."""
        if owner in self.survivors:
            return [(1, plain.words_of(raw(self.case["self_masks"][self.place[owner]]["mask"])))]
        found = []
        for case in self.case["pairs"]:
            peer = {case["low"]: case["high"], case["high"]: case["low"]}.get(owner)
            if peer in self.survivors:
                found.append((1 if peer < owner else -1, plain.words_of(raw(case["mask"]))))
        return found
