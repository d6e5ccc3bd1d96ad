"""Formulas of docs/reference/protocol.md, written from that page alone.

Nothing of secure_fd is imported. Names are those of the page. Curves and ciphers are the raw
primitives of `cryptography`; HKDF and HPKE are written out.
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = 4
SERVER, EVERYONE = 2**32 - 2, 2**32 - 1
SET_UP = 2**64 - 1
HEADER = 48
PRIME = 2**255 - 19
TYPES = [
    *("JOIN", "MEMBERS", "REVEAL", "AGREED", "CAPSULES", "PREPARE", "COHORT", "MASKED"),
    *("SURVIVORS", "CONSISTENT", "SIGNATURES", "UNMASK"),
]
Words = np.ndarray[Any, np.dtype[np.uint64]]


class Refused(Exception):  # noqa: N818 - a refusal is no fault of the program
    """A failed check. reason: of the page's table. party, when: set where it is delivered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason, self.party, self.when = reason, 0, ""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise Refused(reason)


# Notation.


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def element(number: int) -> bytes:
    return number.to_bytes(32, "big")


def integer(data: bytes) -> int:
    return int.from_bytes(data, "big")


def fields(*parts: bytes) -> bytes:
    return b"".join(u32(len(part)) + part for part in parts)


def set_of(chosen: Collection[int], ascending: Sequence[int]) -> bytes:
    bits = sum(1 << place for place, entry in enumerate(ascending) if entry in chosen)
    return bits.to_bytes(-(-len(ascending) // 8), "little")


def signature_list(signatures: Mapping[int, bytes], committee: Sequence[int]) -> bytes:
    signed = [client for client in committee if client in signatures]
    return set_of(signed, committee) + b"".join(signatures[client] for client in signed)


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, section 2.3."""
    block, output = b"", b""
    while len(output) < length:
        block = hmac.digest(key, block + info + bytes([len(output) // 32 + 1]), "sha256")
        output += block
    return output[:length]


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    return expand(hmac.digest(salt, secret, "sha256"), info, length)


class Stream:
    """AES-256-CTR from the zero counter block, over zeros."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def read(self, length: int) -> bytes:
        return self._encryptor.update(bytes(length))

    def words(self, count: int) -> Words:
        return np.frombuffer(self.read(8 * count), "<u8")

    def element(self) -> int:
        drawn = PRIME
        while drawn >= PRIME:
            drawn = integer(self.read(32)) % 2**255
        return drawn


def seal(key: bytes, counter: int, text: bytes, associated: bytes) -> bytes:
    return AESGCM(key).encrypt(counter.to_bytes(12, "big"), text, associated)


def unseal(key: bytes, counter: int, sealed: bytes, associated: bytes) -> bytes | None:
    """Return None where it was not sealed so."""
    try:
        return AESGCM(key).decrypt(counter.to_bytes(12, "big"), sealed, associated)
    except InvalidTag:
        return None


def x25519(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


def public(private: Ed25519PrivateKey | X25519PrivateKey | MLKEM768PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def dh(private: X25519PrivateKey, key: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise Refused("bad key") from None


def check_key(key: bytes) -> None:
    """Refuse a key of low order: every exchange with it is zero."""
    dh(x25519(bytes(32)), key)


def verifies(identity: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, text)
    except InvalidSignature:
        return False
    return True


# Contexts, session, terms.


def context(
    session: bytes, terms: bytes, purpose: str, sender: int = EVERYONE, receiver: int = EVERYONE
) -> bytes:
    name, ends = b"secure-fd secure aggregation", (u32(sender), u32(receiver))
    return fields(name, u16(VERSION), session, terms, purpose.encode(), *ends)


def insecure_stream(seed: int) -> Stream:
    return Stream(sha(context(b"", b"", "insecure seed", 0, 0) + str(seed).encode()))


class Session(NamedTuple):
    """identities: by client. degree: in place of the default, 0 for that."""

    id: bytes
    identities: Mapping[int, bytes]
    server_key: bytes
    hybrid: int
    epoch: int
    degree: int = 0

    @property
    def roster(self) -> list[int]:
        return sorted(self.identities)

    @property
    def least(self) -> int:
        """Members of a set-up."""
        return 2 * len(self.identities) // 3 + 1

    @property
    def key_bytes(self) -> int:
        """Length of K."""
        return 32 + 1216 * self.hybrid

    def context(
        self, purpose: str, sender: int = EVERYONE, receiver: int = EVERYONE, terms: bytes = b""
    ) -> bytes:
        return context(self.id, terms, purpose, sender, receiver)

    def derive(self, secret: bytes, info: bytes, length: int = 32) -> bytes:
        return hkdf(secret, self.id, info, length)


def session_id(
    nonce: bytes,
    hybrid: int,
    epoch: int,
    identities: Mapping[int, bytes],
    configuration: bytes,
    proxies: bytes,
    server_key: bytes,
) -> bytes:
    label, numbers = context(nonce, b"", "session id"), (u64(hybrid), u64(epoch))
    roster = b"".join(u32(client) + identities[client] for client in sorted(identities))
    return sha(fields(label, *numbers, roster, configuration, proxies, server_key))


class Terms(NamedTuple):
    """floor: fewest inputs of the sum."""

    index: int
    length: int
    bound: int
    room: int
    floor: int
    subject: bytes

    @property
    def encoded(self) -> bytes:
        return fields(*map(u64, self[:5]), self.subject)


# Lanes.


class Lanes:
    """Layout of the values in words."""

    def __init__(self, clients: int, length: int, bound: int, room: int) -> None:
        self.bound, self.room = bound, room
        self.bits = (clients * bound + 2 * room).bit_length()
        self.lanes = 64 // self.bits
        self.words = -(-length // self.lanes)
        self._places = [(i % self.words, self.bits * (i // self.words)) for i in range(length)]

    def pack(self, values: Iterable[int]) -> Words:
        words = [0] * self.words
        for value, (word, shift) in zip(values, self._places, strict=True):
            require(-self.room <= value <= self.bound + self.room, "limit")
            words[word] += value << shift
        return np.array([word % 2**64 for word in words], "<u8")

    def read(self, total: Words, survivors: int) -> list[int]:
        words = [int(word) for word in total]
        for word, shift in self._places:
            words[word] = (words[word] + (self.room << shift)) % 2**64
        lanes = [words[word] >> shift & (2**self.bits - 1) for word, shift in self._places]
        require(max(lanes) <= survivors * self.bound + 2 * self.room, "limit")
        for lane, (word, shift) in zip(lanes, self._places, strict=True):
            words[word] -= lane << shift
        require(not any(words), "lanes")
        return [lane - self.room for lane in lanes]


# Public draws.


def joint_seed(nonces: Iterable[bytes]) -> bytes:
    return sha(fields(b"secure-fd joint seed", *nonces))


def drawn_proxies(seed: bytes, index: int, population: int, count: int) -> list[int]:
    label = b"secure-fd joint draw"
    stream = Stream(hkdf(seed, label, label + u64(index) + u64(population) + u64(count)))
    words = stream.words(population)
    while len(set(words.tolist())) < population:
        words = stream.words(population)
    return sorted(np.argsort(words)[:count].tolist())


def shuffled(stream: Stream, members: Sequence[int]) -> list[int]:
    entries = sorted(members)
    for i in range(len(entries) - 1, 0, -1):
        j = i + 1
        while j > i:
            j = integer(stream.read(4)) % 2 ** i.bit_length()
        entries[i], entries[j] = entries[j], entries[i]
    return entries


def neighbours(seed: bytes, members: Sequence[int], k: int) -> dict[int, list[int]]:
    n = len(members)
    if k == n - 1:
        return {member: [other for other in members if other != member] for member in members}
    key = hkdf(seed, b"secure-fd neighbour graph", fields(u32(n), u32(k)))
    ring = shuffled(Stream(key), members)
    steps = [*range(-(k // 2), 0), *range(1, k // 2 + 1), *([n // 2] if k % 2 else [])]
    return {
        member: sorted(ring[(place + step) % n] for step in steps)
        for place, member in enumerate(ring)
    }


def committee(seed: bytes, members: Sequence[int], size: int) -> list[int]:
    n = len(members)
    if size >= n:
        return sorted(members)
    key = hkdf(seed, b"secure-fd committee", fields(u32(n), u32(size)))
    return sorted(shuffled(Stream(key), members)[:size])


# Degree, thresholds, quorum.


def tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """T of the page."""
    hits = sum(
        comb(marked, j) * comb(population - marked, drawn - j) for j in range(least, drawn + 1)
    )
    return Fraction(hits, comb(population, drawn))


def keeps_bounds(n: int, roster: int, k: int) -> bool:
    h, w, c, d = k + 1, k // 2, -(-roster // 10), -(-n // 10)
    t = 2 * h // 3 + 1
    if n * tail(n - 1, d, k, k - t + 1) + tail(n, d, h, h - t + 1) > Fraction(1, 2**30):
        return False
    collected = n * tail(n - 1, c, k, 2 * t - h) + tail(n, c, h, 2 * t - h)
    return collected + (n * tail(n, c, w, w - (h - t))) ** 2 / 2 <= Fraction(1, 2**104)


def default_degree(n: int, roster: int) -> int:
    if n <= 300:
        return n - 1
    even = (k for k in range(2, n - 1) if k * n % 2 == 0)
    return next((k for k in even if keeps_bounds(n, roster, k)), n - 1)


def group_numbers(n: int, roster: int, degree: int) -> tuple[int, int, int]:
    """Degree, threshold, quorum. degree: in place of the default, 0 for that."""
    k = degree or default_degree(n, roster)
    k = min(k + k * n % 2, n - 1)
    t = 2 * (roster if k == n - 1 else k + 1) // 3 + 1
    return k, t, t if k == n - 1 else 2 * n // 3 + 1


class Group:
    """Result of a set-up. nonces: of those that revealed, out of those that joined."""

    def __init__(
        self, session: Session, joined: Sequence[int], view: bytes, nonces: Mapping[int, bytes]
    ) -> None:
        members = self.members = sorted(nonces)
        seed = self.seed = joint_seed(nonces[member] for member in members)
        label = session.context("group", SERVER)
        self.view = sha(fields(label, view, set_of(members, joined), seed))
        numbers = group_numbers(len(members), len(session.roster), session.degree)
        self.degree, self.threshold, self.quorum = numbers
        self.neighbours = neighbours(seed, members, self.degree)
        self.committee = committee(seed, members, self.degree + 1)

    def holders(self, client: int) -> list[int]:
        return sorted([client, *self.neighbours[client]])

    def held_by(self, client: int, present: Collection[int]) -> list[int]:
        """Holders of a client's shares that are present; it holds shares of the same clients."""
        return [holder for holder in self.holders(client) if holder in present]

    def reaches(self, present: Collection[int]) -> bool:
        t = self.threshold
        signers = [member for member in self.committee if member in present]
        near = all(len(self.held_by(client, present)) >= t for client in present)
        return len(present) >= self.quorum and len(signers) >= t and near

    @property
    def tolerated(self) -> int:
        """Holders of a secret that may be corrupt."""
        return 2 * self.threshold - (self.degree + 1) - 1

    @property
    def spare(self) -> int:
        return self.degree + 1 - self.threshold

    def set(self, chosen: Collection[int]) -> bytes:
        return set_of(chosen, self.members)


# Shares.


def evaluate(coefficients: Iterable[int], point: int) -> int:
    """coefficients: the highest power first, the secret last."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, int], points: Iterable[int], at: int = 0) -> int:
    """The polynomial through the shares at these points, at another point."""
    points, total = list(points), 0
    for point in points:
        weight = 1
        for other in points:
            if other != point:
                weight = weight * (other - at) * pow(other - point, -1, PRIME) % PRIME
        total += weight * shares[point]
    return total % PRIME


def decoded(shares: Mapping[int, int], t: int) -> tuple[int, list[int]] | None:
    """The secret and the points of wrong shares, up to half of the spare ones; by all subsets."""
    for chosen in combinations(shares, t):
        wrong = [point for point in shares if combine(shares, chosen, point) != shares[point]]
        if len(wrong) <= (len(shares) - t) // 2:
            return combine(shares, chosen), wrong
    return None


# Channels and capsules.


def channel(session: Session, chain: bytes, low: int, high: int, index: int) -> tuple[bytes, bytes]:
    """The state for a round, and the 96 bytes of its keys."""
    first = index - index % session.epoch
    state = session.derive(chain, session.context("channel ratchet", low, high, u64(first)))
    for _ in range(first, index):
        state = sha(b"secure-fd channel ratchet" + state)
    info = session.context("channel keys of a round", low, high, u64(index))
    return state, session.derive(state, info, 96)


def capsule_info(session: Session, view: bytes, low: int, high: int, agreement: bytes) -> bytes:
    key = session.derive(agreement, session.context("capsule key", low, high) + view)
    return session.context("capsule", low, high) + view + key


def open_capsule(
    capsule: bytes, kem_key: MLKEM768PrivateKey, curve_key: X25519PrivateKey, info: bytes
) -> bytes | None:
    """Open one message of HPKE, RFC 9180, sections 4 and 5; None where it does not open."""
    suite = b"HPKE" + u16(0x647A) + u16(1) + u16(2)

    def extract(salt: bytes, label: bytes, secret: bytes) -> bytes:
        return hmac.digest(salt, b"HPKE-v1" + suite + label + secret, "sha256")

    def labeled(label: bytes, length: int) -> bytes:
        return expand(secret, u16(length) + b"HPKE-v1" + suite + label + schedule, length)

    encapsulated, ephemeral, sealed = capsule[:1088], capsule[1088:1120], capsule[1120:]
    try:
        agreement = dh(curve_key, ephemeral)
    except Refused:
        return None
    shared = kem_key.decapsulate(encapsulated) + agreement + ephemeral + public(curve_key)
    shared = hashlib.sha3_256(shared + b"\\.//^\\").digest()
    hashes = extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    schedule, secret = b"\0" + hashes, extract(shared, b"secret", b"")
    return unseal(labeled(b"key", 32), integer(labeled(b"base_nonce", 12)), sealed, b"")


def reduced(kem_key: bytes) -> bool:
    """Return whether the coefficients of an ML-KEM-768 key are below 3329 (FIPS 203, 7.2)."""
    bits = int.from_bytes(kem_key[:1152], "little")
    return all(bits >> 12 * place & 4095 < 3329 for place in range(768))


# Keys, commitments and signed texts of a round.


def round_key(session: Session, index: int, client: int, root: int) -> X25519PrivateKey:
    info = session.context("round key", client, terms=u64(index))
    return x25519(session.derive(element(root), info))


def vault_key(session: Session, index: int, client: int, root: int) -> bytes:
    info = session.context("vault key", client, terms=u64(index))
    return session.derive(element(root), info)


def seed_commitment(session: Session, index: int, client: int, seed: int) -> bytes:
    return sha(session.context("self mask commitment", client, terms=u64(index)) + element(seed))


def share_data(session: Session, index: int, dealer: int, holder: int, key: bytes) -> bytes:
    """Associated data of sealed shares."""
    return session.context("sealed shares", dealer, holder, u64(index)) + key


def self_mask_key(session: Session, terms: Terms, client: int, seed: int) -> bytes:
    info = session.context("self mask key", client, terms=terms.encoded)
    return session.derive(element(seed), info)


def pair_mask_key(
    session: Session, terms: Terms, one: int, other: int, agreement: bytes, pair_secret: bytes
) -> bytes:
    ends = min(one, other), max(one, other)
    info = session.context("pairwise mask key", *ends, terms.encoded)
    return session.derive(agreement + pair_secret, info)


def tag_key(session: Session, view: bytes, client: int, agreement: bytes) -> bytes:
    info = session.context("input authentication key", client, SERVER) + view
    return session.derive(agreement, info)


def nonce_commitment(session: Session, client: int, nonce: bytes) -> bytes:
    return sha(session.context("nonce commitment", client) + nonce)


def list_view(session: Session, body: bytes) -> bytes:
    """body: of MEMBERS."""
    return sha(session.context("member list", SERVER) + body)


def join_text(session: Session, client: int, key: bytes, commitment: bytes) -> bytes:
    return session.context("join signature", client) + key + commitment


def reveal_text(session: Session, client: int, view: bytes, nonce: bytes) -> bytes:
    return session.context("reveal signature", client) + view + nonce


def round_text(session: Session, terms: Terms, purpose: str, client: int, *signed: bytes) -> bytes:
    """purpose: `cohort signature`, `survivor signature` or `input signature`."""
    return session.context(purpose, client, terms=terms.encoded) + fields(*signed)


# Frame.


def frame(kind: str, session: Session, index: int, sender: int, *body: bytes) -> bytes:
    number = u16(TYPES.index(kind) + 1)
    return b"".join((u16(VERSION), number, u32(sender), u64(index), session.id, *body))


def open_frame(message: bytes, session: Session, index: int, sender: int, due: str) -> "Body":
    """due: the type that the receiver's state expects, empty for none."""
    require(len(message) >= HEADER, "length")
    require(message[:2] == u16(VERSION), "version")
    require(0 < integer(message[2:4]) <= len(TYPES), "type")
    require(message[16:HEADER] == session.id, "session")
    require(message[8:16] == u64(index), "round")
    require(message[4:8] == u32(sender), "sender")
    require(TYPES[integer(message[2:4]) - 1] == due, "state")
    return Body(message[HEADER:])


class Body:
    """Body of a message, read from front to end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, length: int) -> bytes:
        require(self.at + length <= len(self.data), "length")
        self.at += length
        return self.data[self.at - length : self.at]

    def set(self, ascending: Sequence[int]) -> list[int]:
        bits = int.from_bytes(self.take(-(-len(ascending) // 8)), "little")
        require(bits >> len(ascending) == 0, "set")
        return [entry for place, entry in enumerate(ascending) if bits >> place & 1]

    def signatures(self, committee: Sequence[int]) -> dict[int, bytes]:
        return {signer: self.take(64) for signer in self.set(committee)}

    def end(self) -> None:
        require(self.at == len(self.data), "length")
