"""What the flows of secagg.json are given: sessions, clients, rounds, what is lost and altered.

Nothing here is a result. Numbers have gaps, so that no number is taken for a place; every client
draws from a stream of its own, so that what it draws does not depend on the others.

The names, as they stand in the file: `lost` are messages that never arrive, [type, client];
`altered` flips bits of one byte of one delivery, as a sender that lies would; `detail` asks for
every intermediate value of a round; `compact` has SHA-256 of the messages in their place.
"""

from typing import Any, Final

Json = dict[str, Any]


def values(clients: list[int], index: int, length: int, low: int, high: int) -> list[list[int]]:
    """Any numbers from low to high, for each client."""
    return [
        [(at * (37 * k + index)) % (high - low + 1) + low for at in range(length)] for k in clients
    ]


def round_of(
    clients: list[int],
    index: int,
    length: int = 18,
    bound: int = 1000,
    room: int = 0,
    least: int = 0,
    **more: object,
) -> Json:
    """One round of these clients. least: the fewest inputs."""
    share = room // 8
    return {
        "kind": "round",
        "index": index,
        "length": length,
        "bound": bound,
        "room": room,
        "least": least,
        "subject": f"subject of round {index}".encode().hex(),
        "values": values(clients, index, length, -share, bound + share),
        "lost": [],
        "altered": [],
        "detail": False,
        "compact": False,
        **more,
    }


def setup(**more: object) -> Json:
    """A set-up that all clients join."""
    return {"kind": "setup", "lost": [], "altered": [], "compact": False, **more}


def scene(name: str, clients: list[int], steps: list[Json], **session: object) -> Json:
    """A session and what happens in it. session: what is not the default."""
    first = clients[0]
    return {
        "name": name,
        "session": {
            "nonce": f"nonce of {name}".encode().hex(),
            "configuration": b"what else was agreed".hex(),
            "proxies": bytes(range(32)).hex(),
            "server_private": bytes(range(first, first + 32)).hex(),
            "degree": 0,
            "threshold": 0,
            "hybrid": 0,
            "epoch": 1024,
            **session,
        },
        "clients": [{"client": k, "seed": 1000 * first + k} for k in clients],
        "capsules": [],
        "steps": steps,
    }


SEVEN: Final = [1, 4, 6, 9, 12, 15, 20]
SIX: Final = SEVEN[:-1]
SPARSE: Final = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
HYBRID: Final = [3, 5, 8, 9]
LAST, CLOSED_AT, LIAR = 7, 9, 12
# Of COHORT to client 9: the box of client 6, third of its neighbours. Of UNMASK by client 12: its
# share of client 1, the first owner.
CLOSED_BYTE, LIE_BYTE = 48 + 1 + 2 * 112 + 32, 48 + 31


def altered(kind: str, sender: int, receiver: int, at: int, bits: int = 1) -> Json:
    """One byte of a delivery."""
    return {"type": kind, "from": sender, "to": receiver, "at": at, "bits": bits}


def scenes() -> list[Json]:
    """Three sessions: complete over two epochs, sparse, hybrid."""
    server = 2**32 - 2
    return [
        scene(
            "complete",
            SEVEN,
            [
                setup(),
                round_of(SEVEN, 5, least=6, detail=True),
                round_of(SEVEN, 6, room=500, least=5, lost=[["MASKED", 4]]),
                round_of(
                    SEVEN,
                    LAST,
                    altered=[
                        altered("COHORT", server, CLOSED_AT, CLOSED_BYTE),
                        altered("UNMASK", LIAR, server, LIE_BYTE),
                    ],
                ),
                setup(lost=[["REVEAL", 20]], compact=True),
                round_of(SIX, 15, length=5, compact=True),
            ],
            epoch=8,
        ),
        scene(
            "sparse",
            SPARSE,
            [
                setup(compact=True),
                round_of(SPARSE, 1030, length=7, compact=True),
                round_of(SPARSE, 1031, length=7, lost=[["MASKED", 11]], compact=True),
            ],
            degree=5,
        ),
        scene(
            "hybrid",
            HYBRID,
            [
                setup(lost=[["CAPSULES", 9]], compact=True),
                round_of(HYBRID[:-1], 3, length=5, compact=True),
            ],
            hybrid=1,
        ),
    ]
