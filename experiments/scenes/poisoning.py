"""One client of ten that lies: what is left of the others' accuracy, in the bound and beyond."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attacks.base import AttackResult
from attacks.poisoning import LIAR, SPENT, LenientSum, Lie, Poisoned, poisoned
from experiments.leakage import Attempt
from experiments.scenes import Job, Progress, Scene, Turn
from secure_fd import models
from secure_fd.aggregation.base import SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.aggregation.prio3 import Prio3Sum
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import Split
from secure_fd.data.sources import load
from secure_fd.federation import Federation, exchange_of, participants_of
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.recipes import SGD, Recipe, Schedule, Sizes

_CLIENTS: Final = 10
_SIZES: Final = Sizes(proxies=30, test=30, held_out=1, local=30)
_RECIPES: Final[Mapping[str, Recipe]] = {
    "strong": Recipe(
        5,
        Schedule(
            warmup_steps=0,
            local_steps=0,
            proxy_steps=20,
            proxies_per_round=300,
            anneal_over=5,
            sgd=SGD(0.02, 32, 32, own_batch=4, momentum=0.9),
        ),
    ),
    "iid": Recipe(
        1,
        Schedule(
            warmup_steps=100,
            local_steps=0,
            proxy_steps=100,
            proxies_per_round=300,
            anneal_over=1,
            sgd=SGD(0.02, 32, 32, momentum=0.9),
        ),
    ),
}
"""Of each split: as this package's recipe has it, and short."""
_BUDGET: Final = 1.5


@dataclass(frozen=True, slots=True)
class Votes:
    """How votes are summed: under masks, or with proofs. budget: of each client's votes."""

    proven: bool = False
    budget: float | None = None

    def sums(self, seed: int) -> SecureSum:
        """Of a run."""
        return Prio3Sum(_CLIENTS) if self.proven else MaskedSum(_CLIENTS, public_seed=seed)


@dataclass(frozen=True, slots=True)
class Case:
    """One row. words: what the liar does."""

    split: str
    words: str
    lie: Lie
    votes: Votes = Votes()

    @property
    def label(self) -> str:
        """Names the row."""
        how = "proven votes" if self.votes.proven else "masks"
        return f"Selective-FD hard + {how}, {self.split}, one liar {self.words}"


_MASKED: Final[Mapping[str, tuple[str, Lie]]] = {
    "bound": ("at the bound", Lie()),
    "beyond": ("at 3 x the bound", Lie(3)),
    "off": ("at 3 x the bound, and 1 x off the right class", Lie(3, off=1)),
}
_CASES: Final[Mapping[str, Case]] = {
    **{f"{s}-{key}": Case(s, *said) for s in _RECIPES for key, said in _MASKED.items()},
    **{
        f"iid-proven-{k}": Case("iid", f"at {k} x the bound", Lie(k), Votes(proven=True))
        for k in (3, 10)
    },
    **{
        f"strong-budget-{spend}": Case(
            "strong", words, Lie(spend=spend), Votes(proven=True, budget=_BUDGET)
        )
        for spend, words in SPENT.items()
    },
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """accuracies: by client. void: rounds without a sum. named: rounds that refused the liar."""

    accuracies: tuple[float, ...]
    void: int
    named: int


def outcome(
    data: FederatedData, recipe: Recipe, seed: int, lie: Lie | None, votes: Votes
) -> Outcome:
    """Selective-FD with hard labels, with a liar or without."""
    method, sums = exchange_of(SelectiveFD("hard", budget=votes.budget)), votes.sums(seed)
    networks = [
        models.build(models.SHARED, data.n_classes, 100 * seed + k) for k in range(_CLIENTS)
    ]
    made = Federation(
        participants_of(networks, data.clients),
        data.proxies.pixels,
        method if lie is None else Poisoned(method, data.proxies.labels.numpy(), lie),
        aggregation=sums if lie is None else LenientSum(sums),
        schedule=recipe.schedule,
        seed=seed,
    )
    reports = made.fit(recipe.rounds)
    named = sum(LIAR in dict(report.refused) for report in reports)
    void = sum(report.void for report in reports)
    return Outcome(tuple(made.accuracies(data.test)), void, named)


def _rows(job: Job) -> Mapping[str, str]:  # noqa: ARG001 - the same in every job
    return {key: case.label for key, case in _CASES.items()}


_Prepared = Mapping[tuple[str, Votes], tuple[FederatedData, Outcome]]


def _prepare(job: Job, seed: int, progress: Progress) -> _Prepared:
    """By split and sum, the data and the run without a liar."""
    source = load(job.dataset, job.data_dir)
    data = {
        split: federate(
            source, Split("strong" if split == "strong" else "iid"), _CLIENTS, seed, _SIZES
        )
        for split in _RECIPES
    }
    wanted, made = {(case.split, case.votes) for case in _CASES.values()}, {}
    for done, (split, votes) in enumerate(sorted(wanted, key=repr), start=1):
        honest = outcome(data[split], _RECIPES[split], seed, None, votes)
        made[split, votes] = (data[split], honest)
        progress(100 * done // len(wanted))
    return made


def _attempts(turn: Turn[_Prepared]) -> Mapping[str, Attempt]:
    case = _CASES[turn.row]
    data, honest = turn.made[case.split, case.votes]
    recipe = _RECIPES[case.split]
    lied = outcome(data, recipe, turn.seed, case.lie, case.votes)
    turn.progress(100)
    details = {
        "void_rounds": float(lied.void),
        "rounds": float(recipe.rounds),
        "named_rounds": float(lied.named),
    }
    found: AttackResult = poisoned(lied.accuracies, honest.accuracies, turn.seed, details)
    return {found.name: lambda: found}


SCENE = Scene(
    name="poisoning",
    title="One client of ten lies",
    about="Votes under masks, of which only the sum is checked, and votes that prove their range "
    "and, in the strong split, their budget. Client 0 names the class after the "
    "right one for every proxy. The figure is the accuracy of the nine honest clients; a void "
    "round teaches nobody.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
