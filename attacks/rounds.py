"""Several sums together: differences of two, and different proxies for different clients."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from attacks.base import (
    ABSTAIN,
    NEVER,
    Attack,
    AttackResult,
    BoolArray,
    Distributions,
    FloatArray,
    substream,
)
from attacks.scoring import right_by_group, score_distributions
from attacks.view import AnswerFunction, Capability, ObservedRound, Public, View
from attacks.votes import (
    WHOLE,
    ByClient,
    Said,
    allot,
    named,
    newest,
    require_same_rounds,
    summed,
)
from secure_fd.aggregation.masked import set_up
from secure_fd.crypto.primitives import AgreementKey, IdentityKey, RandomBytes, SecretHolder, draw
from secure_fd.errors import LocalError, MissingClientError, PeerError
from secure_fd.knowledge import IntArray, UnitArray, WordArray
from secure_fd.secagg.client import Client, ClientRound
from secure_fd.secagg.server import Server, ServerRound
from secure_fd.secagg.session import SESSION_BYTES, Roster, RoundTerms, Session


@dataclass(frozen=True, slots=True)
class Differencing(Attack[Distributions, Sequence[Said]]):
    """All pairs of rounds whose clients differ by one: the difference is that client's vote.

    Up to what the others changed their minds about: a difference that no single vote can make is
    dropped, and of several for one client and proxy the most frequent counts.
    """

    name = "differencing"
    title = "Votes from two sums that differ by one client"
    figure_name = "votes recovered, with their author"
    control_name = "votes of each sum given to its clients at random"
    needs = (frozenset({Capability.READ_SUMS}),)

    def run(self, view: View, seed: int) -> Distributions:
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
        stream = substream(seed, "allotment")
        guess = _completed(rounds, np.full(shape, NEVER), stream)
        return Distributions(
            _completed(rounds, shown, stream),
            guess,
            others={_SHOWN: Distributions(shown, guess)},
            details={
                "shown_votes": float((shown >= 0).sum()),
                "pairs_of_rounds": float(pairs),
                "differences": float(differences),
                "dropped": dropped / max(1, differences),
                "sums": float(len(rounds)),
            },
            caveats=_caveats(
                differences, readable=any(seen.uploads is not None for seen, _ in rounds)
            ),
        )

    def score(self, estimate: Distributions, truth: Sequence[Said], seed: int) -> AttackResult:
        """Share of the (client, proxy) votes, before any noise, that are recovered.

        A client's last vote about a proxy is the truth of the pair.
        """
        require_same_rounds(truth, int(estimate.details["sums"]))
        claims, guess = (rows.astype(np.int64) for rows in (estimate.rows, estimate.guess))
        shown = estimate.others[_SHOWN].rows.astype(np.int64)
        shape = (claims.shape[0], claims.shape[1])
        meant = newest(((heard.indices, heard.meant) for heard in truth), shape)
        sent = newest(((heard.indices, heard.sent) for heard in truth), shape)
        return score_distributions(
            self,
            estimate,
            meant,
            seed,
            details={
                "shown_precision": _precision(shown, meant),
                "shown_recall": float(right_by_group(shown, meant).mean()),
                "shown_precision_against_uploads": _precision(shown, sent),
                "shown_recall_against_uploads": float(right_by_group(shown, sent).mean()),
                "shown_abstentions": _share(shown == ABSTAIN, meant == ABSTAIN),
                "precision": _precision(claims, meant),
                "precision_of_control": _precision(guess, meant),
            },
        )


_SHOWN = "shown"
"""What differences alone show: claims [K, P] before the rest of each sum is allotted."""


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


def _precision(claims: IntArray, truth: IntArray) -> float:
    return _share(claims == truth, claims >= 0)


def _share(hits: BoolArray, among: BoolArray) -> float:
    return float((hits & among).sum() / max(1, int(among.sum())))


def _caveats(differences: int, *, readable: bool) -> tuple[str, ...]:
    nothing = "no proxy came up in two sums that differ by one client: nothing to subtract"
    needless = "uploads are readable here, so that nobody needs differences"
    return (
        *((nothing,) if not differences else ()),
        *((needless,) if readable else ()),
        "pairs of sums alone were tried: combinations of more sums may find more",
        "the interval covers clients, not runs",
    )


VOID = NEVER
"""In place of a class: the round gave no sum."""


@dataclass(frozen=True, slots=True)
class InconsistentProxies(Attack[Distributions, IntArray]):
    """Asks every client alone about `probes` public proxies, and shows all others a decoy.

    If the others abstain about the decoy, the "sum" is that client's vote. A masked sum whose masks
    are bound to what the votes are about does not open then.
    """

    name = "inconsistent-proxies"
    title = "Different proxies to different clients"
    figure_name = "votes isolated"
    control_name = "votes of an honest sum given to clients at random"
    needs = (frozenset({Capability.SPLIT_VIEWS, Capability.PUBLIC_PROXIES}),)

    probes: int = 100

    def run(self, view: View, seed: int) -> Distributions:
        """The votes read while everybody else was shown a decoy.

        The oracle answers [N, K, C]: row k is the sum that the server opened while client k alone
        was shown the image, and not a number where the round was void.
        """
        view.require_any(*self.needs)
        proxies = view.public.proxies
        indices = self.indices(view.public, seed)
        oracle = view.oracle(Capability.SPLIT_VIEWS)
        answers = oracle(proxies[torch.from_numpy(indices)]).double().numpy()
        if answers.shape != (len(indices), view.public.n_clients, view.public.n_classes):
            raise LocalError(f"answers: {answers.shape} is not allowed; one row a client")
        isolated = np.stack([_read(answers[:, k]) for k in range(answers.shape[1])])
        void = float((isolated == VOID).mean())
        return Distributions(
            isolated,
            np.full_like(isolated, NEVER),
            queries=oracle.queries * len(isolated),
            details={"void_rounds": void},
            caveats=_caveats_inconsistent(void),
        )

    def indices(self, public: Public, seed: int) -> IntArray:
        """[n] the proxies that a run of this seed asks about."""
        rng = np.random.default_rng(substream(seed, "probes"))
        return np.sort(rng.permutation(len(public.proxies))[: self.probes])

    def score(self, estimate: Distributions, truth: IntArray, seed: int) -> AttackResult:
        """Share of votes isolated; truth: [K, n] each client's class for each probe."""
        cast = truth != ABSTAIN
        abstained = (estimate.rows == ABSTAIN) & ~cast
        return score_distributions(
            self,
            estimate,
            truth,
            seed,
            control=1.0 / len(truth),
            details={
                "votes": float(cast.sum()),
                "abstentions_isolated": float(abstained.sum() / max(1, int((~cast).sum()))),
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


class SplitCohort(SecretHolder):
    """The real clients and server of a masked sum, of which the server lies.

    It follows the protocol but for what it shows, goes on with those that answer, and tries to open
    what it has. Its terms are those of the clients with the decoy: they are the many.
    """

    __slots__ = ("_clients", "_index", "_server")

    def __init__(self, n_clients: int, random: RandomBytes = os.urandom) -> None:
        identities = {k: IdentityKey.generate(random) for k in range(n_clients)}
        key = AgreementKey.generate(random)
        session = Session(
            roster=Roster({k: key.public.raw for k, key in identities.items()}),
            configuration=b"",
            proxies=b"",
            nonce=draw(random, SESSION_BYTES),
            server=key.public,
        )
        self._server = Server(session, key)
        self._clients = {k: Client(k, key, session, random=random) for k, key in identities.items()}
        self._index = -1
        set_up(self._server, self._clients)

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
        for client in tuple(self._server.barred):
            self._server.readmit(client)  # a liar bars nobody
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
