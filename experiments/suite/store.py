"""Finished rows on disk, found again by everything that they depend on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

import attacks
import experiments
import secure_fd
from attacks.base import AttackResult, ImageArray
from experiments.code_version import code_version
from experiments.results import write_atomically
from experiments.suite.scene import Findings, Job
from secure_fd.errors import ConfigurationError, LocalError

SCHEMA = "secure-fd/attack-suite-cell/1"
_BETWEEN = "/"
_SHOWING = {
    *("collect.py", "drawing.py", "driver.py", "page.py", "picture_plots.py", "pictures.py"),
    *("plots.py", "results.py", "settings.py", "store.py", "table.py", "text.py"),
}
"""Files that come after the cells, or before them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One protocol row of one scene under one seed, with all its attacks."""

    scene: str
    row: str
    seed: int

    @property
    def label(self) -> str:
        """Names the cell while it runs."""
        return f"{self.scene}: {self.row}, seed {self.seed}"


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A finished cell. seconds: of CPU, without what the rows of a scene share."""

    cell: Cell
    findings: Findings = field(repr=False)
    seconds: float


def suite_version() -> str:
    """Of the code that may change a figure; how a report looks is not among it."""
    ours = Path(experiments.__path__[0])
    packages = (Path(package.__path__[0]) for package in (secure_fd, attacks))
    runs = [ours / name for name in ("rows.py", "runs.py", "attacking.py", "privacy_compare.py")]
    parts = [*runs, *sorted((ours / "suite").glob("*.py")), ours / "suite" / "scenes"]
    return code_version(*packages, *(part for part in parts if part.name not in _SHOWING))


@dataclass(frozen=True, slots=True)
class Store:
    """The cells of a folder under one job. A file that is there is whole."""

    folder: Path
    job: Job
    version: str = field(default_factory=suite_version)

    def path(self, cell: Cell) -> Path:
        """A readable name, and a hash of cell, job, version and schema."""
        job = {name: value for name, value in asdict(self.job).items() if name != "data_dir"}
        content = json.dumps([SCHEMA, self.version, job, asdict(cell)], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        return self.folder / f"{cell.scene}-{cell.row}-{cell.seed}-{digest}.json"

    def save(self, done: Done) -> None:
        """Keep a finished cell: its pictures first, so that figures are never without them."""
        path = self.path(done.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = _pictures(done.findings)
        if pictures:
            write_atomically(
                path.with_suffix(".npz"),
                lambda file: np.savez_compressed(file, allow_pickle=False, **pictures),
            )
        content = {
            "schema": SCHEMA,
            "version": self.version,
            "cell": asdict(done.cell),
            "seconds": done.seconds,
            "pictures": sorted(pictures),
            "findings": {
                name: found if isinstance(found, str) else found.to_json()
                for name, found in done.findings.items()
            },
        }
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        write_atomically(path, lambda file: file.write(text.encode()))

    def find(self, cell: Cell) -> Done | None:
        """The finished cell, or None where it has not been run.

        Raises ConfigurationError for a file that is not what its name says.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        try:
            return self._read(path, cell)
        except (LocalError, KeyError, TypeError, ValueError, AttributeError, OSError, BadZipFile):
            again = "it holds no such row: remove it to run this one again"
            raise ConfigurationError("cell", path.name, again) from None

    def _read(self, path: Path, cell: Cell) -> Done:
        content = json.loads(path.read_bytes())
        whose = (content["schema"], content["version"], content["cell"])
        if whose != (SCHEMA, self.version, asdict(cell)):
            raise LocalError("the file is another cell's")
        archive = path.with_suffix(".npz")
        findings = _findings(content["findings"], archive if content["pictures"] else None)
        if sorted(_pictures(findings)) != content["pictures"]:
            raise LocalError("the archive has other pictures")
        return Done(cell, findings, float(content["seconds"]))


def _pictures(findings: Findings) -> dict[str, ImageArray]:
    return {
        f"{attack}{_BETWEEN}{name}": np.asarray(images, dtype=np.float32)
        for attack, found in findings.items()
        if isinstance(found, AttackResult) and found.images is not None
        for name, images in found.images.items()
    }


def _findings(content: Mapping[str, Any], archive: Path | None) -> Findings:
    pictures: dict[str, dict[str, ImageArray]] = {}
    if archive is not None:
        with archive.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                attack, _, name = key.partition(_BETWEEN)
                pictures.setdefault(attack, {})[name] = arrays[key]
    return {
        name: found if isinstance(found, str) else AttackResult.from_json(found, pictures.get(name))
        for name, found in content.items()
    }
