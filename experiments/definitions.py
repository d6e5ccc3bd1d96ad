"""Keys of evidence: which definitions a stored figure was made by.

A key is a hash of everything that a cell's functions reach by name in the project's own packages:
syntax trees without docstrings, annotations, comments and positions, each bound to the definitions
that it refers to by content, never by file or module. So a moved file or another method voids
nothing, and a changed constant does. What is reached by strings only is stated by the study.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from secure_fd.errors import ConfigurationError

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
"""Whose versions may change a number."""
ROOT = Path(__file__).parents[1]
PACKAGES = ("secure_fd", "attacks", "experiments")
_ROUNDS = 8
"""How far from a definition a reference is told from one to an equal definition."""
_EFFECTS = ""
"""Name of a module's statements that bind nothing: they run whenever it is imported."""
F = TypeVar("F", bound=Callable[..., object])


def dispatched(function: F) -> F:
    """Mark a function that chooses among methods: its cells' studies state what it chooses.

    Neither its text nor what it refers to is part of a key, so that one more choice voids nothing.

    >>> dispatched(len) is len
    True
    """
    return function


@dataclass(frozen=True, slots=True)
class Place:
    """A definition: a module and a name at its top level."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Module:
    """Top-level statements of a module by the names that they bind or change."""

    name: str
    package: str
    statements: Mapping[str, tuple[ast.stmt, ...]] = field(repr=False)
    imports: Mapping[str, tuple[str, str | None]] = field(repr=False)
    """Local name -> module, and the name in it; None for the module itself."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A normalised syntax tree, and the definitions that it refers to, in order."""

    text: str
    references: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """The packages of a folder, read statically: nothing is imported."""

    root: Path = ROOT
    packages: tuple[str, ...] = PACKAGES

    def key(self, roots: tuple[str, ...]) -> str:
        """16 hexadecimal digits of all definitions that these reach, as "module:name".

        Raises ConfigurationError for a root that is not defined.
        """
        found = self.reached(roots)
        texts = {place: _digest(made.text) for place, made in found.items()}
        digests = texts
        for _ in range(_ROUNDS):
            digests = {
                place: _digest(texts[place], *(digests[other] for other in made.references))
                for place, made in found.items()
            }
        return _digest(*sorted(digests.values()))[:16]

    def reached(self, roots: tuple[str, ...]) -> Mapping[Place, Definition]:
        """Every definition that these reach, by place."""
        waiting = [self._root(root) for root in roots]
        found: dict[Place, Definition] = {}
        while waiting:
            place = waiting.pop()
            if place not in found:
                found[place] = definition(self, place)
                waiting += found[place].references
        return found

    def _root(self, root: str) -> Place:
        module, _, name = root.partition(":")
        place = self.resolve(module, name)
        if place is None:
            raise ConfigurationError("root", root, "it must be a definition of the project")
        return place

    def resolve(self, module: str, name: str) -> Place | None:
        """Where a name of a module is defined, through imports; None outside the packages."""
        seen = set()
        while (module, name) not in seen:
            seen.add((module, name))
            read = self.module(module)
            if read is None:
                return None
            if name in read.statements:
                return Place(module, name)
            if name not in read.imports:
                return None
            module, target = read.imports[name]
            if target is None or self.module(f"{module}.{target}") is not None:
                return None  # a module, not a definition
            name = target
        return None

    def module(self, name: str) -> Module | None:
        """The module, or None where the packages have none of this name."""
        return _read(self, name)

    def path(self, name: str) -> Path | None:
        """The file of a module."""
        if name.split(".", maxsplit=1)[0] not in self.packages:
            return None
        base = self.root.joinpath(*name.split("."))
        choices = (base / "__init__.py", base.with_suffix(".py"))
        return next((path for path in choices if path.is_file()), None)


def key(roots: tuple[str, ...]) -> str:
    """The key of definitions of this project, with the libraries' versions.

    >>> len(key(("secure_fd.errors:LocalError",)))
    16
    """
    if roots not in _KEYS:
        from importlib.metadata import version  # slow to import

        libraries = (f"{name} {version(name)}" for name in LIBRARIES)
        _KEYS[roots] = _digest(Code().key(roots), *libraries)[:16]
    return _KEYS[roots]


_KEYS: dict[tuple[str, ...], str] = {}
"""Keys that are known in this process."""


def confirm(keys: Mapping[tuple[str, ...], str], files: str) -> bool:
    """Whether keys that another process computed are those of the present code.

    files: its `files_hash`; where that is also ours, keys are taken over and not computed again,
    which takes a second. A process that has them already reads no file.
    """
    known = keys.items() <= _KEYS.items()
    if not known and files == files_hash():
        _KEYS.update(keys)
    return all(key(roots) == given for roots, given in keys.items())


def files_hash() -> str:
    """A hash of the bytes of every source file of the project's packages."""
    paths = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
    return _digest(*(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# Modules.


@cache
def _read(code: Code, name: str) -> Module | None:
    path = code.path(name)
    if path is None:
        return None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    statements: dict[str, tuple[ast.stmt, ...]] = {}
    imports: dict[str, tuple[str, str | None]] = {}
    for statement in _top_level(ast.parse(path.read_bytes()).body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports |= _imported(statement, package)
            continue
        for bound in _bound(statement) or {_EFFECTS}:
            statements[bound] = (*statements.get(bound, ()), statement)
    return Module(name, package, statements, imports)


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import; not those of a type checker or of a script."""
    for statement in body:
        if isinstance(statement, ast.If):
            if ast.unparse(statement.test) not in ("TYPE_CHECKING", "__name__ == '__main__'"):
                yield from _top_level([*statement.body, *statement.orelse])
        elif not _is_text(statement):
            yield statement


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, of whatever stands above it."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds or changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    changed = {_base(target) for target in getattr(statement, "targets", [])} - {""}
    return stored | changed


def _base(target: ast.expr) -> str:
    """The name under `X[...]` or `X.a`, which an assignment to it changes."""
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _imported(
    statement: ast.Import | ast.ImportFrom, package: str
) -> dict[str, tuple[str, str | None]]:
    if isinstance(statement, ast.Import):
        return {
            alias.asname or alias.name.split(".")[0]: (
                alias.name if alias.asname else alias.name.split(".")[0],
                None,
            )
            for alias in statement.names
        }
    base = statement.module or ""
    if statement.level:
        above = package.split(".")[: len(package.split(".")) - statement.level + 1]
        base = ".".join([*above, base] if base else above)
    return {alias.asname or alias.name: (base, alias.name) for alias in statement.names}


# Definitions.


@cache
def definition(code: Code, place: Place) -> Definition:
    """The statements of a name, normalised, with what they refer to."""
    module = code.module(place.module)
    if module is None or place.name not in module.statements:
        raise ConfigurationError("definition", place.name, "it must be in a module of the project")
    statements = module.statements[place.name]
    if any(_is_dispatched(code, module, statement) for statement in statements):
        return Definition(f"dispatched {place.name}", ())
    scope = _Scope(code, module)
    texts = [scope.normalised(statement) for statement in statements]
    if place.name != _EFFECTS and _EFFECTS in module.statements:
        scope.references.append(Place(place.module, _EFFECTS))
    return Definition("\n".join(texts), tuple(dict.fromkeys(scope.references)))


def _is_dispatched(code: Code, module: Module, statement: ast.stmt) -> bool:
    scope = _Scope(code, module)
    return isinstance(statement, ast.FunctionDef) and any(
        found is not None and found.name == dispatched.__name__
        for found in map(scope.place, statement.decorator_list)
    )


class _Scope(ast.NodeTransformer):
    """Rewrites one statement: no texts, no annotations, references by content instead of by name.

    A reference becomes its number among the statement's own references.
    """

    def __init__(self, code: Code, module: Module) -> None:
        self.code = code
        self.module = module
        self.imports = dict(module.imports)
        self.own_imports: set[str] = set()
        self.local: set[str] = set()
        self.references: list[Place] = []

    def normalised(self, statement: ast.stmt) -> str:
        """The tree as text."""
        copy = ast.parse(ast.unparse(statement)).body[0]
        for node in ast.walk(copy):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found = _imported(node, self.module.package)
                self.imports |= found
                self.own_imports |= set(found)
        return ast.dump(self.visit(copy))

    def place(self, node: ast.expr) -> Place | None:
        """The definition that `name` or `module.name` refers to, or None."""
        if isinstance(node, ast.Name):
            if self._is_local(node.id):
                return None
            return self._of_name(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.module_of(node.value)
            return None if owner is None else self.code.resolve(owner, node.attr)
        return None

    def _is_local(self, name: str) -> bool:
        return name in self.local and name not in self.own_imports

    def _of_name(self, name: str) -> Place | None:
        if name in self.module.statements and name not in self.imports:
            return Place(self.module.name, name)
        if name in self.imports:
            module, target = self.imports[name]
            return None if target is None else self.code.resolve(module, target)
        return None

    def module_of(self, node: ast.expr) -> str | None:
        """The project's module that an expression names, or None."""
        if isinstance(node, ast.Name):
            if node.id not in self.imports or self._is_local(node.id):
                return None
            module, target = self.imports[node.id]
            name = module if target is None else f"{module}.{target}"
        elif isinstance(node, ast.Attribute):
            owner = self.module_of(node.value)
            name = "" if owner is None else f"{owner}.{node.attr}"
        else:
            return None
        return name if self.code.module(name) is not None else None

    def _number(self, place: Place) -> ast.expr:
        if place not in self.references:
            self.references.append(place)
        return ast.Constant(f"reference {self.references.index(place)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A reference to a definition, or to a whole module."""
        if not isinstance(node.ctx, ast.Load):
            return node
        place = self.place(node)
        if place is not None:
            return self._number(place)
        whole = self.module_of(node)
        if whole is not None:  # it goes on as a value: any of its definitions may be used
            found = self.code.module(whole)
            names = sorted(found.statements) if found is not None else []
            return ast.Tuple([self._number(Place(whole, name)) for name in names], ast.Load())
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A reference through a module, or an attribute of anything else."""
        place = self.place(node)
        if place is not None:
            return self._number(place)
        if self.module_of(node.value) is not None and self.module_of(node) is None:
            return ast.Constant(f"unknown {node.attr}")
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Only asked whether something is of a class, none of its code runs: its name counts."""
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            value, kinds = node.args
            named = ast.Constant(f"kinds {sorted(_names(kinds))}")
            return ast.Call(node.func, [self.visit(value), named], [])
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Without annotations and docstring; its own names hide those of the module."""
        node.returns = None
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.args = self.visit(node.args)
        outer, self.local = self.local, self.local | _locals(node)
        node.body = [self.visit(one) for one in _without_texts(node.body)]
        self.local = outer
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Without docstrings."""
        node.body = _without_texts(node.body)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Without its annotation."""
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """As if it had no annotation: a field without a value is its name."""
        if node.value is None:
            return ast.Expr(ast.Constant(f"field {ast.unparse(node.target)}"))
        return ast.Assign([self.visit(node.target)], self.visit(node.value))

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """What is used of it is referred to by content."""
        return self._import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """What is used of it is referred to by content."""
        return self._import(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> ast.AST:
        modules = {module for module, _ in _imported(node, self.module.package).values()}
        ours = all(module.split(".")[0] in self.code.packages for module in modules)
        return ast.Pass() if ours else node


def _names(kinds: ast.expr) -> set[str]:
    """The last parts of the names in an expression of classes."""
    attributes = {node.attr for node in ast.walk(kinds) if isinstance(node, ast.Attribute)}
    inner = {id(n.value) for n in ast.walk(kinds) if isinstance(n, ast.Attribute)}
    names = {n.id for n in ast.walk(kinds) if isinstance(n, ast.Name) and id(n) not in inner}
    return attributes | names


def _without_texts(body: list[ast.stmt]) -> list[ast.stmt]:
    return [statement for statement in body if not _is_text(statement)] or [ast.Pass()]


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Arguments of a function, and names that it binds outside nested scopes."""
    every = function.args
    found = {arg.arg for arg in (*every.posonlyargs, *every.args, *every.kwonlyargs)}
    found |= {arg.arg for arg in (every.vararg, every.kwarg) if arg is not None}
    nested = (ast.Lambda, ast.FunctionDef, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp)
    waiting: list[ast.AST] = list(function.body)
    shared: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Global | ast.Nonlocal):
            shared |= set(node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        if isinstance(node, (*nested, ast.GeneratorExp)):
            continue
        waiting += ast.iter_child_nodes(node)
    return found - shared
