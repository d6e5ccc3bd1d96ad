"""The roster: one TOML file with all that the parties agree on before the first message.

Its bytes are part of the session's id, so parties with two different files refuse each other's
messages. Sites verify each other by the identities in it; a server cannot add another one.
"""

import hashlib
import json
import math
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from cryptography import x509
from msgspec import Meta, Struct

from secure_fd.crypto.keys import IdentityPublic, fields
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.image_sets import IMAGE_SETS, own_shape
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.files import parse_toml, read_limited
from secure_fd.privacy.guarantee import LEAST_EPSILON, MOST_EPSILON
from secure_fd.privacy.ledger import SIMULATION
from secure_fd.secagg.session import PinnedRoster, Session

if TYPE_CHECKING:
    from torch import Tensor

_MOST_SHOWN: Final = 80
MOST_BYTES: Final = 1 << 22
"""Largest size of a roster or a card."""
_CONTROL: Final = r"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=rf"^[^{_CONTROL}]+\Z")]
_FOLDER: Final = rf"^(?!\.{{1,2}}\Z)[^/\\{_CONTROL}]+\Z"
Folder: TypeAlias = Annotated[str, Meta(max_length=200, pattern=_FOLDER)]
Key: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Address: TypeAlias = Annotated[str, Meta(max_length=200, pattern=r"^[!-~]+:[0-9]{1,5}\Z")]
Values: TypeAlias = Annotated[int, Meta(ge=1, le=10**6)]
"""Channels of an image, or numbers of a row of a table."""
Side: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
Shape: TypeAlias = tuple[Values, Side, Side]
_MOST_CHANNELS: Final = 16
_ALLOWED: Final[Mapping[str, str]] = {
    "address": "use HOST:PORT",
    "certificate": "use a PEM certificate",
    "classes": "use names of folders, two or more, without a path",
    "name": "use 1 to 200 printable characters",
    "shape": "use channels (1 to 16), height and width (2 to 1024 each), or values, 1 and 1",
    "unit": "use none or record",
}
"""Sentences for fields where `msgspec` would print a pattern or a type."""


class SiteEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One site: name, identity (Ed25519 public key) and number of training records, all public."""

    name: Name
    identity: Key
    records: Annotated[int, Meta(ge=1, le=10**9)]

    def __post_init__(self) -> None:
        _check_printable("name", self.name)
        if self.name == SIMULATION:
            raise ConfigurationError("name", self.name, "this name is for simulations: use another")


class SiteCard(SiteEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site's card for the coordinator. The roster takes from it what a `SiteEntry` has.

    classes: names of its folders, or the federation's list. channels: 3 if an image has colour,
    else 1; of a table the values of a row. side: median side of its images in pixels; 1 of a table.
    counts: records by class, if the site agrees. share_accuracy: whether its accuracy may enter
    the mean that all sites see.
    """

    classes: Annotated[tuple[Folder, ...], Meta(min_length=1, max_length=10_000)]
    channels: Values
    side: Annotated[int, Meta(ge=1, le=10**6)]
    counts: tuple[Annotated[int, Meta(ge=0, le=10**9)], ...] = ()
    share_accuracy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side > 1 and self.channels not in (1, 3):
            raise ConfigurationError("channels", self.channels, "images have 1 or 3")

    @property
    def entry(self) -> SiteEntry:
        """Site on the roster."""
        return SiteEntry(self.name, self.identity, self.records)


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the run, with the names of `simulate`.

    held: mean number of classes that a site holds, as if evenly. image_set: names architectures
    and the recipe. rounds: 0 takes the recipe's. seed: of data and training only. deadline:
    seconds that the server waits for a stage. share_accuracy: one more sum a round, of the sites'
    accuracy on their validation images, which no epsilon covers.
    """

    method: Name = "selective-fd"
    unit: Literal["none", "record"] = "none"
    epsilon: float = math.inf
    image_set: Annotated[str, Meta(max_length=200)] = ""
    rounds: Annotated[int, Meta(ge=0, le=10**6)] = 0
    held: Annotated[float, Meta(gt=0, le=10_000)] = 1.0
    seed: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    deadline: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    share_accuracy: bool = False

    def __post_init__(self) -> None:
        """Refuse an epsilon, a unit and a method that add no noise together."""
        if self.unit == "none":
            if self.epsilon != math.inf:
                allowed = "without a unit there is no noise: use unit record as well"
                raise ConfigurationError("epsilon", self.epsilon, allowed)
        elif self.epsilon == math.inf:
            allowed = "without a finite epsilon there is no noise: set epsilon as well"
            raise ConfigurationError("unit", self.unit, allowed)
        elif self.method not in ("selective-fd", "heads"):
            allowed = f"not with {self.method}: use selective-fd or heads"
            raise ConfigurationError("unit", self.unit, allowed)
        elif not LEAST_EPSILON <= self.epsilon <= MOST_EPSILON:
            allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}"
            raise ConfigurationError("epsilon", self.epsilon, allowed)


class RosterFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """Content of the roster file.

    address: host and port of the server. certificate: the server's, in PEM. classes: their names,
    in the order of labels. shape: channels, height, width of an image; values, 1 and 1 of a table.
    columns: hash of the description of a table, empty for images. proxies: commitment to the proxy
    samples. identity: Ed25519 public key that signs broadcasts. agreement: X25519 public key
    to which inputs are authenticated. previous: digests of the rosters that it takes the place of,
    the newest first. signature: of the identity, on the rest of the file, where there are such.
    digest: SHA-256 of the file, which is not in the file.
    """

    format: Literal[2] = 2
    name: Name
    address: Address
    certificate: Annotated[str, Meta(pattern=r"^-----BEGIN CERTIFICATE-----\n")]
    classes: Annotated[tuple[Folder, ...], Meta(min_length=2, max_length=10_000)]
    shape: Shape
    columns: Annotated[bytes, Meta(max_length=32)] = b""
    proxies: Key
    nonce: Key
    hybrid: bool
    identity: Key
    agreement: Key
    previous: Annotated[tuple[Key, ...], Meta(max_length=1000)] = ()
    terms: Terms
    sites: Annotated[tuple[SiteEntry, ...], Meta(min_length=3, max_length=10_000)]
    signature: bytes = b""
    digest: bytes = b""

    def __post_init__(self) -> None:
        if not 0 < int(self.address.rpartition(":")[2]) < 1 << 16:
            raise ConfigurationError("address", self.address, _ALLOWED["address"])
        try:
            x509.load_pem_x509_certificate(self.certificate.encode())
        except ValueError as error:
            shown = _short(self.certificate)
            raise ConfigurationError("certificate", shown, _ALLOWED["certificate"]) from error
        _check_printable("name", self.name)
        for name in self.classes:
            _check_printable("classes", name)
        _refuse_repeated("classes", self.classes)
        _refuse_repeated("sites", [site.name for site in self.sites])
        values, *sides = self.shape
        fits = values <= _MOST_CHANNELS and min(sides) > 1
        if not (sides == [1, 1] if self.columns else fits):
            raise ConfigurationError("shape", self.shape, _ALLOWED["shape"])
        name = self.terms.image_set
        if name not in IMAGE_SETS and own_shape(name) != self.shape:
            allowed = f"use a set of the package, of images of shape {list(self.shape)}"
            raise ConfigurationError("image_set", name, allowed)
        _ = self.session  # refuses keys that cannot be used, and one that is there twice

    @cached_property
    def session(self) -> Session:
        """Session that the masked sum is bound to."""
        members = PinnedRoster({k: site.identity for k, site in enumerate(self.sites)})
        return Session(
            members, self.digest, self.proxies, self.nonce, self.agreement, hybrid=self.hybrid
        )

    @property
    def records(self) -> tuple[int, ...]:
        """Training records by site."""
        return tuple(site.records for site in self.sites)

    def number_of(self, identity: bytes) -> int:
        """Return the number of the site with this identity; ConfigurationError if there is none."""
        for number, site in enumerate(self.sites):
            if site.identity == identity:
                return number
        allowed = "this site's identity is not on it: use the --home of its card"
        raise ConfigurationError("roster", self.name, allowed)

    def check_proxies(self, pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> "Tensor":
        """Return the proxy samples [P, ...] as floats; ConfigurationError for other samples."""
        if proxy_commitment(pixels) != self.proxies:
            allowed = "these are not the samples of the roster: ask the coordinator for them"
            raise ConfigurationError("proxies", len(pixels), allowed)
        import torch  # not needed to read a roster

        return torch.from_numpy(pixels).float() / 255


def read(path: Path | str) -> RosterFile:
    """Read a roster file; ConfigurationError for a file of another form."""
    try:
        return parse(read_limited(Path(path), MOST_BYTES))
    except OSError as error:
        raise ConfigurationError("roster", str(path), "use a file that can be read") from error


def proxies_of(proxies: Path | None, roster: Path) -> Path:
    """Return the place of the proxy samples, by default proxies beside the roster."""
    return proxies.resolve() if proxies else roster.parent / "proxies"


def parse(data: bytes) -> RosterFile:
    """Read a roster from bytes of TOML; ConfigurationError for anything else.

    Also for one that takes the place of another without a signature of its own server.
    """
    found = parse_toml("roster", "this file", data, MOST_BYTES)
    for entry in found["sites"] if isinstance(found.get("sites"), list) else ():
        checked("sites", entry, SiteEntry)  # so that an error names the value
    digest = hashlib.sha256(data).digest()
    made: RosterFile = checked("roster", found | {"digest": digest}, RosterFile)
    if made.previous or made.signature:
        _check_signature(made, data)
    return made


def _check_signature(roster: RosterFile, data: bytes) -> None:
    """Check the signature on all lines but the first, which has nothing but the signature."""
    try:
        server = IdentityPublic(roster.identity)
        server.verify(roster.signature, _signed_text(data.partition(b"\n")[2]), "the roster")
    except PeerError as error:
        allowed = "its server did not sign it as it is: ask the coordinator for the file"
        raise ConfigurationError("signature", roster.name, allowed) from error


def _signed_text(lines: bytes) -> bytes:
    return fields(b"secure-fd roster", lines)


def checked(what: str, value: object, kind: Any) -> Any:  # noqa: ANN401 - a type and its value
    """Convert plain values to a type of this module.

    Raises ConfigurationError that names the field, its value and what is allowed. what: name of
    `value` itself.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        reason, _, path = str(error).partition(" - at `$")
        field, found = what, value
        for name in re.findall(r"\w+", path.partition("[")[0]):
            field, found = name, found.get(name) if isinstance(found, Mapping) else None
        if "` field" in reason or "field `" in reason:  # unknown or missing
            found = reason.split("`")[1]
        allowed = _ALLOWED.get(field, reason[0].lower() + reason[1:].replace("`", ""))
        raise ConfigurationError(field, _short(found), allowed) from error


def _short(value: object) -> object:
    """Return the value, or the name of its type where it would fill the screen."""
    try:
        return value if len(repr(value)) <= _MOST_SHOWN else f"a long {type(value).__name__}"
    except ValueError:  # an integer of more digits than Python writes
        return "a long number"


def _check_printable(field: str, name: str) -> None:
    """Refuse unprinted characters: two names could look alike, and ledgers refuse such a name."""
    if not name.isprintable():
        raise ConfigurationError(field, name, _ALLOWED["name"])


def _refuse_repeated(field: str, values: Sequence[Hashable]) -> None:
    value, times = Counter(values).most_common(1)[0]
    if times > 1:
        raise ConfigurationError(field, value, "it is there twice: use each once")


def render(roster: RosterFile, sign: Callable[[bytes], bytes] | None = None) -> str:
    """Write a roster as TOML; ConfigurationError for one that `parse` refuses.

    sign: of its server's identity, for a roster that takes the place of another.
    """
    top = msgspec.to_builtins(roster)
    sites, terms, *_ = (top.pop(name) for name in ("sites", "terms", "digest", "signature"))
    for name in ("previous", "columns"):
        if not top[name]:
            del top[name]
    tables = [_lines(top), "[terms]\n" + _lines(terms)]
    text = "\n".join(tables + ["[[sites]]\n" + _lines(site) for site in sites])
    if sign is not None:
        signature = b64encode(sign(_signed_text(text.encode()))).decode()
        text = _lines({"signature": signature}) + text
    parse(text.encode())
    return text


def render_card(card: SiteCard) -> str:
    """Write a site's card as TOML; ConfigurationError for one that cannot be on a roster."""
    values = msgspec.to_builtins(card)
    checked("card", values, SiteCard)
    return _lines(values)


def _lines(table: Mapping[str, Any]) -> str:
    # JSON's strings, integers, lists and truth values are TOML's too; infinity is not.
    # TOML has no surrogate escapes, so that characters are written as they are.
    def written(value: object) -> str:
        return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

    return "".join(f"{name} = {written(value)}\n" for name, value in table.items())
