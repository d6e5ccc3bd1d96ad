"""Sites as processes on loopback, over Flower: beside one process, and where sites are killed.

PYTHONPATH=. SECURE_FD_DATA=DIR python benchmarks/many_machines.py beside FOLDER > beside.json
PYTHONPATH=. python benchmarks/many_machines.py killed FOLDER > killed.json

beside   three sites, MNIST-5k, pooled heads under masks, once without noise and once with the
         record unit of epsilon 4. Without noise the class sums are a function of the records: the
         SHA-256 of each must be that of `simulate` on the same folders. What networks add is
         compared too and may differ, since `simulate` keeps networks side by side in memory,
         which rounds otherwise. Noise comes from the operating system and repeats nowhere. Then
         DaFKD on digits, whose 21 sums a round are all of what networks learned.

killed   ten sites that share known words instead of votes, so that every sum can be checked
         against who was in it. After the first round, which has the set-up, as many as make it a
         fifth that is away are killed (SIGKILL) at a random moment of each round, and started
         again at once. Every round must be over, every sum exact; no words of one site may be in
         any file or log.

Both go on where they stood when they are started again on the same FOLDER. Needs the extra:
pip install "secure-fd[flower]".

         Needs the extra: pip install "secure-fd[simulation]".
"""

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from secure_fd import simulate
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.data.own import images_in
from secure_fd.flower.journal import digest_of
from secure_fd.flower.records import proxies_in, records_in
from secure_fd.flower.roster import Roster, read
from secure_fd.site_network import load_site_network
from secure_fd.training import accuracy
from tests.flower_processes import Federation, federation
from tests.known_words import words

THREE: Final = ("north", "south", "west")
TEN: Final = (
    *("north", "south", "west", "east", "harbour"),
    *("hill", "lake", "forest", "river", "castle"),
)
Report = dict[str, Any]


# Sites beside one process.


RUNS: Final = {
    "no noise": ("mnist5k", "strong", "--method", "heads", "--rounds", "4"),
    "record unit, epsilon 4": (
        *("mnist5k", "strong", "--unit", "record", "--epsilon", "4"),
        *("--rounds", "2"),
    ),
    "dafkd": ("digits", "iid", "--method", "dafkd", "--rounds", "2"),
}
"""Image set, split over the sites, options of the roster."""


def beside(folder: Path) -> Report:
    """All runs, each over Flower and in this process."""
    return {"rows": [_row(folder, title) for title in RUNS]}


def _row(folder: Path, title: str) -> Report:
    place = folder / title.replace(" ", "-").replace(",", "")
    images, split, *options = RUNS[title]
    more = ("--data", images, "--split", split, "--deadline", "900", *options)
    with federation(place, *more, small=False) as made:
        _run_to_end(made, THREE)
    return {"run": title, **_compared(made)}


def _run_to_end(made: Federation, names: Sequence[str]) -> None:
    if made.journal() and made.journal()[-1]["event"] == "ended":
        return
    for name in (*names, "server"):
        made.start(name)
    if made.wait("server", 3600):
        sys.exit(made.log("server"))
    for name in names:
        made.wait(name, 60)


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
        delta=roster.terms.delta,
        seed=roster.terms.seed,
    )
    sums = []
    for _ in rounds:
        run.fit(rounds=1)
        sums.append([digest_of(seen.result) for seen in run.federation.server.seen])
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
        "round_s": [sum(v for k, v in one["clock"].items() if k != "stages") for one in rounds],
        "clock": [one["clock"] for one in rounds],
        "bytes_up": [one["bytes_up"] for one in rounds],
        "bytes_down": [one["bytes_down"] for one in rounds],
    }


def _data_in(folder: Path, roster: Roster) -> FederatedData:
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


# Sites that are killed.


def killed(folder: Path, rounds: int, share: float) -> Report:
    """Run all rounds while sites are killed; SystemExit where one of the claims does not hold."""
    options = (
        "--sites",
        "10",
        "--method",
        "tests.known_words:KnownWords",
        "--deadline",
        "15",
    )
    rng, most = random.Random(22), int(share * len(TEN))  # noqa: S311 - which sites, not secrets
    with federation(folder, *options, "--rounds", str(rounds)) as made:
        begun, deaths, seen = time.monotonic(), 0, 0
        for name in (*TEN, "server"):
            made.start(name)
        while made.running["server"].poll() is None:
            here, now = _here(made), len(made.rounds())
            if now > seen and len(here) > len(TEN) - most:
                time.sleep(rng.uniform(0, _length(made)))
                for name in rng.sample(here, most - (len(TEN) - len(here))):
                    _kill(made, name)
                    deaths += 1
                seen = now
            time.sleep(0.05)
        wall, status = time.monotonic() - begun, made.running["server"].returncode
    if status:
        sys.exit(f"the server ended with {status}: {made.log('server')}")
    return {**_checked(made, rounds), "killed": deaths, "wall_s": wall}


def _here(made: Federation) -> list[str]:
    """Sites that the server holds for present."""
    path = made.folder / "server" / "status.json"
    return list(json.loads(path.read_text())["sites"]["here"]) if path.exists() else []


def _length(made: Federation) -> float:
    """Median seconds of a round so far."""
    lengths = [sum(one["clock"].values()) - one["clock"]["stages"] for one in made.rounds()]
    return statistics.median(lengths) if lengths else 1.0


def _kill(made: Federation, name: str) -> None:
    process = made.running[name]
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        made.start(name)


def _checked(made: Federation, rounds: int) -> Report:
    """What the journal and the files say."""
    lines = {one["index"]: one for one in made.rounds()}
    exact = 0
    for index, one in lines.items():
        for survivors, digest in zip(one["survivors"], one["sums"], strict=True):
            total = np.sum([words(k, index) for k in survivors], axis=0, dtype=np.uint64)
            if hashlib.sha256(total.astype("<u8").tobytes()).hexdigest() != digest:
                sys.exit(f"the sum of round {index} is not that of its survivors")
            exact += 1
    leaks = [str(path) for path in _files(made.folder) if _has_words(path, rounds)]
    if leaks:
        sys.exit(f"words of one site are in {leaks}")
    if not _has_sum(made, lines):
        sys.exit("the search for words does not find the sums, which are in the server's state")
    if len(lines) != rounds:
        sys.exit(f"{len(lines)} of {rounds} rounds are accounted for")
    counts = [len(each) for one in lines.values() for each in one["survivors"]]
    aborted = sum(one["void"] for one in lines.values())
    return {
        "rounds": rounds,
        "completed": rounds - aborted,
        "void": aborted,
        "sums_exact": exact,
        "survivors": {"least": min(counts), "mean": statistics.mean(counts)},
        "files_searched": len(list(_files(made.folder))),
        "round_s_median": _length(made),
    }


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _has_words(path: Path, rounds: int) -> bool:
    """Whether four words of any one site are in a file one after another, or one in decimals."""
    data = path.read_bytes()
    return any(
        part.tobytes() in data or str(part[0]).encode() in data
        for site in range(len(TEN))
        for index in range(rounds)
        for part in [words(site, index)[:4].astype("<u8")]
    )


def _has_sum(made: Federation, lines: dict[int, Report]) -> bool:
    """The twin of the search: the newest sum is in the server's state file, as bytes."""
    index, one = next((i, one) for i, one in reversed(lines.items()) if one["sums"])
    total = np.sum([words(k, index) for k in one["survivors"][-1]], axis=0, dtype=np.uint64)
    files = list((made.folder / "server").glob("state*"))
    return any(total[:4].astype("<u8").tobytes() in path.read_bytes() for path in files)


def main() -> None:
    """Run what the command line names, and print its report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("beside", "killed"))
    parser.add_argument("folder", type=Path, help="new, or of a run that was interrupted")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--share", type=float, default=0.2, help="of the sites, killed in a round")
    known = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes are ended
    if known.what == "beside":
        found = beside(known.folder)
    else:
        found = killed(known.folder, known.rounds, known.share)
    print(json.dumps({"processors": os.cpu_count(), **found}, indent=2))


if __name__ == "__main__":
    main()
