"""The parties over a courier of pushes: rounds, a site that is away, a new process, a tamperer."""

import io
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from msgspec import structs

from secure_fd.crypto.keys import Sealer
from secure_fd.deployment.envelope import Answer, Push, PushKind, roster_hint
from secure_fd.deployment.loop import Rounds
from secure_fd.deployment.roster import Terms
from secure_fd.deployment.shared_accuracy import NOT_COVERED
from secure_fd.errors import LocalError
from secure_fd.methods.fedavg import FedAvgServer
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.saved import state_of
from secure_fd.storage import Store
from secure_fd.training.models import flatten
from secure_fd.training.trainer import Trainer, run_each
from tests.drivers.flower_federation import Courier, World
from tests.small_federation import alike

ALL = (0, 1, 2, 3)
DAFKD = "tests.small_dafkd:SmallDaFKD"


@pytest.fixture(scope="module")
def data():
    return alike(len(ALL), proxies=10, local=40)


@pytest.fixture
def made(data, tmp_path, brief):  # noqa: ARG001 - a patch
    """A federation that trains little, by method; heads and DaFKD make several sums a round."""

    def world(method="fedavg", **terms):
        given = {"image_set": "digits", "rounds": 9, "deadline": 0.3, **terms}
        return World(data, tmp_path, Terms(method, **given))

    return world


@pytest.mark.parametrize("method", ["selective-fd", "heads", DAFKD])
def test_processes_that_start_again_stand_where_they_stood_on_files_that_do_not_grow(made, method):
    world = made(method)
    courier, rounds = Courier(world), None
    rounds = world.serve(courier)
    played, sizes, digests = rounds.run(9), [], []
    for index in range(3):
        one = next(played)
        assert (one.index, one.aborted, one.refused, one.silent) == (index, False, {}, ())
        assert set(one.survivors) == {ALL}
        digests += one.sums
        sizes.append((_count(world.files[0], "broadcast"), _count(world.files[-1], "sum")))
    assert len(set(digests)) == len(digests)
    assert sizes[1] == sizes[2]
    old, party = world.sites[1], rounds.party
    kept, read, digest = old.role.memory(), old.digest, party.digest
    new = world.start(1)
    new.answer(world.greeting(1))
    assert (new.digest, new.role.memory()) == (read, kept)
    again = world.serve(courier)
    assert again.open() == 3
    assert again.party.digest == digest
    assert _comparable(state_of(again.party.role)) == _comparable(state_of(party.role))
    first, last = world.serve(courier).run(5)
    assert (first.index, first.aborted) == (3, False)  # sites send again what an old process had
    assert set(first.survivors) == {(0, 2, 3)}  # the new process of site 1 has no keys for it
    assert set(last.survivors) == {ALL}
    assert not {*digests} & {*first.sums, *last.sums}


def _count(file: Store, kind):
    return sum(file.get(f"{kind} {k}") is not None for k in range(200))


def _comparable(value):
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype), value.shape, np.asarray(value).tobytes()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return [(key, _comparable(each)) for key, each in value.items()]
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value


def test_a_role_with_a_secret_in_its_state_is_repeated_from_the_first_round(made, monkeypatch):
    monkeypatch.setattr(FedAvgServer, "checkpointed", ("part",))
    monkeypatch.setattr(FedAvgServer, "part", Sealer(bytes(32)), raising=False)
    world = made()
    rounds = world.serve(Courier(world))
    played = rounds.run(9)
    assert not any(next(played).aborted for _ in range(3))
    again = world.serve(Courier(world))
    assert again.open() == 3
    assert again.party.digest == rounds.party.digest


class Unknown:
    """A class that no file of this package may hold."""


def test_a_checkpoint_with_a_class_of_another_version_is_refused(made):
    world = made()
    next(world.serve(Courier(world)).run(9))
    written = io.BytesIO()
    torch.save({"role": Unknown()}, written)
    world.files[-1].put({"checkpoint": written.getvalue()})
    with pytest.raises(LocalError, match="version"):
        world.serve(Courier(world)).open()


def test_a_site_logs_which_of_its_answers_was_sent(made, caplog):
    world = made("selective-fd", share_accuracy=True)
    with caplog.at_level("INFO", "secure_fd.deployment.site"):
        next(world.serve(Courier(world)).run(9))
    steps = [line.message.split(" sent after")[0] for line in caplog.records]
    titles = ("survey", "answer", "accuracy")
    assert [steps.count(f"round 1 of 9: {title}") for title in titles] == [len(ALL)] * 3


def test_what_an_absent_site_lacks_is_kept_until_it_has_read_it(made):
    """Site 3 misses three rounds, in which the server is started again, too."""
    world = made()
    courier = Courier(world)
    played = world.serve(courier).run(9)
    assert next(played).stages > next(played).stages == 2  # in steady state
    courier.away = {3}
    assert [set(next(played).survivors) for _ in range(2)] == [{ALL[:3]}] * 2
    rounds = world.serve(courier)
    played = rounds.run(9)
    assert set(next(played).survivors) == {ALL[:3]}
    lacks = world.sites[3].position
    assert rounds.party.dropped <= lacks < rounds.party.count
    courier.away = set()
    world.start(3)
    assert set(next(played).survivors) == {ALL}
    next(played)
    assert rounds.party.dropped > lacks
    assert rounds.party.count - rounds.party.dropped <= 4


@pytest.mark.parametrize("lost", [True, False])
def test_a_site_that_lost_its_state_or_has_an_older_one_is_not_greeted(made, lost):
    """Its sums might be asked of it again; the site with its file is in the test above it."""
    world = made()
    played = world.serve(Courier(world)).run(9)
    next(played)
    path = world.home(3) / "state"
    world.files.pop(3).close()
    older = path.read_bytes()
    world.start(3)
    for _ in range(4):
        next(played)
    world.files.pop(3).close()
    path.unlink()
    Store.create(path, "state").close()
    if not lost:
        path.write_bytes(older)
    world.start(3)
    assert [set(next(played).survivors) for _ in range(2)] == [{ALL[:3]}] * 2


class Tampering(Courier):
    """A relay that flips a bit of what one site answers to a round's stages."""

    begun = False

    def carried(self, k, data):
        answer = super().carried(k, data)
        if not (self.begun and k == 2 and len(answer) > 1000):
            return answer
        return answer[:-40] + bytes([answer[-40] ^ 1]) + answer[-39:]


def test_a_tampered_answer_is_refused_by_name_and_an_unchanged_one_passes(made):
    world = made()
    courier = Tampering(world)
    played = world.serve(courier).run(3)
    first = next(played)
    courier.begun = True
    changed = next(played)
    assert 2 not in first.refused
    assert 2 in changed.refused
    assert changed.aborted or set(changed.survivors) == {(0, 1, 3)}


def test_parties_with_two_rosters_name_both_to_their_operators(made, caplog):
    """The digest in a greeting says why; the session's id, which nothing here checks, decides."""
    world, journal = made(rounds=1), []
    ours, theirs = (structs.replace(world.roster, digest=each * 32) for each in (b"\xab", b"\xcd"))
    for k, roster in enumerate((ours, ours, ours, theirs)):
        world.roster = roster
        world.start(k)
    world.roster, file = ours, world.serve(Courier(world))._file
    rounds = Rounds(ours, world.parts(), Courier(world), file, lambda **line: journal.append(line))
    assert [set(one.survivors) for one in rounds.run(1)] == [{ALL[:3]}]
    [reason] = [line["refused"] for line in journal if "refused" in line]
    [warned] = [line for line in caplog.messages if line.startswith("refused HELLO")]
    for roster in (ours, theirs):
        hint = roster_hint(roster.digest).hex()
        assert hint in reason
        assert hint in warned
    assert ours.sites[3].name in reason


@dataclass
class LosingTheEnd(Courier):
    """Lose this number of pushes that announce the end of the run to site 2."""

    lost: int = 0

    def push(self, messages, deadline):
        over = 2 in messages and Push.decode(messages[2]).kind is PushKind.END
        if over and self.lost:
            self.lost -= 1
            messages = {k: data for k, data in messages.items() if k != 2}
        return super().push(messages, deadline)


@pytest.mark.parametrize("lost", [1, 1000])
def test_rounds_of_many_sums_leave_one_network_to_all_but_a_site_that_the_end_never_reaches(
    made, monkeypatch, lost
):
    """Two rounds of DaFKD, three sums each. A site that misses the end once is sent it again."""
    modes = []

    def watched(jobs):
        modes.extend(job.trainer.model.training for job in jobs if isinstance(job.trainer, Trainer))
        run_each(jobs)

    monkeypatch.setattr("secure_fd.deployment.site.run_each", watched)
    world = made(DAFKD, rounds=2)
    rounds = world.serve(LosingTheEnd(world, lost=lost))
    played = list(rounds.run(2))
    assert [one.survivors for one in played] == [(ALL,) * 3] * 2
    assert len({digest for one in played for digest in one.sums}) == 6
    # Discriminators ask the networks between the rounds' steps: dropout is back in the second.
    assert modes
    assert all(modes)
    last, reached = rounds.party.role.parameters(), [True, True, lost == 1, True]
    assert [site.done for site in world.sites.values()] == reached
    models = [flatten(site.role.learner.model) for site in world.sites.values()]
    assert [np.array_equal(model, last) for model in models] == reached
    for k in ALL:
        [kept] = world.home(k).glob("*network*")  # nor does a part file stay
        assert kept.name == "network.pt"


def test_a_site_that_refuses_what_is_due_at_the_end_leaves_all_the_same(made):
    world = made()
    for k, kind in enumerate((PushKind.END, PushKind.CARRY)):
        answer = Answer.decode(world.sites[k].answer(Push(kind, (b"no message",)).encode()))
        assert answer.refused
        assert world.sites[k].done == (kind is PushKind.END)


def test_rounds_after_the_planned_sums_leave_a_network_at_every_site(tmp_path, brief):  # noqa: ARG001
    """Epsilon 4 pays for two sums; later rounds ask nothing and send the last result."""
    terms = Terms(unit="record", epsilon=4.0, image_set="digits", rounds=4, deadline=5)
    world = World(alike(3, proxies=10, local=20), tmp_path, terms)
    played = list(world.serve(Courier(world)).run(4))
    assert [len(one.survivors) for one in played] == [1, 1, 0, 0]
    assert all(site.has_network for site in world.sites.values())
    assert len({(site.digest, site.position) for site in world.sites.values()}) == 1


def test_caveats_of_a_rosters_masks_reach_the_guarantee_of_its_unit(made, monkeypatch):
    world = made("selective-fd", unit="record", epsilon=4.0)

    def claim():
        unit = world.parts().protection
        guard = unit.client(0)
        guard.release_sums([], (unit.plan.entries // 10, 10))
        return guard.guarantee()

    assert claim().holds
    monkeypatch.setattr(RosterMasks, "caveats", ("INSECURE: the keys are known",))
    weak = claim()
    assert not weak.holds
    assert weak.unmet == ("INSECURE: the keys are known",)


# The mean accuracy over sites is one more masked sum, where all sites allow it.


@pytest.fixture(scope="module")
def uneven():
    """Sites with five, six and seven validation records."""
    made = alike(3, proxies=10, local=40)

    def parted(cut, client):
        return replace(client, train=client.train[cut:], validation=client.train[:cut])

    return replace(made, clients=tuple(map(parted, (5, 6, 7), made.clients)))


@pytest.mark.parametrize("method", ["selective-fd", "fedavg", "fedmd"])
def test_the_mean_is_that_of_the_sites_images_after_the_round(uneven, tmp_path, brief, method):  # noqa: ARG001
    """A server that starts again asks on; without the option there is one sum less."""
    terms = Terms(method, image_set="digits", rounds=3, deadline=5, share_accuracy=True)
    world = World(uneven, tmp_path / "shared", terms)
    plain = World(uneven, tmp_path / "plain", structs.replace(terms, share_accuracy=False))
    [without] = plain.serve(Courier(plain)).run(1)
    counts = np.array([len(client.validation) for client in uneven.clients])
    courier = Courier(world)
    first = next(world.serve(courier).run(3))
    assert len(first.sums) == len(without.sums) + 1
    for index, outcome in enumerate(world.serve(courier).run(3), 1):
        assert (outcome.index, outcome.aborted) == (index, False)
        right = [site.accuracy for site in world.sites.values()] @ counts
        assert outcome.accuracy == pytest.approx(right / counts.sum())
    assert {site.mean_accuracy for site in world.sites.values()} == {outcome.accuracy}
    assert len({site.digest for site in world.sites.values()}) == 1


def test_the_guarantee_says_that_epsilon_does_not_cover_the_mean(made):
    world = made("selective-fd", unit="record", epsilon=4.0, rounds=1, share_accuracy=True)
    list(world.serve(Courier(world)).run(1))
    claim, own = world.sites[0]._party().role.guarantee(), world.sites[0].role.guarantee()
    assert NOT_COVERED in claim.not_covered
    assert NOT_COVERED not in own.not_covered
    assert (claim.epsilon, claim.parts) == (own.epsilon, own.parts)
