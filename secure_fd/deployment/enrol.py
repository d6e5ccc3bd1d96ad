"""Enrolment: from the cards of sites to the roster, and the keys of the server."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import own_name
from secure_fd.deployment import keys
from secure_fd.deployment.parties import (
    CPU,
    LEAST_NOISY_RECORDS,
    LEAST_RECORDS,
    Pixels,
    count_records,
    parts_of,
    proxies_in,
)
from secure_fd.deployment.roster import (
    MOST_BYTES,
    Address,
    RosterFile,
    Shape,
    SiteEntry,
    Terms,
    checked,
    parse,
    render,
    render_site,
)
from secure_fd.errors import ConfigurationError
from secure_fd.files import parse_toml, read_limited


@dataclass(frozen=True, slots=True)
class InitCommand:
    """Make a site's keys, and its card for the roster: card.toml in the home, without secrets."""

    data: Path
    """The records: one folder of images a class."""
    name: str
    """Name of this site, for the other parties."""
    home: Path | None = None
    """A new folder, for this site only; by default home beside the records."""

    def __call__(self) -> int:
        """Write keys and card."""
        records, home = count_records(self.data), keys.home_of(self.home, self.data)
        render_site(SiteEntry(self.name, bytes(32), records))  # refuses before there are keys
        entry = SiteEntry(self.name, keys.create_site(home), records)
        card = home / "card.toml"
        card.write_text(render_site(entry), encoding="utf-8")
        print(f"{card}: {records} training records; give it to the server")
        return 0


@dataclass(frozen=True, slots=True)
class RosterCommand:
    """Make the server's keys, and from the sites' cards the roster that all parties hold."""

    home: Path
    """A new folder, for the server only."""
    cards: tuple[Path, ...]
    """Cards of three sites or more."""
    proxies: Path
    """A folder of public images, the same for all."""
    classes: tuple[str, ...]
    """Names of the classes' folders, in the order of labels."""
    address: str
    """HOST:PORT at which sites reach the server."""
    out: Path
    """The roster's file."""
    size: int = 28
    """Pixels a side to which all images are scaled."""
    channels: int = 1
    """1 for grey, 3 for colour."""
    method: str = "selective-fd"
    """Or fedavg, fedmd, dafkd, heads."""
    unit: str = "none"
    """Privacy unit: none, or record, which needs an epsilon."""
    epsilon: float = math.inf
    """Epsilon of one record over the whole run, with unit record only."""
    image_set: str = ""
    """A named image set, for its networks and recipe; by default the user's own images."""
    rounds: int = 0
    """Number of rounds; 0 takes the recipe's."""
    held: float = 1.0
    """Mean number of classes that a site holds, as if evenly."""
    seed: int = 0
    """Seed of networks and training, never of keys or noise."""
    deadline: float = 60.0
    """Seconds that the server waits for a stage, training included."""

    def __call__(self) -> int:
        """Write keys and roster, and return the exit status.

        Raises ConfigurationError for a file that is no card, and for terms under which no run is
        possible; no keys are written then.
        """
        if self.out.exists() or not self.out.resolve().parent.is_dir():
            allowed = "use a new file, in a folder that exists"
            raise ConfigurationError("out", str(self.out), allowed)
        shape = (self.channels, self.size, self.size)
        checked("shape", shape, Shape)
        checked("address", self.address, Address)
        named = {name: getattr(self, name) for name in Terms.__struct_fields__}
        sites = tuple(map(_card, self.cards))
        _check_records(sites, self.unit)
        pixels = proxies_in(self.proxies, self.size, self.channels)
        named["image_set"] = self.image_set or own_name(shape, len(self.classes), len(pixels))
        server = keys.NewServer(self.address.rpartition(":")[0])
        roster = RosterFile(
            name=self.out.stem,
            address=self.address,
            certificate=server.certificate,
            classes=self.classes,
            shape=shape,
            proxies=proxy_commitment(pixels),
            nonce=os.urandom(32),
            hybrid=True,
            identity=server.identity,
            agreement=server.agreement,
            terms=Terms(**named),
            sites=sites,
        )
        text = render(roster)
        _try_out(parse(text.encode()), pixels)
        server.store(self.home)  # last, since a home that exists is refused to the next command
        self.out.write_text(text, encoding="utf-8")
        print(f"{self.out}: give it to all sites, by a way that they trust")
        return 0


def _check_records(sites: Sequence[SiteEntry], unit: str) -> None:
    """Raise ConfigurationError for a site with fewer records than the terms need."""
    least = LEAST_RECORDS if unit == "none" else LEAST_NOISY_RECORDS
    for site in sites:
        if site.records < least:
            allowed = f"with unit {unit} a site needs {least} or more ({site.name})"
            raise ConfigurationError("records", site.records, allowed)


def _try_out(made: RosterFile, pixels: Pixels) -> None:
    """Raise ConfigurationError if the method does not run, or a network refuses the images."""
    parts = parts_of(made, (public := made.check_proxies(pixels)))
    networks = [parts.network(number) for number in range(len(made.sites))]
    try:
        for network in networks:
            network(public[:2])
    except RuntimeError as error:
        allowed = f"the networks of {made.terms.image_set} take images of another size"
        raise ConfigurationError("size", made.shape[-1], allowed) from error
    parts.method.check(parts.setting(bytes(32), CPU), networks)


def _card(path: Path) -> SiteEntry:
    try:
        found = parse_toml("card", "this file", read_limited(path, MOST_BYTES), MOST_BYTES)
        entry: SiteEntry = checked("card", found, SiteEntry)
    except OSError as error:
        raise ConfigurationError("cards", str(path), "use a card.toml of a site") from error
    except ConfigurationError as error:
        raise ConfigurationError("cards", str(path), f"it is no card ({error})") from error
    return entry
