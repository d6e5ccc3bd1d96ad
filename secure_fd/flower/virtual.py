"""Virtual clients: the same two parties in Flower's simulation engine, hundreds on one machine.

The engine runs a client's messages wherever a worker is free and keeps a context between them,
nothing else. What opens a client's inputs is in one process's memory and on no disk, so clients
live in keepers, Ray actors beside the engine's own; the ClientApp hands each push to the keeper of
its client. Keys, state files, roster, pushes and answers are those of many machines; there is no
TLS. Needs the extra: pip install "secure-fd[simulation]".
"""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secure_fd.crypto.primitives import proxy_commitment, quantum_safe_available
from secure_fd.data.federated import ClientData, FederatedData
from secure_fd.errors import ConfigurationError
from secure_fd.extras import extra
from secure_fd.flower import keys
from secure_fd.flower.join import agreement_at
from secure_fd.flower.loop import Courier, Rounds
from secure_fd.flower.parties import Agreement
from secure_fd.flower.roster import Roster, SiteEntry, Terms, read, render
from secure_fd.flower.serving import serve_agreed
from secure_fd.flower.site import Site
from secure_fd.knowledge import proxy_pixels
from secure_fd.state import StateFile

if TYPE_CHECKING:
    from torch import Tensor

ROSTER: Final = "roster.toml"
SERVER: Final = "server"
"""In a run's folder: the roster, and the server's home with its journal and transcript."""
_AT_ONCE: Final = 64
"""Messages that the engine holds at a time."""
_QUIET: Final = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@dataclass(frozen=True, slots=True, eq=False)
class VirtualFederation:
    """The homes of a server and its virtual clients in a folder.

    data: one virtual client for each of its clients. workers: processes of the engine, and as many
    keepers.
    """

    data: FederatedData = field(repr=False)
    folder: Path
    workers: int

    @classmethod
    def create(
        cls, data: FederatedData, terms: Terms, folder: Path, workers: int = 2
    ) -> "VirtualFederation":
        """Make all keys and the roster. terms.image_set: by default that of the data.

        Raises ConfigurationError where the folder has a roster, and for terms that no run has.
        """
        if workers < 1:
            raise ConfigurationError("workers", workers, "use 1 or more")
        path = folder / ROSTER
        if path.exists():
            raise ConfigurationError("folder", str(folder), "it has a run: name a new folder")
        card = keys.create_server(folder / SERVER, "localhost")
        sites = tuple(
            SiteEntry(f"client {k}", keys.create_site(_home(folder, k)), len(client.train))
            for k, client in enumerate(data.clients)
        )
        roster = Roster(
            name=data.name,
            address="localhost:0",
            certificate=card.certificate,
            terms=terms,
            classes=tuple(map(str, range(data.n_classes))),
            shape=tuple(data.proxies.pixels.shape[1:]),
            proxies=proxy_commitment(proxy_pixels(data.proxies.pixels)),
            nonce=os.urandom(32),
            hybrid=quantum_safe_available(),
            identity=card.identity,
            agreement=card.agreement,
            sites=sites,
            digest=bytes(32),
        )
        path.write_text(render(roster))
        return cls(data, folder, workers)

    def run(self) -> Rounds:
        """Run all rounds; the server's, whose journal and transcript are in its home.

        Raises MissingCapabilityError without the extra; what ends the server's rounds comes
        through.
        """
        with extra("simulation"):
            import ray
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        ray.init(
            num_cpus=self.workers,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}},
        )
        try:
            return self._simulate([self._keeper(ray, j) for j in range(self.workers)])
        finally:
            ray.shutdown()

    def _keeper(self, ray: Any, index: int) -> Any:  # noqa: ANN401 - Ray's own
        """An actor with its share of the clients."""
        mine = dict(list(enumerate(self.data.clients))[index :: self.workers])
        made = ray.remote(Keeper).options(num_cpus=0)
        return made.remote(self.folder, self.data.proxies.pixels, mine)

    def _simulate(self, keepers: Sequence[Any]) -> Rounds:
        """The engine around both apps, the server's in a thread of this process."""
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation

        from secure_fd.flower.client_app import app_for_all
        from secure_fd.flower.server_app import GridCourier

        ran: list[Rounds] = []

        def main(grid: Grid, _: Any) -> None:  # noqa: ANN401 - a context
            ran.append(self.serve(GridCourier(grid, _AT_ONCE)))

        server = ServerApp()
        server.main()(main)
        run_simulation(
            server,
            app_for_all(partial(_ask, keepers)),
            len(self.data.clients),
            backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
        )
        return ran[0]

    def serve(self, courier: Courier) -> Rounds:
        """The server's side of a run, over any courier whose node answers as its client does."""

        def load() -> Agreement:
            agreed = read(self.folder / ROSTER)
            return Agreement.of(
                agreed, agreed.check_proxies(proxy_pixels(self.data.proxies.pixels))
            )

        return serve_agreed(self.folder / SERVER, load, courier)


class Keeper:
    """Some of the virtual clients, in one process, from the first push to the last.

    data: of each, by its number. proxies: [P, ...], pixels in [0, 1].
    """

    def __init__(self, folder: Path, proxies: "Tensor", data: Mapping[int, ClientData]) -> None:
        agreed = read(folder / ROSTER)
        public = agreed.check_proxies(proxy_pixels(proxies))
        self._files = {k: keys.open_state(_home(folder, k)) for k in data}
        self._sites = {
            k: _site(_home(folder, k), agreed, public, k, own, self._files[k])
            for k, own in data.items()
        }

    def answer(self, number: int, push: bytes) -> bytes:
        """A client's answer to a push, both as they travel."""
        return self._sites[number].answer(push)

    def close(self) -> None:
        """Close the files of its clients, as the end of its process does."""
        for file in self._files.values():
            file.close()


def _site(
    home: Path, agreed: Roster, proxies: "Tensor", number: int, data: ClientData, file: StateFile
) -> Site:
    agreement = agreement_at(home, agreed, proxies, number, file)
    return Site(agreement, number, keys.identity_in(file), data, file)


def _ask(keepers: Sequence[Any], number: int, push: bytes) -> bytes:
    """What runs in a worker of the engine: the keeper answers."""
    import ray

    answer: bytes = ray.get(keepers[number % len(keepers)].answer.remote(number, push))
    return answer


def _home(folder: Path, number: int) -> Path:
    return folder / f"client{number}"
