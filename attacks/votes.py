"""Words on the wire, read as if nobody had masked them: a claim of masking is not believed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from attacks.base import Attack, AttackResult, FloatArray, substream
from attacks.scoring import (
    mean,
    proportion,
)
from attacks.view import Capability, ObservedRound, Public, View
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import Contribution, IntArray, Released, UnitArray, WordArray
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.protection.base import Answer, NoProtection, Protection
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit
from secure_fd.secagg.packing import LaneLayout
from secure_fd.transcript import DistillationRound, Transcript


def read_unmasked(words: WordArray, n_clients: int, bound: int, length: int) -> UnitArray | None:
    """The [length] integers of a payload in clear; None where one is above `bound`.

    A lane has room for the sum over all clients, so a masked integer is within `bound` with a
    chance of less than one half, and all of a payload with less than 2 ** -length.
    """
    try:
        values = LaneLayout(n_clients, bound).unpack(words, length)
    except PeerError:
        return None
    return values if values.size and int(np.max(values)) <= bound else None


# Votes about proxies: who named which class, as truth and as an attacker's claim.


ABSTAIN: Final = -1
"""In place of a class: nothing was said."""
NEVER: Final = -2
"""In place of a class: the client was in no sum about this proxy, or nothing is known of it."""
WHOLE: Final = 1.0 + 1e-9
"""One vote, and the rounding of a sum of units."""
ByClient = Mapping[int, IntArray]
"""By client, the class [m] that it names for each proxy, or ABSTAIN."""


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What the clients of one sum said about its proxies: the truth that scores an attack.

    indices: [m] the proxies. sent: as uploaded. meant: before any noise was added to it; where a
    protection never asks for answers, the same as `sent`.
    """

    indices: IntArray
    sent: ByClient = field(repr=False)
    meant: ByClient = field(repr=False)


def named(votes: FloatArray) -> IntArray:
    """[m] the class of most weight in votes [m, C], ABSTAIN in a row without any."""
    return np.where(votes.sum(axis=1) > 0, votes.argmax(axis=1), ABSTAIN).astype(np.int64)


def in_votes(units: UnitArray, seen: ObservedRound | DistillationRound) -> FloatArray:
    """Integers [m * C] of a round as votes [m, C]."""
    return units.reshape(len(seen.ensemble.indices), -1).astype(np.float64) / seen.levels


def summed(rounds: Iterable[ObservedRound]) -> list[tuple[ObservedRound, FloatArray]]:
    """Every round whose sum was seen, with the sum in votes [m, C]."""
    return [(seen, in_votes(seen.total, seen)) for seen in rounds if seen.total is not None]


def allot(
    votes: FloatArray,
    clients: Sequence[int],
    rng: np.random.Generator,
    known: Mapping[int, IntArray] | None = None,
) -> ByClient:
    """Give the votes [m, C] of a sum to clients at random: what a sum alone says of its authors.

    A proxy's heaviest class is given first, a whole vote at a time, and never two to one client.
    known: by client what is known already, [m] a class or ABSTAIN, NEVER where nothing is.
    """
    left, m, every = votes.copy(), len(votes), np.arange(len(votes))
    claimed = np.full((len(clients), m), NEVER, dtype=np.int64)
    for row, k in enumerate(clients):
        claimed[row] = NEVER if known is None else known[k]
        cast = np.flatnonzero(claimed[row] >= 0)
        left[cast, claimed[row, cast]] -= 1.0
    turns = rng.permuted(np.tile(np.arange(len(clients)), (m, 1)), axis=1)
    for turn in turns.T:
        classes = left.argmax(axis=1)
        free = claimed[turn, every] == NEVER
        rows = np.flatnonzero(free & (left[every, classes] > WHOLE - 1.0))
        claimed[turn[rows], rows] = classes[rows]
        left[rows, classes[rows]] -= 1.0
    claimed[claimed == NEVER] = ABSTAIN
    return dict(zip(clients, claimed, strict=True))


def newest(rounds: Iterable[tuple[IntArray, ByClient]], shape: tuple[int, int]) -> IntArray:
    """[K, P] what each client said last about each proxy; NEVER where it was in no sum."""
    table = np.full(shape, NEVER, dtype=np.int64)
    for indices, said in rounds:
        for client, classes in said.items():
            table[client, indices] = classes
    return table


def by_client(right: NDArray[np.bool_], cast: NDArray[np.bool_]) -> FloatArray:
    """Of [K, n] votes cast, the share right of each client that cast any; [0] where none did."""
    there = cast.sum(axis=1)
    shares = (right & cast).sum(axis=1)[there > 0] / there[there > 0]
    return np.asarray(shares if shares.size else np.zeros(1))


def require_same_rounds(said: Sequence[Said], rounds: int) -> None:
    """LocalError where truth and estimate speak of different numbers of sums."""
    if len(said) != rounds:
        raise LocalError(f"said: {len(said)} rounds are not allowed; the attack saw {rounds} sums")


# Protections that keep what passes through them: the truth that scores attacks on sums.
#
# They change no bit of a run. An experiment holds them; an attacker never does.


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Kept:
    """By round, and in it by client: uploads [m * C], and answers [m] before any noise."""

    uploads: list[dict[int, UnitArray]] = field(default_factory=list, repr=False)
    answers: list[dict[int, IntArray]] = field(default_factory=list, repr=False)


class Witness(Protection):
    """Keeps every upload; a client that speaks out of turn begins another round."""

    kept: Kept

    def perturb(self, client: int, units: WordArray) -> UnitArray:
        """The same integers."""
        _add(self.kept.uploads, client, units)
        return super().perturb(client, units)


class WitnessedClear(Witness, NoProtection):
    """No protection."""

    def __init__(self) -> None:
        self.kept = Kept()


class WitnessedLabels(Witness, LabelUnit):
    """The label unit, with the answers that it makes noisy."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta)
        self.kept = Kept()

    def release(self, client: int, indices: IntArray, answer: Answer) -> Released:
        """The same release."""

        def overheard(asked: IntArray) -> Contribution:
            honest = answer(asked)
            _add(self.kept.answers, client, named(honest.weights[:, None] * honest.predictions))
            return honest

        return super().release(client, indices, overheard)


class WitnessedRecords(Witness, RecordUnit):
    """The record unit, which asks for no answers."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta)
        self.kept = Kept()


def statements(witness: Witness, transcript: Transcript) -> tuple[Said, ...]:
    """What the clients of every sum of a run said, in the order of its rounds."""
    return tuple(
        Said(
            record.proxy_indices,
            {k: named(in_votes(uploads[k], record)) for k in record.survivors},
            {k: answers[k] for k in record.survivors}
            if answers
            else {k: named(in_votes(uploads[k], record)) for k in record.survivors},
        )
        for record, uploads, answers in _matched(witness.kept, transcript)
    )


def told(
    witness: Witness, transcript: Transcript, colluders: range
) -> tuple[dict[int, UnitArray], ...]:
    """By sum of a run, the uploads of those colluders that are in it."""
    return tuple(
        {k: uploads[k] for k in colluders if k in record.survivors}
        for record, uploads, _ in _matched(witness.kept, transcript)
    )


def _matched(
    kept: Kept, transcript: Transcript
) -> Iterator[tuple[DistillationRound, Mapping[int, UnitArray], ByClient]]:
    """Every sum with the uploads that it is the sum of; rounds that were void are passed over."""
    rounds = iter(range(len(kept.uploads)))
    for record in transcript.distillation:
        at = next((i for i in rounds if _adds_up(kept.uploads[i], record)), None)
        if at is None:
            raise LocalError(f"round {record.index}: no uploads that were kept give its sum")
        yield record, kept.uploads[at], kept.answers[at] if kept.answers else {}


def _adds_up(uploads: Mapping[int, UnitArray], record: DistillationRound) -> bool:
    if not set(record.survivors) <= uploads.keys():
        return False
    total = sum((uploads[k].astype(np.int64) for k in record.survivors), np.int64(0))
    return np.array_equal(total, record.total.astype(np.int64))


def _add(rounds: list[dict[int, T]], client: int, value: T) -> None:
    """Clients speak in ascending order within a round."""
    if not rounds or client <= max(rounds[-1]):
        rounds.append({})
    rounds[-1][client] = value


# Who holds which class? Every client is given one, by what its payloads look like.
#
# Where clients hold one class each, a server that knows so needs only the right order of the
# classes: the assignment of most evidence (Kuhn, "The Hungarian method", 1955). Under masks it
# reads the words all the same, lane by lane, as if they were votes: if masks hide, what it finds
# is
# one order among K!.


_SHUFFLES = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class AttributionEstimate:
    """classes: [K] the class given to each client. evidence: [K, C] what spoke for it."""

    classes: IntArray = field(repr=False)
    evidence: FloatArray = field(repr=False)


@dataclass(frozen=True, slots=True)
class Attribution(Attack[AttributionEstimate]):
    """One class for each client, as evenly many clients for each class as can be."""

    name: ClassVar[str] = "attribution"
    title: ClassVar[str] = "Which client holds which class"
    figure_name: ClassVar[str] = "clients given their class"
    control_name: ClassVar[str] = "the same classes in random order"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.READ_SUMS, Capability.READ_PAYLOADS}),
    )

    def run(self, view: View, seed: int) -> AttributionEstimate:
        """The assignment of most evidence; equal ones are told apart at random."""
        view.require_any(*self.needs)
        public = view.public
        evidence = np.zeros((public.n_clients, public.n_classes))
        for seen in view.rounds:
            for client, totals in _class_totals(seen, public).items():
                evidence[client] += totals
        return AttributionEstimate(assign(evidence, substream(seed, "ties")), evidence)

    def score(
        self, estimate: AttributionEstimate, histograms: ArrayLike, said: Sequence[Said], seed: int
    ) -> AttackResult:
        """Share of clients whose class is right; histograms: [K, C] true label counts.

        said: the votes whose authors the classes name.
        """
        counts = np.asarray(histograms, dtype=np.float64)
        if counts.shape != estimate.evidence.shape:
            raise LocalError(f"histograms: {counts.shape}; use {estimate.evidence.shape}")
        truth, found = counts.argmax(axis=1), estimate.classes
        right = proportion(int((found == truth).sum()), len(truth))
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=right.value,
            figure_name="clients given their class",
            unit="",
            interval=right.interval,
            control=float((found[:, None] == truth[None, :]).mean()),
            control_name="the same classes in random order",
            n_members=len(truth),
            caveats=_CAVEATS,
            details={
                "all_clients_right": float(right.value == 1.0),
                "chance_of_all_right": 1.0 / math.factorial(len(truth)),
                "p_value": p_value(found, truth, substream(seed, "shuffles")),
                "votes_given_their_author": _authors(found, said),
            },
        )


_CAVEATS = (
    "the server is told that clients hold one class each",
    "clients' classes are no independent trials: the p-value is exact, the interval is not",
)


def assign(evidence: FloatArray, seed: int) -> IntArray:
    """[K] one class a client, of most evidence [K, C] in all; no class more than ceil(K / C)."""
    clients, classes = evidence.shape
    places = np.tile(np.arange(classes), -(-clients // classes))
    order = np.random.default_rng(seed).permutation(len(places))
    rows, columns = linear_sum_assignment(evidence[:, places[order]], maximize=True)
    found = np.empty(clients, dtype=np.int64)
    found[rows] = places[order][columns]
    return found


def p_value(found: IntArray, truth: IntArray, seed: int) -> float:
    """The chance of as many right if the classes were given in random order."""
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(found, (_SHUFFLES, 1)), axis=1)
    as_many = int(((orders == truth).sum(axis=1) >= (found == truth).sum()).sum())
    return (as_many + 1) / (_SHUFFLES + 1)


def _class_totals(seen: ObservedRound, public: Public) -> dict[int, FloatArray]:
    """By client, [C]: of its votes, or of whatever its words hold where votes would be."""
    m, layout = len(seen.ensemble.indices), LaneLayout(public.n_clients, seen.levels)
    values = seen.uploads or {
        k: _lanes(words, layout, m * public.n_classes) for k, words in (seen.payloads or {}).items()
    }
    return {k: units.reshape(m, -1).astype(np.float64).sum(axis=0) for k, units in values.items()}


def _lanes(words: WordArray, layout: LaneLayout, length: int) -> WordArray:
    """The words' first `length` lanes, whatever is in them."""
    shifts = np.arange(layout.lanes, dtype=np.uint64) * np.uint64(layout.bits)
    mask = np.uint64((1 << layout.bits) - 1)
    return np.asarray(((words >> shifts[:, None]) & mask).reshape(-1)[:length])


def _authors(found: IntArray, said: Sequence[Said]) -> float:
    """Share of all votes whose author is the one client, or one of those, of the vote's class."""
    right, cast = 0.0, 0
    for heard in said:
        for client, classes in heard.sent.items():
            votes = classes[classes != ABSTAIN]
            named = (votes == found[client]) / max(1, int((found == found[client]).sum()))
            right, cast = right + float(named.sum()), cast + len(votes)
    return right / max(1, cast)


# A server with clients on its side subtracts what they sent: what remains is the others' sum.


@dataclass(frozen=True, slots=True, eq=False)
class CollusionEstimate:
    """By round: claims and guess, by client the classes [m], of the honest clients.

    claims: after the subtraction. guess: without it. colluders: how many there are at most.
    least: the fewest honest clients in a sum.
    """

    claims: tuple[ByClient, ...] = field(repr=False)
    guess: tuple[ByClient, ...] = field(repr=False)
    colluders: int
    least: int
    readable: bool


@dataclass(frozen=True, slots=True)
class Collusion(Attack[CollusionEstimate]):
    """The honest clients' votes, given to them at random; exact where one of them is left."""

    name: ClassVar[str] = "collusion"
    title: ClassVar[str] = "Honest clients' votes, with clients on the server's side"
    figure_name: ClassVar[str] = "honest votes with their author"
    control_name: ClassVar[str] = "the same without colluders"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.READ_SUMS, Capability.COLLUDE}),
    )

    def run(self, view: View, seed: int) -> CollusionEstimate:
        """What the colluders' uploads leave of every sum."""
        view.require_any(*self.needs)
        rng = np.random.default_rng(substream(seed, "allotment"))
        sums = [
            (seen, seen.total, seen.colluders)
            for seen in view.rounds
            if seen.total is not None and seen.colluders is not None
        ]
        if not sums:
            raise LocalError("collusion: no round has both a sum and colluders")
        guess = [allot(in_votes(total, seen), seen.survivors, rng) for seen, total, _ in sums]
        return CollusionEstimate(
            tuple(_claims(seen, total, own, rng) for seen, total, own in sums),
            tuple(_without(g, own) for g, (_, _, own) in zip(guess, sums, strict=True)),
            max(len(own) for _, _, own in sums),
            min(len(seen.survivors) - len(own) for seen, _, own in sums),
            any(seen.uploads is not None for seen, _, _ in sums),
        )

    def score(self, estimate: CollusionEstimate, said: Sequence[Said], seed: int) -> AttackResult:
        """Share of the honest clients' votes, before any noise, that are given their author."""
        require_same_rounds(said, len(estimate.claims))
        meant = [heard.meant for heard in said]
        share = mean(_right(estimate.claims, meant), seed)
        return AttackResult(
            name=self.name,
            title=f"{self.title} ({estimate.colluders})",
            figure=share.value,
            figure_name="honest votes with their author",
            unit="",
            interval=share.interval,
            control=float(np.mean(_right(estimate.guess, meant))),
            control_name="the same without colluders",
            n_members=sum(len(claims) for claims in estimate.claims),
            caveats=_caveats(estimate),
            details={
                "colluders": float(estimate.colluders),
                "fewest_honest_in_a_sum": float(estimate.least),
                "against_uploads": float(
                    np.mean(_right(estimate.claims, [heard.sent for heard in said]))
                ),
            },
        )


def _claims(
    seen: ObservedRound,
    total: UnitArray,
    own: Mapping[int, UnitArray],
    rng: np.random.Generator,
) -> ByClient:
    if seen.uploads is not None:
        return {k: named(in_votes(u, seen)) for k, u in seen.uploads.items() if k not in own}
    rest = in_votes(total, seen) - sum(in_votes(units, seen) for units in own.values())
    honest = [k for k in seen.survivors if k not in own]
    if len(honest) == 1:
        return {honest[0]: named(rest)}
    return allot(rest, honest, rng)


def _without(claims: ByClient, own: Mapping[int, UnitArray]) -> ByClient:
    return {k: classes for k, classes in claims.items() if k not in own}


def _right(claims: Sequence[ByClient], truth: Sequence[ByClient]) -> list[float]:
    """By round, of the votes that honest clients cast, the share whose author is named."""
    shares = []
    for claimed, true in zip(claims, truth, strict=True):
        cast = [(true[k] != ABSTAIN, true[k] == classes) for k, classes in claimed.items()]
        hits = sum(int((there & same).sum()) for there, same in cast)
        shares.append(hits / max(1, sum(int(there.sum()) for there, _ in cast)))
    return shares


def _caveats(estimate: CollusionEstimate) -> tuple[str, ...]:
    exact = "one honest client was left in a sum: the others' uploads leave its vector exactly"
    needless = "uploads are readable here, so that nobody needs colluders"
    return (
        *((exact,) if estimate.least == 1 else ()),
        *((needless,) if estimate.readable else ()),
        "colluders tell their uploads; the keys that they hold open nothing more",
        "the interval covers the rounds of one run",
    )


# Sums that show exactly one vote are that vote: masks hide its author there, not the vote.


@dataclass(frozen=True, slots=True, eq=False)
class SingleEstimate:
    """By round, [m]: the class of the one vote, ABSTAIN where a sum shows none, or more; and the
    class that the public alone suggests."""

    read: tuple[IntArray, ...] = field(repr=False)
    suggested: tuple[IntArray, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SingleContributor(Attack[SingleEstimate]):
    """Every proxy whose count is one vote, or less where votes have weights."""

    name: ClassVar[str] = "single-contributor"
    title: ClassVar[str] = "Votes read from sums of one"
    figure_name: ClassVar[str] = "votes read, author unknown"
    control_name: ClassVar[str] = "the public labels of the same proxies"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (frozenset({Capability.READ_SUMS}),)

    def run(self, view: View, seed: int) -> SingleEstimate:
        """The votes that stand alone."""
        view.require_any(*self.needs)
        suggestion = _suggestion(view.public, substream(seed, "suggestion"))
        rounds = summed(view.rounds)
        return SingleEstimate(
            tuple(np.where(v.sum(axis=1) <= WHOLE, named(v), ABSTAIN) for _, v in rounds),
            tuple(suggestion[seen.ensemble.indices] for seen, _ in rounds),
        )

    def score(self, estimate: SingleEstimate, said: Sequence[Said], seed: int) -> AttackResult:
        """Share of all votes, before any noise, that are read; the interval is over rounds."""
        require_same_rounds(said, len(estimate.read))
        tables = [_Table.of(heard) for heard in said]
        both = list(zip(tables, estimate.read, estimate.suggested, strict=True))
        cast = np.array([table.cast for table in tables])
        hits = np.array([table.right(read).sum() for table, read, _ in both])
        alike = np.array(
            [table.right(np.where(r != ABSTAIN, s, ABSTAIN)).sum() for table, r, s in both]
        )
        claims = sum(int((read != ABSTAIN).sum()) for read in estimate.read)
        answered = sum(int((table.sent != ABSTAIN).any(axis=0).sum()) for table in tables)
        alone = sum(int(table.alone.sum()) for table in tables)
        share = mean(hits / np.maximum(1, cast), seed)
        total = max(1, int(cast.sum()))
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=share.value,
            figure_name="votes read, author unknown",
            unit="",
            interval=share.interval,
            control=float(np.mean(alike / np.maximum(1, cast))),
            control_name="the public labels of the same proxies",
            n_members=total,
            caveats=_caveats_single_contributor(claims),
            details={
                "answered_by_exactly_one": alone / max(1, answered),
                "votes_read": float(hits.sum()),
                "claims": float(claims),
                "claims_right": float(hits.sum()) / max(1, claims),
                "read_where_label_differs": _unexpected(both),
                "author_right_by_chance": float(
                    np.mean([1.0 / max(1, len(heard.sent)) for heard in said])
                ),
                "author_right_if_classes_known": _by_class(both),
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """sent, meant: [clients of the sum, m] classes."""

    clients: IntArray
    sent: IntArray
    meant: IntArray

    @classmethod
    def of(cls, said: Said) -> "_Table":
        clients = sorted(said.sent)
        rows = [np.stack([part[k] for k in clients]) for part in (said.sent, said.meant)]
        return cls(np.array(clients), rows[0], rows[1])

    @property
    def cast(self) -> int:
        return int((self.meant != ABSTAIN).sum())

    @property
    def alone(self) -> NDArray[np.bool_]:
        """[m] whether exactly one client contributed."""
        return np.asarray((self.sent != ABSTAIN).sum(axis=0) == 1)

    def right(self, classes: IntArray) -> NDArray[np.bool_]:
        """[m] whether some client of the sum meant this class."""
        return np.asarray(((self.meant == classes) & (classes != ABSTAIN)).any(axis=0))


_Scored = Sequence[tuple[_Table, IntArray, IntArray]]


def _suggestion(public: Public, seed: int) -> IntArray:
    """[P] the label of each proxy; where nobody labelled them, any class."""
    if public.labels is not None:
        return np.asarray(public.labels.numpy(), dtype=np.int64)
    rng = np.random.default_rng(seed)
    return rng.integers(public.n_classes, size=len(public.proxies))


def _unexpected(scored: _Scored) -> float:
    """Of the votes that the public labels do not foretell, the share that was read."""
    pairs = [
        (table.right(np.where(read != suggested, read, ABSTAIN)).sum(), _off(table, suggested))
        for table, read, suggested in scored
    ]
    found, there = np.sum(pairs, axis=0) if pairs else (0, 0)
    return float(found / max(1, there))


def _off(table: _Table, suggested: IntArray) -> int:
    return int(((table.meant != ABSTAIN) & (table.meant != suggested)).sum())


def _by_class(scored: _Scored) -> float:
    """Of the votes read, the share whose author is the client that names their class most."""
    if not scored:
        return 0.0
    clients = 1 + max(int(table.clients.max()) for table, _, _ in scored)
    classes = 1 + max(int(table.meant.max(initial=0)) for table, _, _ in scored)
    votes = np.zeros((clients, classes))
    for table, _, _ in scored:
        for k, row in zip(table.clients, table.meant, strict=True):
            votes[k] += np.bincount(row[row != ABSTAIN], minlength=classes)
    holder, right, read = votes.argmax(axis=0), 0, 0
    for table, classes_read, _ in scored:
        at = np.flatnonzero(table.right(classes_read))
        authors = table.clients[(table.meant[:, at] == classes_read[at]).argmax(axis=0)]
        right += int((authors == holder[classes_read[at]]).sum())
        read += len(at)
    return right / max(1, read)


def _caveats_single_contributor(claims: int) -> tuple[str, ...]:
    none = () if claims else ("no sum shows exactly one vote",)
    return (
        *none,
        "a vote about a labelled proxy is mostly its label: only the difference to the control is "
        "news, and that everybody else abstained",
        "the interval covers the rounds of one run",
    )


# Known noise on class totals, undone.


Debias = Callable[[FloatArray, int], FloatArray]
"""(class totals [C] in votes, answers asked for) -> unbiased totals: public noise, undone."""


def undoing(response: RandomizedResponse) -> Debias:
    """Takes the label unit's noise off class totals: its chances p and q are public."""

    def debias(votes: FloatArray, asked: int) -> FloatArray:
        return (votes - asked * response.q) / (response.p - response.q)

    return debias
