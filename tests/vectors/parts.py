"""Vectors of single steps, by the package: contexts, lanes, sharing, draws, graphs, a ratchet."""

from typing import Any

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.primitives import (
    EVERYONE,
    SERVER,
    WORD,
    Purpose,
    context,
    derive_key,
    draw_indices,
    insecure_bytes,
    joint_seed,
)
from secure_fd.knowledge import LaneLayout, WordArray
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.graph import committee, neighbours
from secure_fd.secagg.session import Group, Place, Roster, RoundTerms, Session

Json = dict[str, Any]
EPOCH = 16


def hexed(words: WordArray) -> str:
    """Words as bytes, little-endian."""
    return words.astype(WORD).tobytes().hex()


ENDS = {
    **dict.fromkeys((Purpose.SESSION,), (EVERYONE, EVERYONE)),
    **dict.fromkeys((Purpose.VIEW, Purpose.GROUP), (SERVER, EVERYONE)),
    **dict.fromkeys((Purpose.INPUT_MAC,), (3, SERVER)),
    **dict.fromkeys((Purpose.INSECURE_SEED,), (0, 0)),
}
PAIRS = {
    *(Purpose.CAPSULE_KEY, Purpose.CAPSULE, Purpose.CHANNEL, Purpose.RATCHET),
    *(Purpose.ROUND_CHANNEL, Purpose.SHARES, Purpose.PAIR_MASK),
}
BEFORE_TERMS = {
    *(Purpose.RATCHET, Purpose.ROUND_CHANNEL, Purpose.SHARES, Purpose.ROUND_KEY),
    *(Purpose.VAULT, Purpose.SELF_COMMITMENT),
}
WITH_TERMS = {
    *(Purpose.INPUT, Purpose.PAIR_MASK, Purpose.SELF_MASK, Purpose.COHORT, Purpose.SURVIVORS),
}


def contexts() -> list[Json]:
    """One of every purpose, with the terms and the ends that it has."""
    full = RoundTerms(7, 40, 1000, b"subject").encode()
    found = []
    for purpose in Purpose:
        terms = full if purpose in WITH_TERMS else b""
        terms = (7).to_bytes(8, "big") if purpose in BEFORE_TERMS else terms
        sender, receiver = ENDS.get(purpose, (3, 8 if purpose in PAIRS else EVERYONE))
        session = b"" if purpose is Purpose.INSECURE_SEED else bytes(range(32))
        made = context(purpose, session=session, terms=terms, sender=sender, receiver=receiver)
        found.append(
            {
                "purpose": purpose.value,
                "session": session.hex(),
                "terms": terms.hex(),
                "sender": sender,
                "receiver": receiver,
                "context": made.hex(),
            }
        )
    return found


def lanes() -> list[Json]:
    """Values of either sign in words."""
    found = []
    shapes = ((10, 1, 0, 33), (10, 4095, 0, 9), (3, 2**40, 0, 3), (50, 6, 0, 25))
    noisy = ((10, 1, 60, 33), (10, 4095, 9000, 9), (3, 2**40, 2**44, 3), (10_000, 6, 7000, 25))
    for n, bound, room, length in (*shapes, *noisy):
        layout = LaneLayout(n, bound, room)
        values = (np.arange(length) * 7919) % (bound + 2 * room + 1) - room
        words = layout.pack(values if room else values.astype(np.uint64))
        found.append(
            {
                "clients": n,
                "bound": bound,
                "room": room,
                "values": values.tolist(),
                "bits": layout.bits,
                "lanes": layout.lanes,
                "words": hexed(words),
            }
        )
    return found


def sharing() -> Json:
    """One secret at points of any distance."""
    random, points = insecure_bytes(1), [1, 2, 5, 7, 50]
    secret = shamir.draw_element(random)
    shares = shamir.split(secret, points, 3, random)
    weights = shamir.weights_at_zero(points[-3:])
    return {
        "seed": 1,
        "threshold": 3,
        "points": points,
        "secret": shamir.encode(secret).hex(),
        "shares": [shamir.encode(share).hex() for share in shares],
        "weights_of_the_last": [shamir.encode(weight).hex() for weight in weights],
    }


def corrections() -> list[Json]:
    """Wrong shares: none, one, as many as can be told, and one more."""
    random, points, t = insecure_bytes(2), list(range(1, 9)), 4
    shares = shamir.split(shamir.draw_element(random), points, t, random)
    found = []
    for wrong in ((), (3,), (1, 8), (2, 5, 6)):
        given = [
            (share + 1 + at) % shamir.PRIME if at in wrong else share
            for at, share in zip(points, shares, strict=True)
        ]
        corrected = shamir.correct(points, given, t)
        told = (None, None) if corrected is None else corrected
        found.append(
            {
                "threshold": t,
                "points": points,
                "shares": [shamir.encode(share).hex() for share in given],
                "secret": None if told[0] is None else shamir.encode(told[0]).hex(),
                "wrong": None if told[1] is None else [points[at] for at in told[1]],
            }
        )
    return found


def draws() -> list[Json]:
    """Proxies of two rounds."""
    nonces = [bytes([client]) * 32 for client in range(3)]
    seed = joint_seed(nonces)
    return [
        {
            "nonces": [nonce.hex() for nonce in nonces],
            "round": index,
            "population": 200,
            "count": 20,
            "seed": seed.hex(),
            "indices": draw_indices(seed, index, 200, 20).tolist(),
        }
        for index in (0, 1)
    ]


def graphs() -> list[Json]:
    """Neighbours and committee: even, odd and full degree."""
    found = []
    for count, degree in ((50, 20), (12, 5), (21, 4), (5, 4)):
        members, seed = [3 * at + 1 for at in range(count)], bytes(range(degree, degree + 32))
        near = neighbours(members, degree, seed)
        found.append(
            {
                "members": members,
                "degree": degree,
                "seed": seed.hex(),
                "neighbours": [list(near[k]) for k in members],
                "committee": list(committee(members, degree + 1, seed)),
            }
        )
    return found


def groups() -> list[Json]:
    """Degree, threshold and quorum by number of members, of the roster, and what is set."""
    asked = (
        (3, 3),
        (10, 10),
        (8, 10),
        (299, 300),
        (300, 300),
        (301, 301),
        (320, 400),
        (1000, 1000),
    )
    given = [(n, roster, 0, 0) for n, roster in asked]
    given += [(50, 50, 20, 0), (45, 50, 7, 0), (50, 50, 20, 18), (10, 12, 30, 0)]
    found = []
    for n, roster, degree, threshold in given:
        group = Group(_session(roster, degree, threshold), tuple(range(n)), b"", bytes(32))
        found.append(
            {
                "members": n,
                "roster": roster,
                "session_degree": degree,
                "session_threshold": threshold,
                "degree": group.degree,
                "threshold": group.threshold,
                "quorum": group.quorum,
            }
        )
    return found


def _session(roster: int, degree: int = 0, threshold: int = 0, epoch: int = EPOCH) -> Session:
    return Session(
        Roster({k: (k + 1).to_bytes(32, "little") for k in range(roster)}),
        *(b"configuration", b"proxies", b"nonce"),
        server=bytes([9]) + bytes(31),
        degree=degree or None,
        threshold=threshold or None,
        epoch=epoch,
    )


def ratchet() -> Json:
    """One chain, as a client that missed rounds moves it on, and from the start of an epoch."""
    session, chain = _session(3), insecure_bytes(3)(32)
    rounds = []
    for indices in ((32, 33, 35, 47), (3,)):
        end = Channel(session, 0, 2, chain)
        for index in indices:
            pair = end.pair_secret(index)
            place = Place(session.id, index)
            info = place.context(Purpose.ROUND_CHANNEL, 0, 2)
            state = end.state()[8:]
            keys = derive_key(state, salt=session.id, info=info, length=96)
            assert keys[64:] == pair
            rounds.append({"index": index, "state": state.hex(), "keys": keys.hex()})
    return {
        "session": session.id.hex(),
        "epoch": EPOCH,
        "low": 0,
        "high": 2,
        "chain": chain.hex(),
        "rounds": rounds,
    }
