"""A roster, its sites and a courier in this process, for tests of the parties across machines."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from secure_fd.crypto.primitives import (
    AgreementKey,
    IdentityKey,
    proxy_commitment,
    quantum_safe_available,
)
from secure_fd.data.federated import FederatedData
from secure_fd.flower.loop import Arrived, Rounds
from secure_fd.flower.parties import Agreement
from secure_fd.flower.roster import Roster, SiteEntry, Terms
from secure_fd.flower.site import Site
from secure_fd.knowledge import proxy_pixels
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.secagg.server import Server as SumServerMember
from secure_fd.state import StateFile

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


@dataclass
class World:
    """A whole federation in a folder; sites and the server can be made again from their files."""

    data: FederatedData
    folder: Path
    terms: Terms
    identities: list[IdentityKey] = field(init=False)
    roster: Roster = field(init=False)
    sites: dict[int, Site] = field(init=False, default_factory=dict)
    files: dict[int, StateFile] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.identities = [IdentityKey.generate(os.urandom) for _ in self.data.clients]
        self.identity = IdentityKey.generate(os.urandom)
        self.agreement_key = AgreementKey.generate(os.urandom)
        self.roster = Roster(
            name="test",
            address="127.0.0.1:0",
            certificate="",
            terms=self.terms,
            classes=tuple(str(c) for c in range(self.data.n_classes)),
            shape=tuple(self.data.proxies.pixels.shape[1:]),
            proxies=proxy_commitment(proxy_pixels(self.data.proxies.pixels)),
            nonce=os.urandom(32),
            hybrid=quantum_safe_available(),
            identity=self.identity.public.raw,
            agreement=self.agreement_key.public,
            sites=tuple(
                SiteEntry(f"site {k}", own.public.raw, len(self.data.clients[k].train))
                for k, own in enumerate(self.identities)
            ),
            digest=bytes(32),
        )
        for k in range(len(self.identities)):
            StateFile.create(self.folder / f"site{k}").close()
            self.start(k)
        StateFile.create(self.folder / "server").close()

    def agreement(self, ledger: tuple[int, BudgetLedger] | None = None) -> Agreement:
        return Agreement.of(self.roster, self.data.proxies.pixels, ledger)

    def ledger(self, k: int) -> tuple[int, BudgetLedger] | None:
        if self.terms.unit == "none" or math.isinf(self.terms.epsilon):
            return None
        path, budget = self.folder / f"ledger{k}", (self.terms.epsilon, self.terms.delta)
        if not path.exists():
            BudgetLedger.create(path, f"site {k}", epsilon=budget[0], delta=budget[1]).close()
        return k, BudgetLedger.open(path, f"site {k}")

    def start(self, k: int) -> Site:
        """A process of a site, over the file that the last one left."""
        if k in self.files:
            self.files[k].close()
        self.files[k] = file = StateFile.open(self.folder / f"site{k}")
        home = self.folder / f"home{k}"
        home.mkdir(exist_ok=True)
        made = self.agreement(self.ledger(k))
        self.sites[k] = Site(made, k, self.identities[k], self.data.clients[k], file, home)
        return self.sites[k]

    def serve(self, courier: "Courier") -> Rounds:
        """A process of the server, over the file that the last one left."""
        if -1 in self.files:
            self.files[-1].close()
        self.files[-1] = file = StateFile.open(self.folder / "server")
        member = SumServerMember(
            self.roster.session,
            self.agreement_key,
            keep=lambda memory: file.write({"memory": memory}),
            memory=file.read("memory"),
        )
        return Rounds(self.agreement(), courier, self.identity, member, file)


@dataclass
class Courier:
    """Hands pushes over within this process. Node n is site n; away: those that get nothing."""

    world: World
    away: set[int] = field(default_factory=set)
    pushes: int = 0

    def nodes(self) -> Sequence[int]:
        return [k for k in self.world.sites if k not in self.away]

    def push(self, messages: Mapping[int, bytes], _: float) -> Iterable[Arrived]:
        self.pushes += bool(messages)
        for k, data in messages.items():
            if k not in self.away:
                yield Arrived(k, self.carried(k, data), 0.0)

    def carried(self, k: int, data: bytes) -> bytes:
        return self.world.sites[k].answer(data)
