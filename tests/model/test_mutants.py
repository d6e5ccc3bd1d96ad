"""Each rule that is taken out of the code breaks a property; the explorer prints how.

Each case replaces one function or constant of the real code. The schedule that is found is the
shortest in faults and lies, and a replay of it breaks the same property.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from secure_fd.crypto.keys import fields
from secure_fd.deployment.recovery import Recovery, StoredSums
from secure_fd.errors import MissingClientError, PeerError
from secure_fd.protocol.broadcasts import BroadcastVerifier
from secure_fd.protocol.client import Client
from secure_fd.secagg import client as clients
from secure_fd.secagg import messages, server, setup
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import Accepted, Party
from secure_fd.secagg.messages import Reveal
from secure_fd.secagg.server import MaskingServer, ServerRound
from secure_fd.secagg.session import Group, RoundCounter, RoundTerms
from secure_fd.secagg.unmasking import Unmasking
from tests.drivers.cohort import still
from tests.model.explorer import BrokenError, replay, shortest
from tests.model.lying import AGAIN, ROUND, SETUP, CorruptWorld, LyingWorld, StoryWorld
from tests.model.run import FROM_START, POOLED
from tests.model.world import World

HONEST, THREE, TWO = partial(World, 4, 0), partial(World, 3, 1), partial(World, 3)
LATE = partial(World, 3, 1, tail=0, survey=True, allowed=frozenset({"comes twice, late"}))
POOL, LAST = partial(World, 4, 1, noise=POOLED, tail=0), partial(World, 3, 1, epoch=1)
LIES = partial(LyingWorld, cost=1, allowed=frozenset())
TWICE = partial(LyingWorld, 3, stages=AGAIN, cost=1)
START = partial(LyingWorld, 3, stages=SETUP, cost=1)
GROUPS = partial(LyingWorld, 4, stages=SETUP + ROUND, cost=1, allowed=frozenset())
ROUNDS = partial(LyingWorld, 3, stages=FROM_START, cost=1)
CORRUPT, STORY, TALE = partial(CorruptWorld, 4, 1), StoryWorld, partial(StoryWorld, 4)

withdraw, enrol, note_given = ClientRound.withdraw, MaskingServer.enrol, Client._note_given


def nothing(*_, **__):
    """Check or write nothing."""


def never(*_):
    return False


def gives_every_number_back(machine):
    withdraw(machine)
    return True


def unwritten(party, made, barred=None):
    keep, party._keep = party._keep, None
    enrol(party, made, barred)
    party._keep = keep


def without_survivors(scope, client, group, cohort, survivors):
    del survivors
    return b"survivors" + scope.terms.encode() + bytes([client]) + fields(group.view, cohort)


def without_cohort(scope, client, group, cohort):
    del cohort
    return b"cohort" + scope.terms.encode() + bytes([client]) + group.view


def without_noise(machine, present, *_):
    if len(present) < machine._enrolment.group.quorum:
        raise MissingClientError("too few")


def bars_whom_one_accuses(machine, survivors):
    for owner in Counter(owner for k in survivors for owner in machine._closed[k]):
        machine._bar(owner, "accused")


def one_sum(client):
    note_given(client)
    client._released = False


def in_memory(client):
    file, client._file = client._file, None
    note_given(client)
    client._file = file


def unbound(terms):
    return encode(replace(terms, subject=b""))


def any_nonce(reveal, session, client, line, view):
    del line
    text = messages._reveal_text(session, client, view, reveal.nonce)
    session.roster[client].verify(reveal.signature, text, "a reveal")


def any_member(reveal, session, client, line, view):
    del view
    if messages.commit(session, client, reveal.nonce) != line[32:]:
        raise PeerError("another nonce")


def list_alone(session, view, listed, reveals):
    full = group_of(session, view, listed, reveals)
    return Group(session, full.members, view, full.seed)


group_of, encode = setup.group_of, RoundTerms.encode
MUTANTS = {
    "A: no set-up is repaired": (MaskingServer, "_needs_setup", never, HONEST, 1, "j"),
    "B: no party reads a late JOIN": (MaskingServer, "_asks", never, HONEST, 1, "j"),
    "the server enrols without a write": (MaskingServer, "enrol", unwritten, HONEST, 1, "j"),
    "a sum leaves before it is written": (StoredSums, "_record", nothing, THREE, 1, "j"),
    "a round begins before it is noted": (Recovery, "note_begun", nothing, THREE, 1, "gj"),
    "a client does not write what it read": (Client, "_remember", nothing, STORY, 1, "df"),
    "E: copies are not known": (Accepted, "has", never, THREE, 1, "gh"),
    "copies of broadcasts are not known": (BroadcastVerifier, "has_read", never, THREE, 1, "g"),
    "the server refuses late messages": (server, "is_elsewhere", never, TWO, 1, "gh"),
    "a client refuses late messages": (clients, "is_elsewhere", never, LATE, 2, "gh"),
    "nothing is written": (Party, "_write", nothing, TWICE, 3, "ck"),
    "no round is spent": (RoundCounter, "spend", nothing, TWICE, 2, "c"),
    "rounds begin again": (ClientRound, "withdraw", gives_every_number_back, TWICE, 2, "c"),
    "signatures are not checked": (ClientRound, "_check_signatures", nothing, LIES, 4, "ai"),
    "small sets are accepted": (ClientRound, "_check_reach", nothing, LIES, 6, "abi"),
    "survivors are not signed": (messages, "survivor_text", without_survivors, LIES, 4, "ai"),
    "the cohort is not signed": (messages, "cohort_text", without_cohort, LIES, 4, "abi"),
    "sums are not bound to broadcasts": (RoundTerms, "encode", unbound, ROUNDS, 2, "i"),
    "nonces are chosen late": (Reveal, "verify", any_nonce, START, 2, "l"),
    "the member list is not signed": (Reveal, "verify", any_member, START, 2, "l"),
    "groups are bound to the list alone": (setup, "group_of", list_alone, GROUPS, 3, "i"),
    "the ratchet stands still": (Channel, "_move", still, THREE, 0, "k"),
    "the last keys are kept": (Channel, "close", nothing, LAST, 0, "k"),
    "noise has no floor": (ServerRound, "_check_reach", without_noise, POOL, 2, "be"),
    "one accuser bars": (ServerRound, "_judge_seals", bars_whom_one_accuses, CORRUPT, 1, "h"),
    "wrong shares stay": (Unmasking, "_fits", lambda *_: True, CORRUPT, 1, "bg"),
    "keys of low order are read": (messages, "low_order", never, CORRUPT, 1, "gh"),
    "C: any number follows": (Client, "_check_follows", nothing, STORY, 0, "df"),
    "C: what it gave is in memory alone": (Client, "_note_given", in_memory, STORY, 1, "f"),
    "C: the newest sum alone counts": (Client, "_note_given", one_sum, TALE, 0, "f"),
    "C: it helps whatever came of a sum": (Client, "_check_takes_part", nothing, STORY, 0, "f"),
}
"""Place of the rule, its replacement, and the world, faults and letters that show it."""
SECOND = {
    POOL: (ClientRound, "_check_reach", without_noise),
    TWICE: (Client, "_check_takes_part", nothing),
}
"""Worlds whose rules are guarded twice, and the second guard: alone each of both is redundant.

The client has the floor of the noise as well, and a federation's client masks no sum again.
"""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_taken_out_is_missed(name, monkeypatch):
    owner, what, mutant, world, faults, letters = MUTANTS[name]
    monkeypatch.setattr(owner, what, mutant)
    if world in SECOND:
        monkeypatch.setattr(*SECOND[world])
    broken = shortest(world(), faults)
    assert broken is not None, f"{name}: no property is broken"
    assert broken.what[1] in letters
    print(f"{name}:\n{broken}")
    with pytest.raises(BrokenError) as again:
        replay(world(), broken.schedule)
    assert again.value.what == broken.what
