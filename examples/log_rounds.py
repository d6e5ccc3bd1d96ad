"""Log every round of a run to TensorBoard or MLflow: a function of a few lines each.

python -m pip install tensorboard mlflow-skinny
python examples/log_rounds.py
"""

from collections.abc import Callable

import secure_fd as fd

Report = fd.RoundReport


def to_tensorboard(folder: str) -> Callable[[Report], None]:
    """Write the share of kept proxies of each round into TensorBoard's files."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)
    return lambda report: writer.add_scalar("kept", report.kept, report.index)


def to_mlflow() -> Callable[[Report], None]:
    """Log the share of kept proxies of each round to the active run of MLflow."""
    import mlflow

    return lambda report: mlflow.log_metric("kept", report.kept, step=report.index)


if __name__ == "__main__":
    log = to_tensorboard("runs/tensorboard")
    for report in fd.simulate("digits", clients=3).federation.rounds(2):
        log(report)
