"""The studies of `secure-fd study`: one a table or figure."""

from collections.abc import Sequence
from importlib.util import find_spec

from secure_fd.cli import dispatch

_STUDIES = {
    "paper": (
        *("accuracy", "client_selectors", "thresholds", "communication", "heterogeneity"),
        *("alpha", "dafkd", "dafkd_theory"),
    ),
    "rivals": ("equal_terms", "foreign_proxies"),
    "privacy": ("dp_utility", "private_rivals"),
}
STUDIES = {
    name: f"experiments.{folder}.{name}"
    for folder, names in _STUDIES.items()
    for name in names
    if find_spec(f"experiments.{folder}")
}
"""Study -> module. A wheel has neither `paper` nor `rivals`: they need a checkout."""


def main(arguments: Sequence[str], prog: str = "secure-fd study") -> int:
    """Run the study that the first argument names; returns the exit status."""
    return dispatch(prog, {name: (module, "") for name, module in STUDIES.items()}, arguments)
