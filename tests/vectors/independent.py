"""The protocol once more, from docs/protocol.md alone; nothing of secure_fd is imported.

Hashes and HKDF by hand with hashlib and hmac, ciphers and curves with the raw primitives of
`cryptography`, words and lanes as Python integers. Slow and plain: what the package computes is
held against it.
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = 2
EVERYONE, SERVER = 2**32 - 1, 2**32 - 2
SETUP = 2**64 - 1
HEADER = 48
WORD = 2**64
PRIME = 2**255 - 19
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


def eight(number: int) -> bytes:
    return struct.pack(">Q", number)


def terms_of(
    index: int, length: int, bound: int, subject: bytes, room: int = 0, least: int = 0
) -> bytes:
    """least: the fewest survivors."""
    return fields(*map(eight, (index, length, bound, room, least)), subject)


def sha(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """RFC 5869, section 2, with SHA-256."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    block, output = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.new(extracted, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
    return output[:length]


def keystream(key: bytes, size: int) -> bytes:
    """AES-256-CTR from the zero block."""
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size))


def words_of(data: bytes) -> list[int]:
    """Little-endian words."""
    return [word for (word,) in struct.iter_unpack("<Q", data)]


def stream(key: bytes, words: int) -> list[int]:
    return words_of(keystream(key, 8 * words))


def insecure_randomness(seed: int, size: int) -> bytes:
    """What a client draws from a published seed."""
    label = context("insecure seed", b"", b"", 0, 0)
    return keystream(sha(label, str(seed).encode()), size)


def exchange(private: bytes, public: bytes) -> bytes:
    peer = X25519PublicKey.from_public_bytes(public)
    return X25519PrivateKey.from_private_bytes(private).exchange(peer)


def agreement_public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def identity_public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def verify(public: bytes, signature: bytes, text: bytes) -> None:
    """InvalidSignature where it is not this identity's."""
    Ed25519PublicKey.from_public_bytes(public).verify(signature, text)


def unseal(key: bytes, counter: int, sealed: bytes, associated: bytes) -> bytes:
    """AES-256-GCM; InvalidTag where it was not sealed so."""
    return AESGCM(key).decrypt(counter.to_bytes(12, "big"), sealed, associated)


# Session and set-up.


def session_id(
    nonce: bytes,
    degree: int,
    threshold: int,
    hybrid: bool,
    roster: dict[int, bytes],
    configuration: bytes,
    proxies: bytes,
) -> bytes:
    listed = b"".join(struct.pack(">I", k) + roster[k] for k in sorted(roster))
    numbers = (eight(n) for n in (degree, threshold, int(hybrid), 64))
    label = context("session id", nonce, b"", EVERYONE)
    return sha(fields(label, *numbers, listed, configuration, proxies))


def shuffled(members: Sequence[int], degree: int, seed: bytes) -> list[int]:
    """The ring of the graph: Fisher and Yates, four bytes a draw, too large ones drawn again."""
    info = fields(struct.pack(">I", len(members)), struct.pack(">I", degree))
    data = iter(keystream(hkdf(seed, b"secure-fd neighbour graph", info), 2**14))
    ring = sorted(members)
    for last in range(len(ring) - 1, 0, -1):
        at = last + 1
        while at > last:
            word = int.from_bytes(bytes(next(data) for _ in range(4)), "big")
            at = word & ((1 << last.bit_length()) - 1)
        ring[last], ring[at] = ring[at], ring[last]
    return ring


def ring_neighbours(ring: Sequence[int], degree: int) -> dict[int, list[int]]:
    """Of each member, those within degree / 2 places; degree is even."""
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    return {
        member: sorted(ring[(at + step) % len(ring)] for step in steps)
        for at, member in enumerate(ring)
    }


def drawn_proxies(seed: bytes, index: int, population: int, count: int) -> list[int]:
    """Those with the smallest words; equal words would be drawn again, and do not occur here."""
    label = b"secure-fd joint draw"
    info = label + eight(index) + eight(population) + eight(count)
    words = stream(hkdf(seed, label, info), population)
    return sorted(sorted(range(population), key=words.__getitem__)[:count])


def joint_seed(nonces: Sequence[bytes]) -> bytes:
    return sha(fields(b"secure-fd joint seed", *nonces))


def view_of(session: bytes, member_list: bytes) -> bytes:
    return sha(context("member list", session, b"", SERVER), member_list)


def channel_keys(
    session: bytes, low: int, high: int, agreed: bytes, view: bytes, ciphertext: bytes = b""
) -> tuple[bytes, bytes, bytes]:
    """Sealing key upward, sealing key downward, pair key."""
    info = context("channel keys", session, b"", low, high) + view + sha(ciphertext)
    keys = hkdf(agreed, session, info, 96)
    return keys[:32], keys[32:64], keys[64:]


# A round.


def pair_secret(session: bytes, index: int, low: int, high: int, pair_key: bytes) -> bytes:
    return hkdf(pair_key, session, context("pair secret", session, eight(index), low, high))


def round_private(session: bytes, index: int, client: int, root: bytes) -> bytes:
    return hkdf(root, session, context("round key", session, eight(index), client))


def vault_key(session: bytes, index: int, client: int, root: bytes) -> bytes:
    return hkdf(root, session, context("vault key", session, eight(index), client))


def commit_seed(session: bytes, index: int, client: int, seed: bytes) -> bytes:
    return sha(context("self mask commitment", session, eight(index), client), seed)


def shares_label(session: bytes, index: int, sender: int, receiver: int, key: bytes) -> bytes:
    return context("sealed shares", session, eight(index), sender, receiver) + key


def pair_mask_key(session: bytes, terms: bytes, low: int, high: int, secret: bytes) -> bytes:
    """secret: the agreement of the two round keys, then the pair secret."""
    return hkdf(secret, session, context("pairwise mask key", session, terms, low, high))


def self_mask_key(session: bytes, terms: bytes, client: int, seed: bytes) -> bytes:
    return hkdf(seed, session, context("self mask key", session, terms, client))


def cohort_text(session: bytes, terms: bytes, client: int, view: bytes, cohort: bytes) -> bytes:
    return context("cohort signature", session, terms, client) + fields(view, cohort)


def survivor_text(
    session: bytes, terms: bytes, client: int, view: bytes, cohort: bytes, survivors: bytes
) -> bytes:
    return context("survivor signature", session, terms, client) + fields(view, cohort, survivors)


# Numbers.


def element(data: bytes) -> int:
    """A drawn element: 255 of 256 bits. (None of the vectors' is above the prime.)"""
    return int.from_bytes(data, "big") & (2**255 - 1)


def evaluate(coefficients: Sequence[int], point: int) -> int:
    """coefficients: highest power first, the secret last."""
    value = 0
    for coefficient in coefficients:
        value = (value * point + coefficient) % PRIME
    return value


def combine(shares: dict[int, int]) -> int:
    """Lagrange at zero over the field. shares: by point."""
    total = 0
    for at, share in shares.items():
        weight = 1
        for other in shares.keys() - {at}:
            weight = weight * other * pow(other - at, -1, PRIME) % PRIME
        total += share * weight
    return total % PRIME


def lane_bits(clients: int, bound: int, room: int) -> int:
    return (clients * bound + 2 * room).bit_length()


def pack(values: Sequence[int], clients: int, bound: int, room: int) -> list[int]:
    bits = lane_bits(clients, bound, room)
    width = -(-len(values) // (64 // bits))
    words = [0] * width
    for at, value in enumerate(values):
        words[at % width] = (words[at % width] + (value << at // width * bits)) % WORD
    return words


def unpack(words: Sequence[int], length: int, clients: int, bound: int, room: int) -> list[int]:
    bits, width = lane_bits(clients, bound, room), len(words)
    offset = pack([room] * length, clients, bound, room)
    shifted = [(word + more) % WORD for word, more in zip(words, offset, strict=True)]
    lanes = [shifted[at % width] >> at // width * bits for at in range(length)]
    return [lane % (1 << bits) - room for lane in lanes]


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


def member_set(chosen: Sequence[int], members: Sequence[int]) -> bytes:
    bits = sum(1 << at for at, member in enumerate(members) if member in chosen)
    return bits.to_bytes(-(-len(members) // 8), "little")


def read_set(data: bytes, members: Sequence[int]) -> list[int]:
    bits = int.from_bytes(data, "little")
    return [member for at, member in enumerate(members) if bits >> at & 1]


def signature_list(signatures: dict[int, bytes]) -> bytes:
    return b"".join(struct.pack(">I", k) + signatures[k] for k in sorted(signatures))


def read_signatures(data: bytes) -> dict[int, bytes]:
    return dict(struct.iter_unpack(">I64s", data))
