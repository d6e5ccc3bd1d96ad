"""User-supplied data for the comparison: folders of images, a table, or a function."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from inspect import signature

from experiments.core.run_config import OwnData, own_function
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import own_name
from secure_fd.data.own_images import federation_in
from secure_fd.data.partition import Split
from secure_fd.data.tables import federate_table
from secure_fd.errors import ConfigurationError


def own_federation(own: OwnData, split: Split, clients: int, seed: int) -> FederatedData:
    """The federation of one seed, read once a process. Raises ConfigurationError."""
    return _read(own, (own.images, own.proxies, own.table), split, clients, seed)


@lru_cache(maxsize=2)
def _read(own: OwnData, _: object, split: Split, clients: int, seed: int) -> FederatedData:
    """Read data. _: its files, which equal `OwnData` may differ in."""
    if own.factory:
        return _made(own.factory, seed)
    if own.table is not None:
        return federate_table(own.table, seed)
    if own.images is None:
        raise ConfigurationError("images", None, "the folder is known to the run alone")
    return federation_in(own.images, own.proxies, split, clients, own.size, seed)


def digest(data: FederatedData) -> str:
    """Hash of all pixels and labels, by which a run names its data."""
    found = hashlib.sha256()
    parts = [part for client in data.clients for part in (client.train, client.validation)]
    for part in (*parts, data.proxies, data.test, data.held_out):
        found.update(part.pixels.numpy().tobytes())
        found.update(part.labels.numpy().tobytes())
    return found.hexdigest()[:16]


def _made(factory: str, seed: int) -> FederatedData:
    """Return the data that a user-supplied function makes from a seed."""
    make = own_function("federation", factory)
    try:
        signature(make).bind(seed)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            "federation", factory, f"use a function of a seed ({error})"
        ) from error
    made = make(seed)
    if not isinstance(made, FederatedData):
        kind = type(made).__name__
        raise ConfigurationError("federation", factory, f"it must make a FederatedData, not {kind}")
    form = tuple(made.proxies.pixels.shape[1:])
    return replace(made, name=own_name(form, made.n_classes, len(made.proxies)))
