"""Leakage budgets: success of membership inference, as one figure that a test can bound.

    game = LeakageGame.of(clients)                      # half of each client's records, by a coin
    found = game.play(factory)                          # eight runs; factory(records, seed) -> View
    LeakageBudget("mine", 0.60, 0.03).check(found)      # raises LeakageError above .63

A factory runs a federation on the records that it is given and returns what its attacker can read:
a `View`, or the network that is deployed. The game attacks by the strongest route that there
is: parameters of clients, class sums, votes on nearby proxies, the shared model, then queries.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeAlias

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn.functional import interpolate

from attacks.core.base import AttackResult, FloatArray, Labelled, Scores, substream
from attacks.core.fit import queried
from attacks.core.run import SumNoise
from attacks.core.scoring import score_scores
from attacks.core.view import Capability, Public, View, server_view
from attacks.membership.shadows import (
    Game,
    IndirectMembership,
    LiRA,
    ShadowAttack,
    UploadLiRA,
    play_all,
    shrunk_ratio,
)
from attacks.membership.tracing import Tracing
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, MissingCapabilityError, SecureFDError
from secure_fd.simulation.federation import Federation

Factory: TypeAlias = Callable[[Sequence[Labelled], int], View | nn.Module]
"""Records of every client, and a seed -> what the attacker can read of a whole run on them."""
RUNS: Final = 8
_FEWEST: Final = 6
FALSE_ALARM: Final = 0.01
"""Chance at most with which a run that leaks nothing exceeds the smallest accepted limit."""
_SIDE: Final = 16
"""Pixels: patches of the selectors' features fit, and cost little."""
_CLIENTS, _CANDIDATES, _PROXIES = 3, 22, 50
"""Sizes for the bundled digits; candidates of a client, and proxies, are of each class."""


class LeakageError(SecureFDError):
    """A run reveals more about its members than its budget allows.

    >>> issubclass(LeakageError, SecureFDError)
    True
    """


@dataclass(frozen=True, slots=True, eq=False)
class ModelLiRA(UploadLiRA):
    """On the models that every round gave: what is left to read where uploads are masked."""

    name = "lira-model"
    title = "Membership: LiRA on the shared models"
    needs = (frozenset({Capability.GLOBAL_PARAMETERS}),)

    def observe(self, view: View, seed: int) -> FloatArray:  # noqa: ARG002 - nothing is drawn
        """[N] mean phi of the models of all rounds."""
        view.require_any(*self.needs)
        each = [self._phi(view.public, seen.result) for seen in view.models]
        return np.asarray(np.mean(each, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class TracedLiRA(ShadowAttack):
    """Tracing scores in class sums, each compared with the candidate's own in shadow runs."""

    name = "lira-traced"
    title = "Membership: class sums, against shadow runs"
    needs = Tracing.needs

    judge = staticmethod(shrunk_ratio)

    noise: SumNoise | None = None

    def observe(self, view: View, seed: int) -> FloatArray:
        """[N] deviations above public images of the class."""
        return Tracing(self.candidates, self.noise).estimate(view, seed).values


_LOOK_AT: Final = {
    UploadLiRA.name: "the masks, and the clipping and noise of every step",
    ModelLiRA.name: "the clipping and noise of every step, and how many steps a client takes",
    TracedLiRA.name: "the masks and the noise of the class sums",
    IndirectMembership.name: "the masks, and the labels, weights and noise of the votes",
    LiRA.name: "how long the network trains on how few records, and the noise of its training",
}
"""Protections against an attack, by its name."""


def strongest(view: View, game: Game, noise: SumNoise | None = None) -> tuple[ShadowAttack, ...]:
    """One attack a client, or one on all candidates: the strongest that the view allows.

    noise: of pooled sums, what is public of it. Raises
    MissingCapabilityError where it allows none: a game that reads nothing shows nothing.
    """
    clients = [(game.candidates_of(k), k) for k in range(view.public.n_clients)]
    if UploadLiRA.needs[0] <= view.capabilities:
        return tuple(UploadLiRA(own, k) for own, k in clients)
    if TracedLiRA.needs[0] <= view.capabilities:
        return tuple(TracedLiRA(own, k, noise=noise) for own, k in clients)
    if view.rounds:
        return tuple(IndirectMembership.prepare(view.public, own, k) for own, k in clients)
    for kind in (ModelLiRA, LiRA):
        if kind.needs[0] <= view.capabilities:
            return (kind(game.candidates),)
    raise MissingCapabilityError(f"missing anything that reveals members ({view.attacker})")


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Data of a game that needs no download. clients: candidates of each. proxies: others."""

    clients: tuple[Labelled, ...] = field(repr=False)
    proxies: Labelled = field(repr=False)


def bundled_digits() -> Digits:
    """Digits of scikit-learn, enlarged from 8 to 16 pixels, in an order that is always the same.

    Three clients have 22 candidates of each class; 50 other images of each are proxies.

    >>> made = bundled_digits()
    >>> len(made.clients[2]), len(made.proxies)
    (220, 500)
    """
    pool = load("digits").pool
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(pool.labels)))
    small = interpolate(pool.pixels[order], size=_SIDE, mode="bilinear", antialias=True)
    every = Labelled(small.clamp(0, 1), pool.labels[order])
    rows = [torch.nonzero(every.labels == label)[:, 0] for label in range(10)]

    def of_each_class(start: int, count: int) -> Labelled:
        return every.take(torch.cat([own[start : start + count] for own in rows]))

    owned = [of_each_class(_PROXIES + k * _CANDIDATES, _CANDIDATES) for k in range(_CLIENTS)]
    return Digits(tuple(owned), of_each_class(0, _PROXIES))


@dataclass(frozen=True, slots=True, eq=False)
class LeakageGame:
    """Whole runs that differ in which half of the candidates took part, each attacked in turn.

    seed: of coins, runs and attacks, so that the same code gives the same figure.

    >>> def nothing_private(records, seed):
    ...     torch.manual_seed(seed)
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    >>> records = Labelled(torch.rand(40, 1, 4, 4), torch.arange(40) % 2)
    >>> found = LeakageGame.of([records]).play(nothing_private)
    >>> found.figure_name, found.n_members
    ('AUC', 160)
    """

    game: Game = field(repr=False)
    seed: int = 0

    @classmethod
    def of(cls, clients: Sequence[Labelled], runs: int = RUNS, seed: int = 0) -> Self:
        """A game on what each client could hold; half of it, label by label, is in each run.

        One record is left out where a client has an odd number of a label. Raises
        ConfigurationError for fewer than 6 runs or an odd number, or a client without pairs;
        LocalError where two candidates are the same image.
        """
        if runs < _FEWEST or runs % 2:
            allowed = f"use an even number from {_FEWEST} up: fewer give no spread to estimate"
            raise ConfigurationError("runs", runs, allowed)
        even = [_paired(own, k) for k, own in enumerate(clients)]
        return cls(Game.of(even, runs, seed), seed)

    @property
    def least(self) -> float:
        """The area that a run without any leak exceeds in about `FALSE_ALARM` of all games.

        By the variance of the area of equal scores (Mann and Whitney 1947).
        """
        n = self.game.inside.size // 2
        return float(0.5 + norm.isf(FALSE_ALARM) * np.sqrt((2 * n + 1) / (12 * n * n)))

    def check_limit(self, limit: float) -> None:
        """Raise ConfigurationError for a limit that chance alone exceeds too often, or above 1."""
        if not self.least <= limit <= 1:
            allowed = (  # rounded up, so that the value it names is allowed
                f"use {self.least + 5e-4:.3f} to 1: a game of {self.game.inside.shape[1]} "
                f"candidates and {len(self.game.inside)} runs cannot distinguish less from chance"
            )
            raise ConfigurationError("members", limit, allowed)

    def play(self, factory: Factory) -> AttackResult:
        """Area under the curve, its interval, and control, over all runs and candidates.

        Raises MissingCapabilityError where the factory's view has nothing that reveals members.
        """
        return self.read(self.views(factory))

    def views(self, factory: Factory) -> list[View]:
        """Make every run; the view that the factory gives of each."""
        return [self._seen(factory, run) for run in self.game.runs]

    def read(self, views: Sequence[View], noise: SumNoise | None = None) -> AttackResult:
        """The figure of `play` from the views of all runs."""
        strong = strongest(views[0], self.game, noise)
        return self.attacked([(made, views) for made in strong])

    def attacked(self, made: Sequence[tuple[ShadowAttack, Sequence[View]]]) -> AttackResult:
        """The same of attacks, of one kind and about a client each, on their views of every run."""
        game, first = self.game, made[0][0]
        scores, queries = np.zeros(game.inside.shape), 0
        for attack, views in made:
            estimate = play_all(attack, views, game, substream(self.seed, attack.name))
            scores[:, game.owned(attack.client)] = estimate.values
            queries += estimate.queries
        return score_scores(first, Scores(scores, queries=queries), game.inside, self.seed)

    def outside(
        self,
        prepare: Callable[[Public, Labelled, int], ShadowAttack],
        networks: Sequence[Sequence[nn.Module]],
        proxies: Tensor,
        labels: Tensor | None = None,
    ) -> AttackResult:
        """The same of an outsider, who asks the network that each client deploys.

        prepare: of an attack by answers, such as `LiRA`. networks: of every run, by client.
        labels: of the proxies, for attacks that compare candidates with them, such as `RMIA`.
        """
        game, count = self.game, len(networks[0])
        made = []
        for k in range(count):
            views = [_queried(run[k], proxies, count, self._classes, labels) for run in networks]
            made.append((prepare(views[0].public, game.candidates_of(k), k), views))
        return self.attacked(made)

    @property
    def _classes(self) -> int:
        return 1 + int(self.game.candidates.labels.max())

    def _seen(self, factory: Factory, run: int) -> View:
        clients = range(1 + int(self.game.owner.max()))
        records = tuple(self.game.records(run, k) for k in clients)
        made: object = factory(records, substream(self.seed, f"run {run}"))
        if isinstance(made, View):
            return made
        if isinstance(made, nn.Module):
            images = self.game.candidates.images
            return _queried(made, torch.zeros_like(images[:1]), len(clients), self._classes)
        allowed = "return a View, or the network that is deployed"
        raise ConfigurationError("factory", type(made).__name__, allowed)


def server_sees(
    federation: Federation, proxies: Labelled | Tensor | None, n_classes: int = 10
) -> View:
    """Return the view of the server of a federation that has run.

    proxies: the public ones, with labels if these are public; None for a method without proxies.
    To read FedAvg's uploads of all rounds, set `transcript.keep_uploads = True` before round one.
    """
    networks = federation.models
    labels = proxies.labels if isinstance(proxies, Labelled) else None
    images = proxies.images if isinstance(proxies, Labelled) else proxies
    shared = torch.zeros(1, 1, 1, 1) if images is None else images
    known = Public(shared, len(networks), n_classes, _copies(networks[0]), labels)
    return server_view(federation.transcript, known)


def _copies(network: nn.Module) -> Callable[[int], nn.Module]:
    """Networks of the shared architecture, whose weights are written over."""
    return lambda _: copy.deepcopy(network)


def _queried(
    network: nn.Module, proxies: Tensor, clients: int, classes: int, labels: Tensor | None = None
) -> View:
    """Return the view of an outsider that queries the deployed network."""
    return queried(network, Public(proxies, clients, classes, _copies(network), labels))


def _paired(own: Labelled, client: int) -> Labelled:
    """As many records of each label as make pairs, the first ones."""
    kept = []
    for label in torch.unique(own.labels):
        rows = torch.nonzero(own.labels == label)[:, 0]
        kept.append(rows[: len(rows) // 2 * 2])
    chosen = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.int64)
    if len(chosen) == 0:
        allowed = "give it two records of a label or more"
        raise ConfigurationError("clients", f"client {client}", allowed)
    return own.take(chosen.sort().values)


@dataclass(frozen=True, slots=True)
class LeakageBudget:
    """Allowed success of membership inference on a row: a measured figure, and a tolerance.

    figure: AUC. tolerance: by which chance may move it, of the figure's own spread over seeds.

    >>> LeakageBudget("hard votes under masks", 0.60, 0.03).limit
    0.63
    """

    row: str
    figure: float
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.figure <= 1:
            raise ConfigurationError("figure", self.figure, "use an AUC from 0.5 to 1")
        if not 0 <= self.tolerance <= 0.5:
            raise ConfigurationError("tolerance", self.tolerance, "use 0 to 0.5")

    @property
    def limit(self) -> float:
        """The largest AUC that is allowed."""
        return round(self.figure + self.tolerance, 12)

    def check(self, found: AttackResult) -> None:
        """Raise LeakageError where the figure is above the limit."""
        if not found.figure <= self.limit:  # also where it is not a number
            low, high = found.interval
            where = _LOOK_AT.get(found.name, "what crosses the boundary")
            raise LeakageError(
                f"{self.row}: membership inference reaches AUC {found.figure:.3f} "
                f"[{low:.3f}, {high:.3f}] where {self.limit:.3f} is allowed; look at {where}"
            )
