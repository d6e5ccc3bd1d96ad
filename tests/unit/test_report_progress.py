"""Progress: a line for each finished task, the time left, and workers that end in time."""

import io
import re

import pytest
from rich.console import Console

from experiments.core.pool import working


def shown(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal), out


@pytest.mark.parametrize("terminal", [True, False])
def test_every_finished_task_has_a_line_with_the_time_left(*, terminal):
    console, out = shown(terminal=terminal)
    found: list[int] = []
    with working(1, 40.0, console) as tasks:
        for number, label in enumerate(("[task] a", "b"), start=1):
            tasks.submit(found.append, label, 20.0, abs, -number)
        tasks.drain()
    assert found == [1, 2]
    text = out.getvalue()
    assert re.search(r" 50 %  \[task\] a: [\d.]+ s; about [\d.]+ s left", text)
    assert re.search(r"100 %  b: [\d.]+ s\n", text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == int(terminal)


def test_an_interrupt_passes_through_and_ends_the_workers():
    console, out = shown(terminal=True)
    with pytest.raises(KeyboardInterrupt), working(1, 10.0, console) as tasks:
        tasks.submit(print, "sleep", 10.0, __import__("time").sleep, 600)
        raise KeyboardInterrupt
    assert out.getvalue().count("\x1b[?25h") == 1


def test_an_error_of_a_task_is_raised_here():
    with pytest.raises(TypeError), working(1, 1.0, shown()[0]) as tasks:
        tasks.submit(print, "wrong", 1.0, abs, "text")
        tasks.drain()
