"""The studies of `secure-fd study`: one a table or figure, by the name of its module."""

from collections.abc import Sequence

from secure_fd.cli import dispatch

STUDIES = (
    *("accuracy_table", "selector_study", "thresholds", "communication", "heterogeneity", "alpha"),
    *("as_published", "equal_terms", "tuning", "foreign_proxies", "dafkd", "dafkd_theory"),
    *("dp_utility", "pooled", "private_rivals"),
)


def main(arguments: Sequence[str], prog: str = "secure-fd study") -> int:
    """Run the study that the first argument names; returns the exit status."""
    return dispatch(prog, {name: (f"experiments.{name}", "") for name in STUDIES}, arguments)
