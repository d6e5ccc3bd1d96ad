"""A site's connection to Flower: how it leaves."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')

from secure_fd.deployment import node


class Recorded:
    """A client of the Fleet interface that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def ask(_: object) -> SimpleNamespace:
            self.asked.append(name)
            return SimpleNamespace(node_id=7)

        return ask


@pytest.fixture
def fleet(monkeypatch):
    recorded = Recorded()

    @contextmanager
    def made(*_: object, **__: object) -> Iterator[Recorded]:
        yield recorded

    monkeypatch.setattr(node.FleetHttpClient, "from_server_address", made)
    return recorded


@pytest.mark.parametrize(
    ("done", "said"), [(True, []), (False, ["DeactivateNode", "UnregisterNode"])]
)
@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_only_a_site_that_has_not_heard_the_end_says_that_it_leaves(done, said, end, fleet):
    """Flower would drop the answer of one that has; its twin is one that is interrupted."""
    with (
        pytest.raises(end) if end else nullcontext(),
        node.linked("localhost:1", Path(), lambda: done) as link,
    ):
        assert link.node.node_id == 7
        if end:
            raise end
    assert fleet.asked == ["RegisterNode", "ActivateNode", *said]
