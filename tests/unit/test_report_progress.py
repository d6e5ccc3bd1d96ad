"""Progress: a line for each finished task, and workers that end in time."""

import io
import re
import time

import pytest
from rich.console import Console

from experiments.core.pool import working


def shown(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal), out


@pytest.mark.parametrize("terminal", [True, False])
def test_every_finished_task_has_a_line_with_the_time_left(*, terminal):
    console, out = shown(terminal=terminal)
    with working(1, 2, console) as tasks:
        found = dict(tasks.each([("[task] a", abs, (-1,)), ("b", abs, (-2,))]))
    assert found == {"[task] a": 1, "b": 2}
    text = out.getvalue()
    assert re.search(r"1/2 \[task\] a: [\d.]+ m?s; about [\d.]+ m?s left\n", text)
    assert re.search(r"2/2 b: [\d.]+ m?s\n", text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == int(terminal)


def test_an_interrupt_passes_through_and_ends_the_workers():
    console, out = shown(terminal=True)
    with pytest.raises(KeyboardInterrupt), working(1, 2, console) as tasks:
        for _ in tasks.each([("short", time.sleep, (0,)), ("long", time.sleep, (600,))]):
            raise KeyboardInterrupt
    assert out.getvalue().count("\x1b[?25h") == 1
