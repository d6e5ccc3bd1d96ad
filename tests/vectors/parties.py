"""Client and server of docs/reference/protocol.md, written from that page alone.

Nothing of secure_fd is imported. A caller begins set-ups and rounds; the first refusal ends all.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.vectors import independent as plain
from tests.vectors.independent import PRIME, SERVER, SET_UP, Body, Refused, Stream, require


class Prepared(NamedTuple):
    """Secrets of a round. root_shares, seed_shares: by holder. part: P of the page."""

    index: int
    root: int
    seed: int
    root_shares: Mapping[int, int]
    seed_shares: Mapping[int, int]
    round_key: X25519PrivateKey
    part: bytes


class Client:
    """A client for a session. capsules: by receiver, what it sends, since sealing is random."""

    def __init__(
        self,
        session: plain.Session,
        number: int,
        identity: Ed25519PrivateKey,
        stream: Stream,
        capsules: Mapping[int, bytes],
    ) -> None:
        self.session, self.number, self.identity = session, number, identity
        self.stream, self._capsules, self._due = stream, capsules, ""

    def _message(self, kind: str, *body: bytes) -> bytes:
        return plain.frame(kind, self.session, self.index, self.number, *body)

    def receive(self, message: bytes) -> bytes | None:
        """Return the answer, if any."""
        body = plain.open_frame(message, self.session, self.index, SERVER, self._due)
        return getattr(self, f"_on_{self._due.lower()}")(body)

    # Set-up.

    def join(self) -> bytes:
        session, number = self.session, self.number
        self.index, self._due, self.prepared, self._confirmed = SET_UP, "MEMBERS", None, False
        self._nonce, self._channel_key = self.stream.read(32), plain.x25519(self.stream.read(32))
        self._key = plain.public(self._channel_key)
        if session.hybrid:
            self._kem_key = MLKEM768PrivateKey.from_seed_bytes(self.stream.read(64))
            self._curve_key = plain.x25519(self.stream.read(32))
            self._key += plain.public(self._kem_key) + plain.public(self._curve_key)
        self._commitment = plain.nonce_commitment(session, number, self._nonce)
        text = plain.join_text(session, number, self._key, self._commitment)
        return self._message("JOIN", self._key, self._commitment, self.identity.sign(text))

    def _on_members(self, body: Body) -> bytes:
        listed = body.set(self.session.roster)
        self._lines = {client: (body.take(32), body.take(32)) for client in listed}
        body.end()
        own = plain.sha(self._key), self._commitment
        require(self._lines.get(self.number) == own, "own line")
        require(len(self._lines) >= self.session.least, "few members")
        self._view = plain.list_view(self.session, body.data)
        text = plain.reveal_text(self.session, self.number, self._view, self._nonce)
        self._due = "AGREED"
        return self._message("REVEAL", self._nonce, self.identity.sign(text))

    def _on_agreed(self, body: Body) -> bytes | None:
        session, joined = self.session, list(self._lines)
        revealed = {client: (body.take(32), body.take(64)) for client in body.set(joined)}
        numbers = plain.group_numbers(len(revealed), len(session.roster), session.degree)
        sent = [body.take(session.key_bytes) for _ in range(numbers[0])]
        body.end()
        require(self.number in revealed, "own place")
        require(len(revealed) >= session.least, "few members")
        for client, (nonce, signature) in revealed.items():
            check_reveal(session, client, self._view, nonce, signature, self._lines[client][1])
        nonces = {client: nonce for client, (nonce, _) in revealed.items()}
        self.group = plain.Group(session, joined, self._view, nonces)
        self.neighbours = self.group.neighbours[self.number]
        keys = dict(zip(self.neighbours, sent, strict=True))
        require(all(plain.sha(keys[peer]) == self._lines[peer][0] for peer in keys), "keys")
        self._agreed = {peer: plain.dh(self._channel_key, keys[peer][:32]) for peer in keys}
        agreement = plain.dh(self._channel_key, session.server_key)
        self.tag_key = plain.tag_key(session, self.group.view, self.number, agreement)
        if not session.hybrid:
            return self._open_channels(dict.fromkeys(keys, b""))
        self._secrets = {peer: self.stream.read(32) for peer in keys if peer > self.number}
        self._due = "CAPSULES"
        return self._message("CAPSULES", *(self._capsules[peer] for peer in self._secrets))

    def _on_capsules(self, body: Body) -> None:
        present = body.set(self.group.members)
        lower = [peer for peer in self.neighbours if peer < self.number and peer in present]
        capsules = {peer: body.take(1168) for peer in lower}
        body.end()
        require(len(present) >= self.session.least, "few members")
        secrets = {peer: secret for peer, secret in self._secrets.items() if peer in present}
        for peer, capsule in capsules.items():
            ends = peer, self.number
            info = plain.capsule_info(self.session, self.group.view, *ends, self._agreed[peer])
            opened = plain.open_capsule(capsule, self._kem_key, self._curve_key, info)
            secrets[peer] = opened or self.stream.read(32)
        self._open_channels(secrets)

    def _open_channels(self, secrets: Mapping[int, bytes]) -> None:
        """secrets: by neighbour that went on to the end, that of the capsule."""
        self._due, self.chains = "", {}
        for peer, secret in secrets.items():
            ends = sorted([self.number, peer])
            info = self.session.context("channel chain", *ends) + self.group.view
            self.chains[peer] = self.session.derive(self._agreed[peer] + secret, info)

    # A round.

    def _channel(self, peer: int, index: int) -> tuple[bytes, bytes, bytes]:
        """Key of what it seals, key of what the peer seals, pair secret."""
        ends = sorted([self.number, peer])
        _, keys = plain.channel(self.session, self.chains[peer], *ends, index)
        up, down, pair_secret = keys[:32], keys[32:64], keys[64:]
        return (up, down, pair_secret) if self.number < peer else (down, up, pair_secret)

    def _prepare(self, index: int) -> Prepared:
        session, number, t = self.session, self.number, self.group.threshold
        root, seed = self.stream.element(), self.stream.element()
        dealt = []
        for secret in root, seed:
            coefficients = [*(self.stream.element() for _ in range(t - 1)), secret]
            holders = enumerate(self.group.holders(number), 1)
            dealt.append({holder: plain.evaluate(coefficients, j) for j, holder in holders})
        round_key = plain.round_key(session, index, number, root)
        vault, boxes = b"", b""
        for peer in self.neighbours:
            if peer not in self.chains:
                vault, boxes = vault + bytes(32), boxes + bytes(80)
                continue
            key, _, pair_secret = self._channel(peer, index)
            shares = b"".join(plain.element(shares[peer]) for shares in dealt)
            data = plain.share_data(session, index, number, peer, plain.public(round_key))
            vault, boxes = vault + pair_secret, boxes + plain.seal(key, index, shares, data)
        vault = plain.seal(plain.vault_key(session, index, number, root), 0, vault, b"")
        commitment = plain.seed_commitment(session, index, number, seed)
        part = plain.public(round_key) + commitment + vault + boxes
        return Prepared(index, root, seed, *dealt, round_key, part)

    def begin(self, terms: plain.Terms, values: Sequence[int]) -> bytes | None:
        """Return PREPARE, or None where the last input carried it and the last round ended well."""
        self.terms, self.index, self._values, self._due = terms, terms.index, values, "COHORT"
        known = self.prepared is not None and self.prepared.index == terms.index
        if not known:
            self.prepared = self._prepare(terms.index)
        carried, self._confirmed = known and self._confirmed, False
        return None if carried else self._message("PREPARE", self.prepared.part)

    def _check_number(self, present: Collection[int]) -> None:
        require(len(present) >= max(self.group.quorum, self.terms.floor), "quorum")
        near = self.group.held_by(self.number, present)
        require(len(near) >= self.group.threshold, "quorum")

    def _on_cohort(self, body: Body) -> bytes:
        session, terms, number, own = self.session, self.terms, self.number, self.prepared
        self._cohort = body.set(self.group.members)
        peers = [peer for peer in self.neighbours if peer in self._cohort]
        relayed = {peer: (body.take(32), body.take(80)) for peer in peers}
        body.end()
        require(number in self._cohort, "own place")
        require(all(peer in self.chains for peer in peers), "channel")
        self._check_number(self._cohort)
        lanes = plain.Lanes(len(session.roster), *terms[1:4])
        self.packed, self.pairs, closed = lanes.pack(self._values), {}, []
        self._shares = {number: [own.root_shares[number], own.seed_shares[number]]}
        words = self.packed
        for peer, (key, box) in relayed.items():
            _, from_peer, pair_secret = self._channel(peer, terms.index)
            data = plain.share_data(session, terms.index, peer, number, key)
            opened = plain.unseal(from_peer, terms.index, box, data)
            if opened is None:
                closed.append(peer)
            opened = opened or bytes(64)
            self._shares[peer] = [plain.integer(opened[:32]), plain.integer(opened[32:])]
            agreement = plain.dh(own.round_key, key)
            mask_key = plain.pair_mask_key(session, terms, number, peer, agreement, pair_secret)
            mask = Stream(mask_key).words(lanes.words)
            self.pairs[peer] = agreement, mask_key, mask
            words = words + mask if number < peer else words - mask
        key = plain.self_mask_key(session, terms, number, own.seed)
        self.self_mask = key, Stream(key).words(lanes.words)
        return self._masked((words + self.self_mask[1]).tobytes(), closed)

    def _masked(self, words: bytes, closed: Collection[int]) -> bytes:
        self.prepared, self._due = None, "SURVIVORS"
        if (self.index + 1) % self.session.epoch:
            self.prepared = self._prepare(self.index + 1)
        cohort = self.group.set(self._cohort)
        message = self._message(
            "MASKED",
            words,
            plain.set_of(closed, self.neighbours),
            self._signed("cohort signature", cohort),
            self._signed("input signature", cohort, plain.sha(words)),
            self.prepared.part if self.prepared else b"",
        )
        return message + plain.seal(self.tag_key, self.index, b"", message)

    def _signed(self, purpose: str, *signed: bytes) -> bytes:
        text = self._text(purpose, self.number, *signed)
        return self.identity.sign(text)

    def _text(self, purpose: str, signer: int, *signed: bytes) -> bytes:
        view = self.group.view
        return plain.round_text(self.session, self.terms, purpose, signer, view, *signed)

    def _on_survivors(self, body: Body) -> bytes:
        survivors = self._survivors = body.set(self.group.members)
        signatures = body.signatures(self.group.committee)
        body.end()
        require(self.number in survivors and set(survivors) <= set(self._cohort), "own place")
        self._check_number(survivors)
        cohort = self.group.set(self._cohort)
        if survivors == self._cohort:
            return self._unmask(signatures, "cohort signature", cohort)
        require(not signatures, "signatures")
        self._due = "SIGNATURES"
        signature = self._signed("survivor signature", cohort, self.group.set(survivors))
        return self._message("CONSISTENT", signature)

    def _on_signatures(self, body: Body) -> bytes:
        signatures = body.signatures(self.group.committee)
        body.end()
        sets = self.group.set(self._cohort), self.group.set(self._survivors)
        return self._unmask(signatures, "survivor signature", *sets)

    def _unmask(self, signatures: Mapping[int, bytes], purpose: str, *signed: bytes) -> bytes:
        valid = [
            signer
            for signer, signature in signatures.items()
            if signer in self._survivors
            and plain.verifies(
                self.session.identities[signer], signature, self._text(purpose, signer, *signed)
            )
        ]
        require(len(valid) >= self.group.threshold, "signatures")
        self._due, self._confirmed = "", True
        shares = (self._shares[owner][owner in self._survivors] for owner in sorted(self._shares))
        return self._message("UNMASK", *map(plain.element, shares))


def check_reveal(
    session: plain.Session,
    client: int,
    view: bytes,
    nonce: bytes,
    signature: bytes,
    commitment: bytes,
) -> None:
    text = plain.reveal_text(session, client, view, nonce)
    require(plain.verifies(session.identities[client], signature, text), "signature")
    require(plain.nonce_commitment(session, client, nonce) == commitment, "commitment")


class PreparedPart(NamedTuple):
    """P as the server reads it. boxes: sealed shares by neighbour."""

    key: bytes
    commitment: bytes
    vault: bytes
    boxes: Mapping[int, bytes]


class Server:
    """The server for a session.

    stage: the type of message that is asked for, empty once a set-up or a round is done.
    """

    def __init__(self, session: plain.Session, private: X25519PrivateKey) -> None:
        self.session, self._private = session, private

    def _message(self, kind: str, *body: bytes) -> bytes:
        return plain.frame(kind, self.session, self.index, SERVER, *body)

    def _ask(self, stage: str, asked: Collection[int]) -> None:
        """_came: by client, its message of this stage; _read: what it holds."""
        self.stage, self._asked, self._came, self._read = stage, asked, {}, {}

    def receive(self, sender: int, message: bytes) -> None:
        require(sender in self._asked, "stranger")
        known = self._came.get(sender)
        if known == message:
            return
        require(known is None, "repeat")
        body = plain.open_frame(message, self.session, self.index, sender, self.stage)
        self._came[sender] = message
        self._read[sender] = getattr(self, f"_on_{self.stage.lower()}")(sender, body)

    def close(self) -> dict[int, bytes]:
        """Close the stage; return by client what it is sent."""
        return getattr(self, f"_after_{self.stage.lower()}")()

    # Set-up.

    def begin_set_up(self) -> None:
        self.index = SET_UP
        self._ask("JOIN", self.session.roster)

    def _on_join(self, sender: int, body: Body) -> tuple[bytes, bytes]:
        key, commitment = body.take(self.session.key_bytes), body.take(32)
        signature = body.take(64)
        body.end()
        plain.check_key(key[:32])
        if self.session.hybrid:
            require(plain.reduced(key[32:]), "bad key")
            plain.check_key(key[-32:])
        text = plain.join_text(self.session, sender, key, commitment)
        require(plain.verifies(self.session.identities[sender], signature, text), "signature")
        return key, commitment

    def _check_members(self) -> None:
        require(len(self._read) >= self.session.least, "too few")

    def _after_join(self) -> dict[int, bytes]:
        self._check_members()
        self._lines = dict(sorted(self._read.items()))
        body = plain.set_of(self._lines, self.session.roster)
        body += b"".join(plain.sha(key) + commitment for key, commitment in self._lines.values())
        self.list_view = plain.list_view(self.session, body)
        self._ask("REVEAL", self._lines)
        return dict.fromkeys(self._lines, self._message("MEMBERS", body))

    def _on_reveal(self, sender: int, body: Body) -> tuple[bytes, bytes]:
        nonce, signature = body.take(32), body.take(64)
        body.end()
        commitment = self._lines[sender][1]
        check_reveal(self.session, sender, self.list_view, nonce, signature, commitment)
        return nonce, signature

    def _after_reveal(self) -> dict[int, bytes]:
        self._check_members()
        nonces = {client: nonce for client, (nonce, _) in self._read.items()}
        group = self.group = plain.Group(self.session, list(self._lines), self.list_view, nonces)
        self.present, self.barred, self._carried, self.tag_keys = group.members, set(), {}, {}
        for client in group.members:
            agreement = plain.dh(self._private, self._lines[client][0][:32])
            self.tag_keys[client] = plain.tag_key(self.session, group.view, client, agreement)
        body = plain.set_of(group.members, list(self._lines))
        body += b"".join(b"".join(self._read[client]) for client in group.members)
        self._ask("CAPSULES" if self.session.hybrid else "", group.members)
        return {
            client: self._message("AGREED", body, *(self._lines[peer][0] for peer in peers))
            for client, peers in sorted(group.neighbours.items())
        }

    def _on_capsules(self, sender: int, body: Body) -> dict[int, bytes]:
        higher = [peer for peer in self.group.neighbours[sender] if peer > sender]
        capsules = {peer: body.take(1168) for peer in higher}
        body.end()
        return capsules

    def _after_capsules(self) -> dict[int, bytes]:
        self._check_members()
        self.present, sent = sorted(self._read), self._read
        self._ask("", [])
        messages = {}
        for client in self.present:
            lower = [k for k in self.group.neighbours[client] if k < client and k in sent]
            capsules = (sent[peer][client] for peer in lower)
            messages[client] = self._message("CAPSULES", self.group.set(sent), *capsules)
        return messages

    # A round.

    def begin(self, terms: plain.Terms) -> None:
        self.terms, self.index = terms, terms.index
        self._lanes = plain.Lanes(len(self.session.roster), *terms[1:4])
        self._ask("PREPARE", [k for k in self.present if k not in self.barred])
        for client in self._asked:
            if client in self._carried and self._carried[client][8:16] == plain.u64(terms.index):
                self.receive(client, self._carried[client])

    def _part(self, sender: int, body: Body) -> PreparedPart:
        peers = self.group.neighbours[sender]
        head = body.take(32), body.take(32), body.take(32 * len(peers) + 16)
        return PreparedPart(*head, {peer: body.take(80) for peer in peers})

    def _on_prepare(self, sender: int, body: Body) -> PreparedPart:
        part = self._part(sender, body)
        body.end()
        plain.check_key(part.key)
        return part

    def _go_on(self, floor: int) -> dict:
        """Return the contents of this stage's messages, ascending by client."""
        require(len(self._read) >= floor and self.group.reaches(self._read), "too few")
        return dict(sorted(self._read.items()))

    def _after_prepare(self) -> dict[int, bytes]:
        prepared = self._prepared = self._go_on(self.terms.floor)
        self._ask("MASKED", prepared)
        messages = {}
        for client in prepared:
            peers = [peer for peer in self.group.neighbours[client] if peer in prepared]
            lines = (prepared[peer].key + prepared[peer].boxes[client] for peer in peers)
            messages[client] = self._message("COHORT", self.group.set(prepared), *lines)
        return messages

    def _on_masked(self, sender: int, body: Body) -> tuple[plain.Words, list[int], bytes, bytes]:
        words = body.take(8 * self._lanes.words)
        closed = body.set(self.group.neighbours[sender])
        signature, _ = body.take(64), body.take(64)
        start, part = body.at, None
        if (self.index + 1) % self.session.epoch:
            part = self._part(sender, body)
        carried = body.data[start : body.at]
        tag = body.take(16)
        body.end()
        text = self._came[sender][:-16]
        require(plain.seal(self.tag_keys[sender], self.index, b"", text) == tag, "tag")
        require(set(closed) <= set(self._prepared), "set")
        if part:
            plain.check_key(part.key)
            carried = plain.frame("PREPARE", self.session, self.index + 1, sender, carried)
        return np.frombuffer(words, "<u8"), closed, signature, carried

    def _after_masked(self) -> dict[int, bytes]:
        group, inputs = self.group, self._go_on(self.terms.floor)
        self.survivors = list(inputs)
        self.closed = {client: closed for client, (_, closed, _, _) in inputs.items() if closed}
        self._carried = {client: carried for client, (_, _, _, carried) in inputs.items()}
        self._total = sum(words for words, _, _, _ in inputs.values())
        for owner in group.members:
            accusers = [client for client, closed in self.closed.items() if owner in closed]
            if len(accusers) > max(1, min(group.tolerated, group.spare)):
                self.barred.add(owner)
            opened = [k for k in group.held_by(owner, inputs) if k not in accusers]
            require(not accusers or len(opened) >= group.threshold, "too few")
        complete = len(inputs) == len(self._prepared)
        signatures = {client: signature for client, (_, _, signature, _) in inputs.items()}
        signed = plain.signature_list(signatures if complete else {}, group.committee)
        self._ask("UNMASK" if complete else "CONSISTENT", self.survivors)
        message = self._message("SURVIVORS", group.set(self.survivors), signed)
        return dict.fromkeys(self.survivors, message)

    def _on_consistent(self, _: int, body: Body) -> bytes:
        signature = body.take(64)
        body.end()
        return signature

    def _after_consistent(self) -> dict[int, bytes]:
        signatures = self._go_on(0)
        self._ask("UNMASK", signatures)
        signed = plain.signature_list(signatures, self.group.committee)
        return dict.fromkeys(signatures, self._message("SIGNATURES", signed))

    def _on_unmask(self, sender: int, body: Body) -> dict[int, int]:
        owners = self.group.held_by(sender, self._prepared)
        shares = {owner: plain.integer(body.take(32)) % PRIME for owner in owners}
        body.end()
        return shares

    def _after_unmask(self) -> dict[int, bytes]:
        self._wrong: dict[int, set[int]] = {}
        for owner in self._prepared:
            secret = self._restored(owner)
            if owner in self.survivors:
                key = plain.self_mask_key(self.session, self.terms, owner, secret)
                self._total = self._total - Stream(key).words(self._lanes.words)
            else:
                self._remove_pairs(owner, secret)
        wrong = self._wrong.items()
        self.barred |= {k for k, owners in wrong if len(owners) > self.group.tolerated}
        self.sum = self._lanes.read(self._total, len(self.survivors))
        self._ask("", [])
        return {}

    def _fits(self, owner: int, secret: int) -> bool:
        """Return whether the owner published this seed, or this root if it dropped out."""
        of, part = (self.session, self.index, owner, secret), self._prepared[owner]
        if owner in self.survivors:
            return plain.seed_commitment(*of) == part.commitment
        return plain.public(plain.round_key(*of)) == part.key

    def _restored(self, owner: int) -> int:
        holders, t = self.group.holders(owner), self.group.threshold
        shares = {
            j: self._read[holder][owner]
            for j, holder in enumerate(holders, 1)
            if holder in self._read and owner not in self.closed.get(holder, [])
        }
        require(len(shares) >= t, "too few")
        secret = plain.combine(shares, list(shares)[:t])
        if self._fits(owner, secret):
            return secret
        found = plain.decoded(shares, t)
        if found and self._fits(owner, found[0]):
            for j in found[1]:
                self._wrong.setdefault(holders[j - 1], set()).add(owner)
            return found[0]
        for chosen in islice(combinations(shares, t), 1000):
            secret = plain.combine(shares, chosen)
            if self._fits(owner, secret):
                return secret
        raise Refused("secret")

    def _remove_pairs(self, owner: int, root: int) -> None:
        """Remove the pair masks that survivors share with a client that dropped out."""
        session, terms = self.session, self.terms
        key = plain.vault_key(session, self.index, owner, root)
        vault = plain.unseal(key, 0, self._prepared[owner].vault, b"")
        require(vault is not None, "secret")
        private = plain.round_key(session, self.index, owner, root)
        for place, peer in enumerate(self.group.neighbours[owner]):
            if peer in self.survivors:
                secret = vault[32 * place : 32 * place + 32]
                agreement = plain.dh(private, self._prepared[peer].key)
                key = plain.pair_mask_key(session, terms, owner, peer, agreement, secret)
                mask = Stream(key).words(self._lanes.words)
                self._total = self._total + mask if owner < peer else self._total - mask
