"""Writes secagg.json once more: `python -m tests.vectors.generate`.

The file holds the inputs of each case, from which the second implementation makes the rest. Sealing
a capsule is random, so those on file are kept: empty a flow's list of them to have new ones sealed.
What must be refused follows from the table in refused.py.
"""

import json
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from tests.vectors import reader
from tests.vectors.flow import Flow
from tests.vectors.records import Json
from tests.vectors.refused import refused

FILE: Final = Path(__file__).with_name("secagg.json")


def vectors(content: Json) -> Json:
    """All that follows from the inputs in the file."""
    flows = [with_capsules(flow) for flow in content["flows"]]
    made = reader.made({**content, "flows": flows, "refused": []})
    return {**made, "refused": refused(made["flows"])}


def with_capsules(flow: Json) -> Json:
    """The flow with the capsules on file, or new ones where it has none."""
    if flow["capsules"] or not flow["session"]["hybrid"]:
        return flow
    ends = combinations([one["client"] for one in flow["clients"]], 2)
    made = zip(ends, Flow(flow, upto=1).sealed, strict=True)
    capsules = [{"from": low, "to": high, "capsule": one.hex()} for (low, high), one in made]
    return {**flow, "capsules": capsules}


def text(content: Mapping[str, Any]) -> str:
    """The file's text: indented, but a list of numbers or strings stands on one line."""

    def joined(found: re.Match[str]) -> str:
        return "[" + ", ".join(line.strip().rstrip(",") for line in found[1].splitlines()) + "]"

    indented = json.dumps(content, indent=1)
    for _ in range(2):  # a list within a line joins its line
        indented = re.sub(r"\[\n([^\[\]{}]*?)\n\s*\]", joined, indented)
    return indented + "\n"


if __name__ == "__main__":
    FILE.write_text(text(vectors(json.loads(FILE.read_text()))))
    print(f"{FILE.name}: {FILE.stat().st_size} bytes")
