"""Four clients in a round, so that client 0 can be told things in any state."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from secure_fd.secagg.client import ClientRound, ClientState
from secure_fd.secagg.messages import Prepare, Relayed
from secure_fd.secagg.session import RoundScope, RoundTerms
from tests.secagg_cohort import TERMS, Cohort, round_of
from tests.secagg_forgery import Clients, cohort_message, lines, sign_story, take_prepare

ALL: Clients = (0, 1, 2, 3)
LATER = RoundTerms(TERMS.index + 2, TERMS.length, TERMS.bound)


@dataclass
class Stage:
    """Four clients, of whom client 0 is told things."""

    cohort: Cohort
    machines: Mapping[int, ClientRound]
    prepared: Mapping[int, Prepare]

    @classmethod
    def opened(cls, cohort: Cohort | None = None, terms: RoundTerms = TERMS) -> "Stage":
        cohort = cohort or Cohort(4)
        machines = cohort.open_clients(terms)
        prepared = {k: take_prepare(machine) for k, machine in machines.items()}
        return cls(cohort, machines, prepared)

    def relayed(self, client: int = 0, cohort: Clients = ALL) -> dict[int, Relayed]:
        """What an honest server passes on."""
        return lines(self.prepared, self.cohort.group, client, cohort)

    def tell(self, relayed: Mapping[int, Relayed], cohort: Clients = ALL) -> bytes:
        return self.machines[0].receive(cohort_message(relayed, cohort, self.machines[0]))

    def signatures(
        self, signers: Clients, survivors: Clients = ALL, scope: RoundScope | None = None
    ) -> dict[int, bytes]:
        """What these clients sign who masked for all, and heard of these survivors."""
        there, group = scope or self.machines[0].scope, self.cohort.group
        return {
            k: sign_story(self.cohort.identities[k], there, group, k, ALL, survivors)
            for k in signers
        }


def slow_round(cohort: Cohort, terms: RoundTerms = TERMS) -> Iterator[tuple[ClientRound, bytes]]:
    """Client 0 and, stage by stage, the message that it is about to get; client 3 drops out."""
    current = round_of(cohort, terms)
    inbound = current.prepare()
    for lost in ((3,), (), ()):
        yield current.clients[0], inbound[0]
        inbound = current.deliver(current.answer(inbound), without=lost)


def reach(state: ClientState, cohort: Cohort, terms: RoundTerms = TERMS) -> ClientRound:
    """Client 0 of a round, in this state."""
    if state is ClientState.READY:
        return round_of(cohort, terms).clients[0]
    machine = None
    for machine, _ in slow_round(cohort, terms):
        if machine.state is state:
            return machine
    assert machine is not None
    assert machine.state is state
    return machine


def inbox(cohort: Cohort, terms: RoundTerms = TERMS) -> dict[str, bytes]:
    """Every message to client 0 of a round in which client 3 drops out."""
    names = ("COHORT", "SURVIVORS", "SIGNATURES")
    return dict(zip(names, (message for _, message in slow_round(cohort, terms)), strict=True))


def complete_survivors(cohort: Cohort, terms: RoundTerms = TERMS) -> bytes:
    """What the server says to client 0 when nobody is missing."""
    current = round_of(cohort, terms)
    return current.deliver(current.masked())[0]
