"""A lying server that wants a release twice: it opens a sum and has the clients count it as unread.

Each mutant client lacks one protection and is caught by the same check.
"""

import os
from dataclasses import replace

import numpy as np
import pytest

from secure_fd.crypto.keys import SERVER, IdentityKey
from secure_fd.errors import PeerError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.broadcasts import BroadcastSigner
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import UNOPENED, ClientRole, RoundAborted, SumInput
from secure_fd.protocol.server import Server
from secure_fd.secagg.session import MessageType
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.simulation.federation import Federation
from secure_fd.storage import Store
from secure_fd.wire import Kind, Place, frame
from tests.small_federation import BRIEF, CPU, participants

SESSION = bytes(32)
KEY = IdentityKey.generate(os.urandom)


class Opening:
    """A sum in two messages: the input, then what opens it."""

    gave = False

    def __init__(self):
        self.opened = []

    def start(self):
        return []

    def load(self, terms, values):
        self.gave, self.index = False, terms.index
        return [values.tobytes()]

    def receive(self, data):
        self.gave = True
        self.opened.append(self.index)
        return [data]


class Voting(ClientRole):
    """Shares one counted vote a round, or a survey first; keeps results and refunds."""

    def __init__(self, *, survey=False):
        self.results = []
        self.refunds = 0
        self.survey = survey

    def begin(self):
        yield from ()

    def round(self, subject):
        del subject
        try:
            if self.survey:
                yield SumInput(np.zeros(4, dtype=np.uint64), 3)
            self.results.append((yield SumInput(np.ones(4, dtype=np.uint64), 3, counted=True)))
        except RoundAborted:
            return

    def missed(self, subject, message):
        del subject
        if message is not None:
            self.results.append(message)

    def unopened(self, subject):
        del subject
        self.refunds += 1


class Story:
    """One client and what a server, honest or not, sends to it."""

    def __init__(self, path, kind=Client, *, survey=False):
        self.kind, self.path, self.teller = kind, path, BroadcastSigner(SESSION, KEY)
        self.role, self.sums = Voting(survey=survey), Opening()
        self.file = Store.create(path, "state")
        self.client = kind(0, SESSION, KEY.public, self.role, self.sums, file=self.file)
        self.client.start()

    def restart(self):
        self.file.close()
        self.file = Store.open(self.path, "state")
        opened, self.sums = self.sums.opened, Opening()
        self.sums.opened = opened
        self.client = self.kind(0, SESSION, KEY.public, self.role, self.sums, file=self.file)

    def send(self, kind, index, body=b""):
        data = self.teller.write(kind, index, body)
        self.client.receive(data)
        return data

    def send_missed(self, data):
        self.client.receive(frame(Kind.CATCH_UP, Place(SESSION, 0), SERVER, data))

    def open(self, index):
        """Ask for what opens the sum."""
        self.client.receive(frame(MessageType.SURVIVORS, Place(SESSION, index), SERVER, b""))

    @property
    def refunded(self):
        """Return True if a vote was opened that the client does not count."""
        return bool(self.sums.opened) and self.role.refunds > 0


def begun(story, *, opened=True):
    story.send(Kind.ROUND_START, 0)
    if opened:
        story.open(0)
    else:
        story.send(Kind.ABORTED, 0, UNOPENED)


def next_index(story):
    begun(story)
    story.send(Kind.ABORTED, 1, UNOPENED)


def restarted(story):
    begun(story)
    story.restart()
    story.send_missed(story.teller.write(Kind.ABORTED, 0, UNOPENED))


def opened_afterwards(story):
    begun(story, opened=False)
    story.open(0)


def opened_in_a_later_round(story):
    """The second announcement has the number of the first sum, so the client loads nothing new."""
    begun(story, opened=False)
    story.role.round = lambda _: iter(())
    begun(story)


def another_sum(story):
    """The result claims to announce one more sum of the round, which then fails."""
    begun(story)
    story.send(Kind.RESULT, 1)
    story.send_missed(story.teller.write(Kind.ABORTED, 1, UNOPENED))


def another_round(story):
    """A round begins before the opened sum has its result, and fails."""
    begun(story)
    story.send_missed(story.teller.write(Kind.ROUND_START, 1, b"again"))
    story.send_missed(story.teller.write(Kind.ABORTED, 1, UNOPENED))


class EachRound(Client):
    def _read(self, kind, index, broadcast):
        """Each round begins as if nothing was opened."""
        self._released &= kind != Kind.ROUND_START
        return super()._read(kind, index, broadcast)


class OneSum(Client):
    def _note_given(self):
        """The newest sum alone is checked, not the round."""
        super()._note_given()
        self._released = False


class AnyIndex(OneSum):
    def _check_follows(self, kind, index, payload):
        """Any number follows any other."""


class Unwritten(Client):
    def _note_given(self):
        """Keep the given vote in memory alone."""
        file, self._file = self._file, None
        super()._note_given()
        self._file = file


class Answering(Client):
    def _check_takes_part(self):
        """Messages of a sum are answered whatever became of it."""


LIES = [
    (next_index, AnyIndex),
    (restarted, Unwritten),
    (opened_afterwards, Answering),
    (opened_in_a_later_round, Answering),
    (another_sum, OneSum),
    (another_round, EachRound),
]


@pytest.mark.parametrize(("lie", "mutant"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_no_lie_gets_a_refund_for_an_opened_vote(tmp_path, lie, mutant):
    story = Story(tmp_path / "client")
    with pytest.raises(PeerError):
        lie(story)
    assert not story.refunded
    caught = Story(tmp_path / "mutant", mutant)
    lie(caught)
    assert caught.refunded


def test_an_honest_abort_after_a_survey_is_refunded(tmp_path):
    """The survey was opened and the vote was not, in the same process and in a new one."""
    for restart in (False, True):
        story = Story(tmp_path / str(restart), survey=True)
        story.send(Kind.ROUND_START, 0)
        story.open(0)
        if restart:
            story.restart()
            story.send_missed(story.teller.write(Kind.RESULT, 1, b""))
            story.send_missed(story.teller.write(Kind.ABORTED, 1, UNOPENED))
        else:
            story.send(Kind.RESULT, 1)
            story.send(Kind.ABORTED, 1, UNOPENED)
        assert story.role.refunds == 1


@pytest.mark.parametrize("restart", [False, True])
def test_a_round_has_one_result(tmp_path, restart):
    """A second one is refused before it enters the signed chain; a repeated one has no effect."""
    story = Story(tmp_path / "client")
    begun(story)
    first = story.send(Kind.RESULT, 0, b"x")
    before = story.client.digest, story.client.position
    assert story.client.receive(first) == []
    story.send_missed(first)
    if restart:
        story.restart()
    second = story.teller.write(Kind.RESULT, 0, b"y")
    for kind in (Kind.CATCH_UP, Kind.RESULT):
        sent = frame(kind, Place(SESSION, 0), SERVER, second) if kind is Kind.CATCH_UP else second
        with pytest.raises(PeerError, match="nothing was asked"):
            story.client.receive(sent)
    assert (story.client.digest, story.client.position) == before
    assert set(story.role.results) == {b"x"}


class Refunding(Server):
    """Reads every sum, and has it counted as one that failed unread, under the next number."""

    def _broadcast(self, kind, body):
        if kind is not Kind.RESULT:
            return super()._broadcast(kind, body)
        self.role.unopened(self._round - 1)
        self._exchange += 1
        return super()._broadcast(Kind.ABORTED, UNOPENED)


@pytest.mark.parametrize("mutated", [False, True])
def test_the_same_proxies_are_not_summed_twice_for_a_lying_server(digits, mutated):
    made = Federation(
        *participants(digits),
        digits.proxies.pixels,
        SelectiveFD("hard", votes="counted"),
        aggregation=MaskedSum(4),
        schedule=replace(BRIEF, proxies_per_round=200),
        releases_per_pair=1,
        device=CPU,
    )
    made.server.__class__ = Refunding
    for client in made.clients if mutated else ():
        client.__class__ = AnyIndex
    summed = []
    for _ in made.rounds(2):
        summed += [len(result.survivors) for result in made.server.results]
    assert summed == ([4, 4] if mutated else [4])
