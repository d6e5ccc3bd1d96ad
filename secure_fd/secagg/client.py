"""A client for a whole session: what lasts from round to round.

1. Its roster is pinned, and its group is what every member signed; see client_setup.py.
2. A round's number only grows; a round that began is spent, whether it ended well or not. The
   secrets of a round are drawn for that round; see client_round.py for what becomes of them.
 3. Its channels last as long as the session: whoever reads its memory, and has recorded the
    traffic, has its inputs of that session.
"""

import os
from typing import Final

from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.randomness import RandomBytes
from secure_fd.crypto.secrecy import SecretHolder
from secure_fd.errors import LocalError
from secure_fd.secagg.client_round import ClientRound
from secure_fd.secagg.client_setup import ClientSetup, Enrolment
from secure_fd.secagg.floors import Floors
from secure_fd.secagg.round_messages import Prepare
from secure_fd.secagg.secrets import Prepared, prepare
from secure_fd.secagg.session import RoundCounter, RoundScope, RoundTerms, Session
from secure_fd.secagg.wire import Place

MAX_SETUPS: Final = 8


class Client(SecretHolder):
    """A client for a whole session: its identity, its floors, its channels, its rounds."""

    __slots__ = (
        "_enrolment",
        "_identity",
        "_prepared",
        "_random",
        "_rounds",
        "_setups",
        "_unconfirmed",
        "floors",
        "number",
        "session",
    )

    def __init__(
        self,
        number: int,
        identity: IdentityKey,
        session: Session,
        floors: Floors | None = None,
        random: RandomBytes = os.urandom,
    ) -> None:
        if number not in session.roster:
            raise LocalError(f"client {number} is not on the pinned roster")
        if session.roster[number].raw != identity.public.raw:
            raise LocalError(f"the pinned identity of client {number} is not the one it holds")
        self.floors = floors or Floors()
        self.floors.check_session(session)
        self.number = number
        self.session = session
        self._identity = identity
        self._random = random
        self._rounds = RoundCounter()
        self._setups = 0
        self._enrolment: Enrolment | None = None
        self._prepared: Prepared | None = None
        self._unconfirmed: Prepare | None = None

    def open_setup(self, nonce: bytes | None = None) -> ClientSetup:
        """Begin a set-up. nonce: its part in the joint seed, drawn by default.

        LocalError after MAX_SETUPS: whoever aborts one that it does not like draws again.
        """
        if self._setups == MAX_SETUPS:
            raise LocalError(f"setups: {MAX_SETUPS} were begun in this session; open a new one")
        self._setups += 1
        return ClientSetup(
            self.number, self._identity, self.session, self.floors, self._random, nonce
        )

    def enrol(self, setup: ClientSetup) -> None:
        """Take a set-up that is DONE into use; what an earlier one had prepared is dropped."""
        self._enrolment, self._prepared, self._unconfirmed = setup.enrolment, None, None

    def open_round(self, terms: RoundTerms) -> ClientRound:
        """Begin a round; LocalError unless its number is above that of every earlier one."""
        if self._enrolment is None:
            raise LocalError(f"client {self.number} has no set-up to open a round in")
        self.floors.check_terms(terms)
        scope = RoundScope(self.session, terms)
        self._rounds.spend(terms.index)
        return ClientRound(self, scope, self._enrolment)

    def sign(self, text: bytes) -> bytes:
        """A signature of its identity."""
        return self._identity.sign(text)

    def prepare(self, index: int, enrolment: Enrolment) -> Prepare:
        """Draw the secrets of a round, keep them for it, and give what goes to the server.

        LocalError for a round of an earlier set-up, which must not leave its secrets to this one.
        """
        if enrolment is not self._enrolment:
            raise LocalError(f"round {index} belongs to a set-up that client {self.number} left")
        place = Place(self.session.id, index)
        self._prepared, self._unconfirmed = prepare(
            enrolment.group, place, self.number, enrolment.channels, self._random
        )
        return self._unconfirmed

    def confirm(self, index: int) -> None:
        """The server has what an input carried for the round `index`."""
        if self._prepared is not None and self._prepared.index == index:
            self._unconfirmed = None

    def take_prepared(self, index: int) -> tuple[Prepared | None, Prepare | None]:
        """The secrets of a round, handed out once; those of a round that was skipped are lost.

        With them what the server may not have had of them: the very bytes, to be sent again.
        """
        prepared, unconfirmed = self._prepared, self._unconfirmed
        self._prepared = self._unconfirmed = None
        fits = prepared is not None and prepared.index == index
        return (prepared, unconfirmed) if fits else (None, None)
