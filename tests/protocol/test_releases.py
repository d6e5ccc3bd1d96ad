"""Limit on a client's answers about one proxy: counted in time, whole or not at all, for good.

A lying server wants a release twice. Each mutant client lacks one protection.
"""

import os

import numpy as np
import pytest

from secure_fd.crypto.keys import SERVER, IdentityKey
from secure_fd.errors import BudgetError, LocalError, PeerError
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.broadcasts import BroadcastSigner
from secure_fd.protocol.client import Client
from secure_fd.protocol.messages import UNOPENED, ClientRole, RoundAborted, SumInput
from secure_fd.protocol.server import Server
from secure_fd.secagg.session import MessageType
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.storage import Store
from secure_fd.votes.draws import Draws
from secure_fd.wire import Kind, Place, Stage, frame
from tests.refusals import refused
from tests.small_federation import SMALL, all_proxies, faults, federation, run

# In a federation.


def asked(made):
    """[P] how often each proxy was asked about, as the transcript has it."""
    rounds = [seen.result.indices for seen in made.transcript.distillation]
    return np.bincount(np.concatenate(rounds), minlength=200)


def test_no_proxy_is_asked_about_more_often_than_agreed(digits):
    """Nine rounds of 32 among 200: without a limit, some proxy is drawn three times and more."""
    held = run(federation(digits, releases_per_pair=2), rounds=9)
    free = run(federation(digits), rounds=9)
    assert asked(held).max() == held.server_role.most_released() == 2
    assert asked(free).max() == free.server_role.most_released() > 2
    assert asked(held).sum() == asked(free).sum() == 9 * 32


@pytest.mark.parametrize("limit", [1, 2])
def test_a_survey_is_a_release_of_every_proxy(digits, limit):
    """Rounds about all proxies: a survey takes one of two releases; of one, the vote takes it."""
    schedule, method = all_proxies(digits), SelectiveFD("soft")
    made = federation(digits, method, schedule=schedule, releases_per_pair=limit)
    rounds = made.rounds(2)
    assert not next(rounds).aborted
    assert (made.transcript.survey is not None) is (limit == 2)
    assert asked(made).tolist() == [1] * 200
    assert made.server_role.most_released() == limit
    with pytest.raises(BudgetError):
        next(rounds)


def test_pooled_heads_make_as_many_surveys_as_releases_were_agreed(digits):
    """Every round after the last sum would make another one; a restart does not reset the count."""
    for limit, newest in ((1, 0), (2, 1), (None, 2)):
        method = PooledHeads(0, features=SMALL)
        made = federation(digits, method, releases_per_pair=limit)
        assert not any(report.aborted or report.refused for report in made.rounds(3))
        assert made.transcript.survey.index == newest
        again = federation(digits, method, releases_per_pair=limit).clients[0].role
        again.recall(made.clients[0].role.memory())
        if limit is not None:
            with pytest.raises(BudgetError):
                again._answer(again.terms.survey)


@pytest.mark.parametrize("limit", [None, 3])
def test_a_survey_that_may_have_been_read_is_not_made_again(digits, limit):
    plan = faults({0: dict.fromkeys(range(3), Stage.UNMASK)})
    method, masks = SelectiveFD("soft"), MaskedSum(4)
    made = federation(digits, method, aggregation=masks, dropouts=plan, releases_per_pair=limit)
    assert [report.aborted for report in made.rounds(2)] == [True, False]
    assert made.transcript.survey is None


def test_a_run_takes_what_is_left_and_then_ends_before_anything_is_sent(digits):
    made = federation(digits, releases_per_pair=1)
    rounds = made.rounds(9)
    for _ in range(7):
        next(rounds)
    sizes = [len(seen.result.indices) for seen in made.transcript.distillation]
    assert sizes == [32] * 6 + [8]
    assert asked(made).tolist() == [1] * 200
    sent = made.transcript.up.copy(), made.transcript.down.copy()
    with pytest.raises(BudgetError):
        next(rounds)
    assert np.array_equal(sent, (made.transcript.up, made.transcript.down))
    with pytest.raises(BudgetError):
        run(made, rounds=1)  # a later call has the same ledgers


@pytest.mark.parametrize(
    ("sums", "gone", "stage", "counts"),
    [
        (PlainSum, 4, Stage.PREPARE, False),
        (MaskedSum, 4, Stage.INPUT, False),
        (MaskedSum, 3, Stage.UNMASK, True),
    ],
)
def test_an_aborted_round_counts_where_it_may_have_been_read(digits, sums, gone, stage, counts):
    """Inputs in clear were read; shares of masks that were given may have opened the sum."""
    made = federation(
        digits,
        aggregation=sums(4),
        releases_per_pair=1,
        dropouts=faults({0: dict.fromkeys(range(gone), stage)}),
        schedule=all_proxies(digits),
    )
    rounds = made.rounds(3)
    assert next(rounds).aborted
    if not counts:  # nothing was opened: the proxies may be asked about again
        assert not next(rounds).aborted
    with pytest.raises(BudgetError):
        next(rounds)


# The draw.


SEED = bytes(range(32))


class Repeating(Server):
    """A lying server that announces the first round in every round."""

    def begin(self):
        self._round = 0
        return super().begin()


@pytest.mark.parametrize(("forgetful", "opened"), [(False, 1), (True, 3)])
def test_votes_of_a_round_are_given_once_and_clients_that_forget_it_are_caught(
    digits, forgetful, opened
):
    """Three sums over the same proxies, of other members each, would tell votes apart."""
    schedule = all_proxies(digits)
    made = federation(digits, aggregation=MaskedSum(4), schedule=schedule, releases_per_pair=1)
    made.server.__class__ = Repeating
    found = 0
    for report in made.rounds(3):
        found += not report.aborted
        for client in made.clients:
            if forgetful:
                client.role._last_counted = -1
    assert found == opened


@pytest.mark.parametrize("settles", [True, False])
def test_a_round_with_a_result_is_not_given_back_and_draws_that_forget_it_are_caught(
    digits, monkeypatch, settles
):
    """A lying server calls the newest round unopened once more, after its result."""
    if not settles:
        monkeypatch.setattr(Draws, "settle", lambda *_: None)
    made = run(federation(digits, aggregation=MaskedSum(4)), rounds=1)
    for client in made.clients:
        client.role.unopened(client._announcement)
    counted = {client.role.terms.draws.most_released for client in made.clients}
    assert counted == {int(settles)}


def test_a_client_refuses_a_round_about_other_proxies(digits):
    """It derives the draw itself, so a server that asks about chosen proxies gets no answer."""
    made = federation(digits, seed=9)
    made.fit(0)
    made.server.role.terms.draws = Draws(bytes(32), 200, 32, None)
    [report] = made.fit(1)
    assert report.aborted
    assert [k for k, _ in report.refused] == [0, 1, 2, 3]
    assert not made.transcript.up.any()


def test_a_limit_maps_a_draw_to_the_proxies_that_are_left_and_skips_no_round():
    choice, later = (Draws(SEED, n_proxies=10, per_round=4, limit=1) for _ in range(2))
    drawn = [choice.of(index).tolist() for index in range(3)]
    assert [len(part) for part in drawn] == [4, 4, 2]
    assert sorted(i for part in drawn for i in part) == list(range(10))
    assert all(part == sorted(part) for part in drawn)
    assert later.of(2).tolist() == drawn[2]
    assert choice.most_released == later.most_released == 1
    with pytest.raises(LocalError, match="round 1 was drawn before round 2"):
        later.of(1)
    with refused("releases_per_pair"):
        Draws(bytes(32), 3, 1, 0)


# A lying server opens a sum and has the clients count it as unread.

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

    def round(self, announcement):
        del announcement
        try:
            if self.survey:
                yield SumInput(np.zeros(4, dtype=np.uint64), 3)
            self.results.append((yield SumInput(np.ones(4, dtype=np.uint64), 3, counted=True)))
        except RoundAborted:
            return

    def missed(self, announcement, message):
        del announcement
        if message is not None:
            self.results.append(message)

    def unopened(self, announcement):
        del announcement
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
    for send in (story.send_missed, story.client.receive):
        with pytest.raises(PeerError, match="nothing was asked"):
            send(second)
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
    schedule = all_proxies(digits)
    made = federation(digits, aggregation=MaskedSum(4), schedule=schedule, releases_per_pair=1)
    made.server.__class__ = Refunding
    for client in made.clients if mutated else ():
        client.__class__ = AnyIndex
    summed = []
    for _ in made.rounds(2):
        summed += [len(result.survivors) for result in made.server.results]
    assert summed == ([4, 4] if mutated else [4])
