"""Sites as processes on loopback, over Flower, beside one process.

PYTHONPATH=. SECURE_FD_DATA=DIR python benchmarks/many_machines.py FOLDER > beside.json

Three sites, MNIST-5k, pooled heads under masks, once without noise and once with the record unit of
epsilon 4. Without noise the class sums are a function of the records: the SHA-256 of each must be
that of `simulate` on the same folders. What networks add is compared too, and may round otherwise.
Noise comes from the operating system and repeats nowhere. Then DaFKD on digits, whose 21 sums a
round are all of what networks learned.

It goes on where it stood when it is started again on the same FOLDER. Needs the extra:
pip install "secure-fd[flower]".
"""

import argparse
import json
import os
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import torch

from secure_fd import simulate
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.data.own_images import images_in
from secure_fd.deployment.parties import proxies_in, records_in
from secure_fd.deployment.recovery import digest_of
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.deployment.site_network import load_site_network
from secure_fd.training.trainer import accuracy
from tests.flower_processes import SITES, Federation, federation

Report = dict[str, Any]


RUNS: Final = {
    "no noise": ("mnist5k", "strong", "--method", "heads", "--rounds", "4"),
    "record unit, epsilon 4": (
        *("mnist5k", "strong", "--unit", "record", "--epsilon", "4"),
        *("--rounds", "2"),
    ),
    "dafkd": ("digits", "iid", "--method", "dafkd", "--rounds", "2"),
}
"""Image set, split over the sites, options of the roster."""


def _row(folder: Path, title: str) -> Report:
    place = folder / title.replace(" ", "-").replace(",", "")
    images, split, *options = RUNS[title]
    more = ("--data", images, "--split", split, "--deadline", "900", *options)
    with federation(place, *more, small=False) as made:
        if not made.journal() or made.journal()[-1]["event"] != "ended":
            for name in (*SITES, "server"):
                made.start(name)
            if made.wait("server", 3600):
                sys.exit(made.log("server"))
            for name in SITES:
                made.wait(name, 60)
    return {"run": title, **_compared(made)}


def _compared(made: Federation) -> Report:
    """The run over Flower and `simulate` on what its folders hold, by accuracy, sums, networks."""
    roster = read(made.folder / "roster.toml")
    data, rounds = _data_in(made.folder, roster), made.rounds()
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
    networks = [
        load_site_network(made.folder / site.name / "home" / "network.pt").network.state_dict()
        for site in roster.sites
    ]
    found = []
    for own, state in zip(run.federation.models, networks, strict=True):
        equal = all(torch.equal(state[name], value) for name, value in own.state_dict().items())
        here = accuracy(own, data.test)
        own.load_state_dict(state)
        found.append((equal, here, accuracy(own, data.test)))
    return {
        "rounds": len(rounds),
        "sums_equal": [
            [here == there for here, there in zip(own, one["sums"], strict=True)]
            for own, one in zip(sums, rounds, strict=True)
        ],
        "networks_equal": all(equal for equal, _, _ in found),
        "accuracy_one_process": statistics.mean(here for _, here, _ in found),
        "accuracy_flower": statistics.mean(there for _, _, there in found),
        "round_s": [one["seconds"] for one in rounds],
        "computing_s": [one["computing"] for one in rounds],
        "bytes_up": [one["bytes_up"] for one in rounds],
        "bytes_down": [one["bytes_down"] for one in rounds],
    }


def _data_in(folder: Path, roster: RosterFile) -> FederatedData:
    """What sites, proxies and test hold, as images of one federation."""
    sites = [folder / site.name / "records" for site in roster.sites]
    clients = tuple(records_in(place, roster, k) for k, place in enumerate(sites))
    size, channels = roster.shape[-1], roster.shape[0]
    public = roster.check_proxies(proxies_in(folder / "proxies", size, channels))
    test, _ = images_in(folder / "test", size, channels=channels, classes=roster.classes)
    # Their labels are nobody's: nothing of a run reads them.
    proxies = Images(public, torch.zeros(len(public), dtype=torch.int64))
    nobody, classes = test[torch.zeros(0, dtype=torch.int64)], len(roster.classes)
    return FederatedData(roster.terms.image_set, classes, clients, proxies, test, nobody)


def main() -> None:
    """Run what the command line names, and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="new, or of a run that was interrupted")
    known = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    rows = [_row(known.folder, title) for title in RUNS]
    print(json.dumps({"processors": os.cpu_count(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
