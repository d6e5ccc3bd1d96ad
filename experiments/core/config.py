"""The file of a run's own settings, which is read as `--config FILE` is."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from secure_fd.cli import content, flag

RUN = "run.toml"
"""The file of a run's settings, beside its results."""
_HEAD = "# The settings of this run; give them again with: --config run.toml\n"


def differences(held: Path, own: str) -> list[str]:
    """Names of the settings in which a file differs from `own`, as `written` gives them."""
    before, now = content(str(held)), tomllib.loads(own)
    return sorted(n for n in before.keys() | now.keys() if before.get(n) != now.get(n))


def written(settings: Any, apart: Sequence[str] = ()) -> str:  # noqa: ANN401 - of any study
    """TOML of a dataclass of settings, which `expanded` reads back; None and `apart` are left out.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Chosen:
    ...     dp_eps: float = 4.0
    ...     quick: bool = True
    >>> print(written(Chosen()).splitlines()[1:])
    ['dp-eps = 4.0', 'quick = true']
    """
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    kept = {n: v for n, v in values.items() if v is not None and n not in apart}
    return _HEAD + "".join(f"{flag(n)[2:]} = {_value(v)}\n" for n, v in kept.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # as Python writes them, inf and 1e-05 among them
    # Of JSON's escapes, TOML knows all that a text needs but for the one that it forbids bare.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
