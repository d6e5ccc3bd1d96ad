"""From the cards of sites to the roster, and the server's own keys with it."""

import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from secure_fd.crypto.primitives import proxy_commitment, quantum_safe_available
from secure_fd.errors import ConfigurationError
from secure_fd.flower import keys
from secure_fd.flower.parties import Agreement
from secure_fd.flower.records import Pixels, proxies_in
from secure_fd.flower.roster import Roster, SiteEntry, Terms, parse, render, site_entry
from secure_fd.recipes import own_name

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
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigurationError("address", address, "use HOST:PORT")
    sites = tuple(_card(path) for path in cards)
    if len({site.identity for site in sites}) < len(sites):
        raise ConfigurationError("cards", len(sites), "use the card of each site once")
    pixels = proxies_in(proxies, shape[-1], shape[0])
    image_set = terms.image_set or own_name(shape, len(classes), len(pixels))
    card = keys.create_server(home, host)
    roster = Roster(
        name=name,
        address=address,
        certificate=card.certificate,
        terms=replace(terms, image_set=image_set),
        classes=tuple(classes),
        shape=shape,
        proxies=proxy_commitment(pixels),
        nonce=os.urandom(_NONCE_BYTES),
        hybrid=quantum_safe_available(),
        identity=card.identity,
        agreement=card.agreement,
        sites=sites,
        digest=bytes(_NONCE_BYTES),
    )
    text = render(roster)
    _try_out(parse(text.encode()), pixels)
    return text


def _try_out(made: Roster, pixels: Pixels) -> None:
    """ConfigurationError where a site's network would not take the images."""
    agreement = Agreement.of(made, (public := made.check_proxies(pixels)))
    for number in range(len(made.sites)):
        try:
            agreement.network(number)(public[:2])
        except RuntimeError as error:
            allowed = f"the networks of {made.terms.image_set} take images of another size"
            raise ConfigurationError("size", made.shape[-1], allowed) from error


def _card(path: Path) -> SiteEntry:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigurationError("cards", str(path), "use a card.toml of a site") from error
    try:
        return site_entry(tomllib.loads(data[:_CARD_BYTES].decode()))
    except ValueError as error:
        raise ConfigurationError("cards", str(path), f"it is no card ({error})") from error
