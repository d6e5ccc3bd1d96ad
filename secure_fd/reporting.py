"""Round figures for tools that draw them: callbacks of `on_round`, each an extra of this package.

They are handed what a round's report says, which is what the server and an evaluator know; nothing
of clients' records, networks or votes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


class TensorBoard:
    """Writes round figures as event files in a folder; needs the extra `tensorboard`.

    MissingCapabilityError where it is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, report: RoundReport) -> None:
        """Add a round; the file has it when this returns."""
        for name, value in figures(report).items():
            self._writer.add_scalar(f"round/{name}", value, report.index)
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

    def __call__(self, report: RoundReport) -> None:
        """Log a round."""
        self._mlflow.log_metrics(dict(figures(report)), step=report.index)
