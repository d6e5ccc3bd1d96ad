"""The workers of a running Dask cluster, as an executor."""

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

    threads = client.nthreads()
    if not threads:
        refuse(f"it has no workers: start some with dask worker {address} --nthreads 1")
    for worker, count in threads.items():
        if count > 1:
            refuse(f"{worker} runs {count} tasks in a process: start workers with --nthreads 1")
    ours = provenance.code(), provenance.versions()
    try:
        found = client.run(_versions)
    except ModuleNotFoundError as error:
        refuse(f"a worker has no module {error.name}: start workers in an environment like this")
    for worker, (code, versions) in found.items():
        if code != ours[0]:
            refuse(f"{worker} has {code}, this run {ours[0]}")
        for library in ours[1]:
            if versions.get(library) != ours[1][library]:
                refuse(f"{worker} has {library} {versions.get(library)}, not {ours[1][library]}")


def _versions() -> tuple[provenance.Code, dict[str, str]]:
    return provenance.code(), provenance.versions()
