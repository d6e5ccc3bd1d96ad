"""Virtual clients in Flower's engine: secure sums and pooled heads of a thousand.

`many_machines.py virtual` runs it. Both parties are those of many machines (`flower.virtual`).

sums    clients share 6,000 known words of 22 bits, so that every sum is checked against who is in
        it. In steady state a round has two stages.
heads   one masked sum of class sums about the records of all clients, a few of MNIST-5k each, dealt
        label by label, so that nearly all hold one class; no network learns. Beside it the same run
        in one process: the sum must be the same, bit for bit.
"""

import hashlib
import json
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn

from secure_fd import simulate
from secure_fd.data.federated import ClientData, FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.flower.journal import digest_of
from secure_fd.flower.loop import Rounds
from secure_fd.flower.roster import Terms, read
from secure_fd.flower.verify import verify
from secure_fd.flower.virtual import ROSTER, SERVER, VirtualFederation
from secure_fd.methods.base import LearningHalf, Own, RecordingHalf, Setting
from secure_fd.methods.heads import HeadServer, PooledHeads
from secure_fd.server import Server
from tests.known_words import LONG, words

_DEADLINE: Final = 7200.0
Report = dict[str, Any]


class OneHead:
    """Pooled heads of one sum, by which clients leave: no network learns."""

    name: ClassVar[str] = "one head"
    needs_proxies: ClassVar[bool] = True

    def __init__(self) -> None:
        self._heads = PooledHeads(residual_rounds=0, leave="head", none_of_mine=False)

    def check(self, setting: Setting, models: Sequence[nn.Module]) -> None:
        """As pooled heads."""
        self._heads.check(setting, models)

    def client(self, setting: Setting, own: Own) -> LearningHalf:
        """The half of one client."""
        return self._heads.client(_untrained(setting), own)

    def server(self, setting: Setting, initial: nn.Module) -> RecordingHalf:
        """The server's half."""
        return self._heads.server(_untrained(setting), initial)


def _untrained(setting: Setting) -> Setting:
    schedule = replace(setting.schedule, warmup_steps=0, local_steps=0, proxy_steps=0)
    return replace(setting, schedule=schedule)


def dealt(clients: int, seed: int = 0) -> FederatedData:
    """MNIST-5k, its 3,000 local records dealt in the order of their labels."""
    data = federate(load("mnist5k"), parse_split("strong"), 10, seed=seed)
    parts = [part for each in data.clients for part in (each.train, each.validation)]
    pixels = torch.cat([part.pixels for part in parts])
    labels = torch.cat([part.labels for part in parts])
    order = torch.argsort(labels, stable=True)
    pieces = torch.tensor_split(order, clients)
    nothing = Images(pixels[:0], labels[:0])
    made = (ClientData(Images(pixels[p], labels[p]), nothing, data.n_classes) for p in pieces)
    return replace(data, clients=tuple(made))


def virtual(folder: Path, clients: int, rounds: int, workers: int) -> Report:
    """Both runs; SystemExit where a sum is not the plain one."""
    data = dealt(clients)
    return {
        "clients": clients,
        "workers": workers,
        "sums": _sums(data, folder / "sums", rounds, workers),
        "heads": _heads(data, folder / "heads", workers),
    }


def _sums(data: FederatedData, folder: Path, rounds: int, workers: int) -> Report:
    terms = Terms(method="tests.known_words:LongWords", image_set="mnist5k", rounds=rounds)
    report, _ = _run(data, terms, folder, workers)
    exact = 0
    for line in _rounds(folder):
        for survivors, digest in zip(line["survivors"], line["sums"], strict=True):
            plain = sum((words(k, line["index"], *LONG) for k in survivors), np.uint64(0))
            if hashlib.sha256(plain.astype("<u8").tobytes()).hexdigest() != digest:
                raise SystemExit(f"the sum of round {line['index']} is not that of its survivors")
            exact += 1
    return report | {"values": LONG[0], "sums_exact": exact}


def _heads(data: FederatedData, folder: Path, workers: int) -> Report:
    terms = Terms(method="virtual_clients:OneHead", image_set="mnist5k", rounds=1)
    report, ran = _run(data, terms, folder, workers)
    begun = time.monotonic()
    one = simulate(data, method=OneHead(), secure="masks")
    one.fit(rounds=1)
    here = one.federation.server
    equal = [digest_of(seen.result) for seen in here.seen] == _rounds(folder)[0]["sums"]
    if not equal:
        raise SystemExit("the sum is not that of one process")
    return report | {
        "records": sum(len(each.train) for each in data.clients),
        "sum_equal": equal,
        "accuracy_flower": _accuracy(ran.party, data.test),
        "accuracy_one_process": _accuracy(here, data.test),
        "one_process_s": time.monotonic() - begun,
    }


def _accuracy(server: Server | None, test: Images) -> float:
    """Of the head that the server sent."""
    half = None if server is None else server.half
    if not isinstance(half, HeadServer):
        raise SystemExit("the run has no head")
    answers = half.public.answers(half.head, test)
    return float((answers.argmax(axis=1) == test.labels.numpy()).mean())


def _run(data: FederatedData, terms: Terms, folder: Path, workers: int) -> tuple[Report, Rounds]:
    """A run to its end, whose transcript holds, with seconds and bytes."""
    begun, clients = time.monotonic(), len(data.clients)
    made = VirtualFederation.create(data, replace(terms, deadline=_DEADLINE), folder, workers)
    keys_s = time.monotonic() - begun
    ran = made.run()
    whole_s = time.monotonic() - begun
    verify(folder / SERVER, read(folder / ROSTER))
    lines = _rounds(folder)
    seconds = [sum(v for k, v in line["clock"].items() if k != "stages") for line in lines]
    steady = lines[1:] or lines
    report = {
        "rounds": len(lines),
        "void": sum(line["void"] for line in lines),
        "survivors": [len(each) for line in lines for each in line["survivors"]],
        "stages": [line["clock"]["stages"] for line in lines],
        "round_s": seconds,
        "server_s": [line["clock"]["server"] for line in lines],
        "slowest_client_s": [line["clock"]["computing"] for line in lines],
        "keys_s": keys_s,
        "set_up_and_start_s": whole_s - keys_s - sum(seconds),
        "client_bytes_up": statistics.mean(line["bytes_up"] for line in steady) / clients,
        "client_bytes_down": statistics.mean(line["bytes_down"] for line in steady) / clients,
        "server_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    return report, ran


def _rounds(folder: Path) -> list[Report]:
    lines = map(json.loads, (folder / SERVER / "rounds.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "round"]
