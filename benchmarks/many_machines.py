"""Sites as processes on loopback, over Flower, beside one process.

PYTHONPATH=. SECURE_FD_DATA=DIR python benchmarks/many_machines.py FOLDER > beside.json

Three sites, MNIST-5k, pooled heads under masks, once without noise and once with the record unit of
epsilon 4. Without noise the class sums are a function of the records: the SHA-256 of each must be
that of `simulate` on the same folders. Noise comes from the operating system and repeats nowhere.
Then DaFKD on digits, whose 21 sums a round are all of what networks learned, and may round
otherwise.

FOLDER must exist, and be empty. Needs the extra: pip install "secure-fd[flower]".
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

from clock import report
from secure_fd import simulate
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.data.own_images import images_in
from secure_fd.deployment.parties import agreed_proxies, records_in
from secure_fd.deployment.recovery import digest_of
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.deployment.serve import lines_of

Report = dict[str, Any]
SITES: Final = ("north", "south", "west")
"""The example's first three sites."""


RUNS: Final = {
    "no noise": ("mnist5k", "strong", "--method", "heads", "--rounds", "4"),
    "record unit, epsilon 4": (
        *("mnist5k", "strong", "--unit", "record", "--epsilon", "4"),
        *("--rounds", "2"),
    ),
    "dafkd": ("digits", "iid", "--method", "dafkd", "--rounds", "2"),
}
"""Image set, split over the sites, options of the roster."""
FIELDS: Final = ("seconds", "computing", "bytes_up", "bytes_down")
"""Fields of the journal for each round: seconds in all and in the slowest site, and bytes."""


def _row(folder: Path, title: str) -> Report:
    place = folder / title.replace(" ", "-").replace(",", "")
    images, split, *options = RUNS[title]
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{trial.getsockname()[1]}"
    prepare = ("examples/hospitals/prepare.py", str(place), "--address", address)
    more = ("--data", images, "--split", split, "--deadline", "900", *options)
    if _start(place.parent, *prepare, *more).wait(600):
        sys.exit(f"{title}: nothing was prepared; see {place.parent / 'log'}")
    join, roster = ("-m", "secure_fd", "join"), ("--roster", str(place / "roster.toml"))
    sites = [
        _start(place / name, *join, *roster, "--data", str(place / name / "records"))
        for name in SITES
    ]
    server = _start(place / "server", "-m", "secure_fd", "serve", *roster)
    try:
        while server.poll() is None and not any(site.poll() for site in sites):
            time.sleep(1)
        if server.poll() or any(site.wait(600) for site in sites):
            sys.exit(f"{title}: the server or a site failed; see the logs in {place}")
    finally:
        for process in (*sites, server):
            process.terminate()
    return {"run": title, **_compared(place)}


def _start(place: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Start a Python program whose output goes to the file `log` of a folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR")}
    with (place / "log").open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own programs
            [sys.executable, *command],
            env=kept | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _compared(folder: Path) -> Report:
    """Compare the run over Flower with `simulate` on what its folders hold."""
    roster = read(folder / "roster.toml")
    rounds = [line for line in lines_of(folder / "server") if line["event"] == "round"]
    data = _data_in(folder, roster)
    run = simulate(
        data,
        clients=len(roster.sites),
        method=roster.terms.method,
        secure="masks",
        unit="record" if roster.terms.unit == "record" else None,
        epsilon=roster.terms.epsilon,
        seed=roster.terms.seed,
    )
    sums = []
    for _ in rounds:
        run.fit(rounds=1)
        sums.append([digest_of(result) for result in run.federation.server.results])
    return {
        "rounds": len(rounds),
        "sums_equal": [
            [here == there for here, there in zip(own, one["sums"], strict=True)]
            for own, one in zip(sums, rounds, strict=True)
        ],
        **{field: [one[field] for one in rounds] for field in FIELDS},
    }


def _data_in(folder: Path, roster: RosterFile) -> FederatedData:
    """Return the images of sites, proxies and test set as one federation."""
    sites = [folder / site.name / "records" for site in roster.sites]
    clients = tuple(records_in(place, roster, k) for k, place in enumerate(sites))
    size, channels = roster.shape[-1], roster.shape[0]
    public = agreed_proxies(folder / "proxies", roster)
    test, _ = images_in(folder / "test", size, channels=channels, classes=roster.classes)
    # No part of a run reads the labels of proxies.
    proxies = Images(public, torch.zeros(len(public), dtype=torch.int64))
    no_records, classes = test[torch.zeros(0, dtype=torch.int64)], len(roster.classes)
    return FederatedData(roster.terms.image_set, classes, clients, proxies, test, no_records)


def main() -> None:
    """Run all federations below the folder, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="exists, and is empty")
    known = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    report({}, ["flwr"], rows=[_row(known.folder, title) for title in RUNS])


if __name__ == "__main__":
    main()
