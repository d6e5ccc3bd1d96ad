"""A user's own table: what stands for a row, who holds it, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from secure_fd import Table, cli, federate_features, federate_table
from secure_fd.data import tables
from secure_fd.errors import ConfigurationError

COLUMNS = """
[outcome]
kind = "category"
categories = ["benign", "malignant"]

["mean area"]
kind = "number"
low = 100
high = 3000
log = true
missing = ["-1"]

["mean texture"]
kind = "number"
low = 5
high = 40

[ward]
kind = "category"
categories = ["a", "b"]
"""


def frame() -> pd.DataFrame:
    found = load_breast_cancer(as_frame=True).frame[["mean area", "mean texture", "target"]]
    rows = found.sample(frac=1, random_state=0).reset_index(drop=True)
    rows["outcome"] = np.where(rows.pop("target") == 1, "benign", "malignant")
    rows["ward"] = ["abc"[i % 3] for i in range(len(rows))]
    rows["site"] = np.where(np.arange(len(rows)) // 2 % 2, "west", "east")
    rows["patient"] = np.arange(len(rows)) // 2
    return rows.astype(object)


def written(folder: Path, rows: pd.DataFrame, public: pd.DataFrame, columns: str) -> Table:
    rows.to_csv(folder / "rows.csv", index=False)
    public.to_csv(folder / "public.csv", index=False)
    (folder / "columns.toml").write_text(columns)
    files = (folder / name for name in ("rows.csv", "columns.toml", "public.csv"))
    return Table(*files, "outcome", "site")


def same(rows):
    return rows


def cell(column, text, row=16):
    """A change of one cell."""
    return lambda rows: rows.assign(**{column: rows[column].where(rows.index != row, text)})


def table(folder: Path, change=same, columns: str = COLUMNS, public=None) -> Table:
    every = frame()
    rows = change(every[200:].reset_index(drop=True))
    return written(folder, rows, every[:200] if public is None else public, columns)


def values(found: Table) -> np.ndarray:
    """The records of all sites, in the order in which they are read."""
    sites = tables.Form.of(found).read(found)
    return np.concatenate([records.pixels.numpy()[:, :, 0, 0] for records in sites.values()])


def test_rows_become_values_by_public_rows_and_the_description(tmp_path):
    found, public, rows = table(tmp_path), frame()[:200], frame()[200:]
    records = tables.Form.of(found).read(found)["east"]
    east = rows[rows.site == "east"]
    area = np.log(public["mean area"].astype(float).clip(100, 3000))
    wanted = (np.log(east["mean area"].astype(float)) - area.mean()) / area.std(ddof=0)
    # Values are of one 8th a deviation around .5, and cut off at 4 deviations.
    seen = 8 * (records.pixels[:, 0, 0, 0].double().numpy() - 0.5)
    np.testing.assert_allclose(np.sort(seen), np.sort(wanted.clip(-4, 4)), atol=1e-5)
    wards = records.pixels[:, 3:, 0, 0] > 0.5
    assert (wards.sum(dim=1) == 1).all()  # a, b, or other
    assert records.pixels.shape[1:] == (6, 1, 1)  # area, its flag, texture, three of a ward
    assert int(records.labels.sum()) == (east.outcome == "malignant").sum()


def test_nothing_of_a_record_depends_on_other_private_rows(tmp_path):
    """Else a guarantee about one record would not hold: its neighbours would tell of it."""
    before, public = values(table(tmp_path)), tables.Form.of(table(tmp_path)).proxies
    changed = table(tmp_path, cell("mean area", 1e9))
    assert (before != values(changed)).any(axis=1).sum() == 1
    np.testing.assert_array_equal(public.pixels, tables.Form.of(changed).proxies.pixels)


def test_private_values_are_clipped_and_missing_ones_flagged(tmp_path):
    def odd(rows):
        area = rows["mean area"].tolist()
        return rows.assign(**{"mean area": [1e12, "-1", "", *area[3:]]})

    area, flag = values(table(tmp_path, odd)).T[:2]
    assert area[flag > 0.5].tolist() == [0.5, 0.5]  # the public mean
    highest = values(table(tmp_path, cell("mean area", 3000, row=0)))[:, 0]
    assert set(area[flag <= 0.5].tolist()) <= set(highest.tolist())


def test_a_person_has_one_row_and_equal_rows_stay(tmp_path):
    found = table(tmp_path)
    whole = values(replace(found, person="patient"))
    assert len(whole) == len(values(found)) / 2 + 0.5
    # Without one person the rows of the others are the same.
    fewer = replace(table(tmp_path, lambda rows: rows.iloc[2:]), person="patient")
    assert {row.tobytes() for row in values(fewer)} == {row.tobytes() for row in whole} - {
        values(table(tmp_path, lambda rows: rows.iloc[:1]))[0].tobytes()
    }

    alike = {"mean area": 500, "mean texture": 20, "ward": "a", "outcome": "benign"}
    equal = table(tmp_path, lambda rows: rows.assign(**alike))
    assert len(values(equal)) == len(values(found))
    assert len(federate_table(equal, 20).held_out) == 0  # no attack could tell it from members


def test_parts_are_disjoint_and_the_test_set_is_that_of_every_seed(tmp_path):
    found = table(tmp_path)
    one, other = federate_table(found, 20), federate_table(found, 21)
    np.testing.assert_array_equal(one.test.pixels, other.test.pixels)
    assert not np.array_equal(one.held_out.pixels, other.held_out.pixels)
    parts = [p for c in one.clients for p in (c.train, c.validation)] + [one.test, one.held_out]
    assert sum(map(len, parts)) == len(values(found))
    rows = {bytes(row.numpy().tobytes()) for part in parts for row in part.pixels}
    assert len(rows) == len({row.tobytes() for row in values(found)})
    steps = one.proxies.pixels * 255
    np.testing.assert_allclose(steps, steps.round(), atol=1e-4)  # as they are sent to sites


def test_features_are_clipped_to_public_bounds():
    rng = np.random.default_rng(0)
    rows, public = rng.normal(size=(90, 3)), rng.normal(size=(60, 3))
    labels, sites = np.arange(90) % 2, np.arange(90) // 30
    wide = rows * np.where(np.abs(rows) > 2, 1e6, 1.0)
    made = [
        federate_features(each, labels, sites, public, (-2, [2, 2, 2])) for each in (rows, wide)
    ]
    for one, other in zip(*(data.clients for data in made), strict=True):
        np.testing.assert_array_equal(one.train.pixels, other.train.pixels)


def east_but(few):
    return lambda rows: rows.assign(site=["west"] * few + ["east"] * (len(rows) - few))


@pytest.mark.parametrize(
    ("change", "columns", "field"),
    [
        (lambda rows: rows.drop(columns="mean area"), COLUMNS, "table"),
        (cell("outcome", "unsure"), COLUMNS, "outcome"),
        (cell("mean area", "large"), COLUMNS, "mean area"),
        (cell("mean area", "inf"), COLUMNS, "mean area"),
        (cell("site", ""), COLUMNS, "site"),
        (lambda rows: rows[:0], COLUMNS, "table"),
        (east_but(0), COLUMNS, "site"),
        (east_but(5), COLUMNS, "site"),
        (None, COLUMNS.replace("[outcome]", "[other]"), "label"),
        (None, COLUMNS.replace("low = 5", "low = 50"), "mean texture"),
        (None, COLUMNS.replace("low = 5", 'low = "5"'), "mean texture"),
        (None, COLUMNS.replace("low = 5", "lowest = 5"), "mean texture"),
        (None, COLUMNS.replace('"number"', '"numbers"', 1), "mean area"),
        (None, COLUMNS.replace('["a", "b"]', '["a", "a"]'), "ward"),
        (None, "outcome", "columns"),
    ],
)
def test_a_mistake_in_a_table_is_one_sentence_about_its_column(tmp_path, change, columns, field):
    found = table(tmp_path, change or same, columns)
    with pytest.raises(ConfigurationError) as error:
        federate_table(found, 20)
    assert error.value.field == field
    for private in ("unsure", "large"):
        assert private not in str(error.value)  # no cell of a private row is quoted


def test_a_table_without_public_rows_or_too_large_for_memory_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError) as error:
        federate_table(table(tmp_path, public=frame()[:0]), 20)
    assert error.value.field == "public"
    found = table(tmp_path)
    monkeypatch.setattr(tables.os, "sysconf", lambda _: 60)  # 3,600 bytes of memory
    with pytest.raises(ConfigurationError) as error:
        federate_table(found, 20)
    assert error.value.field == "table"


def test_a_draft_describes_public_rows_and_can_be_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    public = frame()[:200].drop(columns=["site", "patient"])
    public.loc[3, "mean area"], public["note"] = "", [f"text {i}" for i in range(200)]
    public.to_csv("public.csv", index=False)
    assert cli.main(["columns", "public.csv", "--label", "outcome"]) == 0
    text = Path("columns.toml").read_text()
    assert 'categories = ["benign", "malignant"]' in text
    assert f"{json.dumps('note')} has 200" in text
    found = federate_table(table(tmp_path, columns=text, public=public), 20)
    assert found.proxies.pixels.shape[1:] == (2 + 1 + 4, 1, 1)
    assert cli.main(["columns", "public.csv"]) == 2  # the file is there
    assert "out" in capsys.readouterr().err
