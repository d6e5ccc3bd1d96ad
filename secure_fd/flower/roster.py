"""What all parties agreed on before the first message: one TOML file that everybody holds.

Its bytes are part of the session's id, so parties with two different files take nothing of each
other. Sites check each other by the identities in it; a server cannot bring in another one.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from secure_fd.crypto.primitives import IdentityPublic, proxy_commitment
from secure_fd.errors import ConfigurationError
from secure_fd.secagg.session import Roster as Identities
from secure_fd.secagg.session import Session

if TYPE_CHECKING:
    from torch import Tensor

FORMAT: Final = 1
MOST_BYTES: Final = 1 << 22
_UNITS: Final = ("none", "record")
_RECIPES: Final = ("ours", "paper")


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """One site: name, identity (Ed25519, 32 bytes), training records, both public."""

    name: str
    identity: bytes
    records: int


@dataclass(frozen=True, slots=True)
class Terms:
    """What is run: the names of `simulate`.

    held: classes that a site holds, as if evenly, mean over sites. image_set: names architectures
    and the recipe. rounds: 0 takes the recipe's. seed: of data and training alone. deadline:
    seconds that the server waits for a stage.
    """

    method: str = "selective-fd"
    labels: str = "hard"
    unit: str = "none"
    epsilon: float = math.inf
    delta: float = 1e-5
    recipe: str = "ours"
    image_set: str = ""
    rounds: int = 0
    held: float = 1.0
    seed: int = 0
    deadline: float = 60.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("unit", self.unit, _UNITS),
            ("recipe", self.recipe, _RECIPES),
            ("labels", self.labels, ("soft", "hard")),
        ):
            if value not in allowed:
                raise ConfigurationError(name, value, f"use one of {', '.join(allowed)}")
        if self.rounds < 0:
            raise ConfigurationError("rounds", self.rounds, "use 0 or more")
        if not 0 < self.deadline <= 86400:
            raise ConfigurationError("deadline", self.deadline, "use 1 to 86400 seconds")


@dataclass(frozen=True, eq=False)
class Roster:
    """A file's content. `session` and `number_of` follow from it.

    address: host and port. certificate: PEM of the authority that signed the server's certificate.
    classes: their names, in the order of labels. identity, agreement: the server's public keys
    (Ed25519: signs what all are told; X25519: inputs are authenticated to it).
    """

    name: str
    address: str
    certificate: str = field(repr=False)
    terms: Terms
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    proxies: bytes
    nonce: bytes
    hybrid: bool
    identity: bytes
    agreement: bytes
    sites: tuple[SiteEntry, ...]
    digest: bytes = field(repr=False)

    @cached_property
    def session(self) -> Session:
        """What the masked sum pins."""
        members = Identities({k: site.identity for k, site in enumerate(self.sites)})
        return Session(
            members, self.digest, self.proxies, self.nonce, self.agreement, hybrid=self.hybrid
        )

    @property
    def server(self) -> IdentityPublic:
        """The key by which broadcasts are signed."""
        return IdentityPublic(self.identity)

    @property
    def records(self) -> tuple[int, ...]:
        """Training records by site."""
        return tuple(site.records for site in self.sites)

    def number_of(self, identity: bytes) -> int:
        """The place of an identity; ConfigurationError where it has none."""
        for number, site in enumerate(self.sites):
            if site.identity == identity:
                return number
        raise ConfigurationError("roster", self.name, "this site's identity is not on it")

    def check_proxies(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> "Tensor":
        """Public images [P, ...] as floats; ConfigurationError unless these are the agreed ones."""
        if proxy_commitment(pixels) != self.proxies:
            raise ConfigurationError("proxies", len(pixels), "these are not what was agreed on")
        import torch  # not needed to read a roster

        return torch.from_numpy(pixels).float() / 255


def read(path: Path | str) -> Roster:
    """The roster in a file; ConfigurationError for one that is not of this form."""
    found = Path(path)
    if not found.is_file() or found.stat().st_size > MOST_BYTES:
        raise ConfigurationError("roster", str(path), f"use a file of up to {MOST_BYTES} bytes")
    return parse(found.read_bytes())


def parse(data: bytes) -> Roster:
    """The roster in bytes of TOML; ConfigurationError for anything else."""
    try:
        top = tomllib.loads(data.decode())
    except ValueError as error:
        raise ConfigurationError("roster", "this file", f"it is no TOML ({error})") from error
    if top.get("format") != FORMAT:
        raise ConfigurationError("format", top.get("format"), f"use {FORMAT}")
    known = {"format", "name", "address", "certificate", "classes", "shape", "proxies", "nonce"}
    _only(top, known | {"hybrid", "server", "sites", "terms"}, "roster")
    server = _table(top, "server", {"identity", "agreement"})
    sites = top.get("sites")
    if not isinstance(sites, list) or len(sites) < 3:
        raise ConfigurationError("sites", sites, "list three sites or more")
    return Roster(
        name=_typed(top, "name", str),
        address=_typed(top, "address", str),
        certificate=_typed(top, "certificate", str),
        terms=_terms(_table(top, "terms", set(Terms.__dataclass_fields__))),
        classes=tuple(_typed(top, "classes", list)),
        shape=tuple(int(size) for size in _typed(top, "shape", list)),
        proxies=_hex(top, "proxies"),
        nonce=_hex(top, "nonce"),
        hybrid=_typed(top, "hybrid", bool),
        identity=_hex(server, "identity"),
        agreement=_hex(server, "agreement"),
        sites=tuple(site_entry(entry) for entry in sites),
        digest=hashlib.sha256(data).digest(),
    )


def render(roster: Roster) -> str:
    """The file of a roster. Its digest is of these bytes, whatever `roster.digest` is.

    Raises ConfigurationError for what `parse` would refuse.
    """
    top = {
        **{"format": FORMAT, "name": roster.name, "address": roster.address},
        **{"certificate": roster.certificate, "classes": list(roster.classes)},
        **{"shape": list(roster.shape), "proxies": roster.proxies.hex()},
        **{"nonce": roster.nonce.hex(), "hybrid": roster.hybrid},
    }
    server = {"identity": roster.identity.hex(), "agreement": roster.agreement.hex()}
    lines = [
        _lines(top),
        "[server]\n" + _lines(server),
        "[terms]\n" + _lines(asdict(roster.terms)),
        *("[[sites]]\n" + render_site(site) for site in roster.sites),
    ]
    text = "\n".join(lines)
    parse(text.encode())
    return text


def render_site(site: SiteEntry) -> str:
    """The lines of one site, which are all of its card."""
    return _lines({**asdict(site), "identity": site.identity.hex()})


def _lines(table: Mapping[str, Any]) -> str:
    # JSON's strings, integers, lists and truth values are TOML's too; infinity is not.
    plain = {name: str(v) if isinstance(v, float) else json.dumps(v) for name, v in table.items()}
    return "".join(f"{name} = {value}\n" for name, value in plain.items())


def site_entry(entry: Any) -> SiteEntry:  # noqa: ANN401 - whatever a file holds
    """One site of a file; ConfigurationError for anything else."""
    if not isinstance(entry, dict):
        raise ConfigurationError("sites", entry, "use a table for each")
    _only(entry, {"name", "identity", "records"}, "sites")
    records = _typed(entry, "records", int)
    if records < 1:
        raise ConfigurationError("records", records, "use 1 or more")
    return SiteEntry(_typed(entry, "name", str), _hex(entry, "identity"), records)


def _terms(table: Mapping[str, Any]) -> Terms:
    plain = Terms()
    return Terms(**{name: _typed(table, name, type(getattr(plain, name))) for name in table})


def _table(top: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    found = top.get(name, {})
    if not isinstance(found, dict):
        raise ConfigurationError(name, found, "use a table")
    _only(found, known, name)
    return found


def _only(table: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigurationError(what, unknown[0], f"use {', '.join(sorted(known))}")


def _typed(table: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401 - as the type says
    value = table.get(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigurationError(name, value, f"use a {kind.__name__}")
    return value


def _hex(table: Mapping[str, Any], name: str, size: int = 32) -> bytes:
    try:
        found = bytes.fromhex(_typed(table, name, str))
    except ValueError:
        found = b""
    if len(found) != size:
        raise ConfigurationError(name, table.get(name), f"use {size} bytes in hexadecimal")
    return found
