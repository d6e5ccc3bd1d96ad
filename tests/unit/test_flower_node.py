"""A site's connection, over a SuperLink that only notes what it is asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')

from secure_fd.flower import node


@dataclass
class Noting:
    """A client of the Fleet interface whose every call is answered alike."""

    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[[Any], SimpleNamespace]:
        def call(_: Any) -> SimpleNamespace:  # noqa: ANN401 - Flower's own
            self.calls.append(name)
            return SimpleNamespace(node_id=7, messages_list=[])

        return call

    @contextmanager
    def connected(self, *_: object, **__: object) -> Iterator["Noting"]:
        yield self


@pytest.mark.parametrize("over", [True, False])
def test_a_site_signs_off_where_the_run_goes_on_and_not_where_its_last_answer_may_wait(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Noting()
    monkeypatch.setattr(node.FleetHttpClient, "from_server_address", fleet.connected)
    with node.linked("127.0.0.1:1", Path("authority.pem"), lambda: over) as link:
        assert link.take() is None
    begun = ["RegisterNode", "ActivateNode", "PullMessages"]
    assert fleet.calls == begun + ["DeactivateNode", "UnregisterNode"] * (not over)
