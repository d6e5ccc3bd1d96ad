"""Membership inference with shadow runs: game, shadows, LiRA, RMIA, loss, votes on neighbours."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from scipy.linalg import solve
from torch import Tensor

from attacks.core.base import BoolArray, FloatArray, Labelled, Scores, joined
from attacks.core.fit import network
from attacks.core.run import Run
from attacks.core.scoring import MembershipAttack
from attacks.core.view import Capability, Public, View
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.methods.survey import BOUND
from secure_fd.protocol.transcript import Float32Array, ObservedVotes
from secure_fd.selection.density_ratio import ReferenceSettings, shared_reference
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """Whole runs of a protocol that differ in which candidates take part.

    candidates: [N], labelled as they are trained on. owner: [N] the client that may hold each.
    inside: [R, N], True where the candidate takes part in the run; runs 2 j and 2 j + 1 pair.

    Each candidate takes part in exactly one run of a pair, chosen by a coin; every run is attacked
    in turn, with the runs of all *other* pairs as shadows. So a target's shadows hold each
    candidate equally often inside and outside: unpaired, the number of shadows that hold a
    candidate would betray the target (Carlini et al. 2022 balance over all models, the target
    included).
    """

    candidates: Labelled
    owner: IntArray = field(repr=False)
    inside: BoolArray = field(repr=False)

    def __post_init__(self) -> None:
        runs = len(self.inside)
        if runs < 4 or runs % 2 or self.inside.shape != (runs, len(self.candidates)):
            raise ConfigurationError("runs", self.inside.shape, "use an even number from 4 up")
        if not (self.inside[::2] ^ self.inside[1::2]).all():
            raise LocalError("a candidate is in both runs of a pair, or in neither")
        images = {image.numpy().tobytes() for image in self.candidates.images}
        if len(images) != len(self.candidates):
            raise LocalError(
                "an image is a candidate twice: it would be inside and outside at once"
            )

    @classmethod
    def of(cls, clients: Sequence[Labelled], runs: int, seed: int) -> Self:
        """Draw a game in which every run holds half of each client's candidates of each label.

        So neither numbers of records nor labels distinguish runs, and neighbouring runs differ by
        exchanging records. Raises LocalError where a client has an odd number of a label.
        """
        together = joined(clients)
        owner = np.repeat(np.arange(len(clients)), [len(own) for own in clients])
        keys = np.stack([owner, together.labels.numpy()], axis=1)
        kinds, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        for (client, label), count in zip(kinds, counts, strict=True):
            if count % 2:
                raise LocalError(f"client {client} has {count} candidates of label {label}: odd")
        groups = [np.flatnonzero(which == group) for group in range(len(kinds))]
        rng = np.random.default_rng(seed)
        inside = np.zeros((runs, len(owner)), dtype=np.bool_)
        for first in range(0, runs, 2):
            for group in groups:
                inside[first, rng.permutation(group)[: len(group) // 2]] = True
            inside[first + 1] = ~inside[first]
        return cls(together, owner, inside)

    @property
    def runs(self) -> range:
        """Every run, each a target in its turn."""
        return range(len(self.inside))

    def owned(self, client: int | None) -> IntArray:
        """Indices of the client's candidates, ascending; of all candidates where it is None."""
        return np.flatnonzero(np.ones_like(self.owner) if client is None else self.owner == client)

    def candidates_of(self, client: int) -> Labelled:
        """The client's candidates, in the order of `owned`."""
        return self.candidates.take(torch.from_numpy(self.owned(client)))

    def shadows(self, target: int) -> IntArray:
        """The runs that an attacker on `target` may learn from: all but its own pair."""
        return np.array([run for run in self.runs if run // 2 != target // 2])

    def records(self, run: int, client: int) -> Labelled:
        """Candidates that the client trains on in the run."""
        chosen = self.inside[run] & (self.owner == client)
        return self.candidates.take(torch.from_numpy(np.flatnonzero(chosen)))


@dataclass(frozen=True, slots=True, eq=False)
class Shadows:
    """signals: [S, M, ...] of the shadow runs. inside: [S, N] which candidates took part; known.

    The first N rows of a signal are about the candidates; further ones about public records.
    """

    signals: FloatArray = field(repr=False)
    inside: BoolArray = field(repr=False)

    def __post_init__(self) -> None:
        if min(self.inside.sum(0).min(), (~self.inside).sum(0).min()) < 1:
            raise LocalError("shadows: a candidate is in all of them or in none")

    @property
    def means(self) -> tuple[FloatArray, FloatArray]:
        """[N, ...] each candidate's mean signal over shadows with it, and over those without."""
        return self._mean(self.inside), self._mean(~self.inside)

    @property
    def residuals(self) -> tuple[FloatArray, FloatArray]:
        """[n, ...] and [m, ...]: signals less the mean of their candidate and side."""
        inside, outside = self.means
        own = self._own
        return (own - inside)[self.inside], (own - outside)[~self.inside]

    def freedom(self) -> tuple[int, int]:
        """Degrees of freedom of the residuals: their number less the means that were estimated."""
        candidates = self.inside.shape[1]
        spare = int(self.inside.sum()) - candidates, int((~self.inside).sum()) - candidates
        if min(spare) < 1:
            raise LocalError("shadows: one a side has no variance; use two pairs of runs or more")
        return spare

    @property
    def _own(self) -> FloatArray:
        return self.signals[:, : self.inside.shape[1]]

    def _mean(self, side: BoolArray) -> FloatArray:
        taken = side.reshape(*side.shape, *(1,) * (self.signals.ndim - 2))
        return np.asarray((self._own * taken).sum(0) / taken.sum(0))


_NO_SHADOWS = "missing shadow runs of the same protocol, which a LeakageGame plays"


@dataclass(frozen=True, slots=True, eq=False)
class ShadowAttack(MembershipAttack):
    """An attack on candidates of one client, or of all where it is None.

    truth: [R, N] members of the game that `play_all` was given.

    One finished run has no shadow runs: `play_all` takes the place of `for_run` and `estimate`.
    """

    candidates: Labelled
    client: int | None = None

    @classmethod
    def for_run(cls, run: Run) -> Self:  # noqa: ARG003 - one run has no shadow
        """Refuse: one finished run has no shadow runs."""
        raise MissingCapabilityError(_NO_SHADOWS)

    def estimate(self, view: View, seed: int) -> Scores:  # noqa: ARG002
        """Refuse, as `for_run` does."""
        raise MissingCapabilityError(_NO_SHADOWS)

    @abstractmethod
    def observe(self, view: View, seed: int) -> FloatArray:
        """[M, ...] the signal of a run. MissingCapabilityError where the view has too little."""

    @staticmethod
    @abstractmethod
    def judge(seen: FloatArray, shadows: Shadows) -> FloatArray:
        """[N] scores of the candidates from the target's signal and the shadows'."""

    @property
    def owner(self) -> int:
        """The client, for attacks that read what one client sent."""
        if self.client is None:
            raise LocalError(f"{self.name}: it reads what one client sent; name the client")
        return self.client


def play_all(attack: ShadowAttack, views: Sequence[View], game: Game, seed: int) -> Scores:
    """Attack every run of the game once, with the runs of the other pairs as its shadows: [R, n].

    views: of all runs. A run's signal is observed once, whichever part it plays; as a target it is
    judged by shadows of which its own pair is none. queries: to all targets together.
    """
    oracles = [oracle for view in views for oracle in view.oracles.values()]
    before = sum(oracle.queries for oracle in oracles)
    signals = np.stack([attack.observe(view, seed) for view in views])
    inside = game.inside[:, game.owned(attack.client)]
    scores = [
        attack.judge(signals[t], Shadows(signals[game.shadows(t)], inside[game.shadows(t)]))
        for t in game.runs
    ]
    return Scores(np.stack(scores), queries=sum(oracle.queries for oracle in oracles) - before)


_TINY = 1e-30
"""Below float32's least normal probability: what a network calls impossible."""


def confidence(probabilities: Tensor | FloatArray, labels: Tensor) -> FloatArray:
    """[N] log(p_y / (1 - p_y)), LiRA's phi, of probabilities p [N, C] and labels y [N].

    1 - p_y is summed over the other classes: subtraction would round all confident answers to one.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    own = np.zeros(p.shape, dtype=np.bool_)
    own[np.arange(len(p)), labels.numpy()] = True
    rest = np.where(own, 0.0, p).sum(axis=1)
    return np.asarray(np.log(np.maximum(p[own], _TINY)) - np.log(np.maximum(rest, _TINY)))


_RIDGE = 1e-3
"""Share of the mean variance: constant signals must not blow up the direction."""
_LEAST = 1e-12
"""Variance that counts as none: of rounding alone."""


def likelihood_ratio(seen: FloatArray, shadows: Shadows) -> FloatArray:
    """[N] log N(phi; in) - log N(phi; out), each candidate's own means and one variance a side."""
    inside, outside = shadows.means
    variances = _variances(shadows)
    return _log_normal(seen, inside, variances[0]) - _log_normal(seen, outside, variances[1])


def shrunk_ratio(seen: FloatArray, shadows: Shadows) -> FloatArray:
    """[N] the same ratio, with each candidate's two means shrunk towards each other.

    Between three runs with it and three without, a candidate's own difference is mostly luck. It is
    drawn to the mean difference of all candidates, by how much of the differences' variance the
    runs' own explains (empirical Bayes; Efron and Morris 1973).

    >>> inside = np.array([[False], [False], [True], [True]])
    >>> shadows = Shadows(np.array([[0.0], [1.0], [2.0], [3.0]]), inside)
    >>> shrunk_ratio(np.array([1.5]), shadows).tolist()
    [0.0]
    """
    inside, outside = shadows.means
    variances = _variances(shadows)
    luck = variances[0] / shadows.inside.sum(axis=0) + variances[1] / (~shadows.inside).sum(axis=0)
    apart, middle = inside - outside, (inside + outside) / 2
    true = max(0.0, float(apart.var() - luck.mean()))
    half = (apart.mean() + true / (true + luck) * (apart - apart.mean())) / 2
    of_members = _log_normal(seen, middle + half, variances[0])
    return of_members - _log_normal(seen, middle - half, variances[1])


def discriminant(seen: FloatArray, shadows: Shadows) -> FloatArray:
    """[N] signals [N, d] along Fisher's direction, each from the middle of its candidate's means.

    One direction for all candidates: a candidate's own difference between 7 runs and 7 is mostly
    noise, and the mean difference over all candidates is not. A candidate's own means centre it.
    """
    inside, outside = shadows.means
    residuals, spare = np.concatenate(shadows.residuals), sum(shadows.freedom())
    spread = residuals.T @ residuals / spare
    ridge = _RIDGE * max(float(np.trace(spread)) / len(spread), _LEAST)
    direction = solve(
        spread + ridge * np.eye(len(spread)), (inside - outside).mean(axis=0), assume_a="pos"
    )
    return np.asarray((seen - (inside + outside) / 2) @ direction)


@dataclass(frozen=True, slots=True, eq=False)
class LiRA(ShadowAttack):
    """Online: the likelihood ratio of a candidate's confidence with it and without it.

    phi = log p_y - log(1 - p_y) is about normal over runs (Carlini, Chien, Nasr, Song, Terzis,
    Tramèr, S&P 2022). With few shadows a candidate's own variance is too rough an estimate: one
    variance a side serves all, as they advise below 64 shadows.
    """

    name = "lira"
    title = "Membership: LiRA, online"
    needs = (frozenset({Capability.QUERY_SCORES}),)
    judge = staticmethod(likelihood_ratio)

    def observe(self, view: View, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N] phi of the deployed network: one query a candidate."""
        view.require_any(*self.needs)
        answers = view.oracle(Capability.QUERY_SCORES)(self.candidates.images)
        return confidence(answers, self.candidates.labels)


@dataclass(frozen=True, slots=True, eq=False)
class UploadLiRA(LiRA):
    """On the parameters that a client sent: what a server without masks reads of FedAvg.

    Of every round that the transcript kept (`Transcript.keep_uploads`; else the newest
    alone), a candidate's mean phi: noise of single rounds averages out, and no round needs a weight
    that few shadows could teach.
    """

    name = "lira-upload"
    title = "Membership: LiRA on a client's upload"
    needs = (frozenset({Capability.CLIENT_PARAMETERS}),)
    judge = staticmethod(shrunk_ratio)

    def observe(self, view: View, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N] mean phi of the client's uploads, which the attacker runs by itself."""
        view.require_any(*self.needs)
        sent = view.uploads_by_round(self.owner)
        return np.asarray(np.mean([self._phi(view.public, own) for own in sent], axis=0))

    def _phi(self, public: Public, parameters: Float32Array) -> FloatArray:
        sent = network(public, torch.from_numpy(parameters.copy()))
        return confidence(predict(sent, self.candidates.images), self.candidates.labels)


def _variances(shadows: Shadows) -> tuple[float, float]:
    inside, outside = shadows.residuals
    spare = shadows.freedom()
    found = float((inside**2).sum() / spare[0]), float((outside**2).sum() / spare[1])
    if min(found) <= 0:
        raise LocalError("shadows: their signals do not vary, so that nothing can be learnt")
    return found


def _log_normal(value: FloatArray, mean: FloatArray, variance: float) -> FloatArray:
    return np.asarray(-((value - mean) ** 2) / (2 * variance) - np.log(variance) / 2)


_REFERENCES = 4
"""Runs that p(x) is a mean of, in pairs: half of them hold each candidate."""


def dominated(seen: FloatArray, shadows: Shadows) -> FloatArray:
    """[N] the share of the population that each candidate dominates, less one half."""
    reference = shadows.signals[:_REFERENCES].mean(axis=0)
    ratio = seen / np.maximum(reference, _TINY)
    candidates = shadows.inside.shape[1]
    population = np.sort(ratio[candidates:])
    below = np.searchsorted(population, ratio[:candidates], side="right")
    return np.asarray(below / len(population) - 0.5)


def above_midway(seen: FloatArray, shadows: Shadows) -> FloatArray:
    """[N] above a threshold midway between the shadows' mean inside and their mean outside."""
    inside, outside = shadows.means
    return np.asarray(seen - (inside.mean() + outside.mean()) / 2)


@dataclass(frozen=True, slots=True, eq=False)
class RMIA(ShadowAttack):
    """RMIA: compares the candidate's likelihood ratio with those of public records.

    Pr_z[ (p(x | target) / p(x)) / (p(z | target) / p(z)) >= 1 ], p(x) the mean over a few
    reference runs (Zarifzadeh, Liu, Shokri, ICML 2024, equations 3 and 10); the population z are
    the labelled proxies.

    In distillation the target and its references were trained on the proxies z, so that
    p(z | target) / p(z) is about one: a population on which the target was trained as well
    as its references, not one that is new to it.
    """

    name = "rmia"
    title = "Membership: RMIA"
    needs = (frozenset({Capability.QUERY_SCORES, Capability.LABELLED_PUBLIC}),)
    judge = staticmethod(dominated)

    def observe(self, view: View, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N + P] probabilities of the own label: of the candidates, then of the proxies."""
        view.require_any(*self.needs)
        ask = view.oracle(Capability.QUERY_SCORES)
        sides = (
            (self.candidates.images, self.candidates.labels),
            (view.public.proxies, view.public.require_labels()),
        )
        own = [ask(images)[torch.arange(len(labels)), labels] for images, labels in sides]
        return np.asarray(np.maximum(torch.cat(own).double().numpy(), _TINY))


@dataclass(frozen=True, slots=True, eq=False)
class LossThreshold(LiRA):
    """The baseline that treats all candidates alike (Yeom et al. 2018): phi falls with the loss."""

    name = "loss-threshold"
    title = "Membership: loss threshold"
    judge = staticmethod(above_midway)


@dataclass(frozen=True, slots=True, eq=False)
class IndirectMembership(ShadowAttack):
    """Membership from answers about *other* points: no candidate is asked about.

    A record that took part shifts its client's votes about the public proxies that look like it;
    the attacker compares the votes for the candidate's label there with those of shadow runs
    (Jagielski, Nasr, Lee, Choquette-Choo, Carlini, Tramèr, NeurIPS 2023).

    neighbours: [N, k] each candidate's nearest proxies, nearest first; see `neighbours`.

    It reads the most telling votes in its view: the client's own, else the sum's, else ensembles;
    and, of a survey, whether these proxies are known.
    """

    name = "indirect"
    title = "Membership: votes on nearby proxies"
    needs = (frozenset({Capability.READ_ENSEMBLES, Capability.PUBLIC_PROXIES}),)
    judge = staticmethod(discriminant)

    neighbours: IntArray = field(kw_only=True, repr=False)

    @classmethod
    def prepare(cls, public: Public, candidates: Labelled, client: int, k: int = 20) -> Self:
        """The attack by the k nearest proxies, in the features of the protocol's own selectors."""
        return cls(candidates, client, neighbours=neighbours(public, candidates, k))

    def observe(self, view: View, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N, k] mean share of votes for the candidate's label at each of its nearest proxies.

        [N, 2 k] where there was a survey.
        """
        view.require_any(*self.needs)
        at = self.neighbours, self.candidates.labels.numpy()[:, None]
        votes, levels = mean_votes(view, self.owner), surveyed(view, self.owner)
        return np.concatenate([part[at] for part in (votes, levels) if part is not None], axis=1)


def mean_votes(view: View, client: int) -> FloatArray:
    """[P, C] votes about each proxy, averaged over the rounds that asked about it.

    The votes are the client's if its uploads are readable; else those of all clients together;
    else the ensemble predictions that every client receives. A proxy in no round has none.
    """
    shape = (len(view.public.proxies), view.public.n_classes)
    votes, rounds = np.zeros(shape), np.zeros((shape[0], 1))
    for seen in view.rounds:
        indices = seen.result.indices
        votes[indices] += _readable_votes(seen, client, shape[1])
        rounds[indices] += 1
    return votes / np.maximum(rounds, 1)


def surveyed(view: View, client: int) -> FloatArray | None:
    """[P, C] in [0, 1] whether each proxy is known, by the client where that is readable.

    Else of all clients together; None where there was no survey.
    """
    if view.survey is None or view.survey.total is None:
        return None
    units, clients = view.survey.total, view.rounds[0].survivors
    most = BOUND * len(clients)
    if view.survey.uploads is not None:
        units, most = view.survey.uploads.get(client, np.zeros_like(units)), BOUND
    shape = (-1, view.public.n_classes)
    return np.asarray(units.reshape(shape)[:-1].astype(np.float64) / most)


def neighbours(public: Public, candidates: Labelled, k: int) -> IntArray:
    """[N, k] each candidate's nearest proxies, in the map of the protocol's own selectors.

    Records that are feature vectors are compared as they are.
    """
    proxies, records = public.proxies, candidates.images
    if not 1 <= k <= len(proxies):
        raise ConfigurationError("k", k, f"use 1 to {len(proxies)}, as many as there are proxies")
    if proxies.ndim == 4:
        reference = shared_reference(proxies, ReferenceSettings())
        known, own = reference.public(proxies), reference.public(records)
    else:
        known, own = proxies.double().numpy(), records.double().numpy()
    distance = (known**2).sum(axis=1) - 2 * own @ known.T  # less the candidates' norms
    return np.asarray(np.argsort(distance, axis=1, kind="stable")[:, :k])


def _readable_votes(seen: ObservedVotes, client: int, n_classes: int) -> FloatArray:
    """[m, C] the most telling votes of a round that the attacker could read."""
    if seen.uploads is not None:
        sent = seen.uploads.get(client)  # an absent client sent nothing
        units = np.zeros(len(seen.result.indices) * n_classes) if sent is None else sent
    elif seen.total is not None:
        units = seen.total
    else:
        return seen.result.predictions * seen.result.kept[:, None]
    return np.asarray(units.astype(np.float64).reshape(-1, n_classes) / seen.levels)
