"""Writes secagg.json: `python -m tests.vectors.generate`. The result is the same on every run.

The keys of intermediate steps leave no party, so they are taken where they are made: every call
of derive_key is on record, under the context it was made for.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import EVERYONE, Purpose, insecure_bytes
from secure_fd.secagg.masks import commit_seed, pair_stream, self_stream
from secure_fd.secagg.session import Place, RoundScope, RoundTerms
from tests.vectors.flow import LOST, NONCE, SEEDS, TERMS, Delivery, Flow, values_of
from tests.vectors.parts import (
    channel_keys,
    graph,
    hexed,
    hybrid_channel,
    joint,
    lanes,
    recorded_keys,
    sharing,
)
from tests.vectors.refused import refused

FILE: Final = Path(__file__).with_name("secagg.json")
COMMENT: Final = [
    "Test vectors of the masked sum, protocol version 2; docs/protocol.md says what each value is.",
    "Byte strings are hex. A field element has 32 bytes, big-endian. Words are 8 bytes each, "
    "little-endian. Party numbers: clients from 0, 4294967294 the server. All secrets here follow "
    "from published seeds and protect nothing.",
    "randomness: client k draws, in this order, identity 32, nonce 32, channel key 32, and for "
    "every round that it prepares: root 32, seed 32, the coefficients of the root's polynomial "
    "from the highest power down, and those of the seed's; of an element's 256 bits the first is "
    "ignored. Its bytes are AES-256-CTR from the zero block under SHA-256(context || decimal "
    "digits of its seed), the context being that of 'insecure seed' with session and round empty "
    "and both ends 0.",
    "setup, rounds: all messages in the order of arrival; 'lost' never arrived. In round 5 nobody "
    "is missing, in round 6 the input of client 4. room, least: what the round's noise asks for, "
    "head room and survivors; words hold negative values modulo 2^64. A list of one item a "
    "client is in the order of their numbers. prepared: what every client drew for a round; "
    "root_shares, seed_shares: what each holder got, at the points 1 to 4. pairs: low adds the "
    "mask, high subtracts it.",
    "graph: of the members in ascending order, place i from the last down to 1 is exchanged with "
    "place j, uniform in 0..i: of four bytes, big-endian, of the stream as many low bits as i has, "
    "drawn again while above i. The stream is AES-256-CTR under HKDF(seed, salt 'secure-fd "
    "neighbour graph', info the fields members and degree in four bytes each). Neighbours are the "
    "degree / 2 on either side of the ring.",
    "joint: a word for each of the population, of AES-256-CTR under HKDF(seed, salt 'secure-fd "
    "joint draw', info that label and round, population and count in eight bytes each); those with "
    "the smallest words are drawn.",
    "refused: run everything up to the delivery named by round, type, from and to; then deliver "
    "'message' as from 'sender'. The named party, here or later, must fail with an error of that "
    "class, at once ('receive') or when the stage is closed ('close'), for that reason, and must "
    "then stay aborted: seal, signature and so on name the check, not a text.",
]


def vectors() -> dict[str, Any]:
    """Everything that the file holds."""
    with recorded_keys() as keys:
        flow = Flow()
    return {
        "comment": COMMENT,
        "version": 2,
        "lanes": lanes(),
        "shamir": sharing(),
        "graph": graph(),
        "joint": joint(),
        "hybrid_channel": hybrid_channel(),
        "session": session(flow),
        "setup": setup(flow, keys),
        "prepared": {str(terms.index): prepared(flow, keys, terms.index) for terms in TERMS},
        "rounds": [round_of(flow, keys, terms) for terms in TERMS],
        "refused": refused(),
    }


def session(flow: Flow) -> dict[str, Any]:
    made = flow.session
    return {
        "nonce": NONCE.hex(),
        "configuration": made.configuration.hex(),
        "proxies": made.proxies.hex(),
        "degree": 0,
        "threshold": 0,
        "hybrid": False,
        "modulus_bits": 64,
        "id": made.id.hex(),
        "clients": [
            {
                "client": k,
                "seed": seed,
                "identity_secret": insecure_bytes(seed)(32).hex(),
                "identity": made.roster[k].raw.hex(),
            }
            for k, seed in SEEDS.items()
        ],
    }


def setup(flow: Flow, keys: Mapping[bytes, bytes]) -> dict[str, Any]:
    group, place = flow.group, flow.session.place
    pairs = [(low, high) for low in group.members for high in group.members if low < high]
    bound = group.view + hashlib.sha256(b"").digest()
    drawn = {k: insecure_bytes(seed)(96) for k, seed in SEEDS.items()}
    return {
        "nonces": [drawn[k][32:64].hex() for k in group.members],
        "channel_privates": [drawn[k][64:].hex() for k in group.members],
        "messages": messages(flow.deliveries, None),
        "view": group.view.hex(),
        "seed": group.seed.hex(),
        "threshold": group.threshold,
        "quorum": group.quorum,
        "channels": [
            {
                "low": low,
                "high": high,
                **channel_keys(keys[place.context(Purpose.CHANNEL, low, high) + bound]),
            }
            for low, high in pairs
        ],
    }


def prepared(flow: Flow, keys: Mapping[bytes, bytes], index: int) -> list[dict[str, Any]]:
    place, members = Place(flow.session.id, index), flow.group.members
    found = []
    for k in members:
        drawn = flow.secrets[index, k]
        shares = [flow.shares[index, holder][k] for holder in members]
        found.append(
            {
                "root": shamir.encode(drawn.root).hex(),
                "seed": shamir.encode(drawn.seed).hex(),
                "round_private": keys[place.context(Purpose.ROUND_KEY, k, EVERYONE)].hex(),
                "round_public": drawn.key.public.hex(),
                "commitment": commit_seed(place, k, drawn.seed).hex(),
                "vault_key": keys[place.context(Purpose.VAULT, k, EVERYONE)].hex(),
                "root_shares": [share.root.hex() for share in shares],
                "seed_shares": [share.seed.hex() for share in shares],
            }
        )
    return found


def round_of(flow: Flow, keys: Mapping[bytes, bytes], terms: RoundTerms) -> dict[str, Any]:
    scope, members = RoundScope(flow.session, terms), flow.group.members
    survivors = [k for k in members if k not in LOST[terms.index]]
    return {
        "index": terms.index,
        "length": terms.length,
        "bound": terms.bound,
        "room": terms.noise.room,
        "least": terms.noise.survivors,
        "subject": terms.subject.hex(),
        "values": [values_of(k, terms).tolist() for k in members],
        "packed": [hexed(scope.layout.pack(values_of(k, terms))) for k in members],
        "self_masks": [self_mask(flow, keys, scope, k) for k in members],
        "pairs": [
            pair_mask(flow, keys, scope, low, high)
            for low in members
            for high in members
            if low < high
        ],
        "messages": messages(flow.deliveries, terms.index),
        "lost": messages(flow.lost, terms.index),
        "survivors": survivors,
        "sum": flow.sums[terms.index],
    }


def self_mask(
    flow: Flow, keys: Mapping[bytes, bytes], scope: RoundScope, client: int
) -> dict[str, str]:
    seed = flow.secrets[scope.terms.index, client].seed
    stream = self_stream(scope, client, seed)
    key = keys[scope.context(Purpose.SELF_MASK, client, EVERYONE)]
    return {"key": key.hex(), "mask": stream.read(8 * scope.words).hex()}


def pair_mask(
    flow: Flow, keys: Mapping[bytes, bytes], scope: RoundScope, low: int, high: int
) -> dict[str, Any]:
    index = scope.terms.index
    enrolment = flow.clients[low]._enrolment
    assert enrolment is not None
    pair_secret = enrolment.channels[high].pair_secret(index)
    mine, peer = (flow.secrets[index, k].key for k in (low, high))
    stream = pair_stream(scope, low, high, mine, peer.public, pair_secret)
    return {
        "low": low,
        "high": high,
        "agreed": mine.exchange(peer.public).hex(),
        "pair_secret": pair_secret.hex(),
        "key": keys[scope.context(Purpose.PAIR_MASK, low, high)].hex(),
        "mask": stream.read(8 * scope.words).hex(),
    }


def messages(deliveries: list[Delivery], index: int | None) -> list[dict[str, Any]]:
    return [
        {"type": d.kind, "from": d.sender, "to": d.receiver, "message": d.data.hex()}
        for d in deliveries
        if d.index == index
    ]


def text(content: Mapping[str, Any]) -> str:
    """The file's text: indented, but a list of numbers or strings stands on one line."""

    def joined(found: re.Match[str]) -> str:
        return "[" + ", ".join(line.strip().rstrip(",") for line in found[1].splitlines()) + "]"

    indented = json.dumps(content, indent=1)
    return re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", joined, indented) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(vectors()))
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
