"""Records, proxy samples and parts of the run, made from a roster and a party's files.

Records are a folder of images a class, or rows that the TOML file of a table names.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.columns import Table
from secure_fd.data.federated import ClientData, clients_of
from secure_fd.data.images import Images, proxy_pixels
from secure_fd.data.own_images import colour_and_side, images_in
from secure_fd.data.tables import Form
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
"""Fewest images, or rows, of a site: selectors recognise no class with under ten records."""
LEAST_RECORDS: Final = 18
"""Fewest training records of a site: those of `LEAST_IMAGES`."""
LEAST_NOISY_RECORDS: Final = 100
"""The same under a record epsilon, whose noise outweighs the answers of fewer records."""


def is_table_file(data: Path) -> bool:
    """Return whether records or proxy samples are rows of a table."""
    return data.suffix == ".toml"


def form_in(data: Path) -> Form:
    """Read what is public about the table that a file names; ConfigurationError for others."""
    return Form.of(Table.read(data, private=False))


def encoder_in(data: Path) -> dict[str, object]:
    """Return the line of a model's card that says how a table's rows are encoded; else none."""
    return {"encoder": form_in(data).encoder.stated()} if is_table_file(data) else {}


def records_in(data: Path, roster: RosterFile, number: int) -> ClientData:
    """Read a site's records: images scaled to the roster's shape, or rows of a table.

    A tenth is for validation. Raises ConfigurationError unless the number of training records is
    the roster's, and where `check_records` does.
    """
    check_records(data, roster)
    n_classes, seed = len(roster.classes), 1000 * roster.terms.seed + number
    records, _ = _read(data, roster.shape, roster.classes)
    [made] = clients_of([records], n_classes, seed=seed)
    if len(made.train) != roster.records[number]:
        found = f"the roster has {roster.records[number]} training records of this site"
        allowed = f"{found}: use the records of its card, or make a new card"
        raise ConfigurationError("data", len(made.train), allowed)
    return made


def _read(
    data: Path, shape: tuple[int, int, int], classes: Sequence[str] | None
) -> tuple[Images, Sequence[str]]:
    """Return records and the names of their classes; images scaled to a shape."""
    if not is_table_file(data):
        return images_in(data, shape[-1], channels=shape[0], classes=classes)
    table = Table.read(data)
    form = Form.of(table)
    return form.read(table)[table.site], form.label.categories


def check_records(data: Path, roster: RosterFile) -> None:
    """Raise ConfigurationError for a folder that is none of the roster's classes.

    Also for a table whose columns or public rows are not the roster's: these scale the rows, also
    where the proxies are read from another place.
    """
    _check_kind("data", data, roster)
    if not is_table_file(data):
        check_folders(data, roster.classes)
        return
    form = form_in(data)
    if (form.digest, form.label.categories) != (roster.columns, roster.classes):
        allowed = "its columns are not described as in the roster: ask the coordinator for the file"
        raise ConfigurationError("columns", data.name, allowed)
    roster.check_proxies(proxy_pixels(form.proxies.pixels))


def check_folders(folder: Path, classes: Sequence[str]) -> None:
    """Raise ConfigurationError for a folder of records that is none of the classes."""
    found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    if unknown := sorted(found.difference(classes)):
        allowed = f"the folders of the federation's classes are {', '.join(classes)}: rename it"
        raise ConfigurationError("data", unknown[0], allowed)


def _check_kind(field: str, place: Path, roster: RosterFile) -> None:
    if is_table_file(place) is not bool(roster.columns):
        kind = "the TOML file of a table" if roster.columns else "a folder of images"
        raise ConfigurationError(field, str(place), f"use {kind}, which the roster is for")


def card_of(
    data: Path, name: str, classes: Sequence[str] = (), *, public_counts: bool = False
) -> SiteCard:
    """Describe records for the card of a site that has no identity yet.

    Raises ConfigurationError for fewer records than a site needs, for folders that are none of the
    classes, where these are given, and for classes beside those of a table.
    """
    if classes and is_table_file(data):
        raise ConfigurationError("classes", classes[0], "the columns of a table name its classes")
    if classes:
        check_folders(data, classes)
    records, names = _read(data, (3, 1, 1), classes or None)
    if len(records) < LEAST_IMAGES:
        raise ConfigurationError("data", len(records), f"use {LEAST_IMAGES} records or more")
    [made] = clients_of([records], len(names))
    # The encoder's values stand for channels, as in the shape of a row.
    channels, side = (records.pixels.shape[1], 1) if is_table_file(data) else colour_and_side(data)
    counts = np.bincount(records.labels, minlength=len(names)).tolist() if public_counts else ()
    return SiteCard(
        name,
        bytes(32),
        len(made.train),
        classes=tuple(names),
        channels=channels,
        side=side,
        counts=tuple(counts),
    )


def proxies_in(place: Path, shape: tuple[int, int, int]) -> Pixels:
    """Proxy samples [P, *shape]: rows, or images in the order of their files' names."""
    if is_table_file(place):
        return proxy_pixels(form_in(place).proxies.pixels)
    images, _ = images_in(place, shape[-1], channels=shape[0], folders=[place])
    return proxy_pixels(images.pixels)


def agreed_proxies(place: Path, roster: RosterFile) -> Tensor:
    """Return the proxy samples [P, ...] of a roster; ConfigurationError for others."""
    _check_kind("proxies", place, roster)
    return roster.check_proxies(proxies_in(place, roster.shape))


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
