"""The workers of a running Dask cluster, as an executor."""

import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Any

from distributed import Client, KilledWorker
from distributed.cfexecutor import ClientExecutor

from experiments.core import provenance
from secure_fd.errors import ConfigurationError

SECONDS_TO_ANSWER = 5


class Cluster(ClientExecutor):  # type: ignore[misc]
    """Executor of a cluster. A future's `reference` stands for its result in further calls.

    Cells share warm-ups of 28 MB. By a reference they stay on the workers, and Dask makes one again
    that is lost with its worker.
    """

    def submit(self, call: Any, /, *given: Any) -> "Future[Any]":  # noqa: ANN401 - any function
        """Run a call after those submitted before it: Dask reorders calls of one moment."""
        future: Future[Any] = super().submit(call, *given, fifo_timeout=0)
        return future

    def _wrap_future(self, future: Any) -> "Future[Any]":  # noqa: ANN401 - Dask's future
        wrapped: Future[Any] = super()._wrap_future(future)
        wrapped.reference = future  # type: ignore[attr-defined]
        return wrapped


@contextmanager
def connected(address: str) -> Iterator[Executor]:
    """Connect to the scheduler at an address.

    Raises:
        ConfigurationError: the address is wrong, or its workers cannot run this code.
        OSError: the cluster gave up a task, or the connection was lost.
    """
    # They log tracebacks for what is raised here as one sentence.
    for name in ("distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=SECONDS_TO_ANSWER, set_as_default=False)
    except (OSError, ValueError):
        allowed = f"no Dask scheduler answers within {SECONDS_TO_ANSWER} s: use its tcp://HOST:8786"
        raise ConfigurationError("scheduler", address, allowed) from None
    with client:
        _check(client, address)
        try:
            # Each call is measured: equal calls of two runs are different tasks.
            yield Cluster(client, pure=False)
        except KilledWorker as error:
            raise OSError(f"{error.allowed_failures + 1} workers ended during one task") from None
        except CancelledError:
            raise OSError(f"the scheduler {address} ended, or cancelled a task") from None


def _check(client: Client, address: str) -> None:
    """Raise ConfigurationError where a worker has more threads, or other code, than it may."""

    def refuse(allowed: str) -> None:
        raise ConfigurationError("scheduler", address, allowed)

    threads, ours = client.nthreads(), _versions()
    if not threads:
        refuse(f"it has no workers: start some with dask worker {address} --nthreads 1")
    for worker, count in threads.items():
        if count > 1:
            refuse(f"{worker} runs {count} tasks in a process: start workers with --nthreads 1")
    found = client.run(_versions, on_error="return")
    try:
        found["its scheduler"] = client.run_on_scheduler(_versions)
    except Exception as error:  # noqa: BLE001 - which one is the other process's
        found["its scheduler"] = error
    for process, theirs in found.items():
        if isinstance(theirs, Exception):
            refuse(f"{process} cannot load the code of this run: {theirs}")
        for name, version in ours.items():
            if theirs.get(name) != version:
                refuse(f"{process}: {name} is {theirs.get(name)}, this run has {version}")


def _versions() -> dict[str, str]:
    """Return the versions of the code and of the libraries that figures come from."""
    return {"code": str(provenance.code()), **provenance.versions()}
