"""From the cards of sites to the roster, and the server's own keys with it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from secure_fd.crypto.keys import quantum_safe_available
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import own_name
from secure_fd.deployment import keys
from secure_fd.deployment.parties import Agreement
from secure_fd.deployment.records import LEAST_NOISY_RECORDS, LEAST_RECORDS, Pixels, proxies_in
from secure_fd.deployment.roster import (
    Roster,
    SiteEntry,
    Terms,
    check_address,
    check_shape,
    check_sites,
    parse,
    render,
    site_entry,
    toml,
)
from secure_fd.errors import ConfigurationError

_NONCE_BYTES: Final = 32
_CARD_BYTES: Final = 4096


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
    """Make the server's home; the text of the roster, in a new session.

    shape: channels, height, width of every image. terms: an empty `image_set` is one's own images.
    Raises ConfigurationError for a card that is none, and terms under which no run is possible.
    """
    host, _, port = check_address(address).rpartition(":")
    if not int(port):
        raise ConfigurationError("address", address, "use HOST:PORT")
    check_shape(shape)
    sites = check_sites([_card(path) for path in cards])
    _check_records(sites, terms)
    pixels = proxies_in(proxies, shape[-1], shape[0])
    image_set = terms.image_set or own_name(shape, len(classes), len(pixels))
    server = keys.NewServer(host)
    roster = Roster(
        name=name,
        address=address,
        certificate=server.certificate,
        terms=replace(terms, image_set=image_set),
        classes=tuple(classes),
        shape=shape,
        proxies=proxy_commitment(pixels),
        nonce=os.urandom(_NONCE_BYTES),
        hybrid=quantum_safe_available(),
        identity=server.identity,
        agreement=server.agreement,
        sites=sites,
        digest=bytes(_NONCE_BYTES),
    )
    text = render(roster)
    _try_out(parse(text.encode()), pixels)
    # The home comes last: one that exists is refused, also to the corrected command.
    server.store(home)
    return text


def _check_records(sites: Sequence[SiteEntry], terms: Terms) -> None:
    """ConfigurationError for a site of fewer records than the terms need."""
    noisy = terms.unit != "none"
    least = LEAST_NOISY_RECORDS if noisy else LEAST_RECORDS
    for site in sites:
        if site.records < least:
            why = "under a record epsilon " if noisy else ""
            allowed = f"{why}every site needs {least} training records or more ({site.name})"
            raise ConfigurationError("records", site.records, allowed)


def _try_out(made: Roster, pixels: Pixels) -> None:
    """ConfigurationError where the method does not run, or a network would not take the images."""
    agreement = Agreement.of(made, (public := made.check_proxies(pixels)))
    networks = [agreement.network(number) for number in range(len(made.sites))]
    try:
        for network in networks:
            network(public[:2])
    except RuntimeError as error:
        allowed = f"the networks of {made.terms.image_set} take images of another size"
        raise ConfigurationError("size", made.shape[-1], allowed) from error
    agreement.method.check(agreement.setting(bytes(_NONCE_BYTES)), networks)


def _card(path: Path) -> SiteEntry:
    try:
        with path.open("rb") as file:
            data = file.read(_CARD_BYTES + 1)
    except OSError as error:
        raise ConfigurationError("cards", str(path), "use a card.toml of a site") from error
    if len(data) > _CARD_BYTES:
        raise ConfigurationError("cards", str(path), f"a card has up to {_CARD_BYTES} bytes")
    try:
        return site_entry(toml("card", data))
    except ConfigurationError as error:
        raise ConfigurationError("cards", str(path), f"it is no card ({error})") from error
