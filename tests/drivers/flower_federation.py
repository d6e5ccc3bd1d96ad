"""A roster, its sites and a courier in this process, for tests of the parties across machines."""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from secure_fd.crypto.keys import IdentityKey
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import proxy_pixels
from secure_fd.deployment import keys
from secure_fd.deployment.budget import Budget, default_ledger
from secure_fd.deployment.enrol import InitCommand, RosterCommand
from secure_fd.deployment.envelope import CHALLENGE_BYTES, Push, PushKind, roster_hint, set_up_name
from secure_fd.deployment.loop import Rounds, Transport
from secure_fd.deployment.parties import parts_of
from secure_fd.deployment.roster import RosterFile, SiteEntry, Terms, read
from secure_fd.deployment.site import Site, site_of
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.simulation.build import RunParts
from secure_fd.storage import Store

CLASSES = ("cat", "dog")


def image_folders(root: Path, sites: str) -> list[Path]:
    """Folders of records, ten images of 16 pixels a class, by site; proxies beside them."""
    records, rng = [root / site / "records" for site in sites], np.random.default_rng(0)
    for place in (*(each / name for each in records for name in CLASSES), root / "proxies"):
        place.mkdir(parents=True)
        for index in range(10):
            pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{index}.png")
    return records


class Enrolled:
    """Sites and a server below a folder, enrolled by the commands. kept: a folder to copy."""

    def __init__(self, folder: Path, sites: str = "abc", kept: Path | None = None) -> None:
        self.folder, self.proxies = folder, folder / "proxies"
        if kept is not None:
            shutil.copytree(kept, folder)
            return
        for records in image_folders(folder, sites):
            InitCommand(data=records, name=records.parent.name)()

    def home(self, site: str) -> Path:
        return self.folder / site / ("" if site == "server" else "home")

    def records(self, site: str) -> Path:
        return self.folder / site / "records"

    def cards(self, sites: str) -> tuple[Path, ...]:
        return tuple(self.home(site) / f"{site}.toml" for site in sites)

    def enrol(self, name: str, sites: str = "abc", previous: str = "", **options) -> RosterFile:
        """A roster file of these sites; with a previous one or a new server."""
        given = {} if previous else {"rounds": 1, "size": 16, "address": "127.0.0.1:9443"}
        given |= {
            "home": self.home("server"),
            "cards": self.cards(sites),
            "proxies": self.proxies,
            "out": self.folder / f"{name}.toml",
            "previous": self.folder / f"{previous}.toml" if previous else None,
        }
        command = RosterCommand(**given | options)
        assert command() == 0
        return read(command.out)

    def roster(self, name: str) -> RosterFile:
        return read(self.folder / f"{name}.toml")

    def state(self, site: str) -> dict[str, bytes | None]:
        with closing(keys.open_state(self.home(site))) as file:
            return {name: file.get(name) for name in file.names()}

    def site(self, roster: RosterFile, site: str, file: Store, **budget) -> Site:
        """A process of a site, over its home."""
        home, records = self.home(site), self.records(site)
        chosen = Budget(**{"path": default_ledger(records), **budget})
        return site_of(home, records, roster, self.proxies, file, chosen)

    def join(self, roster: RosterFile, site: str, **budget) -> None:
        """Start a site's process, which ends before its first message."""
        with closing(keys.open_state(self.home(site))) as file:
            self.site(roster, site, file, **budget)


@dataclass
class World:
    """A whole federation in a folder; sites and the server can be made again from their files."""

    data: FederatedData
    folder: Path
    terms: Terms
    roster: RosterFile = field(init=False)
    identities: dict[int, IdentityKey] = field(init=False, default_factory=dict)
    sites: dict[int, Site] = field(init=False, default_factory=dict)
    files: dict[int, Store] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        server = keys.NewServer("localhost")
        server.store(self.folder / "server")
        self.roster = RosterFile(
            name="test",
            address="127.0.0.1:1",
            certificate=server.certificate,
            terms=self.terms,
            classes=tuple(str(c) for c in range(self.data.n_classes)),
            shape=tuple(self.data.proxies.pixels.shape[1:]),
            proxies=proxy_commitment(proxy_pixels(self.data.proxies.pixels)),
            nonce=os.urandom(32),
            hybrid=True,
            identity=server.identity,
            agreement=server.agreement,
            sites=tuple(
                SiteEntry(f"site {k}", keys.create_site(self.home(k)), len(client.train))
                for k, client in enumerate(self.data.clients)
            ),
        )
        for k in range(len(self.data.clients)):
            self.start(k)

    def home(self, k: int) -> Path:
        return self.folder / f"home{k}"

    def parts(self, ledgers: dict[int, BudgetLedger] | None = None) -> RunParts:
        return parts_of(self.roster, self.data.proxies.pixels, ledgers)

    def start(self, k: int) -> Site:
        """A process of a site, over the file that the last one left."""
        home, file = self.home(k), self._opened(k, self.home(k))
        self.identities[k] = self.identities.get(k) or keys.identity_in(file)
        key, data = self.identities[k], self.data.clients[k]
        ledger = Budget(self.folder / f"records{k}.ledger").ledger(self.roster, k, data, file)
        made = self.parts(None if ledger is None else {k: ledger})
        self.sites[k] = Site(self.roster, made, k, key, data, file, home)
        return self.sites[k]

    def greeting(self, k: int) -> bytes:
        """The push by which a server that made the set-up greets a site."""
        name = set_up_name(self.files[k].get("seed"))
        hint = roster_hint(self.roster.digest)
        return Push(PushKind.HELLO, (bytes(CHALLENGE_BYTES), hint, name)).encode()

    def serve(self, courier: "Courier") -> Rounds:
        """A process of the server, over the file that the last one left."""
        file = self._opened(-1, self.folder / "server")
        return Rounds(self.roster, self.parts(), courier, file)

    def _opened(self, k: int, home: Path) -> Store:
        if k in self.files:
            self.files[k].close()
        self.files[k] = keys.open_state(home)
        return self.files[k]


@dataclass
class Courier(Transport):
    """Hands pushes over within this process. Node n is site n; away: those that get nothing."""

    world: World
    away: set[int] = field(default_factory=set)
    pushes: int = 0

    def nodes(self) -> Sequence[int]:
        return [k for k in self.world.sites if k not in self.away]

    def push(self, messages: Mapping[int, bytes], _: float) -> Iterable[tuple[int, bytes]]:
        self.pushes += bool(messages)
        for k, data in messages.items():
            if k not in self.away:
                yield k, self.carried(k, data)

    def carried(self, k: int, data: bytes) -> bytes:
        return self.world.sites[k].answer(data)
