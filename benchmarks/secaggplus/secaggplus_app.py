"""Flower's own SecAgg+ as an app of Flower: its mod, its workflow, its grid; counted in between.

Sites train nothing: each answers with floats that it draws. Run by `flower_secagg.py`.
"""

import json
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

_WEIGHT = 1000


class _Counting:
    """A grid that counts stages, bytes of values and wall seconds, and hands everything on."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.stages: list[dict[str, float]] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a grid has
        return getattr(self._grid, name)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """One stage."""
        sent = list(messages)
        down = sum(_size(message.content) for message in sent)
        begun = time.monotonic()
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        up = sum(_size(message.content) for message in replies)
        self.stages.append({"seconds": time.monotonic() - begun, "up": up, "down": down})
        return replies


def _size(content: RecordDict) -> int:
    """Bytes of values, eight for a number; names and framing left out."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    configs = map(_config_size, content.config_records.values())
    return sum(len(array.data) for array in arrays) + sum(configs)


def _config_size(record: ConfigRecord) -> int:
    items = (value if isinstance(value, list) else [value] for value in record.values())
    return sum(len(item) if isinstance(item, bytes) else 8 for item in chain(*items))


class _Site(NumPyClient):
    def __init__(self, words: int) -> None:
        self._words = words

    def fit(
        self,
        parameters: list[Any],  # noqa: ARG002 - nothing is trained
        config: dict[str, Any],  # noqa: ARG002
    ) -> tuple[list[Any], int, dict[str, Any]]:
        """Floats of its own."""
        vector = np.random.default_rng().uniform(-1, 1, self._words).astype(np.float32)
        return [vector], _WEIGHT, {}


def _site(context: Context) -> Client:
    return _Site(int(context.run_config["words"])).to_client()


def main(grid: Grid, context: Context) -> None:
    """Run the rounds and write what was counted."""
    config = context.run_config
    rounds, sites, words = (int(config[name]) for name in ("rounds", "sites", "words"))
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=sites,
        min_available_clients=sites,
        initial_parameters=ndarrays_to_parameters([np.zeros(words, np.float32)]),
    )
    counting = _Counting(grid)
    legacy = LegacyContext(context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    # The most that it takes: with three sites two restore the third's secrets.
    secagg = SecAggPlusWorkflow(num_shares=sites, reconstruction_threshold=sites - 1)
    begun = time.monotonic()
    DefaultWorkflow(fit_workflow=secagg)(counting, legacy)  # type: ignore[arg-type]
    found = {"rounds": rounds, "seconds": time.monotonic() - begun, "stages": counting.stages}
    Path(str(config["out"])).write_text(json.dumps(found))


app = ServerApp()
app.main()(main)
client = ClientApp(client_fn=_site, mods=[secaggplus_mod])
