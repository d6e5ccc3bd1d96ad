"""Sessions whose groups have a degree of the test's choice: small sparse graphs."""

from dataclasses import dataclass

from secure_fd.secagg.session import Session


@dataclass(frozen=True, slots=True)
class SparseSession(Session):
    """A session with this degree in place of the default; its id does not name it."""

    degree: int = 0

    def degree_of(self, members: int) -> int:
        """An odd number of members has no regular graph of odd degree."""
        return min(self.degree + (self.degree * members) % 2, members - 1)
