"""No sequence of messages makes a client give both shares of anybody.

Client 0 of four, and a server that has the keys of the three others, so that every signature it
wants verifies: all sequences of COHORT, SURVIVORS and SIGNATURES over all sets that the client
takes, and every message once more after the end. (In Flower's SecAgg+ a list of the active and
one of the dropped that both name a client return both of its shares.)
"""

from collections.abc import Callable, Iterator
from itertools import combinations

from secure_fd.crypto.shamir import ELEMENT_BYTES
from secure_fd.errors import PeerError
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import ClientState
from secure_fd.secagg.session import MessageType, RoundTerms
from secure_fd.wire import HEADER_BYTES
from tests.drivers.cohort import (
    ALL,
    Clients,
    Cohort,
    Stage,
    cohort_message,
    sign_story,
    signatures_message,
    survivors_message,
)

Send = Callable[[Stage], bytes]
SETS: list[Clients] = [ALL, *((0, *rest) for rest in combinations((1, 2, 3), 2))]


def signatures(stage: Stage, cohort: Clients, survivors: Clients) -> dict[int, bytes]:
    keys, group, scope = stage.cohort.identities, stage.cohort.group, stage.machines[0].scope
    return {k: sign_story(keys[k], scope, group, k, cohort, survivors) for k in survivors}


def tell_cohort(cohort: Clients) -> Send:
    return lambda stage: cohort_message(stage.relayed(cohort=cohort), cohort, stage.machines[0])


def tell_survivors(chosen: Clients) -> Send:
    """With the signatures that serve where no client is missing, and must not come elsewhere."""
    return lambda stage: survivors_message(
        chosen, signatures(stage, chosen, chosen), stage.machines[0]
    )


def tell_some_missing(chosen: Clients) -> Send:
    return lambda stage: survivors_message(chosen, {}, stage.machines[0])


def tell_signatures(cohort: Clients, survivors: Clients) -> Send:
    return lambda stage: signatures_message(signatures(stage, cohort, survivors), stage.machines[0])


ALPHABET: list[Send] = [
    *map(tell_cohort, SETS),
    *map(tell_survivors, SETS),
    *map(tell_some_missing, SETS[1:]),
    *(tell_signatures(ALL, survivors) for survivors in SETS[1:]),
    *(tell_signatures(chosen, chosen) for chosen in SETS),
]


class Transcript:
    """Kinds of shares that client 0 gave in one round, by owner."""

    def __init__(self, cohort: Cohort, index: int) -> None:
        self.stage = Stage.opened(cohort, RoundTerms(index, 4, 4))
        self.machine: ClientRound = self.stage.machines[0]
        self.answers = 0
        self.given: dict[int, set[str]] = {}
        self._kinds: dict[bytes, tuple[int, str]] = {}

    def send(self, message: Send) -> bool:
        """Return True if the client answered."""
        try:
            answer = self.machine.receive(message(self.stage))
        except PeerError:
            return False
        if not answer:  # an exact copy
            return False
        self._learn_what_it_holds()
        if answer[3] == MessageType.UNMASK:
            self.answers += 1
            for at in range(HEADER_BYTES, len(answer), ELEMENT_BYTES):
                owner, kind = self._kinds[answer[at : at + ELEMENT_BYTES]]
                self.given.setdefault(owner, set()).add(kind)
        return True

    def _learn_what_it_holds(self) -> None:
        held = self.machine._held
        for owner, shares in held.shares.items() if held else ():
            self._kinds[shares.seed] = (owner, "seed")
            self._kinds[shares.root] = (owner, "root")


LONGEST = 4


def every_sequence(cohort: Cohort) -> Iterator[Transcript]:
    """Each sequence of at most LONGEST messages of which all but the last were answered."""
    index = 0
    alive: list[tuple[Send, ...]] = [()]
    for _ in range(LONGEST):
        sequences = [(*prefix, message) for prefix in alive for message in ALPHABET]
        alive = []
        for sequence in sequences:
            index += 2
            transcript = Transcript(cohort, index)
            if all(transcript.send(message) for message in sequence):
                alive.append(sequence)
            yield transcript


def test_no_sequence_of_messages_gives_both_shares_of_anybody():
    tried = list(every_sequence(Cohort(4)))
    assert all(len(kinds) == 1 for each in tried for kinds in each.given.values())
    assert max(each.answers for each in tried) == 1
    unmasked = [each for each in tried if each.answers]
    assert {frozenset(each.given) for each in unmasked} == set(map(frozenset, SETS))
    assert sum("root" in each.given.get(3, ()) for each in tried) > 0
    assert len(tried) == 15 * len(ALPHABET) == 15 * 18


def test_a_client_that_answers_once_more_gives_both_shares_and_is_caught(monkeypatch):
    sound = ClientRound.receive

    def forgetful(machine: ClientRound, data: bytes) -> bytes:
        held = machine._held
        answer = sound(machine, data)
        if machine.state is ClientState.DONE:
            machine.state, machine._held = ClientState.SENT, held
        return answer

    monkeypatch.setattr(ClientRound, "receive", forgetful)
    both = (each for each in every_sequence(Cohort(4)) if {"root", "seed"} in each.given.values())
    assert next(both).given[3] == {"root", "seed"}
