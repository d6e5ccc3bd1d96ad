"""A whole run in five lines: named data, a method, a sum and a privacy unit, in one process."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import IMAGE_SETS, own_name, own_shape
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError
from secure_fd.methods.base import Labels, Method
from secure_fd.optional import import_ours
from secure_fd.protocol.transcript import RoundReport, Transcript
from secure_fd.simulation import saved
from secure_fd.simulation.build import (
    PublicFacts,
    RecipeName,
    RunConfig,
    Secure,
    Unit,
    build_run,
    secure_sum,
)
from secure_fd.simulation.checks import check_seed
from secure_fd.simulation.federation import Dropouts, Federation
from secure_fd.training.recipes import Recipe
from secure_fd.training.trainer import Steps


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
        """Run `rounds` rounds, by default the recipe's, and return their reports."""
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
        """Messages that crossed the boundary."""
        return self.federation.transcript

    @property
    def guarantee(self) -> str:
        """Method, and the guarantees so far: of its sum, and of its privacy unit."""
        return f"{self.federation.method.name}. {guarantee_text(self.federation)}"

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

    def attack(self, name: str) -> Any:  # noqa: ANN401 - an `attacks.core.base.AttackResult`
        """Return the result of an attack on the run as it is; `secure-fd attacks` lists the names.

        Raises:
            ConfigurationError: for an unknown name.
            MissingCapabilityError: if the attacker can read too little of this run.
        """
        run = import_ours("attacks.core.run")
        return run.Run.of(self.data, self.federation, self.seed).attack(name)

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
    labels: Labels = "hard",
    secure: Secure = None,
    unit: Unit = None,
    epsilon: float = math.inf,
    delta: float | None = None,
    recipe: RecipeName | Recipe = "ours",
    drop: float = 0.0,
    min_voters: int = 1,
    seed: int = 0,
    data_dir: Path | str | None = None,
    trainer: Callable[[Sequence[Steps]], None] | None = None,
) -> Simulation:
    """Build a run of one method.

    The record unit puts pooled heads in the place of Selective-FD: noisy class sums label the
    proxies for all networks, with one noise inside the sum of all clients under masks, and each
    client's own in clear. Where clients share parameters (FedAvg, DaFKD), it is DP-SGD for the
    rounds of the recipe. Other methods, and class sums under "he" and "prio3", have no record unit.

    Args:
        data: a named image set, or data that is divided already, as by `federate_table` and
            `federate_features`; its name is free.
        split: "strong", "weak", "iid" or "dirichlet:0.3", of a named set.
        clients: of a named set.
        method: a name of `methods.registry`, package.module:Name, or an instance.
        labels: what clients share, where a named method asks.
        secure: "masks", "he" or "prio3"; None sums in clear.
        unit: the privacy unit, label or record; it takes a finite epsilon.
        epsilon: of one unit over the whole run.
        delta: None for one in 10 times the records of the largest client, 1e-5 at most.
        recipe: "ours", "paper", or a user-supplied one.
        drop: chance that a client falls silent in a round.
        min_voters: fewest clients that answer a proxy whose predictions Selective-FD asks for.
        seed: of data, networks, batches and public draws.
        data_dir: folder of the image sets.
        trainer: runs the clients' training steps (examples/own_trainer.py).

    Raises:
        ConfigurationError: for a setting that does not fit the others.

    Example:
        >>> run = simulate("digits", split="iid", clients=3, method="independent", recipe="paper")
        >>> [report.index for report in run.fit(rounds=1)]
        [0]
    """
    chosen = RunConfig(method, labels, secure, unit, epsilon, delta, recipe, min_voters, seed)
    if trainer is not None and not callable(trainer):
        raise ConfigurationError("trainer", trainer, "use a callable that runs training steps")
    check_seed(seed)
    if not isinstance(data, str | FederatedData):
        raise ConfigurationError("data", type(data).__name__, "use a name, or FederatedData")
    if isinstance(data, str):
        data = federate(load(data, data_dir), parse_split(split), clients, seed)
    elif data.name not in IMAGE_SETS and own_shape(data.name) is None:
        shape = tuple(data.proxies.pixels.shape[1:])
        data = replace(data, name=own_name(shape, data.n_classes, len(data.proxies)))
    parts = build_run(chosen, PublicFacts.of(data))
    networks = [parts.network(k) for k in range(len(data.clients))]
    federation = Federation(
        networks,
        data.clients,
        data.proxies.pixels,
        parts.method,
        aggregation=secure_sum(secure, data, seed),
        protection=parts.protection,
        schedule=parts.recipe.schedule,
        dropouts=Dropouts(drop, seed),
        seed=seed,
    )
    federation.trainer = trainer or federation.trainer
    federation.transcript.proxies_bytes = data.proxy_message_bytes
    return Simulation(data, federation, parts.architectures, parts.recipe, seed)


def guarantee_text(federation: Federation) -> str:
    """Return the guarantees of a run so far: of its sum, and of its privacy unit.

    >>> guarantee_text(simulate("digits", clients=3).federation)[-43:]
    'No differential privacy: no noise is added.'
    """
    claim, method = federation.guarantee(), federation.method
    privacy = claim.sentence() if claim else "No differential privacy: no noise is added."
    if claim is None and method.caveat:
        privacy = f"{privacy} {method.caveat}"
    return f"{federation.aggregation.guarantee} {privacy}"
