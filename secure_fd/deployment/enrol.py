"""Enrolment: from the cards of sites to the roster, and the keys of the server."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec.structs import asdict, replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import own_name
from secure_fd.data.tables import Form
from secure_fd.deployment import keys
from secure_fd.deployment.parties import (
    CPU,
    LEAST_NOISY_RECORDS,
    LEAST_RECORDS,
    Pixels,
    card_of,
    form_in,
    is_table_file,
    parts_of,
    proxies_in,
)
from secure_fd.deployment.roster import (
    MOST_BYTES,
    Address,
    RosterFile,
    Shape,
    SiteCard,
    Terms,
    checked,
    parse,
    proxies_of,
    read,
    render,
    render_card,
)
from secure_fd.errors import ConfigurationError
from secure_fd.files import parse_toml, read_limited
from secure_fd.simulation.build import RunParts, default_delta

_SIZE: Final = 28
"""Pixels a side, unless the images are far larger or smaller."""
_NAME_LENGTH: Final = 60
"""Characters of a card's name: four bytes each fit into a file system's 255."""
_PUBLIC: Final = ("certificate", "identity", "agreement")
"""Values of a server that a roster has."""
_AS_BEFORE: Final = ("address", "classes", "size", "channels", *Terms.__struct_fields__)
"""Options of `site roster` that are by default those of the previous roster."""


@dataclass(frozen=True, slots=True)
class InitCommand:
    """Make a site's keys, and its card for the roster: NAME.toml in the home, without secrets."""

    data: Path
    """The records: one folder of images a class, or the TOML file of a table."""
    name: str
    """Name of this site, for the other parties."""
    home: Path | None = None
    """A new folder, for this site only; by default home beside the records."""
    classes: tuple[str, ...] = ()
    """The federation's classes, for a card that does not show which of them this site holds."""
    public_counts: bool = False
    """Put the number of records of each class on the card."""
    share_accuracy: bool = False
    """Allow that this site's accuracy enters the mean over sites, which no epsilon covers."""

    def __call__(self) -> int:
        """Write keys and card."""
        home = keys.home_of(self.home, self.data)
        card = card_of(self.data, self.name, self.classes, public_counts=self.public_counts)
        render_card(card)  # refuses before there are keys
        path, allowed = home / card_name(self.name), self.share_accuracy
        made = replace(card, identity=keys.create_site(home), share_accuracy=allowed)
        path.write_text(render_card(made), encoding="utf-8")
        sent = "send it to the coordinator; it has no secrets"
        print(f"{path}: the card of {card.records} training records. Next: {sent}")
        return 0


def card_name(site: str) -> str:
    """Return the file name of a site's card, so that cards of several sites fit in one folder.

    >>> card_name("St. Mary/2")
    'St--Mary-2.toml'
    """
    name = re.sub(r"[^\w-]", "-", site)[:_NAME_LENGTH].strip("-")
    return f"{name or 'site'}.toml"


@dataclass(frozen=True, slots=True)
class RosterCommand:
    """Make the server's keys, and from the sites' cards the roster that all parties hold.

    With --previous, the server signs a roster that takes the place of another: its keys, and the
    homes of the sites that stay, are those of before. Options that are not given stay as there.
    """

    home: Path
    """A new folder, for the server only; with --previous the folder that the server has."""
    cards: tuple[Path, ...]
    """Cards of three sites or more."""
    out: Path
    """The roster's file."""
    previous: Path | None = None
    """The earlier roster, if sites are added, replaced or removed, or terms change."""
    proxies: Path | None = None
    """A folder of public images, the same for all, by default the folder proxies beside OUT; or the
    TOML file of a table, which names the public rows."""
    address: str = ""
    """HOST:PORT at which sites reach the server."""
    classes: tuple[str, ...] = ()
    """Names of the classes' folders, in the order of labels; by default those of the cards."""
    size: int | None = None
    """Pixels a side to which all images are scaled; by default 28 for images of about that size."""
    channels: int | None = None
    """1 for grey, 3 for colour; by default that of the images."""
    method: str | None = None
    """selective-fd, the default, or fedavg, fedmd, dafkd, heads."""
    unit: str | None = None
    """Privacy unit: none, the default, or record, which needs an epsilon."""
    epsilon: float | None = None
    """Epsilon of one record over the whole run, with unit record only."""
    image_set: str | None = None
    """A named image set, for its networks and recipe; by default the user's own images."""
    rounds: int | None = None
    """Number of rounds; 0, the default, means those of the recipe."""
    held: float | None = None
    """Mean number of classes that a site holds, from which the recipe follows; by default 1."""
    seed: int | None = None
    """Seed of networks and training, never of keys or noise; by default 0."""
    deadline: float | None = None
    """Seconds that the server waits for a stage, training included; by default 60."""
    share_accuracy: bool = False
    """Show the mean accuracy over sites after each round, a masked sum that no epsilon covers; the
    cards of all sites must allow it. A new roster does not keep this option."""

    def __call__(self) -> int:
        """Write keys and roster, and return the exit status.

        Raises ConfigurationError for a file that is no card, for terms under which no run is
        possible, and for a previous roster of another server; no keys are written then.
        """
        if self.out.exists() or not self.out.resolve().parent.is_dir():
            allowed = "use a new file, in a folder that exists"
            raise ConfigurationError("out", str(self.out), allowed)
        old = None
        before: dict[str, Any] = asdict(Terms())
        if self.previous is not None:
            old = read(self.previous)
            keys.check_home(self.home, old)
            before = asdict(old) | asdict(old.terms)
            if not old.columns:
                before |= {"channels": old.shape[0], "size": old.shape[-1]}
        missing = [name for name in _AS_BEFORE if getattr(self, name) in (None, "", ())]
        filled = {name: before[name] for name in missing if name in before}
        return dataclasses.replace(self, **filled)._make(old)

    def _make(self, old: RosterFile | None) -> int:
        checked("address", self.address, Address)
        named = {name: getattr(self, name) for name in Terms.__struct_fields__}
        cards = tuple(map(read_card, self.cards))
        _check_sites(cards, named["unit"], share_accuracy=self.share_accuracy)
        classes = _agreed_classes(cards, self.classes)
        place = proxies_of(self.proxies, self.out.resolve())
        form = form_in(place) if is_table_file(place) else None
        shape = self._image_shape(cards) if form is None else self._row_shape(cards, form, classes)
        checked("shape", shape, Shape)
        checked("terms", named, Terms)
        pixels = proxies_in(place, shape)
        own = own_name(shape, len(classes), len(pixels), table=form is not None)
        named["image_set"] = self.image_set or own
        agreed: dict[str, Any] = {
            "address": self.address,
            "classes": classes,
            "shape": shape,
            "columns": b"" if form is None else form.digest,
            "proxies": proxy_commitment(pixels),
            "nonce": os.urandom(32),
            "terms": Terms(**named),
            "sites": tuple(card.entry for card in cards),
        }
        if old is None:
            server = keys.NewServer(self.address.rpartition(":")[0])
            public = {name: getattr(server, name) for name in _PUBLIC}
            text = render(RosterFile(name=self.out.stem, hybrid=True, **public, **agreed))
        else:
            _check_unchanged(old, agreed)
            roster = replace(old, previous=(old.digest, *old.previous), **agreed)
            with closing(keys.open_state(self.home)) as file:
                text = render(roster, keys.identity_in(file).sign)
        made = parse(text.encode())
        parts = _parts_that_run(made, pixels)
        if old is None:
            server.store(self.home)  # last, since a home that exists is refused to the next command
        self.out.write_text(text, encoding="utf-8")
        _print_terms(made, parts, cards)
        sent = "give roster and proxies to all sites by a way that they trust"
        print(f"{self.out}: Next: {sent}, and compare the digest by telephone")
        return 0

    def _image_shape(self, cards: Sequence[SiteCard]) -> tuple[int, int, int]:
        size = _agreed_size(cards, self.size)
        return _agreed_channels(cards, self.channels), size, size

    def _row_shape(
        self, cards: Sequence[SiteCard], form: Form, classes: tuple[str, ...]
    ) -> tuple[int, int, int]:
        """Return the shape of a table's record; ConfigurationError where a card has another."""
        for name in ("size", "channels"):
            if getattr(self, name) is not None:
                allowed = "this is for images, and the proxies are of a table: leave it out"
                raise ConfigurationError(name, getattr(self, name), allowed)
        if classes != form.label.categories:
            allowed = f"the columns of the table name {', '.join(form.label.categories)}"
            raise ConfigurationError("classes", ", ".join(classes), allowed)
        values = form.proxies.pixels.shape[1]
        for card in cards:
            if (card.channels, card.side) != (values, 1):
                allowed = f"{card.name} has other records than the table, of {values} values a row"
                raise ConfigurationError("cards", card.channels, allowed)
        return values, 1, 1


def _check_unchanged(old: RosterFile, agreed: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where networks or proxy samples would not fit any more."""
    for name in ("address", "classes", "shape", "columns", "proxies"):
        if getattr(old, name) != agreed[name]:
            allowed = "use that of the previous roster, or make a new federation"
            raise ConfigurationError(name, "another one", allowed)


def _check_sites(cards: Sequence[SiteCard], unit: str, *, share_accuracy: bool) -> None:
    """Raise ConfigurationError for two cards of one site, and for one that cannot take part."""
    least = LEAST_RECORDS if unit == "none" else LEAST_NOISY_RECORDS
    seen = set[str | bytes]()
    for card in cards:
        if seen & {card.name, card.identity}:
            allowed = "two cards have the name or the keys of this site: use one card a site"
            raise ConfigurationError("cards", card.name, allowed)
        if card.records < least:
            allowed = f"with unit {unit} a site needs {least} or more ({card.name})"
            raise ConfigurationError("records", card.records, allowed)
        if share_accuracy and not card.share_accuracy:
            allowed = f"{card.name} does not allow it: leave it out, or ask for another card"
            raise ConfigurationError("share_accuracy", True, allowed)
        seen |= {card.name, card.identity}


def _agreed_classes(cards: Sequence[SiteCard], given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes in the order of labels; ConfigurationError for cards that differ."""
    first = cards[0]
    for card in cards:
        found = set(card.classes)
        odd = found.difference(given) if given else found.symmetric_difference(first.classes)
        if odd:
            others = f"{card.name} and {'--classes' if given else first.name} differ in this class"
            allowed = f"{others}: rename its folder, or give all classes with --classes"
            raise ConfigurationError("classes", min(odd), allowed)
    return given or first.classes


def _agreed_size(cards: Sequence[SiteCard], given: int | None) -> int:
    side = round(median(card.side for card in cards))
    if given is None and abs(_SIZE - side) > side / 2:
        allowed = f"the median side of the sites' images is {side} pixels: choose with --size"
        raise ConfigurationError("size", _SIZE, allowed)
    return _SIZE if given is None else given


def _agreed_channels(cards: Sequence[SiteCard], given: int | None) -> int:
    first = cards[0]
    for card in cards:
        if given is None and card.channels != first.channels:
            grey, colour = sorted((first, card), key=lambda each: each.channels)
            allowed = f"{colour.name} has colour and {grey.name} not: pass --channels 1, or 3"
            raise ConfigurationError("channels", card.channels, allowed)
    return given or first.channels


def _print_terms(roster: RosterFile, parts: RunParts, cards: Sequence[SiteCard]) -> None:
    """Print a table of what the parties agree on with this roster."""
    terms, (channels, size, _) = roster.terms, roster.shape
    records = f"images of {size} x {size} pixels, {'grey' if channels == 1 else 'colour'}"
    noise = f", epsilon {terms.epsilon:g}, delta {default_delta(roster.records):.1g}"
    needed = max(roster.session.least_members, parts.protection.noise_terms.survivors)
    rows = {
        "method": terms.method,
        "privacy unit": terms.unit + ("" if terms.unit == "none" else noise),
        "rounds": str(terms.rounds or parts.recipe.rounds),
        "sites": "\n".join(map(_site_line, cards)),
        "classes": ", ".join(roster.classes),
        "records": f"rows of {channels} values" if roster.columns else records,
        "deadline": f"{terms.deadline:g} s a stage",
        "sites that may be missing": str(max(0, len(roster.sites) - needed) or "none"),
        "mean accuracy": "shown, outside of epsilon" if terms.share_accuracy else "not shared",
        "address": roster.address,
        "digest": roster.digest.hex()[:16],
    }
    if roster.previous:
        rows["takes the place of"] = roster.previous[0].hex()[:16]
    table = Table(show_header=False)
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console().print(table)


def _site_line(card: SiteCard) -> str:
    counts = zip(card.classes, card.counts, strict=False)
    shown = "".join(f", {number} {name}" for name, number in counts)
    pixels = f" of {card.side} pixels" if card.side > 1 else ""
    return f"{card.name}: {card.records} records{pixels}{shown}"


def _parts_that_run(made: RosterFile, pixels: Pixels) -> RunParts:
    """Return a run's parts; ConfigurationError if no method or network takes its settings."""
    parts = parts_of(made, (public := made.check_proxies(pixels)))
    networks = [parts.network(number) for number in range(len(made.sites))]
    try:
        for network in networks:
            network(public[:2])
    except RuntimeError as error:
        allowed = f"the networks of {made.terms.image_set} take images of another size"
        raise ConfigurationError("size", made.shape[-1], allowed) from error
    parts.method.check(parts.setting(bytes(32), CPU), networks)
    return parts


def read_card(path: Path) -> SiteCard:
    """Read a card; ConfigurationError for a file that is none, or of an earlier version."""
    try:
        found = parse_toml("card", "this file", read_limited(path, MOST_BYTES), MOST_BYTES)
        card: SiteCard = checked("card", found, SiteCard)
    except OSError as error:
        raise ConfigurationError("cards", str(path), "use the card of a site") from error
    except ConfigurationError as error:
        allowed = f"it is no card of this version ({error}): its site makes one in a new --home"
        raise ConfigurationError("cards", str(path), allowed) from error
    return card
