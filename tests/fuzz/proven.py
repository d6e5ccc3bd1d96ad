"""Targets of the proven sum: its decoders, and both aggregators in each of their states."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from secure_fd.crypto.keys import HELPER, SERVER, AgreementKey, IdentityKey, insecure_bytes
from secure_fd.errors import PeerError
from secure_fd.prio3 import messages as wire
from secure_fd.prio3.field import decode, encode
from secure_fd.prio3.parties import Helper, Leader, ReportingClient
from secure_fd.prio3.session import VoteRound, VoteSession
from secure_fd.secagg.session import PinnedRoster, RoundTerms
from secure_fd.votes.packing import Limits
from tests.fuzz.decoders import Target, decoder, outcome_of

TERMS: Final = RoundTerms(2, 6, 3, b"told", limits=Limits(3, 4))
N: Final = 4
VOTES: Final = np.array([0, 3, 0, 1, 0, 0], dtype=np.uint64)
SENDER: Final = 1


class StoppedError(Exception):
    """The leader goes on, and has no further answer of the helper."""


class Proven:
    """A session of four voters with their reports, and the messages of an honest round."""

    def __init__(self) -> None:
        random = insecure_bytes(12)
        identities = {k: IdentityKey.generate(random) for k in range(N)}
        self.key, nonce = AgreementKey.generate(random), random(32)
        roster = PinnedRoster({k: identity.public.raw for k, identity in identities.items()})
        self.session = VoteSession(roster, self.key.public, nonce)
        self.round = VoteRound(self.session, TERMS)
        self.reports = {
            k: ReportingClient(k, identity, self.session, random).report(TERMS, VOTES)
            for k, identity in identities.items()
        }
        self.sent: list[bytes] = []
        helper = self.helper()

        def relay(message: bytes) -> bytes:
            self.sent += [message, helper.receive(message)]
            return self.sent[-1]

        self.leader(relay).advance()

    def helper(self) -> Helper:
        """A helper before its first round, with the same part of every verify key."""
        return Helper(self.session, self.key, same_bytes)

    def leader(self, helper: Callable[[bytes], bytes]) -> Leader:
        """A leader that has all reports."""
        made = Leader(self.session, helper, same_bytes)
        made.open(TERMS)
        for k, report in self.reports.items():
            made.receive(k, report)
        return made


def same_bytes(count: int) -> bytes:
    return b"\1" * count


WHOLE: Final = Proven()


def proven_decoders() -> list[Target]:
    """Decoders of every message, and of field elements."""
    opened, (reports, *others) = WHOLE.round, WHOLE.sent
    return [
        decoder("field elements", lambda data: decode(data, 6), encode, encode(VOTES)),
        message(wire.Report, SENDER, WHOLE.reports[SENDER]),
        decoder(
            "proven Reports",
            lambda data: wire.read_reports(opened.session, data),
            lambda found: wire.write(found[0], SERVER, found[1]),
            reports,
        ),
        message(wire.Key, HELPER, others[0]),
        message(wire.Opened, SERVER, others[1]),
        message(wire.Verified, HELPER, others[2]),
    ]


def message(kind: type, sender: int, seed: bytes) -> Target:
    """The decoder of one message."""
    return decoder(
        f"proven {kind.__name__}",
        lambda data: wire.read(WHOLE.round.place, sender, data, kind),
        lambda found: wire.write(WHOLE.round, sender, found),
        seed,
    )


class Bench:
    """Objects with slots, and what stood in them."""

    def __init__(self, objects: Sequence[object]) -> None:
        self._saved = [(o, {slot: getattr(o, slot) for slot in slots_of(o)}) for o in objects]
        for _, slots in self._saved:
            slots.update({name: fresh(value) for name, value in slots.items()})

    def put_back(self) -> None:
        """As it was."""
        for o, slots in self._saved:
            for name, value in slots.items():
                setattr(o, name, fresh(value))


def slots_of(o: object) -> tuple[str, ...]:
    return tuple(name for kind in type(o).__mro__ for name in getattr(kind, "__slots__", ()))


def fresh(value: object) -> object:
    """A copy of what a machine changes in place."""
    if isinstance(value, dict | set | list):
        return type(value)(value)
    return value.copy() if isinstance(value, np.ndarray) else value


def aggregator(
    name: str, receive: Callable[[bytes], object], objects: list[object], seed: bytes
) -> Target:
    """A machine that is put back by hand; it goes on, or refuses."""
    bench = Bench(objects)

    def run(data: bytes) -> str:
        bench.put_back()
        try:
            receive(data)
        except PeerError as error:
            return outcome_of(error)
        except StoppedError:
            pass
        return "accepted"

    return Target(name, run, (seed,))


def adding(*earlier: bytes) -> tuple[Callable[[bytes], object], list[object]]:
    """A leader that closes uploads and is sent these answers, then the input."""
    answers: list[bytes] = []

    def helper(_: bytes) -> bytes:
        if not answers:
            raise StoppedError
        return answers.pop(0)

    leader = WHOLE.leader(helper)

    def receive(data: bytes) -> None:
        answers[:] = [*earlier, data]
        leader.advance()

    return receive, [leader]


def aggregators() -> list[Target]:
    """The leader before and after uploads close, and the helper in its two states."""
    reports, key, both, verified = WHOLE.sent
    early, first, second = Leader(WHOLE.session, bytes), WHOLE.helper(), WHOLE.helper()
    early.open(TERMS)
    second.receive(reports)
    return [
        aggregator(
            "leader takes a report",
            lambda data: early.receive(SENDER, data),
            [early],
            WHOLE.reports[SENDER],
        ),
        aggregator("leader waits for KEY", *adding(), key),
        aggregator("leader waits for VERIFIED", *adding(key), verified),
        aggregator("helper waits for REPORTS", first.receive, [first, first._rounds], reports),
        aggregator("helper waits for OPENED", second.receive, [second, second._rounds], both),
    ]
