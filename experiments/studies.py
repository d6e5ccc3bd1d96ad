"""The studies of `secure-fd study`: one a table or figure, by the name of its module."""

from collections.abc import Sequence

from experiments.cli import dispatch

STUDIES = (
    *("accuracy_table", "selector_study", "thresholds", "communication", "heterogeneity", "alpha"),
    *("method_ablation", "as_published", "equal_terms", "foreign_proxies", "vote_encodings"),
    *("dp_utility", "record_ablation", "pooled", "heads", "private_rivals", "tuning"),
    *("dafkd", "dafkd_theory", "generator_leakage"),
)


def main(arguments: Sequence[str], prog: str = "secure-fd study") -> int:
    """Run the study that the first argument names; returns the exit status."""
    return dispatch(prog, {name: (f"experiments.{name}", "") for name in STUDIES}, arguments)
