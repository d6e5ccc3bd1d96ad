"""What one client brings to a federation."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from secure_fd.config import Schedule
from secure_fd.data.federated import ClientData
from secure_fd.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Participant:
    """What one client brings: a network of its own and its private records."""

    model: nn.Module
    data: ClientData


def check_own_models(models: Sequence[nn.Module]) -> None:
    """Raise ConfigurationError where two clients were given one and the same network."""
    if len({id(model) for model in models}) != len(models):
        raise ConfigurationError("models", len(models), "give every client a network of its own")


def classes_of(participants: Sequence[Participant]) -> int:
    """The number of classes that all participants agree on.

    Raises ConfigurationError where they do not, are too few, or share a network.
    """
    if len(participants) < 2:
        raise ConfigurationError("participants", len(participants), "use 2 or more")
    check_own_models([participant.model for participant in participants])
    counts = {participant.data.n_classes for participant in participants}
    if len(counts) != 1:
        raise ConfigurationError("n_classes", sorted(counts), "all participants must agree")
    return counts.pop()


def check_proxies(n_proxies: int, schedule: Schedule) -> None:
    """Raise ConfigurationError where a round would ask about more proxies than there are."""
    if not 1 <= schedule.proxies_per_round <= n_proxies:
        raise ConfigurationError(
            "proxies_per_round", schedule.proxies_per_round, f"there are {n_proxies} proxies"
        )
