"""Writes secagg.json: `python -m tests.vectors.generate`. The result is the same on every run.

Only sealing a capsule is random, so those on file are kept as long as they open.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.vectors.flow import Flow
from tests.vectors.parts import (
    contexts,
    corrections,
    draws,
    graphs,
    groups,
    lanes,
    ratchet,
    sharing,
)
from tests.vectors.refused import refused
from tests.vectors.scenes import HYBRID, Json, scenes

FILE: Final = Path(__file__).with_name("secagg.json")
COMMENT: Final = [
    "Test vectors of the masked sum, protocol version 3; docs/protocol.md says what each value is.",
    "Byte strings are hex. A field element has 32 bytes, big-endian. Words are 8 bytes each, "
    "little-endian. Party numbers: clients from 0, 4294967294 the server, 4294967295 "
    "everyone. All secrets here follow from published seeds and protect nothing.",
    "randomness: a client draws from the stream whose key is SHA-256(context of 'insecure "
    "seed' || decimal digits of its seed), in this order: identity 32; at every set-up nonce "
    "32, channel key 32, in a hybrid session ML-KEM seed 64 and X25519 key 32 of its HPKE "
    "key, and at AGREED a secret 32 for every capsule; for every round that it prepares root, "
    "seed, the coefficients of the root's polynomial from the highest power down, those of "
    "the seed's.",
    "flows: a session (degree, threshold 0: the defaults; server_private: X25519) and its "
    "steps, in order, all by the same clients. Each lists its messages as they arrived: type, "
    "sender, receivers, bytes, or, where the step is compact, SHA-256 of them. lost: [type, "
    "client] whose message never arrives; those are under not_arrived. altered: one byte of a "
    "delivery is XORed with bits. A list of one item a client is in the order of present.",
    "setup: list_view, seed, view (the group's), members, present (whom channels lead to), "
    "tag_keys, chains [low, high, chain].",
    "round: room, least: what the noise asks for, head room and inputs. channels: [low, high, "
    "state after the ratchet, and in detail 96 bytes of keys]. prepared: what a client drew; "
    "root_shares, seed_shares in the order of its holders. self_masks: [key, words]. pairs: "
    "[low, high, agreement of the round keys, key, words that low adds and high subtracts]. "
    "closed: by client, whose seals did not open to it. barred: clients that are in no later "
    "cohort of the set-up.",
    "corrections: the secret and the points of wrong shares; null where too many are wrong.",
    "refused: run the flow up to this delivery; replace its bytes by the first `head` bytes "
    "of it, `middle`, and the last `tail` bytes of it; deliver that as from `sender`. The "
    "named party must refuse it for that reason, at once (receive) or when the stage is "
    "closed (close), and no other before it.",
]


def vectors() -> Json:
    """Everything that the file holds."""
    told = [with_capsules(scene) if scene["session"]["hybrid"] else scene for scene in scenes()]
    return {
        "comment": COMMENT,
        "version": 3,
        "contexts": contexts(),
        "lanes": lanes(),
        "sharing": sharing(),
        "corrections": corrections(),
        "draws": draws(),
        "graphs": graphs(),
        "groups": groups(),
        "ratchet": ratchet(),
        "flows": [Flow(scene).made for scene in told],
        "refused": refused(told),
    }


def with_capsules(scene: Json) -> Json:
    """The scene with the capsules on file, or new ones where those do not fit it."""
    fresh = Flow(scene, upto=1)
    kept = {**scene, "capsules": on_file(scene["name"])}
    if kept["capsules"] and _chains(Flow(kept, upto=1)) == _chains(fresh):
        return kept
    ends = [(low, high) for low in HYBRID for high in HYBRID if low < high]
    return {
        **scene,
        "capsules": [
            {"from": low, "to": high, "capsule": capsule.hex()}
            for (low, high), capsule in zip(ends, fresh.sealed, strict=True)
        ],
    }


def on_file(name: str) -> Sequence[Json]:
    """The capsules of a flow of the file that there is."""
    flows = json.loads(FILE.read_text()).get("flows", []) if FILE.exists() else []
    return next((flow["capsules"] for flow in flows if flow["name"] == name), [])


def _chains(flow: Flow) -> list[object]:
    return list(flow.made["steps"][0]["chains"])


def text(content: Mapping[str, Any]) -> str:
    """The file's text: indented, but a list of numbers or strings stands on one line."""

    def joined(found: re.Match[str]) -> str:
        return "[" + ", ".join(line.strip().rstrip(",") for line in found[1].splitlines()) + "]"

    indented = json.dumps(content, indent=1)
    for _ in range(2):  # a list within a line joins its line
        indented = re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", joined, indented)
    return indented + "\n"


if __name__ == "__main__":
    FILE.write_text(text(vectors()))
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
