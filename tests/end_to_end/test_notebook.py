"""The notebook runs as it stands, from first cell to last, and holds nobody's output."""

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_run.ipynb"


def cells(kind: str) -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


def test_its_cells_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells("code")):
        code = compile("".join(cell["source"]), f"cell {number}", "exec")
        exec(code, names)  # noqa: S102 - it is what a reader would run
    said = capsys.readouterr().out
    clear, masked = (float(error) for error in re.findall(r": error ([\d.]+)", said))
    assert clear < 0.5 * masked
    [accuracy] = re.findall(r"^(\d+)%", said)
    assert int(accuracy) > 20  # of a client that knows two digits of ten
    assert said.endswith("True\n")  # the networks that were read back answer alike
    assert list(tmp_path.iterdir()) == []


def test_it_says_what_it_does_and_was_not_run():
    assert len(cells("markdown")) >= len(cells("code"))
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells("code"))
