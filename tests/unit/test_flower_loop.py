"""The parties over a courier of pushes: rounds, a site that is away, a new process, a tamperer."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from msgspec import structs

from secure_fd.crypto.keys import Sealer
from secure_fd.deployment.envelope import Answer, Push, PushKind, roster_hint
from secure_fd.deployment.loop import Rounds
from secure_fd.deployment.roster import Terms
from secure_fd.errors import LocalError
from secure_fd.methods.fedavg import FedAvgServer
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.saved import state_of
from secure_fd.storage import Store
from secure_fd.training.models import flatten
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Steps, Trainer, run_each
from tests.flower_federation import Courier, World
from tests.small_federation import BRIEF, alike

ROUNDS = 2
EVERYONE = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def data():
    return alike(len(EVERYONE))


@pytest.fixture
def world(data, tmp_path):
    return World(data, tmp_path, Terms(image_set="digits", rounds=ROUNDS, deadline=5))


def test_rounds_end_with_the_sums_of_all_sites(world):
    rounds = world.serve(Courier(world))
    outcomes = list(rounds.run(ROUNDS))
    assert np.count_nonzero(rounds.party.last.total) > 50  # votes, and not abstentions alone
    assert [one.index for one in outcomes] == list(range(ROUNDS))
    assert not any(one.aborted or one.refused or one.silent for one in outcomes)
    assert all(set(one.survivors) == {EVERYONE} for one in outcomes)
    assert outcomes[1].stages == 2  # in steady state
    assert outcomes[0].sums != outcomes[1].sums
    for k, site in world.sites.items():
        assert site.done
        [kept] = world.home(k).glob("*network*")  # nor does a part file stay
        assert kept.name == "network.pt"


def test_caveats_of_a_rosters_masks_reach_the_guarantee_of_its_unit(data, tmp_path, monkeypatch):
    terms = Terms(image_set="digits", unit="record", epsilon=4.0)
    world = World(data, tmp_path, terms)

    def claim() -> Guarantee | None:
        unit = world.parts().protection
        guard = unit.client(0)
        guard.release_sums([], (unit.plan.entries // 10, 10))
        return guard.guarantee()

    assert claim().holds
    monkeypatch.setattr(RosterMasks, "caveats", ("INSECURE: the keys are known",))
    weak = claim()
    assert not weak.holds
    assert weak.unmet == ("INSECURE: the keys are known",)


class Tampering(Courier):
    """A relay that flips a bit of what one site answers to a round's stages."""

    begun = False

    def carried(self, k: int, data: bytes) -> bytes:
        answer = super().carried(k, data)
        if not (self.begun and k == 2 and len(answer) > 1000):
            return answer
        return answer[:-40] + bytes([answer[-40] ^ 1]) + answer[-39:]


def test_a_tampered_answer_is_refused_by_name_and_its_twin_passes(world):
    courier = Tampering(world)
    played = world.serve(courier).run(3)
    twin = next(played)
    courier.begun = True
    changed = next(played)
    assert 2 not in twin.refused
    assert 2 in changed.refused
    assert changed.aborted or set(changed.survivors) == {(0, 1, 3)}


class Watched:
    """Notes whether a site's own network is in training mode where steps of it are due."""

    modes: ClassVar[list[bool]] = []

    def __call__(self, jobs: Sequence[Steps]) -> None:
        self.modes.extend(j.trainer.model.training for j in jobs if isinstance(j.trainer, Trainer))
        run_each(jobs)


def test_rounds_of_many_sums_leave_one_network_to_all_and_its_twin_an_older_one(
    data, tmp_path, monkeypatch
):
    """Two rounds of DaFKD, three sums each; the twin is the site that the end never reaches."""
    monkeypatch.setattr("secure_fd.deployment.site.run_each", Watched())
    monkeypatch.setattr(Watched, "modes", [])
    method = "tests.small_dafkd:SmallDaFKD"
    terms = Terms(method, image_set="digits", rounds=ROUNDS, deadline=0.3)
    world = World(data, tmp_path, terms)
    rounds = world.serve(LosingTheEnd(world, lost=1000))
    played = list(rounds.run(ROUNDS))
    assert [one.survivors for one in played] == [(EVERYONE,) * 3] * ROUNDS
    assert not any(one.aborted or one.refused or one.silent for one in played)
    assert len({digest for one in played for digest in one.sums}) == 3 * ROUNDS
    # Discriminators ask the networks between the rounds' steps: dropout is back in the second.
    assert Watched.modes == [True] * (ROUNDS * len(EVERYONE))
    last = rounds.party.role.parameters()
    same = [np.array_equal(flatten(site.role.learner.model), last) for site in world.sites.values()]
    assert same == [True, True, False, True]
    again = world.serve(Courier(world))
    assert again.open() == ROUNDS
    found = again.party.role.parameters()
    assert np.array_equal(found, last)  # all of it comes from the sums


@pytest.mark.parametrize("rounds", [3, 4])
def test_rounds_after_the_planned_sums_leave_a_network_at_every_site(tmp_path, monkeypatch, rounds):
    """Epsilon 4 pays for two sums; the rounds after them ask nothing and send the last result."""
    monkeypatch.setattr(
        "secure_fd.simulation.build.named_recipe",
        lambda *_: Recipe(2, replace(BRIEF, warmup_steps=0)),
    )
    three = alike(3, local=20)
    terms = Terms(unit="record", epsilon=4.0, image_set="digits", rounds=rounds, deadline=5)
    world = World(three, tmp_path, terms)
    played = list(world.serve(Courier(world)).run(rounds))
    assert [len(one.survivors) for one in played] == [1, 1] + [0] * (rounds - 2)
    assert all(site.has_network for site in world.sites.values())
    assert len({site.digest for site in world.sites.values()}) == 1
    assert {site.position for site in world.sites.values()} == {4}


# What the files of sites and the server keep.


@pytest.fixture
def brief(data, tmp_path, monkeypatch):
    """A federation that trains little, by method; heads and DaFKD make several sums a round."""
    schedule = replace(BRIEF, warmup_steps=0, remember=True)
    monkeypatch.setattr("secure_fd.simulation.build.named_recipe", lambda *_: Recipe(9, schedule))

    def made(method: str) -> tuple[World, Courier]:
        world = World(data, tmp_path, Terms(method, image_set="digits", rounds=9, deadline=0.2))
        return world, Courier(world)

    return made


def _count(file: Store, kind: str) -> int:
    return sum(file.get(f"{kind} {k}") is not None for k in range(200))


METHODS = ("fedavg", "selective-fd", "heads", "tests.small_dafkd:SmallDaFKD")


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_start_again_stand_where_they_stood_on_files_that_do_not_grow(brief, method):
    world, courier = brief(method)
    rounds = world.serve(courier)
    played, sizes, digests = rounds.run(9), [], []
    for _ in range(3):
        one = next(played)
        assert not one.aborted
        digests += one.sums
        sizes.append((_count(world.files[0], "broadcast"), _count(world.files[-1], "sum")))
    assert sizes[1] == sizes[2]
    old, party = world.sites[1], rounds.party
    kept, told, digest = old.role.memory(), old.digest, party.digest
    new = world.start(1)
    new.answer(world.greeting(1))
    assert new.digest == told
    assert new.role.memory() == kept
    again = world.serve(courier)
    assert again.open() == 3
    assert again.party.digest == digest
    assert _state(again) == _state(rounds)
    first, last = world.serve(courier).run(5)
    assert (first.index, first.aborted) == (3, False)  # sites send again what an old process had
    assert set(first.survivors) == {(0, 2, 3)}  # the new process of site 1 has no keys for it
    assert set(last.survivors) == {EVERYONE}
    assert not {*digests} & {*first.sums, *last.sums}


def _state(rounds: Rounds) -> object:
    """The state of the method's server role, as values that compare."""
    return _comparable(state_of(rounds.party.role))


def _comparable(value: object) -> object:
    if isinstance(value, torch.Tensor | np.ndarray):
        return str(value.dtype), value.shape, np.asarray(value).tobytes()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return [(key, _comparable(each)) for key, each in value.items()]
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value


class Unknown:
    """A class that no file of this package may hold."""


@pytest.mark.parametrize("part", [Unknown(), Sealer(bytes(32)), lambda: None])
def test_a_role_whose_state_has_no_form_in_a_file_is_repeated_from_the_first_round(
    brief, part, monkeypatch
):
    monkeypatch.setattr(FedAvgServer, "checkpointed", ("part",))
    monkeypatch.setattr(FedAvgServer, "part", part, raising=False)
    world, courier = brief("fedavg")
    rounds = world.serve(courier)
    played = rounds.run(9)
    for _ in range(3):
        assert not next(played).aborted
    digest = rounds.party.digest
    again = world.serve(courier)
    assert again.open() == 3
    assert again.party.digest == digest


def test_a_checkpoint_with_a_class_of_another_version_is_refused_in_one_sentence(brief):
    world, courier = brief("fedavg")
    next(world.serve(courier).run(9))
    written = io.BytesIO()
    torch.save({"role": Unknown()}, written)
    world.files[-1].put({"checkpoint": written.getvalue()})
    with pytest.raises(LocalError, match="of another version: make a new roster"):
        world.serve(courier).open()


def test_what_an_absent_site_lacks_is_kept_until_it_has_read_it(brief):
    """Site 3 misses three rounds, in which the server is started again, too."""
    world, courier = brief("fedavg")
    played = world.serve(courier).run(9)
    next(played)
    next(played)
    courier.away = {3}
    for _ in range(2):
        assert set(next(played).survivors) == {EVERYONE[:3]}
    rounds = world.serve(courier)
    played = rounds.run(9)
    assert set(next(played).survivors) == {EVERYONE[:3]}
    lacks = world.sites[3].position
    assert rounds.party.dropped <= lacks < rounds.party.count
    courier.away = set()
    world.start(3)
    back = next(played)
    assert set(back.survivors) == {EVERYONE}
    next(played)
    assert rounds.party.dropped > lacks
    assert rounds.party.count - rounds.party.dropped <= 4


@pytest.mark.parametrize("lost", [True, False])
def test_a_site_that_lost_its_state_or_has_an_older_one_is_not_greeted(brief, lost):
    """Its sums might be asked of it again; the twin, with its file, is in the test above it."""
    world, courier = brief("fedavg")
    played = world.serve(courier).run(9)
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
    assert [set(next(played).survivors) for _ in range(2)] == [{EVERYONE[:3]}] * 2


def test_parties_with_two_rosters_name_both_to_their_operators(data, tmp_path, caplog):
    """The digest in a greeting says why; the session's id, which nothing here checks, decides."""
    world = World(data, tmp_path, Terms(image_set="digits", rounds=1, deadline=0.3))
    ours = structs.replace(world.roster, digest=b"\xab" * 32)
    for k, digest in enumerate((ours.digest, ours.digest, ours.digest, b"\xcd" * 32)):
        world.roster = structs.replace(ours, digest=digest)
        world.start(k)
    world.roster, journal = ours, []
    rounds = world.serve(Courier(world))
    rounds._on_sites = lambda **line: journal.append(line)
    assert [set(one.survivors) for one in rounds.run(1)] == [{EVERYONE[:3]}]
    [reason] = [line["refused"] for line in journal if "refused" in line]
    both = (roster_hint(b"\xcd" * 32).hex(), roster_hint(ours.digest).hex())
    assert all(each in reason for each in (*both, ours.sites[3].name))
    warned = [line for line in caplog.messages if line.startswith("refused HELLO")]
    assert len(warned) == 1
    assert all(each in warned[0] for each in both)


@dataclass
class LosingTheEnd(Courier):
    """A transport that loses so many pushes which tell site 2 that the run is over."""

    lost: int = 0

    def push(self, messages: Mapping[int, bytes], deadline: float) -> Iterable[tuple[int, bytes]]:
        over = 2 in messages and Push.decode(messages[2]).kind is PushKind.END
        if over and self.lost:
            self.lost -= 1
            messages = {k: data for k, data in messages.items() if k != 2}
        return super().push(messages, deadline)


@pytest.mark.parametrize("lost", [1, 1000])
def test_a_site_that_misses_the_end_is_told_again_and_its_twin_is_not(data, tmp_path, lost):
    world = World(data, tmp_path, Terms(image_set="digits", rounds=1, deadline=0.3))
    assert len(list(world.serve(LosingTheEnd(world, lost=lost)).run(1))) == 1
    assert [site.done for site in world.sites.values()] == [True, True, lost == 1, True]
    assert len({site.position for site in world.sites.values() if site.done}) == 1


def test_a_site_that_refuses_what_is_due_at_the_end_leaves_all_the_same(world):
    site = world.sites[0]
    answer = Answer.decode(site.answer(Push(PushKind.END, (b"no message",)).encode()))
    assert answer.refused
    assert site.done
    other = world.sites[1]
    other.answer(Push(PushKind.CARRY, (b"no message",)).encode())
    assert not other.done
