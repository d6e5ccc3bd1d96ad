"""The vectors of proven votes, by the second implementation of their type."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.vectors.votes_reader import P, Report, Session, Votes, packed, rows_of

ON_FILE = json.loads(Path(__file__).with_name("prio3_votes.json").read_text())
NONCE, KEY, RAND = bytes(range(16)), bytes(range(32)), bytes(range(128))


def read(data: bytes) -> list[int]:
    return [int.from_bytes(data[k : k + 8], "little") for k in range(0, len(data), 8)]


def session_of(vector: Mapping[str, Any]) -> Session:
    form = (vector[name] for name in ("rows", "classes", "most", "budget"))
    return Session(Votes(*form), bytes.fromhex(vector["context"]))


def verifiers(session: Session, report: Report) -> list[bytes]:
    own, sent = read(report.leader[:-32]), session.votes.sent
    shares = ((own[:sent], own[sent:]), session.helper_share(report.helper[:32]))
    blinds = (report.leader[-32:], report.helper[32:])
    given = enumerate(zip(shares, blinds, strict=True))
    return [session.verifier(KEY, who, NONCE, report.public, *one) for who, one in given]


def holds(session: Session, both: list[bytes]) -> bool:
    one, other = (read(share[:-32]) for share in both)
    summed = [(a + b) % P for a, b in zip(one, other, strict=True)]
    joint = session.joint(session.seed(b"".join(share[-32:] for share in both)))
    answers = rows_of(summed, session.votes.arity + 2)
    return all(map(session.votes.decide, answers, joint))


@pytest.mark.parametrize("vector", ON_FILE, ids=lambda vector: f"most {vector['most']}")
def test_the_second_implementation_gives_the_vectors_on_file(vector):
    session = session_of(vector)
    assert packed(session.votes.encode(vector["votes"])).hex() == vector["encoded"]
    report = session.shard(vector["votes"], NONCE, RAND)
    assert report.public.hex() == vector["public_share"]
    assert [report.leader.hex(), report.helper.hex()] == vector["input_shares"]
    both = verifiers(session, report)
    assert [share.hex() for share in both] == vector["verifier_shares"]
    assert session.seed(both[0][-32:] + both[1][-32:]).hex() == vector["verifier_message"]
    assert holds(session, both)
