"""Checks before anything trains: clients, proxies, networks and device.

Each mistake is one sentence about a setting. None of them quotes a record's pixels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.data.federated import ClientData
from secure_fd.data.images import Images, checked_pixels, in_range
from secure_fd.errors import ConfigurationError
from secure_fd.training.trainer import evaluating

_TRIED = 2
"""Records that a network is shown."""
_CLOSE = 1e-4
"""Largest distance from 1 of the sum of a row of probabilities in float32."""
_QUOTED = 90
"""Characters of torch's message that a sentence quotes."""


def check_parties(
    networks: Sequence[nn.Module],
    data: Sequence[ClientData],
    proxies: object,
    seed: int,
) -> None:
    """Raise ConfigurationError for clients and proxies that do not fit together.

    Args:
        networks: one for each client, not shared.
        data: records of the clients, of one shape and one number of classes.
        proxies: [P, ...] of that shape, or None for a method without proxies.
        seed: 0 or more.
    """
    check_seed(seed)
    if len(networks) != len(data):
        raise ConfigurationError("models", len(networks), f"use one a client: {len(data)}")
    if len(networks) < 2:
        raise ConfigurationError("participants", len(networks), "use 2 or more")
    _check_kinds(networks, data)
    if len({id(network) for network in networks}) != len(networks):
        raise ConfigurationError("models", len(networks), "give every client a network of its own")
    shapes = {tuple(own.train.pixels.shape[1:]) for own in data}
    if len(shapes) != 1:
        allowed = "all clients' records must have one shape"
        raise ConfigurationError("participants", sorted(shapes), allowed)
    counts = {own.n_classes for own in data}
    if len(counts) != 1:
        raise ConfigurationError("n_classes", sorted(counts), "all participants must agree")
    if proxies is not None:
        check_proxies(proxies, shapes.pop())
    check_networks(networks, data, counts.pop())


def check_seed(seed: int) -> None:
    """Raise ConfigurationError for a seed that the generators of numpy and torch do not take.

    >>> check_seed(3)
    """
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 63:
        raise ConfigurationError("seed", seed, "use a whole number of 0 or more, below 2**63")


def _check_kinds(networks: Sequence[object], data: Sequence[object]) -> None:
    for k, (network, own) in enumerate(zip(networks, data, strict=True)):
        if not isinstance(own, ClientData):
            kind = type(own).__name__
            raise ConfigurationError("participants", kind, f"client {k} needs a ClientData")
        if not isinstance(network, nn.Module):
            raise ConfigurationError("models", network, f"client {k} needs a torch.nn.Module")


def check_proxies(proxies: object, shape: tuple[int, ...]) -> None:
    """Raise ConfigurationError for proxies that are not as clients' pixels are, of that shape.

    >>> check_proxies(torch.rand(5, 1, 8, 8), (1, 8, 8))
    >>> check_proxies(255 * torch.rand(5, 1, 8, 8), (1, 8, 8))
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: proxies: 'some of them' is not allowed; ...
    """
    pixels = checked_pixels("proxies", proxies)
    found = tuple(pixels.shape[1:])
    if found != shape:
        raise ConfigurationError("proxies", found, f"clients' records are {shape}")
    if not len(pixels):
        raise ConfigurationError("proxies", 0, "use one or more")
    if not in_range(pixels):
        raise ConfigurationError("proxies", "some of them", "use numbers in [0, 1], and no NaN")


def check_test(test: object, shape: tuple[int, ...]) -> None:
    """Raise ConfigurationError for what is no images of that shape to test on."""
    if not isinstance(test, Images):
        kind = type(test).__name__
        raise ConfigurationError("test", kind, "use Images(pixels, labels)")
    found = tuple(test.pixels.shape[1:])
    if found != shape or not len(test):
        raise ConfigurationError("test", (len(test), *found), f"use one or more of {shape}")


def check_networks(
    networks: Sequence[nn.Module], data: Sequence[ClientData], n_classes: int
) -> None:
    """Show every network two of its client's records, once and in evaluation mode.

    Raises ConfigurationError for a network that is frozen, not float32, takes other records, or
    gives anything but finite logits [N, n_classes].

    >>> records = Images(torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]))
    >>> own = ClientData(records, records[:0], n_classes=2)
    >>> check_networks([nn.Sequential(nn.Flatten(), nn.Linear(4, 2))], [own], 2)
    >>> check_networks([nn.Sequential(nn.Flatten(), nn.Linear(4, 5))], [own], 2)
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: models: 'Sequential of client 0' is not allowed; ...
    """
    for k, (network, own) in enumerate(zip(networks, data, strict=True)):
        wrong = _wrong_parameters(network) or _wrong_logits(network, own, n_classes)
        if wrong:
            raise ConfigurationError("models", f"{type(network).__name__} of client {k}", wrong)


def device_of(asked: torch.device | str) -> torch.device:
    """A device by its name, which must be here; ConfigurationError where it is not.

    >>> device_of("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(asked)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigurationError(
            "device", str(asked), "use cpu, or a device that is here, as cuda:0 may be"
        ) from error
    return found


def _wrong_parameters(network: nn.Module) -> str:
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        return "none of its parameters is trained: set requires_grad on some"
    kinds = {p.dtype for p in parameters if p.is_floating_point()} - {torch.float32}
    return f"its parameters must be float32, not {_names(kinds)}" if kinds else ""


def _names(kinds: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))


def _wrong_logits(network: nn.Module, own: ClientData, n_classes: int) -> str:
    """Return the fault of a network's predictions, in a sentence; "" if there is none."""
    shown = own.train.pixels[:_TRIED].to(next(network.parameters()).device)
    shape, wanted = tuple(shown.shape[1:]), (len(shown), n_classes)
    try:
        with torch.inference_mode(), evaluating(network):
            made: object = network(shown)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        quoted = str(error).splitlines()[0][:_QUOTED] if str(error) else type(error).__name__
        return f"it must take records {shape}: {quoted}"
    if not isinstance(made, Tensor):
        return f"it must give one tensor, not a {type(made).__name__}"
    if tuple(made.shape) != wanted:
        return (
            f"it must give {n_classes} logits a record, {wanted} for two, not {tuple(made.shape)}"
        )
    if not made.isfinite().all():
        return "its logits must be finite"
    if (made >= 0).all() and (made.sum(dim=1) - 1).abs().max() < _CLOSE:
        return "it must give logits: leave out the Softmax at its end"
    return ""
