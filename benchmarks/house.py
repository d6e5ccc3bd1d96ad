"""How large the project is, and how far a run travels through it, as JSON.

python benchmarks/house.py                       sizes and trips of this tree
PYTHONPATH=OTHER python benchmarks/house.py --root OTHER      those of another tree

Sizes are lines and files of product (secure_fd, attacks, experiments, benchmarks) and tests. A trip
is measured with `sys.setprofile` while the command line of the comparison runs in this process:

  files       source files of the project that a call entered
  functions   functions entered: each `def` once; comprehensions, lambdas and modules do not count
  moves       calls that led from one file of the project to another

The trips: one round (the second) of Selective-FD under masks with four clients; a masked row with
the record unit from settings to the file of results and HTML; a row in clear with the label-only
attack.
"""

import argparse
import concurrent.futures
import contextlib
import importlib
import io
import json
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

PRODUCT: Final = ("secure_fd", "attacks", "experiments", "benchmarks")
ROUND: Final = re.compile(r"Federation\._?(run_)?round")
"""Qualified name of the function that makes one round."""
COMMAND: Final = ("--quick", "--dataset", "digits", "--clients", "4", "--workers", "1")
TRIPS: Final = {
    "one masked round": (
        *("--rows", "selective-fd-hard-masks", "--secure-agg", "--attacks", "none"),
    ),
    "masked record-unit row to the results file and HTML": (
        *("--rows", "heads-masks-dp-record", "--secure-agg", "--dp-eps", "4"),
        *("--attacks", "none"),
    ),
    "clear row, label-only attack, table and HTML": (
        *("--rows", "selective-fd-hard", "--attacks", "label-only"),
    ),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Lines and files of one part of the tree."""

    lines: int
    files: int


@dataclass(slots=True)
class Trip:
    """What one run entered. files: by path; functions: by code object."""

    files: set[str] = field(default_factory=set)
    functions: set[CodeType] = field(default_factory=set)
    moves: int = 0

    def figures(self) -> dict[str, int]:
        """Counts for the report."""
        return {
            "files": len(self.files),
            "functions": len(self.functions),
            "moves": self.moves,
        }


def sizes(root: Path) -> dict[str, Size]:
    """Lines and files of every package, of the product and of the tests."""
    found = {name: _size([root / name]) for name in (*PRODUCT, "tests")}
    return {**found, "product": _size([root / name for name in PRODUCT])}


def _size(folders: Sequence[Path]) -> Size:
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    lines = sum(path.read_bytes().count(b"\n") for path in paths)
    return Size(lines, len(paths))


class Profile:
    """Records a trip: of everything, or of the second call of a function named by `only`."""

    def __init__(self, root: Path, only: re.Pattern[str] | None = None) -> None:
        self.trip = Trip()
        self._only, self._calls, self._open = only, 0, only is None
        self._folders = tuple(f"{root / name}/" for name in PRODUCT if name != "benchmarks")
        self._owned: dict[CodeType, bool] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Profile this thread, and threads that start, for as long as the block lasts."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return") or not self._owns(frame.f_code):
            return  # neither a call of the project's own code nor its end
        if self._only is not None and self._only.fullmatch(frame.f_code.co_qualname):
            self._calls += event == "call"
            self._open = event == "call" and self._calls == 2
        if not self._open or event != "call":
            return
        here = frame.f_code.co_filename
        self.trip.files.add(here)
        self.trip.functions.add(frame.f_code)
        self.trip.moves += _caller(frame, self._owns) not in ("", here)

    def _owns(self, code: CodeType) -> bool:
        if code not in self._owned:
            named = not code.co_name.startswith("<")
            self._owned[code] = named and code.co_filename.startswith(self._folders)
        return self._owned[code]


def _caller(frame: FrameType, owned: Callable[[CodeType], bool]) -> str:
    """The file of the nearest caller that is the project's own; empty for none."""
    back = frame.f_back
    while back is not None and not owned(back.f_code):
        back = back.f_back
    return "" if back is None else back.f_code.co_filename


class InProcess(concurrent.futures.Executor):
    """Stands in for a pool of processes: runs every task at once, in this thread."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: object = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        del max_workers, mp_context
        if initializer is not None:
            initializer(*initargs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the base class
        """A future that is done."""
        made: concurrent.futures.Future[Any] = concurrent.futures.Future()
        made.set_result(fn(*args, **kwargs))
        return made


def travel(root: Path, arguments: Sequence[str], only: re.Pattern[str] | None) -> Trip:
    """Run the comparison with these arguments under a profile; SystemExit where it fails."""
    concurrent.futures.ProcessPoolExecutor = InProcess  # type: ignore[misc, assignment]
    script = importlib.import_module("experiments.privacy_compare")
    profile, said = Profile(root, only), io.StringIO()
    with tempfile.TemporaryDirectory() as out:
        sys.argv = ["privacy_compare.py", *COMMAND, *arguments, "--out", f"{out}/run"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), profile.running():
            status = script.main()
        if status or not list(Path(out).rglob("*.html")):
            raise SystemExit(f"house: {' '.join(sys.argv)} failed\n{said.getvalue()}")
    if not profile.trip.functions:
        raise SystemExit(f"house: nothing matched {only}")
    return profile.trip


def main() -> None:
    """Count, travel, print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the tree")
    parser.add_argument("--no-trips", action="store_true", help="sizes alone, in a second")
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    sys.path.insert(0, str(root))
    report: dict[str, object] = {name: asdict(size) for name, size in sizes(root).items()}
    if not arguments.no_trips:
        for name, command in TRIPS.items():
            report[name] = travel(root, command, ROUND if "round" in name else None).figures()
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
