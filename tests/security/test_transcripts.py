"""An auditor who has the roster alone: what it finds in a transcript that somebody changed.

A stranger changes the file; the server itself changes it and signs it anew. Each change has a
twin, the transcript as it was, which is accepted.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from secure_fd.crypto.primitives import IdentityKey
from secure_fd.data.federated import federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import LocalError, PeerError
from secure_fd.flower.roster import Terms
from secure_fd.flower.transcript import TRANSCRIPT, Transcript, lines
from secure_fd.flower.verify import Verdict, verify
from secure_fd.recipes import Sizes
from tests.flower_federation import Courier, World

ROUNDS = 4
Entries = list[dict[str, Any]]


@dataclass(frozen=True)
class Story:
    """A run that is over, and its transcript's entries."""

    world: World
    entries: Entries

    def verify(self, folder: Path) -> Verdict:
        return verify(folder, self.world.roster)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Four rounds: all sites, one away, the server anew (void), all sites."""
    sizes = Sizes(proxies=20, test=10, held_out=4, local=40)
    data = federate(load("digits"), parse_split("iid"), 4, seed=0, sizes=sizes)
    terms = Terms(image_set="digits", rounds=ROUNDS, deadline=5)
    world = World(data, tmp_path_factory.mktemp("story"), terms)
    courier = Courier(world)
    played = world.serve(courier).run(ROUNDS)
    next(played)
    courier.away = {3}
    next(played)
    courier.away = set()
    list(world.serve(courier).run(ROUNDS))
    entries = [dict(entry) for entry, _ in lines(world.folder / TRANSCRIPT)]
    return Story(world, entries)


def _signed(story: Story, entries: Entries, folder: Path) -> Path:
    """What the server itself writes of these entries."""
    to = Transcript(folder / TRANSCRIPT, story.world.roster.session.id, story.world.identity)
    for entry in entries:
        to.add(entry)
    return folder


def _sums(entries: Entries) -> Entries:
    return [entry for entry in entries if entry["what"] == "sum"]


def test_a_run_with_a_restart_is_accepted(story: Story) -> None:
    verdict = story.verify(story.world.folder)
    assert (verdict.rounds, verdict.void, verdict.ended) == (ROUNDS, 1, True)
    assert {len(each) for each in verdict.survivors} == {3, 4}
    assert (0, 1, 2) in verdict.survivors
    site = story.world.sites[0]
    assert site.told == verdict.told


def test_a_server_that_comes_back_writes_the_same(story: Story, tmp_path: Path) -> None:
    before = (story.world.folder / TRANSCRIPT).read_bytes()
    assert _signed(story, story.entries, tmp_path).joinpath(TRANSCRIPT).read_bytes() == before
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / TRANSCRIPT).write_bytes(before[:-100])
    assert _signed(story, story.entries, torn).joinpath(TRANSCRIPT).read_bytes() == before
    (torn / TRANSCRIPT).write_bytes(before.replace(b'"void":false', b'"void":true', 1))
    with pytest.raises(LocalError, match="differ at line"):
        _signed(story, story.entries, torn)


def _change_sum(found: list[bytes]) -> None:
    at = next(i for i, line in enumerate(found) if b'"sum":"' in line)
    place = found[at].index(b'"sum":"') + len(b'"sum":"')
    old = found[at][place : place + 1]
    found[at] = found[at][:place] + (b"0" if old != b"0" else b"1") + found[at][place + 1 :]


def _drop_round(found: list[bytes]) -> None:
    ends = [i for i, line in enumerate(found) if b'"what":"round"' in line]
    del found[ends[0] + 1 : ends[1] + 1]


def _swap_signatures(found: list[bytes]) -> None:
    one, other = (json.loads(line) for line in found[:2])
    one["signature"], other["signature"] = other["signature"], one["signature"]
    found[:2] = [
        json.dumps(each, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        for each in (one, other)
    ]


@pytest.mark.parametrize("change", [_change_sum, _drop_round, _swap_signatures])
def test_a_stranger_changes_nothing(
    story: Story, tmp_path: Path, change: Callable[[list[bytes]], None]
) -> None:
    found = (story.world.folder / TRANSCRIPT).read_bytes().splitlines(keepends=True)
    change(found)
    (tmp_path / TRANSCRIPT).write_bytes(b"".join(found))
    with pytest.raises(PeerError, match=r"^the server did not sign line \d+ as it stands: [^.]*$"):
        story.verify(tmp_path)


def test_another_roster_is_another_session(story: Story) -> None:
    roster = story.world.roster
    for other in (
        replace(roster, digest=bytes([1] * 32)),
        replace(roster, identity=IdentityKey.generate(bytes).public.raw),
    ):
        with pytest.raises(PeerError, match="did not sign line 1"):
            verify(story.world.folder, other)


def test_a_transcript_without_its_end_is_refused_unless_asked_for(
    story: Story, tmp_path: Path
) -> None:
    _signed(story, story.entries[:-1], tmp_path)
    with pytest.raises(PeerError, match="before the run does"):
        story.verify(tmp_path)
    assert not verify(tmp_path, story.world.roster, unfinished=True).ended


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"entry":{},"signature":"0"}\n', b"\xff\n"])
def test_bytes_that_are_no_entry_are_refused(story: Story, tmp_path: Path, line: bytes) -> None:
    whole = (story.world.folder / TRANSCRIPT).read_bytes()
    (tmp_path / TRANSCRIPT).write_bytes(whole + line)
    with pytest.raises(PeerError, match="no entry of a transcript"):
        story.verify(tmp_path)


# The server itself lies, and signs its lie.


def _other_survivors(entries: Entries) -> None:
    sum_ = _sums(entries)[0]
    sum_["survivors"] = sum_["survivors"][:3]


def _other_cohort(entries: Entries) -> None:
    sum_ = next(one for one in _sums(entries) if one["survivors"] != one["cohort"])
    sum_["cohort"] = sum_["survivors"]


def _swap_signers(entries: Entries) -> None:
    signatures = _sums(entries)[0]["signatures"]
    signatures["0"], signatures["1"] = signatures["1"], signatures["0"]


def _fewer_signers(entries: Entries) -> None:
    signatures = _sums(entries)[0]["signatures"]
    for signer in list(signatures)[1:]:
        del signatures[signer]


def _strange_signer(entries: Entries) -> None:
    signatures = _sums(entries)[0]["signatures"]
    signatures["9"] = signatures.pop("0")


def _other_bound(entries: Entries) -> None:
    _sums(entries)[0]["bound"] += 1


def _no_terms(entries: Entries) -> None:
    del _sums(entries)[0]["bound"]


def _float_terms(entries: Entries) -> None:
    _sums(entries)[0]["index"] = 0.0


def _other_group(entries: Entries) -> None:
    _sums(entries)[0]["members"] = [0]


def _other_words(entries: Entries) -> None:
    told = [entry for entry in entries if entry["what"] == "broadcast"][1]
    data = bytearray(base64.b64decode(told["data"]))
    data[-1] ^= 1
    told["data"] = base64.b64encode(data).decode()


def _without_round(entries: Entries) -> None:
    ends = [i for i, entry in enumerate(entries) if entry["what"] == "round"]
    del entries[ends[0] + 1 : ends[1] + 1]


def _without_sum(entries: Entries) -> None:
    entries.remove(_sums(entries)[0])


def _void_for_good(entries: Entries) -> None:
    next(one for one in entries if one["what"] == "round" and one["void"])["void"] = False


def _too_soon(entries: Entries) -> None:
    at = next(i for i, entry in enumerate(entries) if entry["what"] == "round")
    entries[at + 1 :] = [{"what": "end", "rounds": 1}]


def _more_after_the_end(entries: Entries) -> None:
    entries.append(entries[-1])


@pytest.mark.parametrize(
    "lie",
    [
        *(_other_survivors, _other_cohort, _swap_signers, _fewer_signers, _strange_signer),
        *(_other_bound, _no_terms, _float_terms, _other_group, _other_words, _without_round),
        *(_without_sum, _void_for_good, _too_soon, _more_after_the_end),
    ],
)
def test_a_lying_server_is_refused_in_one_sentence(
    story: Story, tmp_path: Path, lie: Callable[[Entries], None]
) -> None:
    entries: Entries = json.loads(json.dumps(story.entries))
    lie(entries)
    with pytest.raises(PeerError, match=r"^line \d+[: ]"):
        story.verify(_signed(story, entries, tmp_path))


def test_no_secret_is_in_a_transcript(story: Story) -> None:
    """The canaries are real keys; the twin is the file that has to hold each of them."""
    data = (story.world.folder / TRANSCRIPT).read_bytes()
    memory = story.world.files[-1].read("memory") or b""
    keys = [memory[at : at + 32] for at in range(len(memory) - 31)]
    session = story.world.roster.session.id
    group = story.entries[1]
    public = {session, bytes.fromhex(group["view"]), bytes.fromhex(group["seed"])}
    leaked = [key for key in keys if key in data or key.hex().encode() in data]
    assert set(leaked) <= public
    assert public & set(leaked)  # the search finds what is there
