"""A whole run in five lines: named data, a method, a sum and a privacy unit, in one process."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import proxy_pixels
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Method
from secure_fd.methods.feded import FedED
from secure_fd.methods.pooled_heads import PooledHeads
from secure_fd.methods.registry import METHODS, RECORD_UNIT, RECORD_UNIT_METHODS
from secure_fd.methods.registry import build as build_method
from secure_fd.methods.registry import load as load_method
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.optional import import_ours
from secure_fd.privacy.base import NoProtection, Protection
from secure_fd.privacy.label import LabelUnit
from secure_fd.privacy.record import LocalRecordUnit, PooledRecordUnit, sums_for
from secure_fd.privacy.samplers import Random
from secure_fd.protocol.transcript import RoundReport, Transcript
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation import saved
from secure_fd.simulation.federation import (
    Dropouts,
    Federation,
    participants_of,
)
from secure_fd.training import models, recipes
from secure_fd.training.recipes import Recipe, Schedule
from secure_fd.training.trainer import Steps, classes_held

Secure = Literal["masks", "he", "prio3"] | None
Unit = Literal["label", "record"] | None


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """A federation on named data, its figures, and attacks on what crossed the boundary.

    data: who holds what. architectures: by client. recipe: the rounds that `fit` takes by default.

    >>> from secure_fd import simulate
    >>> len(simulate("digits", clients=3).architectures)
    3
    """

    data: FederatedData = field(repr=False)
    federation: Federation = field(repr=False)
    architectures: tuple[str, ...]
    recipe: Recipe
    seed: int

    def fit(self, rounds: int | None = None) -> list[RoundReport]:
        """Run so many rounds, by default the recipe's, and give their reports."""
        return self.federation.fit(self.recipe.rounds if rounds is None else rounds)

    @property
    def accuracies(self) -> list[float]:
        """Every client's accuracy on test images that no part of the run has seen, in [0, 1]."""
        return self.federation.accuracies(self.data.test)

    @property
    def accuracy(self) -> float:
        """Mean over clients."""
        return float(np.mean(self.accuracies))

    @property
    def transcript(self) -> Transcript:
        """What crossed the boundary."""
        return self.federation.transcript

    @property
    def guarantee(self) -> str:
        """What runs, and what it promises so far: of its sum, and of its privacy unit."""
        return f"{self.federation.method.name}. {promise(self.federation)}"

    @property
    def summary(self) -> str:
        """Method, sum, privacy and accuracy in one line; `guarantee` has every condition.

        >>> simulate("digits", clients=3, secure="masks").summary[:-3]
        'Selective-FD hard, masks, no differential privacy, accuracy 0.'
        """
        run, claim = self.federation, self.federation.guarantee()
        privacy = claim.headline if claim else "no differential privacy"
        kind = run.aggregation.name
        sums = "sums in clear" if kind == "plain" else kind
        return f"{run.method.name}, {sums}, {privacy}, accuracy {self.accuracy:.3f}"

    def attack(self, name: str) -> Any:  # noqa: ANN401 - an `attacks.base.AttackResult`
        """The result of an attack on the run as it is; `attacks.ON_A_RUN` has the names.

        Raises ConfigurationError for another name, MissingCapabilityError where the attacker sees
        too little.
        """
        on_run = import_ours("attacks.on_run")
        return on_run.attack(name, on_run.Run.of(self.data, self.federation, self.seed))

    def save_networks(self, path: Path | str) -> None:
        """Write every client's network; `load_networks` reads them into a run of the same form."""
        state = [model.state_dict() for model in self.federation.models]
        saved.write(Path(path), {"architectures": list(self.architectures), "networks": state})

    def load_networks(self, path: Path | str) -> None:
        """Take over the networks of a file of `save_networks`, to be asked or trained on.

        Where clients share parameters (FedAvg, DaFKD), the server starts from them too. Raises
        ConfigurationError for a file of other architectures, and where clients share parameters
        also for networks that differ, for a run that has begun, and under DP-SGD.
        """
        found = saved.read(Path(path))
        if tuple(found.get("architectures", ())) != self.architectures:
            raise ConfigurationError("path", str(path), "it holds networks of other architectures")
        saved.start_from(self.federation, found["networks"])


def simulate(
    data: str | FederatedData = "mnist5k",
    *,
    split: str = "strong",
    clients: int = 10,
    method: str | Method = "selective-fd",
    labels: Literal["soft", "hard"] = "hard",
    secure: Secure = None,
    unit: Unit = None,
    epsilon: float = math.inf,
    delta: float | None = None,
    recipe: Literal["ours", "paper"] | Recipe = "ours",
    drop: float = 0.0,
    min_voters: int = 1,
    seed: int = 0,
    data_dir: Path | None = None,
    on_round: Callable[[RoundReport], object] | None = None,
    trainer: Callable[[Sequence[Steps]], None] | None = None,
) -> Simulation:
    """Build a run of one method.

    data: a named image set, divided by split ("strong", "weak", "iid", "dirichlet:0.3"), or data
    that is divided already. method: a name of `methods.registry`, package.module:Name, or a method.
    labels: what clients share, where the method asks. secure: "masks", "he" or "prio3"; None sums
    in clear. unit, epsilon, delta: differential privacy at each label or each record. "record" puts
    pooled heads in the place of Selective-FD, as its guarantee says: noisy class sums label the
    proxies for all networks, with one noise inside the sum of all clients under masks, and each
    client's own in clear. Where clients share parameters (FedAvg, DaFKD), it is DP-SGD for the
    rounds of the recipe; other methods and votes, and class sums under "he" and "prio3", have no
    record unit. A unit and a finite epsilon go together. delta: None for one in 10 times the
    records of the largest client, 1e-5 at most.
    recipe: "ours", "paper", or one of your own.
    drop: chance that a client falls silent in a round. min_voters: of Selective-FD, fewest clients
    that answer a proxy whose predictions are asked for (see `methods.voters`). on_round: called
    with every round's report. trainer: runs the clients' training steps (examples/own_trainer.py).

    Raises ConfigurationError for a setting that does not fit the others.

    >>> run = simulate("digits", split="iid", clients=3, method="independent", recipe="paper")
    >>> [report.index for report in run.fit(rounds=1)]
    [0]
    """
    _check_unit(method, unit, epsilon)
    made = data if isinstance(data, FederatedData) else _named(data, split, clients, seed, data_dir)
    pools = unit == "record" and secure not in ("he", "prio3") and not math.isinf(epsilon)
    pools, local = pools and method in ("selective-fd", "heads"), secure is None
    delta = default_delta(made) if delta is None else delta
    if min_voters != 1 and (pools or method != "selective-fd"):
        allowed = "it goes with the votes of selective-fd, by name; SelectiveFD has its own"
        raise ConfigurationError("min_voters", min_voters, allowed)
    if pools:
        chosen: Method = pooled_heads(epsilon, local=local)
    else:
        chosen = _method(method, labels, unit, epsilon, made, recipe, seed)
        if isinstance(chosen, SelectiveFD) and min_voters != 1:
            chosen = replace(chosen, min_voters=min_voters)
    shared = chosen.shares_parameters
    names = architectures(made.name, len(made.clients), shared=shared)
    people = participants_of(fresh_networks(made, seed, shared=shared), made.clients)
    steps = _recipe(recipe, chosen, made)
    protection: Protection = NoProtection()
    if chosen.shares_parameters:
        if unit is not None and not math.isinf(epsilon):
            if unit != "record":
                raise ConfigurationError("unit", unit, "use record: this method shares no labels")
            chosen = chosen.trained_privately(epsilon, delta, steps.rounds, steps.schedule)
    elif pools:
        protection = pooled_unit(made, epsilon, delta, local=local)
    else:
        protection = _protection(unit, epsilon, delta)
    federation = Federation(
        people,
        made.proxies.pixels,
        chosen,
        aggregation=secure_sum(secure, made, seed),
        protection=protection,
        schedule=steps.schedule,
        dropouts=Dropouts(drop, seed),
        proxies_bytes=made.proxy_message_bytes,
        seed=seed,
        on_round=on_round,
        trainer=trainer,
    )
    return Simulation(made, federation, names, steps, seed)


def _check_unit(method: str | Method, unit: Unit, epsilon: float) -> None:
    """Refuse a unit without an epsilon, an epsilon without a unit, and a method without the unit.

    None of the three would protect what is run.
    """
    if unit is None and epsilon != math.inf:
        allowed = "without a unit there is no noise: use unit label or record as well"
        raise ConfigurationError("epsilon", epsilon, allowed)
    if unit is not None and epsilon == math.inf:
        allowed = "without a finite epsilon there is no noise: set epsilon as well"
        raise ConfigurationError("unit", unit, allowed)
    named = isinstance(method, str) and method in METHODS
    if unit == "record" and named and method not in RECORD_UNIT:
        raise ConfigurationError("unit", unit, f"not with {method}: {RECORD_UNIT_METHODS}")


def promise(federation: Federation) -> str:
    """What a run promises so far: of its sum, and of its privacy unit.

    >>> promise(simulate("digits", clients=3).federation)[-43:]
    'No differential privacy: no noise is added.'
    """
    claim, method = federation.guarantee(), federation.method
    said = claim.sentence() if claim else "No differential privacy: no noise is added."
    if claim is None and method.caveat:
        said = f"{said} {method.caveat}"
    return f"{federation.aggregation.guarantee} {said}"


def _named(name: str, split: str, clients: int, seed: int, data_dir: Path | None) -> FederatedData:
    return federate(load(name, data_dir), parse_split(split), clients, seed)


def architectures(image_set: str, clients: int, *, shared: bool = False) -> tuple[str, ...]:
    """Every client's architecture, as the paper's tables have them; shared: the first for all.

    >>> architectures("mnist", 3)
    ('cnn-5-5-50', 'cnn-5-5-50', 'cnn-3-3-128')
    """
    known = models.architectures(image_set)
    return tuple(known[0 if shared else k % len(known)] for k in range(clients))


def fresh_networks(data: FederatedData, seed: int, *, shared: bool = False) -> list[nn.Module]:
    """Every client's network before training, each from a start of its own."""
    names = architectures(data.name, len(data.clients), shared=shared)
    return [models.build(name, data.n_classes, 100 * seed + k) for k, name in enumerate(names)]


def _method(
    method: str | Method,
    labels: Literal["soft", "hard"],
    unit: Unit,
    epsilon: float,
    data: FederatedData,
    recipe: Literal["ours", "paper"] | Recipe,
    seed: int,
) -> Method:
    if not isinstance(method, str):
        return method
    if method == "selective-fd" and unit == "label" and not math.isinf(epsilon):
        # The label unit makes one symbol noisy, so votes are counted.
        return SelectiveFD(labels, server_threshold=1.0, votes="counted")
    if load_method(method, "method") is FedED:
        schedule = _recipe(recipe, None, data).schedule
        return central_network(labels, data.n_classes, data.name, schedule, seed)
    return build_method(method, labels, "method")


def central_network(
    labels: Literal["soft", "hard"], n_classes: int, image_set: str, schedule: Schedule, seed: int
) -> FedED:
    """Make FedED with a central network of the first client's architecture.

    Before its first answer the server takes as many more steps as a client's warm-up has.

    >>> central_network("hard", 10, "digits", Schedule(), seed=0).name
    'FedED hard'
    """
    model = models.build(architectures(image_set, 1)[0], n_classes, seed)
    return FedED(labels, model, warmup=schedule.warmup_steps, seed=seed)


def _recipe(
    recipe: Literal["ours", "paper"] | Recipe, method: Method | None, data: FederatedData
) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    held = classes_held([client.train for client in data.clients], data.n_classes)
    return named_recipe(recipe, method, data.n_classes, len(data.proxies), held, data.name)


def named_recipe(
    recipe: str,
    method: Method | None,
    n_classes: int,
    n_proxies: int,
    held: float,
    image_set: str,
) -> Recipe:
    """The recipe of that name for a method, from what every party knows.

    method: None for one without a recipe of its own. held: classes that a client holds, as if
    evenly, mean over clients. Raises ConfigurationError for another name than ours and paper.

    >>> named_recipe("ours", pooled_heads(4.0), 10, 1000, 1.0, "mnist5k").rounds
    2
    """
    if recipe == "paper":
        return recipes.paper(n_classes, n_proxies, held)
    if recipe != "ours":
        raise ConfigurationError("recipe", recipe, "use ours, paper, or a Recipe")
    if method is None:
        return recipes.plain(n_proxies)
    return method.recipe(n_classes, n_proxies, held, image_set)


def default_delta(data: FederatedData) -> float:
    """One in ten times the records of the largest client, and 1e-5 at most.

    >>> from secure_fd import federate, load, parse_split
    >>> default_delta(federate(load("digits"), parse_split("iid"), 3, seed=0))
    1e-05
    """
    return min(1e-5, 0.1 / max(len(client.train) for client in data.clients))


def pooled_heads(epsilon: float, *, local: bool = False) -> PooledHeads:
    """The method whose sums the record unit guards; nothing else reads records.

    Clients leave with the mean of network and head: no validation, which would read records,
    chooses. local: every client makes its own noise, of which one sum has enough.

    >>> pooled_heads(4.0).rounds, pooled_heads(4.0, local=True).rounds
    (2, 1)
    """
    return PooledHeads(sums_for(epsilon, local=local) - 1)


def pooled_unit(
    data: FederatedData,
    epsilon: float,
    delta: float,
    *,
    local: bool = False,
    random: Random = os.urandom,
) -> PooledRecordUnit:
    """Return the record unit for these clients and proxies, whose ledgers are in memory.

    random: source of the noise.

    >>> from secure_fd import federate, load, parse_split
    >>> data = federate(load("digits"), parse_split("iid"), 3, seed=0)
    >>> pooled_unit(data, 1.0, 1e-5).plan.sums
    1
    """
    kind = LocalRecordUnit if local else PooledRecordUnit
    return kind(
        epsilon,
        delta,
        records=[len(client.train) for client in data.clients],
        n_proxies=len(data.proxies),
        n_classes=data.n_classes,
        sums=sums_for(epsilon, local=local),
        random=random,
    )


def _protection(unit: Unit, epsilon: float, delta: float) -> Protection:
    if unit is None or math.isinf(epsilon):
        return NoProtection()
    if unit == "record":
        raise ConfigurationError("unit", unit, RECORD_UNIT_METHODS)
    if unit != "label":
        raise ConfigurationError("unit", unit, "use label or record")
    return LabelUnit(epsilon, delta)


def secure_sum(
    secure: Secure, data: FederatedData, seed: int | None, configuration: bytes = b""
) -> SecureSum:
    """How the server sums, under masks, encryption or proofs about these proxies, or in clear.

    seed: of what is public in the masks' set-up; None: nobody foresees it. configuration: what all
    clients agree on besides. Raises ConfigurationError for another name.

    >>> secure_sum(None, simulate("digits", clients=3).data, seed=0).name
    'plain'
    """
    count = len(data.clients)
    if secure is None:
        return PlainSum(count)
    proxies = proxy_commitment(proxy_pixels(data.proxies.pixels))
    if secure == "masks":
        return MaskedSum(count, public_seed=seed, configuration=configuration, proxies=proxies)
    if secure == "prio3":
        from secure_fd.secure_sum.validated import Prio3Sum  # its circuits are slow to import

        return Prio3Sum(count, configuration=configuration, proxies=proxies)
    if secure != "he":
        raise ConfigurationError("secure", secure, "use masks, he, prio3, or None")
    from secure_fd.secure_sum.homomorphic import HomomorphicSum  # TenSEAL is slow to import

    return HomomorphicSum(count, configuration=configuration, proxies=proxies)
