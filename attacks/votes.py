"""Votes and their authors: the truth, claims; attribution, colluders, sums of one vote."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from attacks.base import (
    ABSTAIN,
    NEVER,
    Attack,
    AttackResult,
    Distributions,
    FloatArray,
    substream,
)
from attacks.scoring import right_by_group, score_distributions
from attacks.view import Capability, ObservedRound, Public, View
from secure_fd.data.images import Images
from secure_fd.errors import LocalError, PeerError
from secure_fd.knowledge import Contribution, IntArray, LaneLayout, Released, UnitArray, WordArray
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.protection.base import Answer, Guard, NoProtection, Protection
from secure_fd.protection.label import LabelGuard, LabelUnit
from secure_fd.protection.record import RecordUnit
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


WHOLE: Final = 1.0 + 1e-9
"""One vote, and the rounding of a sum of units."""
ByClient = Mapping[int, IntArray]
"""By client, the class [m] that it names for each proxy, or ABSTAIN."""


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """The votes of the clients of one sum about its proxies: the truth that scores an attack.

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
    """Give the votes [m, C] of a sum to clients at random: all that a sum shows of its authors.

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
    """[K, P] each client's last class for each proxy; NEVER where it was in no sum."""
    table = np.full(shape, NEVER, dtype=np.int64)
    for indices, said in rounds:
        for client, classes in said.items():
            table[client, indices] = classes
    return table


def claims_table(rounds: Sequence[ByClient], clients: int) -> IntArray:
    """[R, K, m] what is claimed of each client in each round; NEVER where nothing is."""
    most = max((len(ids) for said in rounds for ids in said.values()), default=0)
    table = np.full((len(rounds), clients, most), NEVER, dtype=np.int64)
    for row, said in zip(table, rounds, strict=True):
        for client, classes in said.items():
            row[client, : len(classes)] = classes
    return table


def require_same_rounds(said: Sequence[Said], rounds: int) -> None:
    """LocalError where truth and estimate are of different numbers of sums."""
    if len(said) != rounds:
        raise LocalError(f"said: {len(said)} rounds are not allowed; the attack saw {rounds} sums")


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Kept:
    """By round, and in it by client: uploads [m * C], and answers [m] before any noise."""

    uploads: list[dict[int, UnitArray]] = field(default_factory=list, repr=False)
    answers: list[dict[int, IntArray]] = field(default_factory=list, repr=False)


class Recorder(Protection):
    """Keeps every upload, the truth that scores attacks on sums; a run changes by no bit.

    An experiment holds it, never an attacker. A client out of order begins another round.
    """

    kept: Kept

    def _guard(self, number: int, records: Images | None) -> Any:  # noqa: ANN401 - as the protection
        guard: Guard = super()._guard(number, records)
        perturb = guard.perturb

        def kept(units: WordArray) -> UnitArray:
            _add(self.kept.uploads, number, units)
            return perturb(units)

        guard.perturb = kept  # type: ignore[method-assign]  # the same integers
        return guard


class RecordedClear(Recorder, NoProtection):
    """No protection."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept()


class RecordedLabels(Recorder, LabelUnit):
    """The label unit, with the answers that it makes noisy."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta)
        self.kept = Kept()

    def _guard(self, number: int, records: Images | None) -> LabelGuard:
        guard: LabelGuard = super()._guard(number, records)
        release = guard.release

        def kept(indices: IntArray, answer: Answer) -> Released:
            def recorded(asked: IntArray) -> Contribution:
                honest = answer(asked)
                said = named(honest.weights[:, None] * honest.predictions)
                _add(self.kept.answers, number, said)
                return honest

            return release(indices, recorded)

        guard.release = kept  # type: ignore[method-assign]  # the same release
        return guard


class RecordedRecords(Recorder, RecordUnit):
    """The record unit, which asks for no answers."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(epsilon, delta)
        self.kept = Kept()


def statements(recorder: Recorder, transcript: Transcript) -> tuple[Said, ...]:
    """The votes of the clients of every sum of a run, in the order of its rounds."""
    return tuple(
        Said(
            record.proxy_indices,
            {k: named(in_votes(uploads[k], record)) for k in record.survivors},
            {k: answers[k] for k in record.survivors}
            if answers
            else {k: named(in_votes(uploads[k], record)) for k in record.survivors},
        )
        for record, uploads, answers in _matched(recorder.kept, transcript)
    )


def told(
    recorder: Recorder, transcript: Transcript, colluders: range
) -> tuple[dict[int, UnitArray], ...]:
    """By sum of a run, the uploads of those colluders that are in it."""
    return tuple(
        {k: uploads[k] for k in colluders if k in record.survivors}
        for record, uploads, _ in _matched(recorder.kept, transcript)
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
    """Clients come in ascending order within a round."""
    if not rounds or client <= max(rounds[-1]):
        rounds.append({})
    rounds[-1][client] = value


_SHUFFLES = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Holders:
    """Labels and votes of all clients. histograms: [K, C] true label counts."""

    histograms: FloatArray = field(repr=False)
    said: Sequence["Said"] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Attribution(Attack[Distributions, Holders]):
    """One class for each client, as evenly many clients for each class as can be.

    A server that knows that clients hold one class each needs only the right order of the classes:
    the assignment of most evidence (Kuhn, "The Hungarian method", 1955). Under masks it reads the
    words all the same, as if they were votes: if masks hide, it finds one order among K!.
    """

    name = "attribution"
    title = "Which client holds which class"
    figure_name = "clients given their class"
    control_name = "the same classes in random order"
    needs = (frozenset({Capability.READ_SUMS, Capability.READ_PAYLOADS}),)

    def run(self, view: View, seed: int) -> Distributions:
        """The assignment of most evidence; equal ones are told apart at random."""
        view.require_any(*self.needs)
        public = view.public
        evidence = np.zeros((public.n_clients, public.n_classes))
        for seen in view.rounds:
            for client, totals in _class_totals(seen, public).items():
                evidence[client] += totals
        found = assign(evidence, substream(seed, "ties"))
        return Distributions(found, found, others={"evidence": Distributions(evidence, found)})

    def score(self, estimate: Distributions, truth: Holders, seed: int) -> AttackResult:
        """Share of clients whose class is right, and of the votes whose author it names."""
        counts = np.asarray(truth.histograms, dtype=np.float64)
        if counts.shape[:1] != estimate.rows.shape:
            raise LocalError(f"histograms: {counts.shape}; use [{len(estimate.rows)}, C]")
        held, found = counts.argmax(axis=1), estimate.rows.astype(np.int64)
        return score_distributions(
            self,
            estimate,
            held,
            seed,
            control=float((found[:, None] == held[None, :]).mean()),
            caveats=_CAVEATS,
            details={
                "all_clients_right": float((found == held).all()),
                "chance_of_all_right": 1.0 / math.factorial(len(held)),
                "p_value": p_value(found, held, substream(seed, "shuffles")),
                "votes_given_their_author": _authors(found, truth.said),
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


@dataclass(frozen=True, slots=True)
class Collusion(Attack[Distributions, Sequence[Said]]):
    """The honest clients' votes, given to them at random; exact where one of them is left."""

    name = "collusion"
    title = "Honest clients' votes, with clients on the server's side"
    figure_name = "honest votes with their author"
    control_name = "the same without colluders"
    needs = (frozenset({Capability.READ_SUMS, Capability.COLLUDE}),)

    def run(self, view: View, seed: int) -> Distributions:
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
        claims = [_claims(seen, total, own, rng) for seen, total, own in sums]
        without = [_without(g, own) for g, (_, _, own) in zip(guess, sums, strict=True)]
        colluders = max(len(own) for _, _, own in sums)
        least = min(len(seen.survivors) - len(own) for seen, _, own in sums)
        readable = any(seen.uploads is not None for seen, _, _ in sums)
        return Distributions(
            claims_table(claims, view.public.n_clients),
            claims_table(without, view.public.n_clients),
            target=str(colluders),
            details={"colluders": float(colluders), "fewest_honest_in_a_sum": float(least)},
            caveats=_caveats(least, readable=readable),
        )

    def score(self, estimate: Distributions, truth: Sequence[Said], seed: int) -> AttackResult:
        """Share of the honest clients' votes, before any noise, that are given their author."""
        require_same_rounds(truth, len(estimate.rows))
        claims = estimate.rows.astype(np.int64)
        meant, sent = (
            np.where(claims == NEVER, NEVER, claims_table(said, claims.shape[1]))
            for said in ([heard.meant for heard in truth], [heard.sent for heard in truth])
        )
        return score_distributions(
            self,
            estimate,
            meant,
            seed,
            n_members=int((claims != NEVER).any(axis=2).sum()),
            details={"against_uploads": float(right_by_group(claims, sent).mean())},
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


def _caveats(least: int, *, readable: bool) -> tuple[str, ...]:
    exact = "one honest client was left in a sum: the others' uploads leave its vector exactly"
    needless = "uploads are readable here, so that nobody needs colluders"
    return (
        *((exact,) if least == 1 else ()),
        *((needless,) if readable else ()),
        "colluders tell their uploads; the keys that they hold open nothing more",
        "the interval covers the rounds of one run",
    )


@dataclass(frozen=True, slots=True)
class SingleContributor(Attack[Distributions, Sequence[Said]]):
    """Every proxy whose count is one vote, or less where votes have weights."""

    name = "single-contributor"
    title = "Votes read from sums of one"
    figure_name = "votes read, author unknown"
    control_name = "the public labels of the same proxies"
    needs = (frozenset({Capability.READ_SUMS}),)

    def run(self, view: View, seed: int) -> Distributions:
        """The votes that stand alone."""
        view.require_any(*self.needs)
        suggestion = _suggestion(view.public, substream(seed, "suggestion"))
        rounds = summed(view.rounds)
        read = [np.where(v.sum(axis=1) <= WHOLE, named(v), ABSTAIN) for _, v in rounds]
        suggested = [suggestion[seen.ensemble.indices] for seen, _ in rounds]
        rows, guess = (
            claims_table([{0: ids} for ids in said], 1)[:, 0] for said in (read, suggested)
        )
        claims = int((rows >= 0).sum())
        return Distributions(
            rows,
            guess,
            details={"claims": float(claims)},
            caveats=_caveats_single_contributor(claims),
        )

    def score(self, estimate: Distributions, truth: Sequence[Said], seed: int) -> AttackResult:
        """Share of all votes, before any noise, that are read; the interval is over rounds.

        A vote that is read counts for the first client who cast it: its author stays unknown.
        """
        require_same_rounds(truth, len(estimate.rows))
        tables = [_Table.of(heard) for heard in truth]
        sizes = [table.meant.shape[1] for table in tables]
        reads, labels = (
            [row[:m].astype(np.int64) for row, m in zip(rows, sizes, strict=True)]
            for rows in (estimate.rows, estimate.guess)
        )
        both = list(zip(tables, reads, labels, strict=True))
        alike = [np.where(r != ABSTAIN, s, ABSTAIN) for _, r, s in both]
        placed, without = (
            _stacked([table.placed(ids) for table, ids in zip(tables, said, strict=True)])
            for said in (reads, alike)
        )
        meant = _stacked([table.meant for table in tables])
        cast = np.array([table.cast for table in tables])
        hits = sum(int(table.right(read).sum()) for table, read, _ in both)
        answered = sum(int((table.sent != ABSTAIN).any(axis=0).sum()) for table in tables)
        alone = sum(int(table.alone.sum()) for table in tables)
        return score_distributions(
            self,
            replace(estimate, rows=placed, guess=without),
            meant,
            seed,
            n_members=max(1, int(cast.sum())),
            details={
                "answered_by_exactly_one": alone / max(1, answered),
                "votes_read": float(hits),
                "claims_right": hits / max(1.0, estimate.details["claims"]),
                "read_where_label_differs": _unexpected(both),
                "author_right_by_chance": float(
                    np.mean([1.0 / max(1, len(heard.sent)) for heard in truth])
                ),
                "author_right_if_classes_known": _by_class(both),
            },
        )


def _stacked(tables: Sequence[IntArray]) -> IntArray:
    """[R, K, m] of tables [k, m] of any sizes; NEVER where one is smaller."""
    clients, most = (max((t.shape[axis] for t in tables), default=0) for axis in (0, 1))
    stacked = np.full((len(tables), clients, most), NEVER, dtype=np.int64)
    for row, table in zip(stacked, tables, strict=True):
        row[: table.shape[0], : table.shape[1]] = table
    return stacked


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

    def placed(self, classes: IntArray) -> IntArray:
        """[clients, m] each class at the first client who meant it; NEVER elsewhere."""
        placed = np.full_like(self.meant, NEVER)
        at = np.flatnonzero(self.right(classes))
        placed[(self.meant[:, at] == classes[at]).argmax(axis=0), at] = classes[at]
        return placed

    def right(self, classes: IntArray) -> NDArray[np.bool_]:
        """[m] whether some client of the sum meant this class."""
        return np.asarray(((self.meant == classes) & (classes != ABSTAIN)).any(axis=0))


_Scored = Sequence[tuple[_Table, IntArray, IntArray]]


def _suggestion(public: Public, seed: int) -> IntArray:
    """[P] the label of each proxy; without labels, any class."""
    if public.labels is not None:
        return np.asarray(public.labels.numpy(), dtype=np.int64)
    rng = np.random.default_rng(seed)
    return rng.integers(public.n_classes, size=len(public.proxies))


def _unexpected(scored: _Scored) -> float:
    """Of the votes that differ from the public labels, the share that was read."""
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


Debias = Callable[[FloatArray, int], FloatArray]
"""(class totals [C] in votes, answers asked for) -> unbiased totals: public noise, undone."""


def undoing(response: RandomizedResponse) -> Debias:
    """Takes the label unit's noise off class totals: its chances p and q are public."""

    def debias(votes: FloatArray, asked: int) -> FloatArray:
        return (votes - asked * response.q) / (response.p - response.q)

    return debias
