"""Protocol rows of the main table as factories of a leakage game: small federations of digits.

Three clients hold eleven records of each class, half of 22 candidates each, and share 500 proxies:
small mixed sets are where membership shows. Digits are scikit-learn's, and a run takes a second.
Noise of the units is seeded as all else is, so that a game gives the same figure again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from torch import nn

from attacks.core.base import Labelled, substream
from attacks.membership.budgets import Digits, Factory, LeakageGame, bundled_digits, server_sees
from attacks.membership.overfitted import all_training, perceptron
from experiments.core.rows import Secure
from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Method
from secure_fd.methods.fedavg import FedAvg
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.independent import Independent
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.base import NoProtection, PrivacyMechanism
from secure_fd.privacy.dp_sgd import PrivateSGD
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.privacy.samplers import SeededRandom
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.density_ratio import ReferenceSettings
from secure_fd.simulation.federation import (
    Federation,
)
from secure_fd.training.recipes import SGD, Schedule

CLASSES: Final = 10
DELTA: Final = 1e-5
FEATURES: Final = ReferenceSettings(n_features=500)
_ROUNDS: Final = 2
_FEDAVG_STEPS: Final = 10
_FEDAVG_ROUNDS: Final = 12
_ALONE: Final = Schedule(warmup_steps=0, local_steps=0, proxy_steps=0)
_SCHEDULE: Final = Schedule(
    warmup_steps=150,
    local_steps=3,
    proxy_steps=3,
    proxies_per_round=500,
    sgd=SGD(local_batch=32, distillation_batch=32),
)
"""Long enough alone that networks know their records by heart."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the main table.

    make: runs it. method: of votes. masks: whether the server sees sums only. epsilon: of the unit
    that goes with its kind; None without. hidden_by: what hides the inputs of sums, where masks is
    set.
    """

    label: str
    make: Callable[["Row", Sequence[Labelled], int], Federation] = field(repr=False)
    method: Method = field(default_factory=SelectiveFD)
    masks: bool = False
    epsilon: float | None = None
    hidden_by: Secure = "masks"


@cache
def digits() -> Digits:
    """Candidates of every client, and proxies; the same objects, so that features are shared."""
    return bundled_digits()


def participants(
    records: Sequence[Labelled], seed: int
) -> tuple[list[nn.Module], list[ClientData]]:
    """Networks and data of the clients, all of whose records train."""
    count = range(len(records))
    networks = [perceptron(256, CLASSES, substream(seed, f"network {k}")) for k in count]
    return networks, [all_training(own, CLASSES) for own in records]


def secure(row: Row, clients: int, seed: int) -> SecureSum | None:
    """The row's secure sum; None in clear."""
    if not row.masks:
        return None
    if row.hidden_by == "he":
        from secure_fd.secure_sum.homomorphic import HomomorphicSum  # TenSEAL is slow to import

        return HomomorphicSum(clients)
    if row.hidden_by == "prio3":
        from secure_fd.secure_sum.validated import Prio3Sum  # an extra brings its hash

        return Prio3Sum(clients)
    return MaskedSum(clients, public_seed=seed)


def votes(row: Row, records: Sequence[Labelled], seed: int) -> Federation:
    """A method of votes on proxies, all of which every round asks about; or one that asks none."""
    noise: PrivacyMechanism = NoProtection()
    if row.epsilon is not None:
        noise = LabelUnit(row.epsilon, DELTA, random=SeededRandom(seed))
    run = Federation(
        *participants(records, seed),
        digits().proxies.images if row.method.needs_proxies else None,
        row.method,
        aggregation=secure(row, len(records), seed),
        protection=noise,
        schedule=_SCHEDULE,
        seed=seed,
    )
    run.fit(_ROUNDS)
    return run


def parameters(row: Row, records: Sequence[Labelled], seed: int) -> Federation:
    """FedAvg, whose server keeps every upload that it reads."""
    private = None
    if row.epsilon is not None:
        steps = _FEDAVG_STEPS * _FEDAVG_ROUNDS
        private = PrivateSGD(row.epsilon, DELTA, steps, batch=_SCHEDULE.sgd.local_batch)
    run = Federation(
        *participants(records, seed),
        None,
        FedAvg(private=private, random=SeededRandom(seed)),
        schedule=Schedule(local_steps=_FEDAVG_STEPS, proxy_steps=0, sgd=_SCHEDULE.sgd),
        aggregation=secure(row, len(records), seed),
        seed=seed,
    )
    run.transcript.keep_uploads = True
    run.fit(_FEDAVG_ROUNDS)
    return run


def class_sums(row: Row, records: Sequence[Labelled], seed: int) -> Federation:
    """Pooled heads: one sum under the record unit, or without noise; no network learns.

    Clients share the noise under masks, and each adds its own where sums are in clear.
    """
    proxies = digits().proxies
    unit: PrivacyMechanism = NoProtection()
    features = FEATURES
    if row.epsilon is not None:
        pooled = PooledRecordUnit(
            row.epsilon,
            DELTA,
            records=[len(own) for own in records],
            n_proxies=len(proxies),
            n_classes=CLASSES,
            honest=None if row.masks else 1,
            features=FEATURES,
            random=SeededRandom(seed),
        )
        unit, features = pooled, pooled.features
    run = Federation(
        *participants(records, seed),
        proxies.images,
        PooledHeads(residual_rounds=0, features=features),
        aggregation=secure(row, len(records), seed),
        protection=unit,
        schedule=_ALONE,
        seed=seed,
    )
    run.fit(1)
    return run


ALONE: Final = Row("Independent", votes, Independent())
ROWS: Final[Mapping[str, Row]] = {
    "fedavg": Row("FedAvg", parameters),
    "fedmd-soft": Row("FedMD soft", votes, FedMD("soft")),
    "selective-fd-soft": Row("Selective-FD soft", votes, SelectiveFD("soft")),
    "selective-fd-hard": Row("Selective-FD hard", votes, SelectiveFD("hard")),
    "pooled-heads": Row("Pooled heads", class_sums),
}
"""What a row can be asked for by, beside masks and epsilon."""


def factory(row: Row) -> Factory:
    """What plays a row, as its server sees it."""
    return lambda records, seed: server_sees(
        row.make(row, records, seed), digits().proxies, CLASSES
    )


def game(seed: int = 0, runs: int = 8) -> LeakageGame:
    """The game that all rows are played in."""
    return LeakageGame.of(digits().clients, runs, seed)


def asked(method: str, *, masks: bool, epsilon: float | None) -> Row:
    """A row that the table may not have: a method, with masks and noise as they are asked for.

    Raises ConfigurationError for an unknown method, and an epsilon that is not above 0.
    """
    if method not in ROWS:
        raise ConfigurationError("method", method, f"use one of {', '.join(ROWS)}")
    if epsilon is not None and not epsilon > 0:
        raise ConfigurationError("epsilon", epsilon, "use a number above 0")
    if epsilon is not None and method == "pooled-heads" and not masks:
        raise ConfigurationError("epsilon", epsilon, "shares of noise need masks: ask for them too")
    words = [method, *(["masks"] if masks else []), *([f"ε = {epsilon:g}"] if epsilon else [])]
    return replace(ROWS[method], label=" + ".join(words), masks=masks, epsilon=epsilon)
