"""Limit on a client's answers about one proxy: counted in time, whole or not at all, for good."""

import numpy as np
import pytest

from secure_fd.errors import BudgetError, LocalError
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.protocol.server import Server
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.votes.draws import Draws
from secure_fd.wire import Stage
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
