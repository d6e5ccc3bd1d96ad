"""Predictions are summed where enough clients vote: no sum is one client's vote.

Each mutant lacks one check, and a lone vote is read from it.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import secure_fd as fd
from secure_fd.data.federated import ClientData
from secure_fd.errors import PeerError
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.min_voters import Voters
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.methods.votes import CountedVotes, VotePolicy
from secure_fd.privacy.client import ClientPlan, ClientUnit
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.protocol.messages import SumInput
from secure_fd.protocol.server import Server
from secure_fd.protocol.transcript import ObservedVotes
from secure_fd.secagg.session import NoiseTerms
from secure_fd.secure_sum.homomorphic import HomomorphicSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.simulation.federation import Federation
from secure_fd.storage import Store
from secure_fd.votes.codec import KnowledgeCodec, contributors
from secure_fd.wire import Stage, Sum
from tests.protocol.test_party_restarts import kept, reborn
from tests.refusals import refused
from tests.small_federation import alike, ensembles, faults, federation, run

FOUR = tuple(range(4))


class Scattered(SelectiveFD):
    """Each client answers some proxies, drawn by its records: many counts are one."""

    def policy(self, client: ClientData, proxies: Tensor) -> VotePolicy:
        rng = np.random.default_rng(int(client.train.pixels.sum() * 1000))
        return CountedVotes((rng.random(len(proxies)) < 0.4).astype(np.float64))


def scattered(least: int = 2) -> Scattered:
    return Scattered("hard", votes="counted", min_voters=least)


def masked() -> MaskedSum:
    return MaskedSum(4, public_seed=0)


def plain() -> PlainSum:
    return PlainSum(4)


def encrypted() -> HomomorphicSum:
    return HomomorphicSum(4)


def lone_votes(made: Federation) -> int:
    """Proxies of all rounds whose sum is one whole vote or less, as the server sees it."""
    sums = [seen.total.reshape(-1, 10).sum(axis=1) for seen in made.transcript.distillation]
    levels = [seen.levels for seen in made.transcript.distillation]
    pairs = zip(sums, levels, strict=True)
    return sum(int(((count > 0) & (count <= whole)).sum()) for count, whole in pairs)


def voters_of(seen: ObservedVotes) -> np.ndarray:
    """[m] clients that give any of a sum in clear."""
    assert seen.uploads is not None
    return np.sum([own.reshape(-1, 10).any(axis=1) for own in seen.uploads.values()], axis=0)


def released(made: Federation) -> set[bytes]:
    """Counts of releases, as every party has them."""
    clients = [client.role.terms.draws._counts.tobytes() for client in made.clients]
    return {*clients, made.server_role.terms.draws._counts.tobytes()}


# What an honest run does.


@pytest.mark.parametrize("sums", [plain, masked, encrypted])
def test_no_sum_is_one_clients_vote(digits, sums):
    """Without the option, many are."""
    made = run(federation(digits, scattered(), aggregation=sums()))
    assert made.single_contributors == 0
    assert lone_votes(made) == 0
    alone = run(federation(digits, scattered(1), aggregation=sums()))
    assert alone.single_contributors > 0.3
    assert lone_votes(alone) > 5


@pytest.mark.parametrize("least", [2, 3])
def test_votes_are_asked_for_exactly_where_enough_clients_answer(digits, least):
    made = run(federation(digits, scattered(least), aggregation=plain()))
    once = run(federation(digits, scattered(1), aggregation=plain()), 1)
    first = once.transcript.distillation[0]
    counted = made.transcript.voters[0]
    assert counted.result.tolist() == first.result.indices.tolist()
    assert counted.total.tolist() == voters_of(first).tolist()
    enough = counted.total >= least
    summed = made.transcript.distillation[0]
    assert summed.result.indices.tolist() == counted.result[enough].tolist()
    assert summed.total.reshape(-1, 10).tolist() == first.total.reshape(-1, 10)[enough].tolist()
    assert summed.result.kept.tolist() == first.result.kept[enough].tolist()
    assert (voters_of(summed) >= least).all()
    known = made.roles[0]._targets._known
    assert not known[counted.result[~enough]].any()


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("sums", [plain, masked])
def test_a_light_vote_hides_no_other(labels, sums):
    """Weighed votes, after a survey; soft ones have thousands of levels."""
    method = SelectiveFD(labels, min_voters=2)
    made = run(federation(alike(4), method, aggregation=sums()))
    assert made.transcript.survey is not None
    assert len(ensembles(made)) == 2
    assert made.single_contributors == 0


@pytest.mark.parametrize("levels", [1, 3, 63, 4095])
def test_of_two_answers_neither_is_nearly_all_of_the_count(levels):
    weights = np.arange(levels + 1, dtype=np.uint64)
    lightest = weights[KnowledgeCodec(1, levels).answered(weights)].min()
    least = np.array([lightest, 0], dtype=np.uint64)
    assert contributors([np.array([levels, 0], dtype=np.uint64), least], 2)[0] == 0
    if lightest > 1:
        below = np.array([lightest - 1, 0], dtype=np.uint64)
        assert contributors([np.array([levels, 0], dtype=np.uint64), below], 2)[0] == 1


def test_the_label_unit_makes_one_noisy_answer_for_both_sums(digits):
    """Counts are those of noisy answers: a client cannot answer less often than its noise does."""
    unit = LabelUnit(1.0, 1e-5, random=SeededRandom(0))
    made = federation(digits, scattered(), aggregation=plain(), protection=unit)
    run(made)
    assert made.single_contributors == 0
    assert lone_votes(made) == 0
    for counted, summed in zip(made.transcript.voters, made.transcript.distillation, strict=True):
        enough = counted.total >= 2
        assert voters_of(summed).tolist() == counted.total[enough].tolist()
        for client, bits in counted.uploads.items():
            named = unit.parts[client]._named[counted.result].any(axis=1)
            assert named.tolist() == bits.astype(bool).tolist()
    drawn = {index for seen in made.transcript.voters for index in seen.result.tolist()}
    assert {part.released for part in unit.parts.values()} == {len(drawn)}


def test_a_round_without_enough_voters_has_no_second_sum(digits):
    """The clients hold one class each, so that no proxy has four voters."""
    method = SelectiveFD("hard", votes="counted", min_voters=4)
    made = federation(digits, method, aggregation=masked())
    reports = made.fit(2)
    assert [(report.aborted, report.kept, report.single) for report in reports] == [
        (False, 0, 0)
    ] * 2
    assert len(made.server.results) == 1
    assert made.transcript.distillation == []
    assert len(released(made)) == 1


# Clients that are missing.


def test_a_client_that_leaves_between_the_sums_aborts_the_round_and_one_before_does_not(digits):
    """Both sums are one release, which is not taken back once the counts are open."""
    plan = faults({0: {1: Stage.INPUT}, 1: {2: Stage.UNMASK}, 2: {3: Stage.PREPARE}})
    made = federation(digits, scattered(), aggregation=masked(), dropouts=plan)
    reports = made.fit(4)
    assert [report.aborted for report in reports] == [False, True, False, False]
    assert [report.survivors for report in reports] == [(0, 2, 3), (), (0, 1, 2), FOUR]
    assert not any(report.refused for report in reports)
    assert made.single_contributors == 0
    assert lone_votes(made) == 0
    assert len(released(made)) == 1
    counts = made.server_role.terms.draws._counts
    assert counts.sum() == 4 * 32
    memories = {role._targets.memory() for role in made.roles}
    assert len(memories) == 1


@pytest.mark.parametrize("sums", [plain, masked, encrypted])
def test_a_client_that_is_silent_in_the_second_sum_alone_aborts_the_round(digits, sums):
    made = federation(digits, scattered(), aggregation=sums())
    silence_second(made, 3)
    first, second = made.fit(2)
    assert (first.aborted, len(made.transcript.voters)) == (True, 2)
    assert "3" in first.why or "4" in first.why
    assert (second.aborted, second.survivors) == (False, FOUR)
    assert len(released(made)) == 1
    assert made.server_role.terms.draws._counts.sum() == 2 * 32


def silence_second(made: Federation, client: int) -> None:
    """In the first round, the client sends nothing after the counts."""
    silent = made.clients[client]
    receive_message = silent.receive

    def receive(data: bytes) -> list[bytes]:
        sent = receive_message(data)
        return [] if made.server.results and made.server.place[0] <= 1 else sent

    silent.receive = receive


def test_a_second_sum_of_fewer_members_is_caught(digits, monkeypatch):
    """The mutant asks for no members: without one of two voters the other vote stands alone."""
    monkeypatch.setattr(NoiseTerms, "of_members", lambda self, _: self)
    made = federation(digits, scattered(), aggregation=masked())
    silence_second(made, 3)
    [report] = made.fit(1)
    assert not report.aborted
    assert lone_votes(made) > 0


def test_a_server_that_would_refund_a_count_is_refused(digits, monkeypatch):
    plan = faults({0: {1: Stage.UNMASK}})
    monkeypatch.setattr(Server, "_opened", property(lambda self: self.sums.opened))
    made = federation(digits, scattered(), aggregation=masked(), dropouts=plan)
    [report] = made.fit(1)
    assert set(dict(report.refused)) == {0, 2, 3}
    assert len(released(made)) == 2


def restarted_between(made: Federation, path: Path) -> None:
    """Client 1 is killed between the sums of the first round, and comes back from its file."""
    kept(made, 1, path)
    run(made, 0)
    made._begin()
    made._carry(made.server.begin())
    counts = made.server.advance()  # in clear, a sum has one stage
    made.clients[1]._file.close()
    made.clients[1] = reborn(made, 1, Store.open(path, "state"))
    made._ask(1, made.clients[1].start)
    made._work()
    made._carry(counts)
    made._until_idle()
    made._next = 1


def test_a_client_that_restarts_between_the_sums_aborts_the_round_and_answers_no_second_count(
    digits, tmp_path
):
    made = federation(digits, scattered(), aggregation=plain())
    restarted_between(made, tmp_path / "client")
    assert made.server.aborted
    assert made.transcript.distillation == []
    terms = made.server_role.terms
    again = terms.announcement(0, terms.draws.of(0), survey=False)
    with pytest.raises(PeerError, match="again for votes in round 0"):
        next(made.clients[1].role.round(again))
    made.server.returned(1, made.clients[1].position)
    [report] = made.fit(1)
    assert report.survivors == FOUR
    assert lone_votes(made) == 0
    assert len(released(made)) == 1


# A lying server.


@pytest.mark.parametrize("restart", [False, True])
def test_no_round_is_counted_twice_and_a_client_that_would_is_caught(digits, restart):
    made = run(federation(digits, scattered(), aggregation=plain()), 1)
    terms, role = made.server_role.terms, made.clients[2].role
    if restart:
        memory, role = role.memory(), reborn(made, 2, None).role
        next(role.begin(), None)
        role.recall(memory)
    again = terms.announcement(0, terms.draws.of(0), survey=False)
    with pytest.raises(PeerError, match="again for votes in round 0"):
        next(role.round(again))
    role._last_counted = -1
    assert isinstance(next(role.round(again)), SumInput)


def asks_for_all(result: Sum, least: int) -> Voters:
    """A server that asks for single votes, too."""
    del least
    counts = result.total.astype(np.int64)
    return Voters(result.survivors, counts, counts >= 1)


def leaves_out(result: Sum, least: int) -> Voters:
    """It asks all but the last member for a second sum."""
    counts = result.total.astype(np.int64)
    return Voters(result.survivors[:-1], counts, counts >= least)


@pytest.mark.parametrize("sums", [plain, masked])
def test_a_proxy_of_fewer_voters_is_refused_and_without_the_check_a_lone_vote_is_read(
    digits, monkeypatch, sums
):
    monkeypatch.setattr(Voters, "of", asks_for_all)
    made = federation(digits, scattered(), aggregation=sums())
    [report] = made.fit(1)
    assert report.aborted
    assert [k for k, why in report.refused if "1 voters" in why] == list(FOUR)
    assert lone_votes(made) == 0
    monkeypatch.setattr(Voters, "check", lambda *_: None)
    caught = federation(digits, scattered(), aggregation=sums())
    [report] = caught.fit(1)
    assert not report.aborted
    assert lone_votes(caught) > 5


def test_a_client_that_is_named_no_member_gives_no_votes(digits, monkeypatch):
    monkeypatch.setattr(Voters, "of", leaves_out)
    made = federation(digits, scattered(), aggregation=masked())
    [report] = made.fit(1)
    assert dict(report.refused) == {3: "client 3 is not among the members of the sum of voters"}


@pytest.mark.parametrize(
    "spoil",
    [
        *(lambda m: m[:-1], lambda m: m + b"\0", lambda m: b"\0" + m[1:]),
        *(lambda m: m[:-1] + b"\1", lambda m: m[:1] + b"\1" + m[2:]),
    ],
)
def test_a_message_of_another_form_is_refused(spoil: Callable[[bytes], bytes]):
    written = Voters(FOUR, np.arange(9) % 4, np.arange(9) % 4 >= 2).message(4)
    assert Voters.read(written, 9, 4).message(4) == written
    with pytest.raises(PeerError, match="counts of voters"):
        Voters.read(spoil(written), 9, 4)


# Settings.


@pytest.mark.parametrize(
    "asked",
    [
        *({"min_voters": least} for least in (0, -1, 4)),
        *({"min_voters": 2, "method": method} for method in ("fedmd", FedMD("hard"))),
        {"min_voters": 2, "unit": "record", "epsilon": 4.0},
    ],
)
def test_a_number_of_voters_that_no_run_can_have_is_refused(asked):
    with refused("min_voters"):
        fd.simulate("digits", clients=3, **asked)


def test_protections_and_sums_that_cannot_count_voters_are_refused(digits):
    plan = ClientPlan(clients=4, proxies=32, rounds=2, classes=10)
    fleet = ClientUnit(4.0, 1e-3, plan, small_fleet=True)
    for options in (
        {"aggregation": masked(), "protection": fleet},
        {"aggregation": Prio3Sum(4)},
    ):
        with refused("min_voters"):
            federation(digits, scattered(), **options)


def test_simulate_passes_the_number_to_every_party():
    made = fd.simulate("digits", clients=3, min_voters=2, unit="label", epsilon=4.0).federation
    roles = [made.server_role, *made.roles]
    assert {role.terms.method.min_voters for role in roles} == {2}
