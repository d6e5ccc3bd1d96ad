"""A proven sum against lying clients and aggregators; each defence has a mutation without it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from msgspec.structs import replace as change

from secure_fd import wire as wire_format
from secure_fd.crypto.keys import HELPER, SERVER, AgreementKey, IdentityKey
from secure_fd.errors import GarbledSumError, LocalError, MissingClientError, PeerError
from secure_fd.prio3 import messages as wire
from secure_fd.prio3 import parties
from secure_fd.prio3.field import add, decode, encode
from secure_fd.prio3.flp import Circuit
from secure_fd.prio3.parties import Helper, Leader, ReportingClient
from secure_fd.prio3.session import VotePurpose, VoteRound, VoteSession
from secure_fd.prio3.vdaf import Prio3
from secure_fd.prio3.votes import VoteRows
from secure_fd.secagg.session import NoiseTerms, PinnedRoster, RoundCounter, RoundTerms
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.secure_sum.validated import Prio3Sum
from secure_fd.votes.codec import IntArray, UnitArray
from secure_fd.votes.packing import Limits
from secure_fd.wire import Sum
from tests.drivers.summing import summed
from tests.refusals import refused

N, ROWS, CLASSES, BOUND, BUDGET = 5, 4, 3, 3, 8
LIAR = 2
TERMS = RoundTerms(0, ROWS * CLASSES, BOUND, b"sent", limits=Limits(CLASSES, BUDGET))


@dataclass
class Cast:
    """A session of five clients, and the machines of all parties."""

    def __post_init__(self) -> None:
        self.identities = {k: IdentityKey.generate(os.urandom) for k in range(N)}
        self.key = AgreementKey.generate(os.urandom)
        roster = PinnedRoster({k: one.public.raw for k, one in self.identities.items()})
        self.session = VoteSession(roster, self.key.public, os.urandom(32))
        self.clients = {k: ReportingClient(k, self.identities[k], self.session) for k in range(N)}
        self.helper = Helper(self.session, self.key)
        self.leader = Leader(self.session, self.helper.receive)

    def opened(self, terms: RoundTerms = TERMS) -> VoteRound:
        return VoteRound(self.session, terms)

    def lie(self, rows: IntArray) -> bytes:
        """The report of a liar that does not check its votes."""
        liar = ReportingClient(LIAR, self.identities[LIAR], self.session)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VoteRows, "check", accept)
            return liar.report(TERMS, rows.reshape(-1).view(np.uint64))

    def resigned(self, report: wire.Report, **changed: bytes) -> bytes:
        """The liar's report with other parts, under its own signature."""
        altered, opened = change(report, **changed), self.opened()
        altered.signature = self.identities[LIAR].sign(altered.signed(opened, LIAR))
        return wire.write(opened, LIAR, altered)

    def read(self, report: bytes) -> wire.Report:
        return wire.read(self.opened().place, LIAR, report, wire.Report)

    def run(self, lied: bytes | None, helper: Callable[[bytes], bytes] | None = None) -> Sum:
        leader = self.leader = Leader(self.session, helper or self.helper.receive)
        leader.open(TERMS)
        for k, client in self.clients.items():
            honest = lied is None or k != LIAR
            leader.receive(k, client.report(TERMS, votes()[k]) if honest else lied)
        return added_up(leader)


def added_up(leader: Leader) -> Sum:
    leader.advance()
    assert leader.result is not None
    return leader.result


def votes(seed: int = 0) -> dict[int, UnitArray]:
    rng, found = np.random.default_rng(seed), {}
    for k in range(N):
        rows = np.zeros((ROWS, CLASSES), dtype=np.uint64)
        rows[np.arange(2), rng.integers(CLASSES, size=2)] = rng.integers(1, BOUND + 1, size=2)
        found[k] = rows.reshape(-1)
    return found


def others() -> list[int]:
    return np.sum([v for k, v in votes().items() if k != LIAR], axis=0).tolist()


def rows(*first: int) -> IntArray:
    found = np.zeros((ROWS, CLASSES), dtype=np.int64)
    found[0, : len(first)] = first
    return found


LIES = {
    "a lane out of range": rows(BOUND + 1),
    "ten times the bound": rows(10 * BOUND),
    "a negative lane": rows(-1),
    "negative lanes that cancel": rows(-1, 1),
    "a row of two votes": rows(BOUND, BOUND),
    "a row one too heavy": rows(BOUND, 1),
    "a budget that is overdrawn": np.full((ROWS, CLASSES), 1),
}


def accept(*_: object) -> bool:
    return True


def other_vector(cast: Cast) -> bytes:
    """An honest proof, beside a leader's share that stands for other votes."""
    report = cast.read(cast.lie(rows(1)))
    heavier = add(np.frombuffer(report.share[:8], "<u8").astype(np.uint64), np.uint64([BOUND]))
    return cast.resigned(report, share=encode(heavier) + report.share[8:])


def wrong_seed(cast: Cast) -> bytes:
    """Honest shares, under a public share that claims another challenge."""
    report = cast.read(cast.lie(rows(1)))
    return cast.resigned(report, public=bytes(len(report.public)))


def moved(cast: Cast, label: bytes) -> bytes:
    """The liar's shares and proof, made under another context, signed and sealed for this round."""
    opened, nonce = cast.opened(), os.urandom(16)
    rand = os.urandom(opened.prio3.rand_bytes)
    public, (own, helped) = opened.prio3.shard(label, votes()[LIAR], nonce, rand)
    sealed = wire.seal(opened, LIAR, helped, os.urandom)
    return cast.resigned(wire.Report(nonce, public, sealed, b"", own))


def with_seal(cast: Cast, public: bytes | None) -> bytes:
    """A report whose share for the helper does not open, or is sealed under this key."""
    report = cast.read(cast.lie(rows(1)))
    sealed = report.sealed
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1]) if public is None else public + sealed[32:]
    return cast.resigned(report, sealed=changed)


CONTEXTS: dict[str, Callable[[Cast], bytes]] = {
    "round": lambda cast: cast.opened(replace(TERMS, index=1)).votes_of(LIAR),
    "federation": lambda _: Cast().opened().votes_of(LIAR),
    "client": lambda cast: cast.opened().votes_of(LIAR + 1),
}
Mutation = list[tuple[object, str, Callable[..., object]]]
NO_PROOF: Mutation = [(Circuit, "decide", accept), (parties, "_check_sum", accept)]
NO_SEED: Mutation = [*NO_PROOF, (Prio3, "verify_next", lambda _, state, __: state.out)]
NO_CONTEXT: Mutation = [(VoteRound, "votes_of", lambda *_: b"")]
ATTACKS: dict[str, tuple[Callable[[Cast], bytes], Mutation]] = {
    **{name: (lambda cast, lie=lie: cast.lie(lie), NO_PROOF) for name, lie in LIES.items()},
    "a proof of another vector": (other_vector, NO_SEED),
    "a wrong joint seed": (wrong_seed, NO_SEED),
    **{
        f"a proof of another {name}": (lambda cast, of=of: moved(cast, of(cast)), NO_CONTEXT)
        for name, of in CONTEXTS.items()
    },
    "an altered seal": (lambda cast: with_seal(cast, None), []),
    "a seal of low order": (lambda cast: with_seal(cast, bytes(32)), []),
}
"""Reports of client 2, and mutations that let them pass."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_dishonest_report_costs_its_sender_alone_unless_its_check_is_taken_out(
    attack, monkeypatch
):
    report, mutation = ATTACKS[attack]
    cast = Cast()
    result = cast.run(report(cast))
    assert result.total.tolist() == others()
    assert LIAR not in result.survivors
    assert list(cast.leader.accused) == [LIAR]
    for removed in mutation:
        monkeypatch.setattr(*removed)
    if mutation:
        cast = Cast()
        assert LIAR in cast.run(report(cast)).survivors


def test_a_replayed_or_copied_report_is_refused_with_its_sender_named():
    cast = Cast()
    first = cast.clients[0].report(TERMS, votes()[0])
    cast.leader.open(TERMS)
    cast.leader.receive(0, first)
    for sender in (0, 1):
        with pytest.raises(PeerError, match=r"client 0|party 1"):
            cast.leader.receive(sender, first)
    cast.leader.open(replace(TERMS, index=1))
    with pytest.raises(PeerError, match="0"):
        cast.leader.receive(0, first)
    with pytest.raises(LocalError, match="spent"):
        cast.clients[0].report(TERMS, votes()[0])


def test_a_report_that_its_sender_did_not_sign_is_refused_and_secrets_do_not_show():
    cast = Cast()
    forged = bytearray(cast.clients[0].report(TERMS, votes()[0]))
    forged[51] ^= 1  # of the nonce
    cast.leader.open(TERMS)
    with pytest.raises(PeerError, match="client 0"):
        cast.leader.receive(0, bytes(forged))
    for holder in (cast.clients[0], cast.leader, cast.helper, Prio3Sum(3)):
        assert repr(holder).endswith(": secret>")
    assert VotePurpose.SEAL.value not in repr(cast.read(cast.lie(rows(1))))


def unreadable(cast: Cast) -> bytes:
    report = cast.read(cast.lie(rows(1)))
    return cast.resigned(report, share=b"\xff" * len(report.share))


def test_a_share_that_is_no_field_elements_is_refused_on_arrival(monkeypatch):
    cast = Cast()
    cast.leader.open(TERMS)
    with pytest.raises(PeerError, match=f"share of client {LIAR} cannot be read"):
        cast.leader.receive(LIAR, unreadable(cast))
    for k in set(cast.clients) - {LIAR}:
        cast.leader.receive(k, cast.clients[k].report(TERMS, votes()[k]))
    assert added_up(cast.leader).total.tolist() == others()
    monkeypatch.setattr(Prio3, "check", accept)  # without it, the liar ends the round
    cast = Cast()
    with pytest.raises(PeerError, match="below the modulus"):
        cast.run(unreadable(cast))


def long_reports(cast: Cast) -> dict[int, bytes]:
    """The reports of all, two of which carry half a message more than they need."""
    opened, made = cast.opened(), {}
    for k, client in cast.clients.items():
        made[k] = client.report(TERMS, votes()[k])
        if k < 2:
            report = wire.read(opened.place, k, made[k], wire.Report)
            padded = change(report, sealed=report.sealed + bytes(5000))
            padded.signature = cast.identities[k].sign(padded.signed(opened, k))
            made[k] = wire.write(opened, k, padded)
    return made


def test_a_report_that_is_longer_than_agreed_is_refused_on_arrival(monkeypatch):
    cast = Cast()
    cast.leader.open(TERMS)
    for k, report in long_reports(cast).items():
        if k < 2:
            with pytest.raises(PeerError, match=f"sealed share of client {k} has"):
                cast.leader.receive(k, report)
        else:
            cast.leader.receive(k, report)
    assert added_up(cast.leader).survivors == (2, 3, 4)
    monkeypatch.setattr(wire.Report, "check", accept)  # without it, two liars end the round
    monkeypatch.setattr(wire_format, "LIMIT", 10_000)
    cast = Cast()
    cast.leader.open(TERMS)
    for k, report in long_reports(cast).items():
        cast.leader.receive(k, report)
    with pytest.raises(PeerError, match="a message has"):
        cast.leader.advance()


# Aggregators that lie.


def verified(cast: Cast, alter: Callable[[wire.Verified], wire.Verified]) -> Sum:
    """A round whose helper alters its last answer."""

    def helper(data: bytes) -> bytes:
        answer = cast.helper.receive(data)
        if data[2:4] != wire.Between.OPENED.to_bytes(2, "big"):
            return answer
        honest = wire.read(cast.opened().place, HELPER, answer, wire.Verified)
        return wire.write(cast.opened(), HELPER, alter(honest))

    return cast.run(None, helper)


def shifted(honest: wire.Verified) -> wire.Verified:
    total = decode(honest.total, TERMS.length)
    return change(honest, total=encode(add(total, np.full_like(total, 2**40))))


def test_an_aggregator_that_alters_its_sum_share_is_found_out_beyond_what_votes_could_give(
    monkeypatch,
):
    with pytest.raises(GarbledSumError, match="changed its share"):
        verified(Cast(), shifted)
    monkeypatch.setattr(parties, "_check_sum", accept)  # without it, the wrong sum stands
    assert int(verified(Cast(), shifted).total.min()) >= 2**40


def reports_of(cast: Cast, senders: list[int], index: int = 0) -> bytes:
    """REPORTS about these clients, from a leader that skips its own floor."""
    opened = cast.opened(replace(TERMS, index=index))
    sent = {k: cast.clients[k].report(opened.terms, votes()[k]) for k in senders}
    reports = {
        k: change(wire.read(opened.place, k, sent[k], wire.Report), share=b"") for k in senders
    }
    return wire.write(opened, SERVER, wire.Reports(opened.terms, bytes(32), reports))


def test_the_helper_gives_one_sum_a_round_and_none_of_two_clients(monkeypatch):
    cast = Cast()
    with pytest.raises(PeerError, match="too few"):
        cast.helper.receive(reports_of(cast, [0, 1]))
    asked = reports_of(cast, [0, 1, 2], index=1)
    cast.helper.receive(asked)
    with pytest.raises(PeerError):  # where OPENED was due
        cast.helper.receive(asked)
    with pytest.raises(PeerError, match="again"):
        cast.helper.receive(asked)
    cast = Cast()
    asked = reports_of(cast, [0, 1, 2])
    monkeypatch.setattr(RoundCounter, "last", -1)
    monkeypatch.setattr(RoundCounter, "spend", accept)
    cast.helper.receive(asked)
    with pytest.raises(PeerError):
        cast.helper.receive(asked)
    assert cast.helper.receive(asked)


def biased(cast: Cast) -> Sum:
    """A leader that chooses its part of the verify key after it has seen the helper's."""

    def helper(data: bytes) -> bytes:
        if data[2:4] == wire.Between.OPENED.to_bytes(2, "big"):
            honest = wire.read(cast.opened().place, SERVER, data, wire.Opened)
            data = wire.write(cast.opened(), SERVER, change(honest, part=bytes(32)))
        return cast.helper.receive(data)

    return cast.run(None, helper)


def test_a_leader_that_changes_its_part_of_the_verify_key_gets_no_answer(monkeypatch):
    with pytest.raises(PeerError, match="another part"):
        biased(Cast())
    monkeypatch.setattr(VoteRound, "commitment", lambda *_: bytes(32))
    cast = Cast()
    answers = []
    receive = cast.helper.receive
    monkeypatch.setattr(
        Helper, "receive", lambda _, data: answers.append(receive(data)) or answers[-1]
    )
    with pytest.raises(MissingClientError, match="0 proofs hold"):  # this leader kept its first key
        biased(cast)
    assert len(answers) == 2  # but the helper verified under the one that came later


# Settings, and the sum behind the common interface.


def test_sums_are_those_of_the_masked_and_the_plain_sum_with_any_client_silent():
    for vectors in (votes(3), {k: v for k, v in votes(3).items() if k}):
        wanted = summed(PlainSum(N), 0, vectors, BOUND)
        for sums in (MaskedSum(N), Prio3Sum(N)):
            found = summed(sums, 0, vectors, BOUND)
            assert found.total.tolist() == wanted.total.tolist()
            assert found.survivors == wanted.survivors == tuple(vectors)


def test_settings_and_rounds_that_would_not_hold_are_refused():
    cast = Cast()
    for field, changed in (
        ("noise", {"noise": NoiseTerms(room=1)}),
        ("length", {"length": ROWS * CLASSES + 1}),  # of whole rows
        ("bound", {"bound": 2**17}),
    ):
        with refused(field):
            cast.opened(replace(TERMS, **changed))
    with refused("n_clients"):
        Prio3Sum(2)
    with pytest.raises(LocalError, match="budget"):
        cast.clients[1].report(TERMS, np.tile(np.uint64([BOUND, 0, 0]), ROWS))
    cast.leader.open(TERMS)
    cast.leader.receive(0, cast.clients[0].report(TERMS, votes()[0]))
    with pytest.raises(MissingClientError, match="3 are needed"):
        cast.leader.advance()
