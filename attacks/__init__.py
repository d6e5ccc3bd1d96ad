"""The attacks by name. Names cost no import; `load` imports the one attack that is asked for."""

import ast
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_fd.cli import USAGE_ERROR
from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.core.run import Attack

_STATED = ("name", "title", "needs", "figure_name", "control_name")


@dataclass(frozen=True, slots=True)
class Entry:
    """One attack of the registry. place: module:Class. shown_in: see `Attack.shown_in`."""

    place: str
    shown_in: str


@cache
def registry() -> Mapping[str, Entry]:
    """Return the attacks of this package by name.

    A class whose body states a literal `name` and a literal `title` is registered. The sources are
    read, not imported: options are checked without the seconds that PyTorch takes.

    >>> registry()["lira"].place
    'attacks.membership.shadows:LiRA'
    """
    found = {}
    home = Path(__file__).parent
    for file in sorted(home.glob("*/*.py")):
        module = ".".join(("attacks", *file.relative_to(home).with_suffix("").parts))
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            stated = _literals(node) if isinstance(node, ast.ClassDef) else {}
            if isinstance(node, ast.ClassDef) and {"name", "title"} <= stated.keys():
                shown_in = str(stated.get("shown_in", ""))
                found[str(stated["name"])] = Entry(f"{module}:{node.name}", shown_in)
    return found


def default_names() -> tuple[str, ...]:
    """Return the attacks that the comparison runs where none is named."""
    return tuple(name for name, entry in registry().items() if entry.shown_in)


def load(name: str, field: str = "attack") -> "type[Attack[Any, Any]]":
    """Return the class of an attack by its name, or of a user's own as package.module:Name.

    Raises:
        ConfigurationError: about `field`, for an unknown name, a module that cannot be imported, or
            a class that lacks a part of the interface.

    >>> load("lira").title
    'Membership: LiRA, online'
    """
    known = registry()
    module, colon, cls = (known[name].place if name in known else name).partition(":")
    if not colon:
        near = get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        allowed = f"use a name that `secure-fd attacks` lists{hint}, or package.module:Name"
        raise ConfigurationError(field, name, allowed)
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(field, name, f"use a class that exists ({error})") from error
    from attacks.core.run import Attack

    if not (isinstance(found, type) and issubclass(found, Attack)):
        raise ConfigurationError(field, name, "use a subclass of attacks.core.run.Attack")
    lacking = [part for part in _STATED if not hasattr(found, part)]
    lacking += sorted(found.__abstractmethods__)
    if lacking:
        raise ConfigurationError(field, name, f"give the class {', '.join(lacking)}")
    return found


def main(arguments: Sequence[str] = (), prog: str = "secure-fd attacks") -> int:
    """Print every attack: what it needs, its figure, and its control."""
    if list(arguments) in (["-h"], ["--help"]):
        print(f"usage: {prog}\n{main.__doc__}")
        return 0
    if arguments:
        print(f"error: {prog} takes no {arguments[0]!r}: it has no options", file=sys.stderr)
        return USAGE_ERROR
    lines = []
    for name in registry():
        kind = load(name)
        needs = "; or ".join(
            ", ".join(sorted(capability.value for capability in each)) for each in kind.needs
        )
        lines += [f"{name}: {kind.title}", f"  needs    {needs}"]
        lines += [f"  figure   {kind.figure_name}", f"  control  {kind.control_name}"]
    print("\n".join(lines))
    return 0


def _literals(statement: ast.ClassDef) -> dict[str, object]:
    """Return the constants that a class body assigns, by name."""
    found: dict[str, object] = {}
    for node in statement.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found |= {t.id: node.value.value for t in node.targets if isinstance(t, ast.Name)}
    return found
