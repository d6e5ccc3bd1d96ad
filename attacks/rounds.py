"""Two sums about one proxy whose clients differ by one: their difference is that client's vote.

Up to what the others changed their minds about: a difference that no single vote can make is
dropped, and of several differences for one client and proxy the most frequent counts.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from torch import Tensor

from attacks.base import Attack, AttackResult, FloatArray, substream
from attacks.scoring import (
    distribution,
    distributions,
    mean,
    share_error,
    total_variation,
    true_shares,
)
from attacks.view import AnswerFunction, Capability, ObservedRound, Public, View
from attacks.votes import (
    ABSTAIN,
    NEVER,
    WHOLE,
    ByClient,
    Debias,
    Said,
    allot,
    by_client,
    named,
    newest,
    require_same_rounds,
    summed,
)
from secure_fd.aggregation.masked import Meter, set_up
from secure_fd.crypto.primitives import IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import SESSION_BYTES, Roster, RoundTerms, Session

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DifferencingEstimate:
    """What is claimed of [K, P]: a class or ABSTAIN, NEVER where nothing is.

    shown: by differences alone. claims: and by giving the rest of each sum to its other clients at
    random. guess: the same without differences. pairs: of rounds that differ by one client.
    differences: single ones; dropped: those that no one vote makes. rounds: with a sum.
    """

    shown: IntArray = field(repr=False)
    claims: IntArray = field(repr=False)
    guess: IntArray = field(repr=False)
    pairs: int
    differences: int
    dropped: int
    rounds: int
    readable: bool


@dataclass(frozen=True, slots=True)
class Differencing(Attack[DifferencingEstimate]):
    """All pairs of rounds whose clients differ by one."""

    name: ClassVar[str] = "differencing"
    title: ClassVar[str] = "Votes from two sums that differ by one client"
    figure_name: ClassVar[str] = "votes recovered, with their author"
    control_name: ClassVar[str] = "votes of each sum given to its clients at random"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (frozenset({Capability.READ_SUMS}),)

    def run(self, view: View, seed: int) -> DifferencingEstimate:
        """The votes that differences show."""
        view.require_any(*self.needs)
        shape = (view.public.n_clients, len(view.public.proxies))
        rng = np.random.default_rng(substream(seed, "ties"))
        rounds = summed(view.rounds)
        tally = np.zeros((*shape, view.public.n_classes + 1), dtype=np.int64)
        pairs, differences, dropped = 0, 0, 0
        for (one, first), (other, second) in combinations(rounds, 2):
            alone = set(one.survivors) ^ set(other.survivors)
            if len(alone) != 1:
                continue
            (client,) = alone
            found = _common(one.ensemble.indices, other.ensemble.indices)
            sign = 1.0 if client in one.survivors else -1.0
            gap = sign * (first[found.at_one] - second[found.at_other])
            fits = (gap.min(axis=1, initial=0.0) >= 0) & (gap.sum(axis=1) <= WHOLE)
            classes = named(np.clip(gap[fits], 0.0, None))
            tally[client, found.proxies[fits], classes] += 1  # ABSTAIN, -1, is the last column
            pairs += 1
            differences += len(fits)
            dropped += int((~fits).sum())
        shown = _most_frequent(tally, rng)
        return DifferencingEstimate(
            shown,
            _completed(rounds, shown, substream(seed, "allotment")),
            _completed(rounds, np.full(shape, NEVER), substream(seed, "allotment")),
            pairs,
            differences,
            dropped,
            len(rounds),
            any(seen.uploads is not None for seen, _ in rounds),
        )

    def score(
        self, estimate: DifferencingEstimate, said: Sequence[Said], seed: int
    ) -> AttackResult:
        """Share of the (client, proxy) votes, before any noise, that are recovered.

        A client's last vote about a proxy is the truth of the pair.
        """
        require_same_rounds(said, estimate.rounds)
        shape = (estimate.claims.shape[0], estimate.claims.shape[1])
        meant = newest(((heard.indices, heard.meant) for heard in said), shape)
        sent = newest(((heard.indices, heard.sent) for heard in said), shape)
        recall = mean(_recall(estimate.claims, meant), seed)
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=recall.value,
            figure_name="votes recovered, with their author",
            unit="",
            interval=recall.interval,
            control=float(_recall(estimate.guess, meant).mean()),
            control_name="votes of each sum given to its clients at random",
            n_members=int((meant >= 0).sum()),
            caveats=_caveats(estimate),
            details={
                "shown_votes": float((estimate.shown >= 0).sum()),
                "shown_precision": _precision(estimate.shown, meant),
                "shown_recall": float(_recall(estimate.shown, meant).mean()),
                "shown_precision_against_uploads": _precision(estimate.shown, sent),
                "shown_recall_against_uploads": float(_recall(estimate.shown, sent).mean()),
                "shown_abstentions": _share(estimate.shown == ABSTAIN, meant == ABSTAIN),
                "precision": _precision(estimate.claims, meant),
                "precision_of_control": _precision(estimate.guess, meant),
                "pairs_of_rounds": float(estimate.pairs),
                "differences": float(estimate.differences),
                "dropped": estimate.dropped / max(1, estimate.differences),
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Common:
    proxies: IntArray
    at_one: IntArray
    at_other: IntArray


def _common(one: IntArray, other: IntArray) -> _Common:
    return _Common(*np.intersect1d(one, other, assume_unique=True, return_indices=True))


def _completed(
    rounds: Sequence[tuple[ObservedRound, FloatArray]], shown: IntArray, seed: int
) -> IntArray:
    """[K, P] what is shown, and where nothing is, a random share of the newest sum's votes."""
    rng = np.random.default_rng(seed)
    allotted: list[tuple[IntArray, ByClient]] = []
    for seen, votes in rounds:
        known = {k: shown[k, seen.ensemble.indices] for k in seen.survivors}
        allotted.append((seen.ensemble.indices, allot(votes, seen.survivors, rng, known)))
    return newest(allotted, (shown.shape[0], shown.shape[1]))


def _most_frequent(tally: IntArray, rng: np.random.Generator) -> IntArray:
    """[K, P] of tallies [K, P, C + 1] the largest, ties at random; NEVER where all are zero."""
    some = tally.any(axis=2)
    found = np.full(some.shape, NEVER, dtype=np.int64)
    rows = tally[some]
    best = (rows + rng.random(rows.shape)).argmax(axis=1)
    found[some] = np.where(best == tally.shape[2] - 1, ABSTAIN, best)
    return found


def _recall(claims: IntArray, truth: IntArray) -> FloatArray:
    """Of each client's votes, the share that is claimed."""
    return by_client(claims == truth, truth >= 0)


def _precision(claims: IntArray, truth: IntArray) -> float:
    return _share(claims == truth, claims >= 0)


def _share(hits: BoolArray, among: BoolArray) -> float:
    return float((hits & among).sum() / max(1, int(among.sum())))


def _caveats(estimate: DifferencingEstimate) -> tuple[str, ...]:
    nothing = "no proxy came up in two sums that differ by one client: nothing to subtract"
    needless = "uploads are readable here, so that nobody needs differences"
    return (
        *((nothing,) if not estimate.differences else ()),
        *((needless,) if estimate.readable else ()),
        "pairs of sums alone were tried: combinations of more sums may find more",
        "the interval covers clients, not runs",
    )


# Who took part explains what came: class totals of many sums, regressed on their participants.
#
# The sums of R rounds are T = A D, but for chance, where A [R, K] says who was in which sum and D
# [K, C] is what each client votes a round. Where clients drop out A has rank, and least squares
# give D, masks or not (Lam et al., "Gradient Disaggregation: Breaking Privacy in Federated
# Learning
# by Reconstructing the User Participant Matrix", ICML 2021; there A is unknown as well, here the
# server knows it). Where nobody ever drops out every client gets the same guess.


LOOKS = (5, 10, 20, 30)
"""After so many sums the estimate is looked at on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class ParticipationEstimate:
    """shares: by the number of sums used, [K, C] a distribution a client; the last uses all.

    guess: [C] from all totals. identified: [K] whether participation tells the client apart.
    rank: of the participation matrix. rounds: sums seen.
    """

    shares: Mapping[int, FloatArray] = field(repr=False)
    guess: FloatArray = field(repr=False)
    identified: NDArray[np.bool_] = field(repr=False)
    rank: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Participation(Attack[ParticipationEstimate]):
    """Non-negative least squares, class by class, drawn to the mean of all clients.

    ridge: the weight of that mean, in rounds. debias: undoes a noise whose parameters are public.
    """

    name: ClassVar[str] = "participation"
    title: ClassVar[str] = "Label distribution from who took part"
    figure_name: ClassVar[str] = "TV error (0: known)"
    control_name: ClassVar[str] = "the same guess for every client, from the totals"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (frozenset({Capability.READ_SUMS}),)

    debias: Debias | None = None
    ridge: float = 0.5

    def run(self, view: View, seed: int) -> ParticipationEstimate:  # noqa: ARG002 - least squares need no chance
        """A distribution for every client."""
        view.require_any(*self.needs)
        rounds = [(seen, self._totals(seen, votes)) for seen, votes in summed(view.rounds)]
        if not rounds:
            raise LocalError("participation: not one sum was seen")
        there = np.zeros((len(rounds), view.public.n_clients))
        for row, (seen, _) in zip(there, rounds, strict=True):
            row[list(seen.survivors)] = 1.0
        totals = _at_par(np.stack([t for _, t in rounds]), [s for s, _ in rounds], view.public)
        looks = sorted({*(n for n in LOOKS if n < len(rounds)), len(rounds)})
        guess = distribution(totals.sum(axis=0), np.ones(view.public.n_classes))
        shares = {n: distributions(self._solve(there[:n], totals[:n]), guess) for n in looks}
        rank = int(np.linalg.matrix_rank(there))
        return ParticipationEstimate(shares, guess, _identified(there), rank, len(rounds))

    def score(
        self, estimate: ParticipationEstimate, histograms: ArrayLike, seed: int
    ) -> AttackResult:
        """Mean total-variation error over clients; histograms: [K, C] true label counts."""
        last = estimate.shares[estimate.rounds]
        truth = true_shares(histograms, last, estimate.guess)
        by_rounds = {
            f"error_after_{n}_sums": float(total_variation(shares, truth).mean())
            for n, shares in estimate.shares.items()
        }
        return share_error(
            (self.name, self.title),
            last,
            estimate.guess,
            truth,
            caveats=_caveats_participation(estimate),
            details={
                "clients_told_apart": float(estimate.identified.sum()),
                "rank": float(estimate.rank),
                "sums": float(estimate.rounds),
                **by_rounds,
            },
            seed=seed,
        )

    def _totals(self, seen: ObservedRound, votes: FloatArray) -> FloatArray:
        """[C] votes a class in one sum, free of the bias of known noise."""
        asked = len(votes) * len(seen.survivors)
        totals = np.asarray(votes.sum(axis=0))
        return totals if self.debias is None else self.debias(totals, asked)

    def _solve(self, there: FloatArray, totals: FloatArray) -> FloatArray:
        """[K, C] non-negative votes a round: min |A d - t|^2 + ridge |d - mean|^2 by class."""
        clients = there.shape[1]
        average = np.clip(totals.sum(axis=0), 0.0, None) / max(1.0, there.sum())
        matrix = np.vstack([there, np.sqrt(self.ridge) * np.eye(clients)])
        drawn_to = np.sqrt(self.ridge) * np.tile(average, (clients, 1))
        return np.stack([nnls(matrix, t)[0] for t in np.vstack([totals, drawn_to]).T], axis=1)


def _at_par(totals: FloatArray, rounds: Sequence[ObservedRound], public: Public) -> FloatArray:
    """[R, C] totals as if every round had asked about equally many proxies of each class.

    Without labels, about equally many proxies.
    """
    asked = np.ones_like(totals) * np.array([[len(seen.ensemble.indices)] for seen in rounds])
    if public.labels is not None:
        labels = public.labels.numpy()
        drawn = [labels[seen.ensemble.indices] for seen in rounds]
        asked = np.stack([np.bincount(d, minlength=totals.shape[1]) for d in drawn]).astype(float)
    return np.asarray(totals * asked.mean(axis=0) / np.maximum(1.0, asked))


def _identified(there: FloatArray) -> NDArray[np.bool_]:
    """[K] whether the client's own part follows from the sums: e_k is in the row space of A."""
    projector = np.linalg.pinv(there) @ there
    return np.asarray(np.isclose(np.diag(projector), 1.0))


def _caveats_participation(estimate: ParticipationEstimate) -> tuple[str, ...]:
    apart = int(estimate.identified.sum())
    alike = f"{apart} of {len(estimate.identified)} clients are told apart by who took part"
    return (alike, "votes measure what a client predicts, not how many records it holds")


# A lying server gives one client the images that it asks about, and all others a decoy.
#
# If the others abstain about the decoy, the "sum" is that client's vote. A masked sum whose masks
# are bound to what the votes are about does not open then.


VOID = -2
"""In place of a class: the round gave no sum."""


@dataclass(frozen=True, slots=True, eq=False)
class SplitEstimate:
    """indices: [n] the proxies asked about. isolated: [K, n] classes, ABSTAIN, or VOID.

    queries: images asked about, each of every client alone.
    """

    indices: IntArray = field(repr=False)
    isolated: IntArray = field(repr=False)
    queries: int


@dataclass(frozen=True, slots=True)
class InconsistentProxies(Attack[SplitEstimate]):
    """Asks every client alone about `probes` public proxies."""

    name: ClassVar[str] = "inconsistent-proxies"
    title: ClassVar[str] = "Different proxies to different clients"
    figure_name: ClassVar[str] = "votes isolated"
    control_name: ClassVar[str] = "votes of an honest sum given to clients at random"
    needs: ClassVar[tuple[frozenset[Capability], ...]] = (
        frozenset({Capability.SPLIT_VIEWS, Capability.PUBLIC_PROXIES}),
    )

    probes: int = 100

    def run(self, view: View, seed: int) -> SplitEstimate:
        """The votes read while everybody else was shown a decoy.

        The oracle answers [N, K, C]: row k is the sum that the server opened while client k alone
        was shown the image, and not a number where the round was void.
        """
        view.require_any(*self.needs)
        proxies = view.public.proxies
        rng = np.random.default_rng(substream(seed, "probes"))
        indices = np.sort(rng.permutation(len(proxies))[: self.probes])
        oracle = view.oracle(Capability.SPLIT_VIEWS)
        answers = oracle(proxies[torch.from_numpy(indices)]).double().numpy()
        if answers.shape != (len(indices), view.public.n_clients, view.public.n_classes):
            raise LocalError(f"answers: {answers.shape} is not allowed; one row a client")
        return SplitEstimate(
            indices,
            np.stack([_read(answers[:, k]) for k in range(answers.shape[1])]),
            oracle.queries,
        )

    def score(self, estimate: SplitEstimate, said: IntArray, seed: int) -> AttackResult:
        """Share of votes isolated; said: [K, n] what each client says of each probe, or ABSTAIN."""
        if said.shape != estimate.isolated.shape:
            raise LocalError(f"said: {said.shape} is not allowed; use {estimate.isolated.shape}")
        cast = said != ABSTAIN
        right = np.asarray((estimate.isolated == said) & cast)
        share = mean(by_client(right, cast), seed)
        void = float((estimate.isolated == VOID).mean())
        clients = len(said)
        return AttackResult(
            name=self.name,
            title=self.title,
            figure=share.value,
            figure_name="votes isolated",
            unit="",
            interval=share.interval,
            control=1.0 / clients,
            control_name="votes of an honest sum given to clients at random",
            queries=estimate.queries * clients,
            n_members=int(cast.sum()),
            caveats=_caveats_inconsistent(void),
            details={
                "void_rounds": void,
                "votes": float(cast.sum()),
                "abstentions_isolated": float(
                    ((estimate.isolated == ABSTAIN) & ~cast).sum() / max(1, int((~cast).sum()))
                ),
            },
        )


def _read(answers: FloatArray) -> IntArray:
    """[n] of sums [n, C] the class; VOID where there is none."""
    there = np.asarray(np.isfinite(answers).all(axis=1))
    classes = named(np.nan_to_num(answers))
    classes[~there] = VOID
    return classes


def _caveats_inconsistent(void: float) -> tuple[str, ...]:
    refused = "every round was void, which gives less than an honest one would"
    return (
        *((refused,) if void == 1.0 else ()),
        "the interval covers clients; a decoy about which others vote spoils what is isolated",
    )


# What a lying server does to isolate a client, against the real parties of a sum.
#
# It follows the protocol but for what it shows, so that nothing looks wrong to anybody, goes on
# with whoever answers where a client refuses, and tries to open what it has. Its terms are those
# of
# the clients with the decoy: they are the many, and sign for each other.


class SplitCohort(SecretHolder):
    """The real clients and server of a masked sum, of which the server lies."""

    __slots__ = ("_clients", "_index", "_server")

    def __init__(self, n_clients: int, random: RandomBytes = os.urandom) -> None:
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        session = Session(
            roster=Roster({k: key.public.raw for k, key in identities.items()}),
            configuration=b"",
            proxies=b"",
            nonce=draw(random, SESSION_BYTES),
        )
        self._server = Server(session)
        self._clients = {k: Client(k, key, session, random=random) for k, key in identities.items()}
        self._index = -1
        set_up(self._server, self._clients, Meter(), {})

    def ask(
        self,
        vectors: Mapping[int, WordArray],
        subjects: Mapping[int, bytes],
        bound: int,
        own: bytes,
    ) -> UnitArray | None:
        """One round: the sum, or None where it did not open.

        subjects: by client the digest of what it was shown. own: of what the server claims.
        """
        # Every second round, so that each starts with a PREPARE of its own.
        self._index += 2
        length = len(next(iter(vectors.values())))
        machines = {
            k: client.open_round(RoundTerms(self._index, length, bound, subjects[k]))
            for k, client in self._clients.items()
        }
        for k, machine in machines.items():
            machine.load(vectors[k])
        server = self._server.open_round(RoundTerms(self._index, length, bound, own))
        return _opened(server, machines)


@dataclass(frozen=True, slots=True, eq=False)
class SplitViews:
    """The oracle behind SPLIT_VIEWS for images [N, 1, H, W]: answers [N, K, C] in votes.

    Row k is the sum that opens while client k alone is shown the image and all others the decoy
    [1, H, W]; not a number where none opens. votes: of each client about any images, [N, K, C].
    levels: units a vote. cohort: None where the server reads every upload. binding: False for a
    sum that does not bind masks to the proxies, which is broken.
    """

    votes: AnswerFunction
    levels: int
    decoy: Tensor = field(repr=False)
    cohort: SplitCohort | None = None
    binding: bool = True

    def __call__(self, images: Tensor) -> Tensor:
        """The answers about these images."""
        asked = self.votes(images)
        if self.cohort is None:
            return asked
        decoys = self.decoy.expand(images.shape)
        shown, others = self._units(asked), self._units(self.votes(decoys))
        about, beside = self._subject(images), self._subject(decoys)
        rows = []
        for k in range(asked.shape[1]):
            vectors = {**others, k: shown[k]}
            subjects = {**dict.fromkeys(vectors, beside), k: about}
            total = self.cohort.ask(vectors, subjects, self.levels, beside)
            rows.append(self._in_votes(total, asked))
        return torch.stack(rows, dim=1)

    def _units(self, votes: Tensor) -> dict[int, WordArray]:
        """By client, the integers [N * C] that it uploads."""
        units = torch.round(votes * self.levels).numpy().astype(np.uint64)
        return {k: units[:, k].reshape(-1) for k in range(units.shape[1])}

    def _in_votes(self, total: UnitArray | None, asked: Tensor) -> Tensor:
        """[N, C] of a sum; not a number where there is none."""
        if total is None:
            return torch.full_like(asked[:, 0], torch.nan)
        return torch.from_numpy(total.astype(np.float64) / self.levels).view_as(asked[:, 0])

    def _subject(self, images: Tensor) -> bytes:
        """What a client that checks binds its masks to: a digest of what it was shown."""
        return hashlib.sha256(images.numpy().tobytes()).digest() if self.binding else b""


def _opened(server: ServerRound, clients: Mapping[int, ClientRound]) -> UnitArray | None:
    """Carry messages; a client that refuses is silent from then on."""
    for k, client in clients.items():
        message = client.start()
        if message is not None:
            server.receive(k, message)
    try:
        while not server.finished:
            for k, question in server.advance().items():
                answer = _answer(clients[k], question)
                if answer is not None:
                    server.receive(k, answer)
    except (PeerError, MissingClientError):
        return None
    return server.total


def _answer(client: ClientRound, question: bytes) -> bytes | None:
    try:
        return client.receive(question)
    except PeerError:
        return None
