"""Records, proxy samples and parts of the run, made from a roster and a party's folders."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.federated import ClientData, clients_of
from secure_fd.data.images import proxy_pixels
from secure_fd.data.own_images import colour_and_side, images_in
from secure_fd.deployment.roster import RosterFile, SiteCard
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.secagg.client import MaskingClient
from secure_fd.secagg.server import MaskingServer
from secure_fd.secure_sum.masked import RosterMasks
from secure_fd.simulation.build import PublicFacts, RunConfig, RunParts, build_run
from secure_fd.storage import Store

CPU: Final = torch.device("cpu")
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
LEAST_IMAGES: Final = 20
"""Fewest images of a site: selectors recognise no class with under ten records."""
LEAST_RECORDS: Final = 18
"""Fewest training records of a site: those of `LEAST_IMAGES`."""
LEAST_NOISY_RECORDS: Final = 100
"""The same under a record epsilon, whose noise outweighs the answers of fewer records."""


def records_in(folder: Path, roster: RosterFile, number: int) -> ClientData:
    """Read a site's records, one folder a class, scaled to the roster's shape.

    A tenth is for validation. Raises ConfigurationError unless the number of training records is
    the roster's.
    """
    check_folders(folder, roster.classes)
    channels, size = roster.shape[0], roster.shape[-1]
    images, _ = images_in(folder, size, channels=channels, classes=roster.classes)
    n_classes, seed = len(roster.classes), 1000 * roster.terms.seed + number
    [data] = clients_of([images], n_classes, seed=seed)
    if len(data.train) != roster.records[number]:
        found = f"the roster has {roster.records[number]} training records of this site"
        allowed = f"{found}: use the images of its card, or make a new card"
        raise ConfigurationError("data", len(data.train), allowed)
    return data


def check_folders(folder: Path, classes: Sequence[str]) -> None:
    """Raise ConfigurationError for a folder of records that is none of the classes."""
    found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    if unknown := sorted(found.difference(classes)):
        allowed = f"the folders of the federation's classes are {', '.join(classes)}: rename it"
        raise ConfigurationError("data", unknown[0], allowed)


def card_of(
    folder: Path, name: str, classes: Sequence[str] = (), *, public_counts: bool = False
) -> SiteCard:
    """Describe records for the card of a site that has no identity yet.

    Raises ConfigurationError for fewer images than a site needs, and for folders that are none of
    the classes, where these are given.
    """
    if classes:
        check_folders(folder, classes)
    images, names = images_in(folder, 1, classes=classes or None)
    if len(images) < LEAST_IMAGES:
        raise ConfigurationError("data", len(images), f"use {LEAST_IMAGES} images or more")
    [data] = clients_of([images], len(names))
    channels, side = colour_and_side(folder)
    counts = np.bincount(images.labels, minlength=len(names)).tolist() if public_counts else ()
    return SiteCard(
        name,
        bytes(32),
        len(data.train),
        classes=tuple(names),
        channels=channels,
        side=side,
        counts=tuple(counts),
    )


def proxies_in(folder: Path, size: int, channels: int) -> Pixels:
    """Public images [P, channels, size, size], in the order of their files' names."""
    images, _ = images_in(folder, size, channels=channels, folders=[folder])
    return proxy_pixels(images.pixels)


def parts_of(
    roster: RosterFile, proxies: Tensor, ledgers: Mapping[int, BudgetLedger] | None = None
) -> RunParts:
    """Build the parts of a roster's run by the builder that `simulate` uses.

    Args:
        roster: settings, and public facts of the data.
        proxies: [P, ...] proxy samples.
        ledgers: at a site, the ledger of its records by its number.

    Raises:
        ConfigurationError: for a method that does not exist, or without the unit.
    """
    terms, classes = roster.terms, len(roster.classes)
    unit = None if terms.unit == "none" else terms.unit
    config = RunConfig(
        terms.method, secure="masks", unit=unit, epsilon=terms.epsilon, seed=terms.seed
    )
    facts = PublicFacts(terms.image_set, classes, roster.shape, roster.records, terms.held, proxies)
    parts = build_run(config, facts, ledgers, roster.session.id)
    parts.check_sum(RosterMasks(roster.session))
    parts.protection.agree(len(proxies), classes)
    return parts


def kept_seed(file: Store, member: MaskingClient | MaskingServer) -> bytes:
    """The seed of joint draws: that of the first set-up, also after a restart of the party."""
    seed = file.get("seed")
    if not seed:
        seed = member.group.seed
        file.put({"seed": seed})
    return seed
