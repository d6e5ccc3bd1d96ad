"""Enrolment: from the cards of sites to the roster, and the keys of the server."""

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from secure_fd.crypto.keys import quantum_safe_available
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import own_name
from secure_fd.deployment import keys
from secure_fd.deployment.parties import Agreement
from secure_fd.deployment.records import LEAST_NOISY_RECORDS, LEAST_RECORDS, Pixels, proxies_in
from secure_fd.deployment.roster import (
    RosterFile,
    Shape,
    SiteEntry,
    Terms,
    checked,
    parse,
    render,
    toml,
)
from secure_fd.errors import ConfigurationError


def enrol(
    home: Path,
    cards: Sequence[Path],
    proxies: Path,
    *,
    shape: tuple[int, int, int],
    classes: Sequence[str],
    address: str,
    terms: Terms,
    name: str,
) -> str:
    """Make the server's home, and return the text of a roster with a new session.

    Raises ConfigurationError for a file that is no card, and for terms under which no run is
    possible; no home is made then.

    Args:
        home: new folder of the server.
        cards: files of the sites' cards.
        proxies: folder of the proxy samples.
        shape: channels, height and width of every image.
        classes: names of the classes, in the order of labels.
        address: HOST:PORT of the server.
        terms: settings of the run; an empty `image_set` stands for the user's own images.
        name: of the roster.
    """
    checked("shape", shape, Shape)
    sites = tuple(map(_card, cards))
    _check_records(sites, terms)
    pixels = proxies_in(proxies, shape[-1], shape[0])
    image_set = terms.image_set or own_name(shape, len(classes), len(pixels))
    server = keys.NewServer(address.rpartition(":")[0])
    roster = RosterFile(
        name=name,
        address=address,
        certificate=server.certificate,
        classes=tuple(classes),
        shape=shape,
        proxies=proxy_commitment(pixels),
        nonce=os.urandom(32),
        hybrid=quantum_safe_available(),
        identity=server.identity,
        agreement=server.agreement,
        terms=replace(terms, image_set=image_set),
        sites=sites,
    )
    text = render(roster)
    _try_out(parse(text.encode()), pixels)
    server.store(home)  # last, since a home that exists is refused to the corrected command
    return text


def _check_records(sites: Sequence[SiteEntry], terms: Terms) -> None:
    """Raise ConfigurationError for a site with fewer records than the terms need."""
    noisy = terms.unit != "none"
    least = LEAST_NOISY_RECORDS if noisy else LEAST_RECORDS
    for site in sites:
        if site.records < least:
            why = "under a record epsilon " if noisy else ""
            allowed = f"{why}every site needs {least} training records or more ({site.name})"
            raise ConfigurationError("records", site.records, allowed)


def _try_out(made: RosterFile, pixels: Pixels) -> None:
    """Raise ConfigurationError if the method does not run, or a network refuses the images."""
    agreement = Agreement.of(made, (public := made.check_proxies(pixels)))
    networks = [agreement.network(number) for number in range(len(made.sites))]
    try:
        for network in networks:
            network(public[:2])
    except RuntimeError as error:
        allowed = f"the networks of {made.terms.image_set} take images of another size"
        raise ConfigurationError("size", made.shape[-1], allowed) from error
    agreement.method.check(agreement.setting(bytes(32)), networks)


def _card(path: Path) -> SiteEntry:
    try:
        entry: SiteEntry = checked("card", toml("card", path.read_bytes()), SiteEntry)
    except OSError as error:
        raise ConfigurationError("cards", str(path), "use a card.toml of a site") from error
    except ConfigurationError as error:
        raise ConfigurationError("cards", str(path), f"it is no card ({error})") from error
    return entry
