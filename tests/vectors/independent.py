"""The protocol once more, from docs/protocol.md alone; nothing of secure_fd is imported.

Here its bytes: contexts, keys, public draws, numbers, frames. Hashes and HKDF by hand with hashlib
and hmac, ciphers and curves with the raw primitives of `cryptography`, words and lanes as Python
integers. Slow and plain: what the package computes is held against it.
"""

import hashlib
import hmac
import math
import struct
from collections.abc import Mapping, Sequence
from itertools import combinations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = 4
EVERYONE, SERVER = 2**32 - 1, 2**32 - 2
SETUP = 2**64 - 1
HEADER = 48
WORD = 2**64
PRIME = 2**255 - 19
COMPLETE_UP_TO = 300
TYPES = [
    *("JOIN", "MEMBERS", "REVEAL", "AGREED", "CAPSULES", "PREPARE", "COHORT", "MASKED"),
    *("SURVIVORS", "CONSISTENT", "SIGNATURES", "UNMASK"),
]

# Hashes and keys.


def fields(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def context(
    purpose: str, session: bytes, terms: bytes, sender: int, receiver: int = EVERYONE
) -> bytes:
    """terms: nothing in the set-up, eight bytes of the index, or `terms_of`."""
    ends = struct.pack(">I", sender), struct.pack(">I", receiver)
    version = struct.pack(">H", VERSION)
    return fields(b"secure-fd secure aggregation", version, session, terms, purpose.encode(), *ends)


def four(number: int) -> bytes:
    return struct.pack(">I", number)


def eight(number: int) -> bytes:
    return struct.pack(">Q", number)


def terms_of(
    index: int, length: int, bound: int, subject: bytes, room: int = 0, least: int = 0
) -> bytes:
    """least: the fewest survivors."""
    return fields(*map(eight, (index, length, bound, room, least)), subject)


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, section 2.3."""
    block, output = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.new(key, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
    return output[:length]


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """RFC 5869, section 2, with SHA-256."""
    return expand(hmac.new(salt, secret, hashlib.sha256).digest(), info, length)


def keystream(key: bytes, size: int) -> bytes:
    """AES-256-CTR from the zero block."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def words_of(data: bytes) -> list[int]:
    """Little-endian words."""
    return [word for (word,) in struct.iter_unpack("<Q", data)]


def stream(key: bytes, words: int) -> list[int]:
    return words_of(keystream(key, 8 * words))


class Draws:
    """What a client draws from a published seed, front to back."""

    def __init__(self, seed: int) -> None:
        label = context("insecure seed", b"", b"", 0, 0)
        key = sha(label, str(seed).encode())
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def take(self, size: int) -> bytes:
        return self._cipher.update(bytes(size))

    def elements(self, count: int) -> list[int]:
        """255 of 256 bits each, drawn again while not below the prime."""
        found: list[int] = []
        while len(found) < count:
            drawn = int.from_bytes(self.take(32), "big") & (2**255 - 1)
            found += [drawn] if drawn < PRIME else []
        return found


def low_order(public: bytes) -> bool:
    """Whether every exchange with it is zero."""
    try:
        X25519PrivateKey.from_private_bytes(bytes(32)).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        return True
    return False


def exchange(private: bytes, public: bytes) -> bytes:
    peer = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(private).exchange(peer)


def agreement_public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def identity_public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, text: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).sign(text)


def verify(public: bytes, signature: bytes, text: bytes) -> None:
    """InvalidSignature where it is not this identity's."""
    Ed25519PublicKey.from_public_bytes(public).verify(signature, text)


def seal(key: bytes, counter: int, text: bytes, associated: bytes) -> bytes:
    """AES-256-GCM."""
    return AESGCM(key).encrypt(counter.to_bytes(12, "big"), text, associated)


def unseal(key: bytes, counter: int, sealed: bytes, associated: bytes) -> bytes:
    """InvalidTag where it was not sealed so."""
    return AESGCM(key).decrypt(counter.to_bytes(12, "big"), sealed, associated)


def tag(key: bytes, index: int, message: bytes) -> bytes:
    """AES-256-GMAC: GCM of no text."""
    return seal(key, index, b"", message)


# Capsules: HPKE, RFC 9180, by hand.


def capsule_public(kem_seed: bytes, agreement: bytes) -> bytes:
    kem = MLKEM768PrivateKey.from_seed_bytes(kem_seed).public_key().public_bytes_raw()
    return kem + agreement_public(agreement)


def is_capsule_key(public: bytes) -> bool:
    """Whether its lattice part has reduced coefficients, and its curve part a high order."""
    try:
        MLKEM768PublicKey.from_public_bytes(public[:1184])
    except ValueError:
        return False
    return not low_order(public[1184:])


def open_capsule(capsule: bytes, kem_seed: bytes, agreement: bytes, info: bytes) -> bytes:
    """InvalidTag where it was not sealed to these keys and this info."""
    lattice, ephemeral, box = capsule[:1088], capsule[1088:1120], capsule[1120:]
    shared = hashlib.sha3_256(
        MLKEM768PrivateKey.from_seed_bytes(kem_seed).decapsulate(lattice)
        + exchange(agreement, ephemeral)
        + ephemeral
        + agreement_public(agreement)
        + rb"\.//^\ "[:6]
    ).digest()
    label = b"HPKE-v1HPKE" + struct.pack(">HHH", 0x647A, 1, 2)

    def extract(salt: bytes, name: bytes, secret: bytes) -> bytes:
        return hmac.new(salt or bytes(32), label + name + secret, hashlib.sha256).digest()

    scheduled = b"\0" + extract(b"", b"psk_id_hash", b"") + extract(b"", b"info_hash", info)
    secret = extract(shared, b"secret", b"")
    key, nonce = (
        expand(secret, struct.pack(">H", size) + label + name + scheduled, size)
        for name, size in ((b"key", 32), (b"base_nonce", 12))
    )
    return AESGCM(key).decrypt(nonce, box, b"")


# Session and public draws.


def session_id(
    nonce: bytes,
    numbers: Sequence[int],
    roster: Mapping[int, bytes],
    configuration: bytes,
    proxies: bytes,
    server: bytes,
) -> bytes:
    """numbers: hybrid, epoch."""
    listed = b"".join(four(k) + roster[k] for k in sorted(roster))
    label = context("session id", nonce, b"", EVERYONE)
    return sha(fields(label, *map(eight, numbers), listed, configuration, proxies, server))


def joint_seed(nonces: Sequence[bytes]) -> bytes:
    return sha(fields(b"secure-fd joint seed", *nonces))


def shuffled(members: Sequence[int], key: bytes) -> list[int]:
    """Fisher and Yates, four bytes a draw, too large ones drawn again."""
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    ring = sorted(members)
    for last in range(len(ring) - 1, 0, -1):
        at = last + 1
        while at > last:
            word = int.from_bytes(cipher.update(bytes(4)), "big")
            at = word & ((1 << last.bit_length()) - 1)
        ring[last], ring[at] = ring[at], ring[last]
    return ring


def neighbours(members: Sequence[int], degree: int, seed: bytes) -> dict[int, list[int]]:
    n = len(members)
    if degree == n - 1:
        return {member: sorted(set(members) - {member}) for member in members}
    key = hkdf(seed, b"secure-fd neighbour graph", fields(four(n), four(degree)))
    ring = shuffled(members, key)
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    steps += [n // 2] if degree % 2 else []
    return {
        member: sorted(ring[(at + step) % n] for step in steps) for at, member in enumerate(ring)
    }


def committee(members: Sequence[int], size: int, seed: bytes) -> list[int]:
    n = len(members)
    if size >= n:
        return sorted(members)
    key = hkdf(seed, b"secure-fd committee", fields(four(n), four(size)))
    return sorted(shuffled(members, key)[:size])


def drawn_proxies(seed: bytes, index: int, population: int, count: int) -> list[int]:
    """Those with the smallest words; equal words would be drawn again, and do not occur here."""
    label = b"secure-fd joint draw"
    info = label + eight(index) + eight(population) + eight(count)
    words = stream(hkdf(seed, label, info), population)
    return sorted(sorted(range(population), key=words.__getitem__)[:count])


def tail(population: int, marked: int, drawn: int, least: int) -> float:
    """The chance that `drawn` of them hold `least` marked ones or more, by exact integers."""
    hits = sum(
        math.comb(marked, j) * math.comb(population - marked, drawn - j)
        for j in range(max(least, 0), min(drawn, marked) + 1)
    )
    return hits / math.comb(population, drawn)


def keeps_bounds(n: int, k: int, roster: int) -> bool:
    h, w, c, d = k + 1, k // 2, -(-roster // 10), -(-n // 10)
    t = 2 * h // 3 + 1
    parts = n * tail(n, c, w, w - (h - t))
    security = n * tail(n - 1, c, k, 2 * t - h) + tail(n, c, h, 2 * t - h) + parts**2 / 2
    lost = n * tail(n - 1, d, k, k - t + 1) + tail(n, d, h, h - t + 1)
    return security <= 2.0**-104 and lost <= 2.0**-30


def default_degree(n: int, roster: int) -> int:
    if n <= COMPLETE_UP_TO:
        return n - 1
    allowed = (k for k in range(2, n - 1) if k * n % 2 == 0)
    return next((k for k in allowed if keeps_bounds(n, k, roster)), n - 1)


def group_numbers(n: int, roster: int, degree: int) -> tuple[int, int, int]:
    """Degree, threshold, quorum. degree: in place of the default, 0 for that."""
    k = degree or default_degree(n, roster)
    k = min(k + k * n % 2, n - 1)
    complete = k == n - 1
    t = 2 * (roster if complete else k + 1) // 3 + 1
    return k, t, t if complete else 2 * n // 3 + 1


# Numbers.


def element(number: int) -> bytes:
    return number.to_bytes(32, "big")


def evaluate(coefficients: Sequence[int], point: int) -> int:
    """coefficients: highest power first, the secret last."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


def combine(shares: Mapping[int, int], point: int = 0) -> int:
    """Lagrange at a point of the field. shares: by point."""
    total = 0
    for at, share in shares.items():
        weight = 1
        for other in shares.keys() - {at}:
            weight = weight * (other - point) * pow(other - at, -1, PRIME) % PRIME
        total += share * weight
    return total % PRIME


def decoded(shares: Mapping[int, int], t: int) -> tuple[int, list[int]] | None:
    """The secret and the points of wrong shares, up to half of those beyond t; by all subsets."""
    most = (len(shares) - t) // 2
    for chosen in combinations(shares, t):
        part = {at: shares[at] for at in chosen}
        wrong = [at for at, share in shares.items() if combine(part, at) != share]
        if len(wrong) <= most:
            return combine(part), wrong
    return None


def lane_bits(clients: int, bound: int, room: int) -> int:
    return (clients * bound + 2 * room).bit_length()


def word_count(length: int, clients: int, bound: int, room: int) -> int:
    return -(-length // (64 // lane_bits(clients, bound, room)))


def pack(values: Sequence[int], clients: int, bound: int, room: int) -> list[int]:
    bits, width = (
        lane_bits(clients, bound, room),
        word_count(len(values), clients, bound, room),
    )
    words = [0] * width
    for at, value in enumerate(values):
        words[at % width] = (words[at % width] + (value << at // width * bits)) % WORD
    return words


def lanes_of(
    words: Sequence[int], length: int, clients: int, bound: int, room: int
) -> tuple[list[int], bool]:
    """The sums, and whether any bit stands outside the lanes that hold them."""
    bits, width = lane_bits(clients, bound, room), len(words)
    offset = pack([room] * length, clients, bound, room)
    shifted = [(word + more) % WORD for word, more in zip(words, offset, strict=True)]
    lanes = [(shifted[at % width] >> at // width * bits) % (1 << bits) for at in range(length)]
    rest = list(shifted)
    for at, lane in enumerate(lanes):
        rest[at % width] -= lane << at // width * bits
    return [lane - room for lane in lanes], any(rest)


# Texts that are signed in a round.


def cohort_text(session: bytes, terms: bytes, client: int, view: bytes, cohort: bytes) -> bytes:
    return context("cohort signature", session, terms, client) + fields(view, cohort)


def survivor_text(
    session: bytes, terms: bytes, client: int, view: bytes, cohort: bytes, survivors: bytes
) -> bytes:
    return context("survivor signature", session, terms, client) + fields(view, cohort, survivors)


def input_text(
    session: bytes, terms: bytes, client: int, view: bytes, cohort: bytes, words: bytes
) -> bytes:
    return context("input signature", session, terms, client) + fields(view, cohort, sha(words))


# Masks.


def pair_mask_key(session: bytes, terms: bytes, low: int, high: int, secret: bytes) -> bytes:
    """secret: the agreement of the two round keys, then the pair secret."""
    return hkdf(secret, session, context("pairwise mask key", session, terms, low, high))


def self_mask_key(session: bytes, terms: bytes, client: int, seed: bytes) -> bytes:
    return hkdf(seed, session, context("self mask key", session, terms, client))


# Frames.


def frame(kind: str, session: bytes, index: int, sender: int, body: bytes) -> bytes:
    return struct.pack(">HHIQ", VERSION, TYPES.index(kind) + 1, sender, index) + session + body


def pieces(data: bytes, size: int) -> list[bytes]:
    if len(data) % size:
        raise ValueError(f"{len(data)} bytes are not pieces of {size}")
    return [data[at : at + size] for at in range(0, len(data), size)]


def read_frame(message: bytes) -> tuple[str, bytes, int, int, bytes]:
    """Type, session, index, sender, body."""
    version, kind, sender, index = struct.unpack(">HHIQ", message[:16])
    if version != VERSION:
        raise ValueError(version)
    return TYPES[kind - 1], message[16:HEADER], index, sender, message[HEADER:]


def set_size(members: Sequence[int]) -> int:
    return -(-len(members) // 8)


def member_set(chosen: Sequence[int], members: Sequence[int]) -> bytes:
    bits = sum(1 << at for at, member in enumerate(members) if member in chosen)
    return bits.to_bytes(set_size(members), "little")


def read_set(data: bytes, members: Sequence[int]) -> list[int]:
    """ValueError for a bit that is nobody's."""
    bits = int.from_bytes(data, "little")
    if bits >> len(members):
        raise ValueError(data.hex())
    return [member for at, member in enumerate(members) if bits >> at & 1]


def signature_list(signatures: Mapping[int, bytes], committee: Sequence[int]) -> bytes:
    signed = [k for k in committee if k in signatures]
    return member_set(signed, committee) + b"".join(signatures[k] for k in signed)
