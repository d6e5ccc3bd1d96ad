"""What a client insists on before it takes part, whatever else was agreed."""

from dataclasses import dataclass
from typing import Final

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.secagg.graph import default_degree, threshold
from secure_fd.secagg.group import Group
from secure_fd.secagg.packing import MODULUS_BITS
from secure_fd.secagg.session import RoundTerms, Session

MIN_COHORT: Final = 3
MAX_BOUND: Final = 2**56


@dataclass(frozen=True, slots=True)
class Floors:
    """A client's own limits; a session or a round beyond them is refused with a LocalError.

    cohort: the fewest clients that may share a sum. Of two clients each reads the other's
    input from the sum, so fewer than three need insecure_pair, and one is never allowed.
    lying_server: whether thresholds must hold against a server that lies, not only against one
    that is curious. degree: the fewest neighbours; by default what the group's size needs.
    bound: the largest value that it will ever send, noise included.
    """

    cohort: int = MIN_COHORT
    lying_server: bool = True
    degree: int | None = None
    bound: int = MAX_BOUND
    insecure_pair: bool = False

    def __post_init__(self) -> None:
        least = 2 if self.insecure_pair else MIN_COHORT
        if self.cohort < least:
            raise ConfigurationError("cohort", self.cohort, f"use {least} or more")

    def check_session(self, session: Session) -> None:
        """Refuse a roster below the cohort, or another modulus than 2**64."""
        if session.modulus_bits != MODULUS_BITS:
            raise LocalError(f"modulus_bits: {session.modulus_bits} is refused; use {MODULUS_BITS}")
        if len(session.roster) < self.cohort:
            raise LocalError(
                f"a cohort of {len(session.roster)} clients is below this client's floor "
                f"of {self.cohort}"
            )

    def members(self, session: Session) -> int:
        """The fewest of the roster that may form a group.

        As many as a threshold of the roster, so that a server can neither name the few that it
        has corrupted as the only members, nor form two groups of honest clients.
        """
        return max(self.cohort, threshold(len(session.roster), self.lying_server))

    def check_group(self, group: Group) -> None:
        """Refuse too few members or neighbours, or a threshold that too few corrupt ones meet."""
        n, holders = len(group.members), group.degree + 1
        if n < self.members(group.session):
            raise LocalError(
                f"a group of {n} clients is below this client's floor {self.members(group.session)}"
            )
        roster = len(group.session.roster)
        degree = min(default_degree(n, roster) if self.degree is None else self.degree, n - 1)
        if group.degree < degree:
            raise LocalError(f"degree: {group.degree} neighbours of {n} members; use {degree}")
        least = threshold(group.session.basis_of(n), self.lying_server)
        if not least <= group.threshold <= holders:
            raise LocalError(
                f"threshold: {group.threshold} of {holders} shares; use {least} to {holders}"
            )

    def check_terms(self, terms: RoundTerms) -> None:
        """Refuse a bound, or a bound and room for noise, above this client's own."""
        if terms.bound > self.bound:
            raise LocalError(f"bound: {terms.bound} is above this client's limit of {self.bound}")
        room = terms.noise.room
        if room > self.bound - terms.bound:
            allowed = f"{self.bound} with the bound of {terms.bound}"
            raise LocalError(f"room: {room} is above this client's limit of {allowed}")
