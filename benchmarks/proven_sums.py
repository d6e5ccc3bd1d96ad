"""One round of a proven sum: time and bytes of each party, beside a floor of its arithmetic.

The floor is what no party can leave out: field additions of a share, and one transform of the
proof's wires to the points of its gadget. It is measured in the same process.
"""

import os
from dataclasses import dataclass
from typing import Final

import numpy as np

from secure_fd.crypto.keys import AgreementKey, IdentityKey
from secure_fd.prio3.field import ELEMENT_BYTES, add, ntt
from secure_fd.prio3.parties import Helper, Leader, ReportingClient
from secure_fd.prio3.session import VoteRound, VoteSession
from secure_fd.secagg.session import PinnedRoster, RoundTerms
from secure_fd.votes.packing import Limits
from secure_sums import Stopwatch

BOUND: Final = 3
"""Two bits a vote, as Selective-FD's hard votes have by default."""


@dataclass(frozen=True, slots=True)
class VoteCell:
    """One size: n voters, rows of classes; a client's budget is its equal share and a half."""

    clients: int
    rows: int
    classes: int

    @property
    def budget(self) -> int:
        """In units of a vote."""
        return -(-3 * self.rows // (2 * self.clients)) * BOUND

    def terms(self, index: int) -> RoundTerms:
        """Of a round."""
        limits = Limits(self.classes, self.budget)
        return RoundTerms(index, self.rows * self.classes, BOUND, limits=limits)


VOTE_CELLS: Final = (VoteCell(10, 512, 10), VoteCell(100, 512, 10), VoteCell(10, 10_000, 10))


class VoteRounds:
    """A session of a cell's voters and both aggregators, all in this process."""

    def __init__(self, cell: VoteCell) -> None:
        identities = {k: IdentityKey.generate(os.urandom) for k in range(cell.clients)}
        key = AgreementKey.generate(os.urandom)
        roster = PinnedRoster({k: identity.public.raw for k, identity in identities.items()})
        self.session = VoteSession(roster, key.public, os.urandom(32))
        self.cell, self._index = cell, 0
        self._helper, self._helping = Helper(self.session, key), Stopwatch()
        self._leader = Leader(self.session, self._ask)
        self._clients = {k: ReportingClient(k, one, self.session) for k, one in identities.items()}
        votes = np.zeros((cell.rows, cell.classes), dtype=np.uint64)
        votes[: cell.budget // BOUND, 0] = BOUND
        self._votes = votes.reshape(-1)
        self.upload = 0

    def sizes(self) -> dict[str, int]:
        """Bytes: of the lanes in shares, of digits and proof beyond them, of a whole upload."""
        prio3 = VoteRound(self.session, self.cell.terms(0)).prio3
        size, lanes = prio3.circuit.size, self.cell.rows * self.cell.classes
        proofs = prio3.proofs * size.proof
        return {
            "share_bytes": ELEMENT_BYTES * lanes,
            "digit_bytes": ELEMENT_BYTES * (size.measurement - lanes),
            "proof_bytes": ELEMENT_BYTES * proofs,
            "upload_bytes": self.upload,
        }

    def run(self) -> dict[str, float]:
        """One round: CPU seconds of one client, and of each aggregator and its floor a client.

        Raises SystemExit where the sum is wrong.
        """
        terms, self._index = self.cell.terms(self._index), self._index + 1
        casting, leading, floor = (Stopwatch() for _ in range(3))
        self._helping = Stopwatch()
        self._leader.open(terms)
        for k, client in self._clients.items():
            with casting:
                report = client.report(terms, self._votes)
            with leading:
                self._leader.receive(k, report)
            self.upload = len(report)
        with leading:
            self._leader.advance()
        found, n = self._leader.result, len(self._clients)
        if found is None or not np.array_equal(found.total, self._votes * np.uint64(n)):
            raise SystemExit("proven: the sum is wrong")
        size = VoteRound(self.session, self.cell.terms(0)).prio3.circuit.size
        share = np.arange(size.measurement, dtype=np.uint64)
        wires = np.ones((size.points, size.arity), dtype=np.uint64)
        with floor:
            add(share, share)
            ntt(wires)
        helped = self._helping.seconds
        spent = {"client": casting.seconds, "leader": leading.seconds - helped, "helper": helped}
        return {name: seconds / n for name, seconds in spent.items()} | {"floor": floor.seconds}

    def _ask(self, message: bytes) -> bytes:
        """Answer of the helper, timed."""
        with self._helping:
            return self._helper.receive(message)
