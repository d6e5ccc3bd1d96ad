"""Targets of the proven sum: its decoders, and both aggregators in each of their states."""

from collections.abc import Callable
from typing import Final

import numpy as np

from secure_fd.crypto.keys import AgreementKey, IdentityKey, insecure_bytes
from secure_fd.errors import PeerError
from secure_fd.prio3 import messages as wire
from secure_fd.prio3.field import decode, encode
from secure_fd.prio3.parties import Helper, Leader, VoteClient
from secure_fd.prio3.session import VoteRound, VoteSession
from secure_fd.secagg.session import Roster, RoundTerms
from secure_fd.votes.codec import Limits
from tests.fuzz.decoders import BrokenPropertyError, Target, decoder, outcome_of
from tests.fuzz.machines import Bench

TERMS: Final = RoundTerms(2, 6, 3, b"told", limits=Limits(3, 4))
N: Final = 4
VOTES: Final = np.array([0, 3, 0, 1, 0, 0], dtype=np.uint64)
SENDER: Final = 1


class Proven:
    """An honest session of four voters, its aggregators where they are wanted, and its messages.

    stop: which message between the aggregators is due, counted from 0, and is not delivered.
    """

    def __init__(self, stop: int = 4) -> None:
        random = insecure_bytes(12)
        identities = {k: IdentityKey.generate(random) for k in range(N)}
        key, nonce = AgreementKey.generate(random), random(32)
        roster = Roster({k: identity.public.raw for k, identity in identities.items()})
        self.session = VoteSession(roster, N, key.public, nonce)
        self.round = VoteRound(self.session, TERMS)
        self.leader = Leader(self.session, random)
        self.helper = Helper(self.session, key, random)
        self.reports = {
            k: VoteClient(k, identity, self.session, random).report(TERMS, VOTES)
            for k, identity in identities.items()
        }
        self.leader.open(TERMS)
        self.sent: list[bytes] = []
        if stop >= 0:
            self._go_on(stop)

    def _go_on(self, stop: int) -> None:
        for k, report in self.reports.items():
            self.leader.take(k, report)
        self.sent.append(self.leader.close())
        for step in range(min(stop, 3)):
            receive = self.leader.receive if step % 2 else self.helper.receive
            answer = receive(self.sent[-1])
            if answer is None:
                raise BrokenPropertyError("the leader has nothing more to say")
            self.sent.append(answer)


WHOLE: Final = Proven()
EVERYBODY: Final = tuple(range(N))


def proven_decoders() -> list[Target]:
    """Of every message, and of field elements."""
    opened, session, (reports, key, both, verified) = WHOLE.round, WHOLE.session, WHOLE.sent
    return [
        decoder("field elements", lambda data: decode(data, 6), encode, encode(VOTES)),
        decoder(
            "proven decode_report",
            lambda data: wire.decode_report(opened, SENDER, data),
            lambda report: wire.encode_report(opened, SENDER, report),
            WHOLE.reports[SENDER],
        ),
        decoder(
            "proven decode_reports",
            lambda data: wire.decode_reports(session, data),
            lambda found: wire.encode_reports(*found),
            reports,
        ),
        decoder(
            "proven decode_key",
            lambda data: wire.decode_key(opened, EVERYBODY, data),
            lambda found: wire.encode_key(opened, *found, EVERYBODY),
            key,
        ),
        decoder(
            "proven decode_opened",
            lambda data: wire.decode_opened(opened, EVERYBODY, data),
            lambda found: wire.encode_opened(opened, *found),
            both,
        ),
        decoder(
            "proven decode_verified",
            lambda data: wire.decode_verified(opened, EVERYBODY, data),
            lambda found: wire.encode_verified(opened, EVERYBODY, found),
            verified,
        ),
    ]


def aggregator(
    name: str, receive: Callable[[bytes], object], objects: list[object], seed: bytes
) -> Target:
    """A machine that is put back by hand; it says nothing, answers in bytes, or refuses."""
    bench = Bench(objects)

    def run(data: bytes) -> str:
        bench.put_back()
        try:
            answer = receive(data)
        except PeerError as error:
            return outcome_of(error)
        return f"accepted, {'no answer' if answer is None else 'an answer'}"

    return Target(name, run, (seed,))


def aggregators() -> list[Target]:
    """The leader before and after uploads close, and the helper in its two states."""
    early, asking, keyed = Proven(-1), Proven(1), Proven(3)
    first, second = Proven(0), Proven(2)
    return [
        aggregator(
            "leader takes a report",
            lambda data: early.leader.take(SENDER, data),
            [early.leader],
            early.reports[SENDER],
        ),
        aggregator(
            "leader waits for KEY",
            asking.leader.receive,
            [asking.leader, asking.leader._helped],
            asking.sent[-1],
        ),
        aggregator(
            "leader waits for VERIFIED",
            keyed.leader.receive,
            [keyed.leader, keyed.leader._helped],
            keyed.sent[-1],
        ),
        aggregator(
            "helper waits for REPORTS",
            first.helper.receive,
            [first.helper, first.helper._rounds],
            first.sent[-1],
        ),
        aggregator(
            "helper waits for OPENED",
            second.helper.receive,
            [second.helper, second.helper._rounds],
            second.sent[-1],
        ),
    ]
