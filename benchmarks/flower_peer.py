"""One round of Flower's SecAgg+: its own client and server code, in this process.

The client side is `secaggplus_mod` and the server side `SecAggPlusWorkflow`, as Flower ships
them, with the default quantisation and this package's threshold. Between the two stands a grid
that calls the clients one after the other. What is not SecAgg+ is not counted: training, the
strategy's averaging, serialisation and transport. Messages are handed over as objects, so the
times are below those of a deployment. The average that comes out is checked against the
clients' vectors.

Needs the extra: pip install "secure-fd[flower]".
"""

import copy
import logging
import os
import random
from collections.abc import Iterable, Iterator, Set
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from clock import Cost, Stopwatch

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Read when flwr is imported.
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status
from flwr.common import ndarrays_to_parameters as to_parameters
from flwr.common import parameters_to_ndarrays as to_arrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.common.secure_aggregation.secaggplus_constants import Key as Field
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from secure_fd.secagg.graph import threshold

_SERVER: Final = 0
_WEIGHT: Final = 1000
"""Records of a client: the workflow's default maximum, so that nothing is scaled down."""
_STEP: Final = 16 / 2**22
"""The workflow's default quantisation: the range [-8, 8] in 2**22 steps."""


def flower_round(clients: int, values: int, dropped: Set[int]) -> Cost:
    """Run one round in which every client sends `values` floats and masks with all others.

    dropped: clients that share their keys and send no vector. Raises SystemExit where Flower
    halts the round or where its average is not the mean of the survivors' vectors.
    """
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(clients)  # The workflow shuffles its ring with the global generator.
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, _SERVER, 1
    workflow = SecAggPlusWorkflow(clients, threshold(clients))
    grid, strategy, whole = _Grid(clients, values, dropped), _Everyone(clients), Stopwatch()
    context = _server_context(strategy)
    with whole:
        workflow(cast(Grid, grid), context)
    _check(strategy.average, grid.total / (clients - len(dropped)))
    staying = clients - len(dropped)
    spent = grid.staying.seconds - grid.training.seconds
    server = whole.seconds - grid.meter.seconds
    return Cost(spent / staying, server, grid.up_bytes / staying)


class _Everyone:
    """A strategy by which all clients train; it keeps the average and makes none of its own."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.average: Parameters | None = None

    def configure_fit(self, *_: object) -> list[tuple[SimpleNamespace, FitIns]]:
        nodes = [SimpleNamespace(node_id=number + 1) for number in range(self._clients)]
        return [(node, FitIns(to_parameters([]), {})) for node in nodes]

    def aggregate_fit(self, _: int, results: list[Any], __: object) -> tuple[None, dict[str, Any]]:
        self.average = results[0][1].parameters
        return None, {}


class _Grid:
    """Calls the clients in turn, and measures those that stay: their time and what they sent."""

    def __init__(self, clients: int, values: int, dropped: Set[int]) -> None:
        self._dropped = dropped
        self._contexts = [_context(number + 1) for number in range(clients)]
        self.total = np.zeros(values)
        self.up_bytes = 0
        self.meter, self.staying, self.training = Stopwatch(), Stopwatch(), Stopwatch()

    def send_and_receive(self, messages: Iterable[Message], **_: object) -> list[Message]:
        """The replies of the clients that are still there."""
        with self.meter:
            return [reply for message in messages for reply in self._deliver(message)]

    def _deliver(self, message: Message) -> Iterator[Message]:
        number = message.metadata.dst_node_id - 1
        # A transport would copy; the mod takes entries out of what it is given.
        message.content = copy.deepcopy(message.content)
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Field.STAGE]
        if stage == Stage.COLLECT_MASKED_VECTORS and number in self._dropped:
            return
        stays = number not in self._dropped
        with self.staying if stays else nullcontext():
            reply = secaggplus_mod(message, self._contexts[number], self._train)
        self.up_bytes += stays * _size(reply.content.config_records[RECORD_KEY_CONFIGS])
        yield reply

    def _train(self, message: Message, _: Context) -> Message:
        with self.training:
            generator = np.random.default_rng(message.metadata.dst_node_id)
            vector = generator.uniform(-1, 1, self.total.size).astype(np.float32)
            self.total += vector
            result = FitRes(Status(Code.OK, ""), to_parameters([vector]), _WEIGHT, {})
            return Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)


def _context(node: int) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def _server_context(strategy: _Everyone) -> LegacyContext:
    context = LegacyContext(_context(_SERVER), strategy=cast(Strategy, strategy))
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    return context


def _size(record: ConfigRecord) -> int:
    """Bytes of the values, eight for a number; names and framing left out."""
    items = (value if isinstance(value, list) else [value] for value in record.values())
    return sum(len(item) if isinstance(item, bytes) else 8 for item in chain(*items))


def _check(average: Parameters | None, mean: NDArray[np.float64]) -> None:
    if average is None:
        raise SystemExit("flower: SecAgg+ halted the round")
    (vector,) = to_arrays(average)
    # Each value is rounded up or down by less than a step before it is sent.
    if not np.allclose(vector, mean, rtol=0, atol=_STEP):
        raise SystemExit("flower: the average is not the mean of the survivors' vectors")
