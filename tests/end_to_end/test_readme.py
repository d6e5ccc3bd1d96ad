"""What the README shows works as it stands."""

import re
import tomllib
from pathlib import Path

import pytest
import tyro

from experiments.privacy_compare import Settings, plan, row_specs

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_blocks_run(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = compile(blocks("python")[number], f"README block {number}", "exec")
    exec(code, {"__name__": "__main__"})  # noqa: S102 - it is what a reader would paste
    assert capsys.readouterr().out.strip()


def test_there_are_blocks_to_run():
    assert blocks("python")
    assert blocks("sh")


def commands(program: str) -> list[list[str]]:
    """Arguments of every call of a program in the README's shell blocks, comments apart."""
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line.split()[len(program.split()) :] for line in lines if line.startswith(program)]


def test_comparisons_in_the_readme_are_allowed():
    found = commands("python experiments/privacy_compare.py")
    assert ["--secure-agg", "--dp-eps", "4"] in found
    for arguments in found:
        assert row_specs(plan(tyro.cli(Settings, args=arguments), None))


def test_make_targets_in_the_readme_exist():
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    asked = [target for [target, *_] in commands("make")]
    assert {"demo", "test"} <= set(asked) <= set(rules)
    [demo] = re.findall(
        r"^demo:.*\n\t\S*python (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert demo == "experiments/privacy_compare.py --secure-agg --dp-eps 4"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_paths_in_pages_exist(page):
    place = ROOT / page
    links = re.findall(r"\]\(([^)]+)\)", place.read_text())
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [file for file in files if not (place.parent / file).exists()] == []


def test_the_extras_that_are_installed_exist():
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    said = "".join(page.read_text() for page in pages)
    extras = {name for names in re.findall(r'"\.\[([\w,]+)\]"', said) for name in names.split(",")}
    assert {"test", "pretrained"} <= extras
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(known["optional-dependencies"])
