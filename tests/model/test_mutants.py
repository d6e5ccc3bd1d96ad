"""Each rule that is taken out of the code breaks a property; the explorer prints how.

Each case replaces one function or constant of the real code. The schedule that is found is the
shortest in faults and lies, and a replay of it breaks the same property.
"""

from collections import Counter
from functools import partial

import pytest

from secure_fd.crypto.keys import fields
from secure_fd.errors import MissingClientError
from secure_fd.protocol.client import Client
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import Accepted, Party
from secure_fd.secagg.server import MaskingServer, ServerRound
from secure_fd.secagg.session import RoundCounter
from secure_fd.secagg.unmasking import Unmasking
from tests.model.corrupt import CorruptWorld
from tests.model.explorer import BrokenError, replay, shortest
from tests.model.federation import FederationWorld
from tests.model.lying import LyingWorld
from tests.model.masked import MaskedWorld
from tests.model.run import AGAIN, POOLED

HONEST = partial(MaskedWorld, 4, 0)
THREE = partial(MaskedWorld, 3, 1)
POOL = partial(MaskedWorld, 4, 1, noise=POOLED, tail=0)
LIES = partial(LyingWorld, 4, cost=1)
TWICE = partial(LyingWorld, 3, stages=AGAIN, cost=1)
CORRUPT = partial(CorruptWorld, 4)
STORY = partial(FederationWorld, 3)

withdraw, enrol, note_given = ClientRound.withdraw, MaskingServer.enrol, Client._note_given


def nothing(*_: object, **__: object) -> None:
    """Check or write nothing."""


def gives_every_number_back(machine):
    withdraw(machine)
    return True


def unwritten(server, setup, barred=None):
    keep, server._keep = server._keep, None
    enrol(server, setup, barred)
    server._keep = keep


def without_survivors(scope, client, group, cohort, survivors):
    del survivors
    return b"survivors" + scope.terms.encode() + bytes([client]) + fields(group.view, cohort)


def without_cohort(scope, client, group, cohort):
    del cohort
    return b"cohort" + scope.terms.encode() + bytes([client]) + group.view


def without_noise(machine, present, *_):
    if len(present) < machine._enrolment.group.quorum:
        raise MissingClientError("too few")


def bars_whom_one_accuses(server, survivors):
    for owner in Counter(owner for k in survivors for owner in server._closed[k]):
        server._bar(owner, "accused")


def one_sum(client):
    note_given(client)
    client._released = False


def in_memory(client):
    file, client._file = client._file, None
    note_given(client)
    client._file = file


MUTANTS = [
    ("A: no set-up is repaired", MaskingServer, "_needs_setup", lambda _: False, HONEST, 1, "j"),
    ("B: nobody reads a late JOIN", MaskingServer, "_asks", lambda *_: False, HONEST, 1, "j"),
    ("E: copies are not known", Accepted, "has", lambda *_: False, THREE, 1, "gh"),
    (
        "the server refuses late messages",
        "secure_fd.secagg.server",
        "is_elsewhere",
        lambda *_: False,
        partial(MaskedWorld, 3, 2),
        1,
        "gh",
    ),
    (
        "a client refuses late messages",
        "secure_fd.secagg.client",
        "is_elsewhere",
        lambda *_: False,
        partial(MaskedWorld, 3, 2, tail=0, allowed=frozenset({"again"})),
        2,
        "gh",
    ),
    ("the server enrols without a write", MaskingServer, "enrol", unwritten, HONEST, 1, "j"),
    ("nothing is written", Party, "_write", nothing, TWICE, 3, "c"),
    ("no round is spent", RoundCounter, "spend", nothing, TWICE, 2, "c"),
    (
        "every round may begin again",
        ClientRound,
        "withdraw",
        gives_every_number_back,
        TWICE,
        2,
        "c",
    ),
    ("signatures are not checked", ClientRound, "_check_signatures", nothing, LIES, 4, "ai"),
    ("small sets are accepted", ClientRound, "_check_reach", nothing, LIES, 6, "abi"),
    ("survivors are not signed", messages, "survivor_text", without_survivors, LIES, 4, "ai"),
    ("the cohort is not signed", messages, "cohort_text", without_cohort, LIES, 4, "abi"),
    ("noise has no floor at the server", ServerRound, "_check_reach", without_noise, POOL, 2, "be"),
    ("one accuser bars", ServerRound, "_judge_seals", bars_whom_one_accuses, CORRUPT, 1, "h"),
    ("wrong shares are not corrected", Unmasking, "_fits", lambda *_: True, CORRUPT, 1, "bg"),
    ("keys of low order are read", messages, "low_order", lambda _: False, CORRUPT, 1, "gh"),
    ("C: any number follows", Client, "_check_follows", nothing, STORY, 0, "df"),
    ("C: what it gave is in memory alone", Client, "_note_given", in_memory, STORY, 1, "f"),
    ("C: the newest sum alone counts", Client, "_note_given", one_sum, STORY, 0, "f"),
    ("C: it helps whatever became of a sum", Client, "_check_takes_part", nothing, STORY, 0, "f"),
]


@pytest.mark.parametrize(("name", "owner", "what", "mutant", "world", "faults", "letters"), MUTANTS)
def test_a_rule_that_is_taken_out_is_missed(
    name, owner, what, mutant, world, faults, letters, monkeypatch
):
    target = (owner, what) if not isinstance(owner, str) else (f"{owner}.{what}",)
    monkeypatch.setattr(*target, mutant)
    if world is POOL:
        monkeypatch.setattr(ClientRound, what, mutant)
    broken = shortest(world(), faults)
    assert broken is not None, f"{name}: no property is broken"
    assert broken.what[1] in letters
    print(f"{name}:\n{broken}")
    with pytest.raises(BrokenError) as again:
        replay(world(), broken.schedule)
    assert again.value.what == broken.what
