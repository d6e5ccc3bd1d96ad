"""Vectors of single steps, by the package: of each case, only the inputs are read."""

import numpy as np

from secure_fd.crypto import shamir
from secure_fd.crypto.keys import WORD, Purpose, context, derive_key, insecure_bytes
from secure_fd.crypto.public_draws import draw_indices, joint_seed
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.graph import committee, neighbours
from secure_fd.secagg.session import Group, PinnedRoster, Session
from secure_fd.votes.packing import LaneLayout
from secure_fd.wire import Place
from tests.drivers.cohort import SparseSession
from tests.vectors.records import Json

raw = bytes.fromhex


def context_case(case: Json) -> Json:
    """The context of one purpose, with its terms and its ends."""
    made = context(
        Purpose(case["purpose"]),
        session=raw(case["session"]),
        terms=raw(case["terms"]),
        sender=case["sender"],
        receiver=case["receiver"],
    )
    return {**case, "context": made.hex()}


def lane_case(case: Json) -> Json:
    """Values of either sign in words, as bytes, little-endian."""
    layout = LaneLayout(case["clients"], case["bound"], case["room"])
    words = layout.pack(np.array(case["values"], np.int64 if case["room"] else np.uint64))
    packed = words.astype(WORD).tobytes().hex()
    return {**case, "bits": layout.bits, "lanes": layout.lanes, "words": packed}


def sharing(case: Json) -> Json:
    """One secret at points of any distance."""
    random, points, threshold = insecure_bytes(case["seed"]), case["points"], case["threshold"]
    secret = shamir.draw_element(random)
    shares = shamir.split(secret, points, threshold, random)
    weights = shamir.weights_at_zero(points[-threshold:])
    return {
        **case,
        "secret": shamir.encode(secret).hex(),
        "shares": [shamir.encode(share).hex() for share in shares],
        "weights_of_the_last": [shamir.encode(weight).hex() for weight in weights],
    }


def correction_case(case: Json) -> Json:
    """The secret, and the points of wrong shares; null where too many are wrong."""
    shares = [int(share, 16) for share in case["shares"]]
    corrected = shamir.correct(case["points"], shares, case["threshold"])
    if corrected is None:
        return {**case, "secret": None, "wrong": None}
    secret, wrong = corrected
    at = [case["points"][place] for place in wrong]
    return {**case, "secret": shamir.encode(secret).hex(), "wrong": at}


def draw_case(case: Json) -> Json:
    """Proxies of one round."""
    seed = joint_seed([raw(nonce) for nonce in case["nonces"]])
    indices = draw_indices(seed, case["round"], case["population"], case["count"])
    return {**case, "seed": seed.hex(), "indices": indices.tolist()}


def graph_case(case: Json) -> Json:
    """Neighbours and committee."""
    members, degree, seed = case["members"], case["degree"], raw(case["seed"])
    near = neighbours(members, degree, seed)
    return {
        **case,
        "neighbours": [list(near[k]) for k in members],
        "committee": list(committee(members, degree + 1, seed)),
    }


def group_case(case: Json) -> Json:
    """Degree, threshold and quorum by number of members, of the roster, and what is set."""
    session = _session(case["roster"], case["session_degree"])
    group = Group(session, tuple(range(case["members"])), b"", bytes(32))
    numbers = {name: getattr(group, name) for name in ("degree", "threshold", "quorum")}
    return {**case, **numbers}


def _session(roster: int, degree: int = 0, epoch: int = 16) -> Session:
    pinned = PinnedRoster({k: (k + 1).to_bytes(32, "little") for k in range(roster)})
    agreed = pinned, b"configuration", b"proxies", b"nonce", bytes([9]) + bytes(31), False, epoch
    return SparseSession(*agreed, degree) if degree else Session(*agreed)


def ratchet(case: Json) -> Json:
    """One chain as a client that missed rounds moves it on; anew at a round that is earlier."""
    session, low, high = _session(3, epoch=case["epoch"]), case["low"], case["high"]
    rounds: list[Json] = []
    for index in [one["index"] for one in case["rounds"]]:
        if not rounds or index < rounds[-1]["index"]:
            end = Channel(session, low, high, raw(case["chain"]))
        pair = end.pair_secret(index)
        info = Place(session.id, index).context(Purpose.ROUND_CHANNEL, low, high)
        state = end.state()[8:]
        keys = derive_key(state, salt=session.id, info=info, length=96)
        assert keys[64:] == pair
        rounds.append({"index": index, "state": state.hex(), "keys": keys.hex()})
    return {**case, "session": session.id.hex(), "rounds": rounds}


PARTS = {
    "contexts": context_case,
    "lanes": lane_case,
    "corrections": correction_case,
    "draws": draw_case,
    "graphs": graph_case,
    "groups": group_case,
    "sharing": sharing,
    "ratchet": ratchet,
}
"""The package's maker of one case of a part, by name in the file."""
