"""The stand-alone fuzzer: `python -m tests.fuzz.run --minutes 10`.

It changes honest messages at random (a seed decides how), target after target, and writes every
input that breaks a target's property to a folder, one for each kind of failure. With --corpus it
also writes the shortest input of every outcome to corpus.json, for the test suite to replay.
"""

import argparse
import hashlib
import json
import random
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from tests.fuzz.decoders import Target
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import targets

CORPUS: Final = Path(__file__).with_name("corpus.json")
REPORT_EVERY: Final = 15.0
LONG: Final = 1_000
TURN: Final = 200
"""Inputs of one target before it is the next one's turn."""


@dataclass
class Findings:
    """inputs: by target and outcome, the shortest. crashes: by kind, target, input and trace."""

    executions: int = 0
    inputs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    crashes: dict[str, tuple[str, bytes, str]] = field(default_factory=dict)

    def add(self, target: Target, data: bytes) -> None:
        """Run one input."""
        self.executions += 1
        try:
            outcome = target.run(data)
        except Exception as error:  # noqa: BLE001 - a fuzzer looks for any
            self._add_crash(target, data, error)
            return
        found = self.inputs.setdefault(target.name, {})
        if outcome not in found or len(data) < len(found[outcome]):
            found[outcome] = data

    def _add_crash(self, target: Target, data: bytes, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{target.name} {type(error).__name__} {Path(last.filename).name}:{last.lineno}"
        if kind not in self.crashes:
            self.crashes[kind] = (target.name, data, traceback.format_exc())

    @property
    def outcomes(self) -> int:
        """Number of different outcomes."""
        return sum(map(len, self.inputs.values()))


def fuzz(chosen: list[Target], seconds: float, seed: int) -> Iterator[Findings]:
    """Run for so long; the findings so far, after every turn of all targets."""
    findings, rng = Findings(), random.Random(seed)  # noqa: S311 - chooses tests, not keys
    end = time.monotonic() + seconds
    for target in chosen:
        for data in target.seeds:
            findings.add(target, data)
    while time.monotonic() < end:
        for target in chosen:
            for _ in range(TURN):
                findings.add(target, mutated(rng, target.seeds))
        yield findings


def write_crashes(findings: Findings, folder: Path) -> list[str]:
    """Store those that are not there yet; what they are called."""
    written = []
    for kind, (name, data, trace) in findings.crashes.items():
        path = folder / f"{hashlib.sha256(kind.encode()).hexdigest()[:16]}.json"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            content = {"kind": kind, "target": name, "input": data.hex(), "trace": trace}
            path.write_text(json.dumps(content, indent=1) + "\n")
            written.append(kind)
    return written


def corpus_text(inputs: Mapping[str, Mapping[str, bytes]]) -> str:
    """Shortest input as hex, by target and outcome; long inputs are not kept."""
    content = {
        name: {outcome: data.hex() for outcome, data in sorted(found.items()) if len(data) <= LONG}
        for name, found in sorted(inputs.items())
    }
    return json.dumps(content, indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """0 where nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name contains this")
    parser.add_argument("--out", type=Path, default=Path(gettempdir(), "secure-fd-fuzz"))
    parser.add_argument("--corpus", action="store_true")
    chosen = parser.parse_args(arguments)
    wanted = [target for target in targets() if chosen.only in target.name]
    start = reported = time.monotonic()
    findings = Findings()
    for findings in fuzz(wanted, 60 * chosen.minutes, chosen.seed):
        if time.monotonic() - reported >= REPORT_EVERY:
            reported = time.monotonic()
            print(progress(findings, reported - start), flush=True)
            for kind in write_crashes(findings, chosen.out):
                print(f"  crash: {kind}", flush=True)
    print(progress(findings, time.monotonic() - start))
    write_crashes(findings, chosen.out)
    if chosen.corpus:
        CORPUS.write_text(corpus_text(findings.inputs))
        print(f"{CORPUS.name}: {CORPUS.stat().st_size} bytes")
    return bool(findings.crashes)


def progress(findings: Findings, seconds: float) -> str:
    """One line."""
    return (
        f"{seconds:6.0f} s  {findings.executions:>12,} executions  "
        f"{findings.executions / max(seconds, 1e-9):>9,.0f}/s  {findings.outcomes} outcomes  "
        f"{len(findings.crashes)} crashes"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
