"""The project stays small: limits on the code lines of each folder, which only go down.

A code line holds code: no blank line, comment or docstring. A change that removes code lowers the
limit. Raising one takes a commit of its own that says why.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMITS = {
    "secure_fd": 14_700,
    "attacks": 4_520,
    "experiments": 7_429,
    "benchmarks": 820,
    "examples": 190,
    "tests": 21_050,
}
"""Folder -> most code lines; `tests/model` is counted apart."""
SLACK = 300
"""Largest distance of a limit above the count."""
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Lines with code in a Python file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in _NO_CODE)
    code = {line for span in spans for line in span}
    return len(code - set(_strings(ast.parse(text))))


def _strings(tree: ast.AST) -> Iterator[int]:
    """Lines of docstrings, and of strings that stand alone below an attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def test_blank_lines_comments_and_docstrings_are_no_code():
    text = '"""Title.\n\nMore."""\n# why\nx = """a\nb"""\n"""About x."""\n\n\ndef f(): pass\n'
    assert code_lines(text) == 3


@pytest.mark.parametrize("folder", LIMITS)
def test_a_folder_is_within_its_limit(folder):
    files = [path for path in (ROOT / folder).rglob("*.py") if "tests/model" not in str(path)]
    found = sum(code_lines(path.read_text(encoding="utf-8")) for path in files)
    assert LIMITS[folder] - SLACK <= found <= LIMITS[folder]
