"""What all parties agreed on before the first message: one TOML file that everybody holds.

Its bytes are part of the session's id, so parties with two different files take nothing of each
other. Sites check each other by the identities in it; a server cannot bring in another one.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from cryptography import x509

from secure_fd.crypto.keys import IdentityPublic
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import image_set, own_shape
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON
from secure_fd.privacy.ledger import SIMULATION
from secure_fd.secagg.session import Roster as Identities
from secure_fd.secagg.session import Session

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
FORMAT: Final = 1
MOST_BYTES: Final = 1 << 22
_CHOICES: Final = {
    "unit": ("none", "record"),
    "recipe": ("ours", "paper"),
    "labels": ("soft", "hard"),
}
_TOP: Final = ("name", "address", "certificate", "classes", "shape", "proxies", "nonce", "hybrid")
"""What a file has at its top, in order, as attributes of a roster."""
_MOST_CHARACTERS: Final = 200
"""Of a name; a budget ledger takes no longer one."""
_MOST_CLASSES: Final = 10_000
_MOST_SITES: Final = 10_000
_MOST_RECORDS: Final = 10**9
_MOST_ROUNDS: Final = 10**6
_MOST_SEED: Final = 2**31 - 1
_MOST_VALUES: Final = 1 << 24
"""Values of one image: channels x height x width."""


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """One site: name, identity (Ed25519, 32 bytes), training records, both public."""

    name: str
    identity: bytes
    records: int

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if self.name == SIMULATION:
            raise ConfigurationError("name", self.name, "use another name: it is for no real data")
        _check_number("records", self.records, 1, _MOST_RECORDS)


@dataclass(frozen=True, slots=True)
class Terms:
    """What is run: the names of `simulate`.

    held: classes that a site holds, as if evenly, mean over sites; a site that holds each class in
    useful number counts with all. image_set: names architectures and the recipe. rounds: 0 takes
    the recipe's. seed: of data and training alone. deadline: seconds that the server waits for a
    stage.
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
        check_name("method", self.method)
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigurationError(name, value, f"use one of {', '.join(allowed)}")
        for number in ("epsilon", "delta", "held", "deadline"):
            found: object = getattr(self, number)
            if not isinstance(found, int | float) or isinstance(found, bool):
                raise ConfigurationError(number, _short(found), _KINDS[float])
        self._check_budget()
        if self.image_set:
            check_name("image_set", self.image_set)
        _check_number("rounds", self.rounds, 0, _MOST_ROUNDS)
        _check_number("seed", self.seed, 0, _MOST_SEED)
        if not 0 < self.held <= _MOST_CLASSES:
            raise ConfigurationError("held", self.held, f"use a number above 0, to {_MOST_CLASSES}")
        if not 0 < self.deadline <= 86400:
            bounds = "use a number of seconds above 0, to 86400"
            raise ConfigurationError("deadline", self.deadline, bounds)

    def _check_budget(self) -> None:
        """Refuse an epsilon without a unit, and a unit without an epsilon: neither adds noise."""
        if self.unit == "none":
            if self.epsilon != math.inf:
                allowed = "without a unit there is no noise: use unit record as well"
                raise ConfigurationError("epsilon", self.epsilon, allowed)
        elif self.epsilon == math.inf:
            allowed = "without a finite epsilon there is no noise: set epsilon as well"
            raise ConfigurationError("unit", self.unit, allowed)
        elif not LEAST_EPSILON <= self.epsilon <= MOST_EPSILON:
            allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}"
            raise ConfigurationError("epsilon", self.epsilon, allowed)
        if not 0 < self.delta < 1:
            raise ConfigurationError("delta", self.delta, "use a number between 0 and 1")


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
    top = toml("roster", data)
    if _typed(top, "format", int) != FORMAT:
        raise ConfigurationError("format", top["format"], f"use {FORMAT}")
    _only(top, {"format", *_TOP, "server", "sites", "terms"}, "roster")
    server = _table(top, "server", {"identity", "agreement"})
    sites = _typed(top, "sites", list)
    if not 3 <= len(sites) <= _MOST_SITES:
        raise ConfigurationError("sites", len(sites), f"list 3 to {_MOST_SITES} sites")
    made = Roster(
        name=check_name("name", _typed(top, "name", str)),
        address=check_address(_typed(top, "address", str)),
        certificate=_certificate(_typed(top, "certificate", str)),
        terms=_terms(_table(top, "terms", set(Terms.__dataclass_fields__))),
        classes=check_classes(_typed(top, "classes", list)),
        shape=check_shape(_typed(top, "shape", list)),
        proxies=_hex(top, "proxies"),
        nonce=_hex(top, "nonce"),
        hybrid=_typed(top, "hybrid", bool),
        identity=_hex(server, "identity"),
        agreement=_hex(server, "agreement"),
        sites=check_sites([site_entry(entry) for entry in sites]),
        digest=hashlib.sha256(data).digest(),
    )
    _check_image_set(made.terms.image_set, made.shape)
    _ = made.session  # refuses keys that cannot be used
    return made


def toml(what: str, data: bytes) -> dict[str, Any]:
    """The table in bytes of TOML; ConfigurationError about `what` for anything else."""
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(what, "this file", f"it is no TOML ({error})") from error


def check_name(field: str, value: object) -> str:
    """The same; ConfigurationError unless it is a text that can be printed, of one line."""
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_CHARACTERS:
        allowed = f"use a text of 1 to {_MOST_CHARACTERS} characters"
        raise ConfigurationError(field, _short(value), allowed)
    if not value.isprintable():
        raise ConfigurationError(field, value, "use printable characters alone")
    return value


def check_classes(names: Sequence[object]) -> tuple[str, ...]:
    """The same; ConfigurationError unless they are the names of different folders, two or more."""
    if not 2 <= len(names) <= _MOST_CLASSES:
        raise ConfigurationError("classes", len(names), f"name 2 to {_MOST_CLASSES} classes")
    found = tuple(check_name("classes", name) for name in names)
    for name in found:
        if name in (".", "..") or "/" in name or "\\" in name:
            raise ConfigurationError("classes", name, "use the name of a folder, without a path")
    if (twice := _twice(found)) is not None:
        raise ConfigurationError("classes", twice, "name each class once")
    return found


def check_sites(sites: Sequence[SiteEntry]) -> tuple[SiteEntry, ...]:
    """The same; ConfigurationError where two have one name or one identity."""
    if (same := _twice([site.identity for site in sites])) is not None:
        raise ConfigurationError("sites", same.hex(), "list each identity once")
    if (twice := _twice([site.name for site in sites])) is not None:
        raise ConfigurationError("sites", twice, "use another name for each site")
    return tuple(sites)


def _twice(values: Sequence[T]) -> T | None:
    """The first value that is there a second time; None where all differ."""
    seen: set[T] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def check_shape(sizes: Sequence[object]) -> tuple[int, ...]:
    """The same; ConfigurationError unless it is channels, height and width of an image."""
    whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if len(sizes) != 3 or len(whole) != 3 or min(whole) < 1 or math.prod(whole) > _MOST_VALUES:
        allowed = f"use channels, height and width, each 1 or more, to {_MOST_VALUES} values in all"
        raise ConfigurationError("shape", _short(sizes), allowed)
    return tuple(whole)


def check_address(value: str) -> str:
    """The same; ConfigurationError unless it is HOST:PORT."""
    host, colon, port = check_name("address", value).rpartition(":")
    decimal = port.isascii() and port.isdecimal() and len(port) <= 5
    if not (host and colon and " " not in host and decimal and int(port) < 65536):
        raise ConfigurationError("address", value, "use HOST:PORT")
    return value


def _certificate(value: str) -> str:
    try:
        x509.load_pem_x509_certificates(value.encode())
    except ValueError as error:
        raise ConfigurationError("certificate", _short(value), "use a PEM certificate") from error
    return value


def _check_image_set(name: str, shape: tuple[int, ...]) -> None:
    try:
        image_set(name)
    except ConfigurationError as error:
        raise ConfigurationError("image_set", name, "use a set that the package knows") from error
    own = own_shape(name)
    if own is not None and own != shape:
        raise ConfigurationError("image_set", name, f"the roster's images are {list(shape)}")


def render(roster: Roster) -> str:
    """The file of a roster. Its digest is of these bytes, whatever `roster.digest` is.

    Raises ConfigurationError for what `parse` would refuse.
    """
    lines = [
        _lines({"format": FORMAT} | {name: getattr(roster, name) for name in _TOP}),
        "[server]\n" + _lines({"identity": roster.identity, "agreement": roster.agreement}),
        "[terms]\n" + _lines(asdict(roster.terms)),
        *("[[sites]]\n" + render_site(site) for site in roster.sites),
    ]
    text = "\n".join(lines)
    parse(text.encode())
    return text


def render_site(site: SiteEntry) -> str:
    """The lines of one site, which are all of its card."""
    return _lines(asdict(site))


def _lines(table: Mapping[str, Any]) -> str:
    # JSON's strings, integers, lists and truth values are TOML's too; infinity is not.
    # TOML has no surrogate escapes, so that characters stand for themselves.
    def written(value: object) -> str:
        if isinstance(value, bytes):
            return f'"{value.hex()}"'
        return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

    return "".join(f"{name} = {written(value)}\n" for name, value in table.items())


def site_entry(entry: Any) -> SiteEntry:  # noqa: ANN401 - whatever a file holds
    """One site of a file; ConfigurationError for anything else."""
    if not isinstance(entry, dict):
        raise ConfigurationError("sites", _short(entry), "use a table for each")
    _only(entry, {"name", "identity", "records"}, "sites")
    name, records = _typed(entry, "name", str), _typed(entry, "records", int)
    return SiteEntry(name, _hex(entry, "identity"), records)


def _terms(table: Mapping[str, Any]) -> Terms:
    plain = Terms()
    return Terms(**{name: _typed(table, name, type(getattr(plain, name))) for name in table})


def _table(top: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    found = top.get(name, {})
    if not isinstance(found, dict):
        raise ConfigurationError(name, _short(found), "use a table")
    _only(found, known, name)
    return found


def _only(table: Mapping[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigurationError(what, unknown[0], f"use {', '.join(sorted(known))}")


def _typed(table: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401 - as the type says
    value = table.get(name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(min(max(value, -_HUGE), _HUGE))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigurationError(name, _short(value), _KINDS[kind])
    return value


_KINDS: Final[Mapping[type, str]] = {
    str: "use a text",
    int: "use a whole number",
    float: "use a number",
    bool: "use true or false",
    list: "use a list",
}


_HUGE: Final = 10**300
"""Beyond every bound here, and a float holds it."""


def _check_number(field: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        allowed = f"use a whole number from {least} to {most}"
        raise ConfigurationError(field, _short(value), allowed)


def _hex(table: Mapping[str, Any], name: str) -> bytes:
    value = _typed(table, name, str)
    try:
        found = bytes.fromhex(value)
    except ValueError:
        found = b""
    if len(found) != 32 or found.hex() != value:
        allowed = "use 32 bytes in hexadecimal, of lower case"
        raise ConfigurationError(name, _short(value), allowed)
    return found


def _short(value: object) -> object:
    """A value for a sentence: its type in the place of one that would fill the screen."""
    try:
        fits = len(repr(value)) <= _MOST_SHOWN
    except ValueError:  # an integer of more digits than Python writes
        fits = False
    return value if fits else f"a long {type(value).__name__}"


_MOST_SHOWN: Final = 80
