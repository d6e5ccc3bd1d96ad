"""Round figures for tools that draw them: callbacks of `on_round`, each an extra of this package.

They are handed what a round's report says, which is what the server and an evaluator know; nothing
of clients' records, networks or votes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from secure_fd.extras import extra
from secure_fd.transcript import RoundReport


def figures(report: RoundReport) -> Mapping[str, float]:
    """The numbers of a round, by name.

    >>> report = RoundReport(0, 1.0, 0.0, 100.0, 200.0, survivors=(0, 1), missing=())
    >>> figures(report)["clients_in_the_sum"]
    2.0
    """
    return {
        "kept": report.kept,
        "single_contributors": report.single,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "clients_in_the_sum": float(len(report.survivors)),
        "void": float(report.void),
        "refused": float(len(report.refused)),
    }


class RoundFigures(Protocol):
    """A tool that draws numbers of rounds. failures: what `log` raises where the tool fails."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Of the tool, not of its caller."""

    def log(self, index: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a round, by name."""

    def close(self) -> None:
        """Take no more."""


class TensorBoard:
    """Writes round figures as event files in a folder; needs the extra `tensorboard`.

    MissingCapabilityError where it is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self.failures: tuple[type[Exception], ...] = (OSError,)

    def __call__(self, report: RoundReport) -> None:
        """Add a round; the file has it when this returns."""
        self.log(report.index, figures(report))

    def log(self, index: int, numbers: Mapping[str, float]) -> None:
        """The same for numbers by name."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"round/{name}", value, index)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()


class MLflow:
    """Logs round figures to MLflow's active run; needs the extra `mlflow`.

    MissingCapabilityError where it is not installed. Where the figures go, and under which name, is
    what MLflow was told by `mlflow.set_tracking_uri` and `mlflow.start_run`.
    """

    def __init__(self) -> None:
        with extra("mlflow"):
            import mlflow

        self._mlflow: Any = mlflow
        self.failures: tuple[type[Exception], ...] = (OSError, mlflow.MlflowException)

    def __call__(self, report: RoundReport) -> None:
        """Log a round."""
        self.log(report.index, figures(report))

    def log(self, index: int, numbers: Mapping[str, float]) -> None:
        """The same for numbers by name."""
        self._mlflow.log_metrics(dict(numbers), step=index)

    def close(self) -> None:
        """Nothing: MLflow ends its run with the process, or where `mlflow.end_run` says so."""
