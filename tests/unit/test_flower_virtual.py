"""Virtual clients: keepers hold what a round must not lose, and Flower's engine moves the bytes."""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import ConfigurationError, MissingClientError
from secure_fd.flower.loop import Arrived
from secure_fd.flower.roster import Terms, read
from secure_fd.flower.verify import verify
from secure_fd.flower.virtual import ROSTER, SERVER, Keeper, VirtualFederation
from secure_fd.recipes import Sizes
from tests.known_words import words
from tests.programs import printed

CLIENTS, ROUNDS = 5, 2
TERMS = Terms(
    method="tests.known_words:KnownWords", image_set="digits", rounds=ROUNDS, deadline=1.0
)


def _data() -> FederatedData:
    sizes = Sizes(proxies=40, test=10, held_out=4, local=100)
    return federate(load("digits"), parse_split("iid"), CLIENTS, seed=0, sizes=sizes)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return _data()


@dataclass
class Workers:
    """The engine without Flower: any worker takes any message. anew: a worker keeps nothing."""

    made: VirtualFederation
    anew: bool = False

    def __post_init__(self) -> None:
        self.keepers = [self._keeper(k) for k in self.nodes()]

    def _keeper(self, number: int) -> Keeper:
        own = {number: self.made.data.clients[number]}
        return Keeper(self.made.folder, self.made.data.proxies.pixels, own)

    def nodes(self) -> Sequence[int]:
        return range(CLIENTS)

    def push(self, messages: Mapping[int, bytes], _: float) -> Iterable[Arrived]:
        for k, message in messages.items():
            if self.anew:
                self.keepers[k].close()
                self.keepers[k] = self._keeper(k)
            yield Arrived(k, self.keepers[k].answer(k, message), 0.0)


def _sums(folder: Path) -> list[tuple[list[int], str]]:
    """Survivors and SHA-256 of each sum, of as many rounds as were planned."""
    lines = map(json.loads, (folder / SERVER / "rounds.jsonl").read_text().splitlines())
    rounds = [line for line in lines if line["event"] == "round"]
    assert [line["index"] for line in rounds] == list(range(ROUNDS))
    return [(line["survivors"][0], line["sums"][0]) for line in rounds]


def _plain(index: int, clients: Iterable[int]) -> str:
    total = np.sum([words(k, index) for k in clients], axis=0, dtype=np.uint64)
    return hashlib.sha256(total.astype("<u8").tobytes()).hexdigest()


def _check(folder: Path) -> None:
    everyone = list(range(CLIENTS))
    for index, (survivors, digest) in enumerate(_sums(folder)):
        assert survivors == everyone
        assert digest == _plain(index, everyone)
        assert digest != _plain(index, everyone[1:])
    assert verify(folder / SERVER, read(folder / ROSTER)).void == 0


def test_kept_clients_make_the_plain_sums(data: FederatedData, tmp_path: Path) -> None:
    made = VirtualFederation.create(data, TERMS, tmp_path)
    made.serve(Workers(made))
    _check(tmp_path)


def test_its_twin_without_keepers_has_no_set_up(data: FederatedData, tmp_path: Path) -> None:
    """A client that is made anew for each message has forgotten what it began."""
    made = VirtualFederation.create(data, TERMS, tmp_path)
    with pytest.raises(MissingClientError, match="no set-up"):
        made.serve(Workers(made, anew=True))


def test_flower_s_engine_makes_the_plain_sums(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip('needs the extra: pip install "secure-fd[simulation]"')
    # Ray leaves files open, which a test's process would not stand.
    printed("-m", "tests.unit.test_flower_virtual", str(tmp_path))
    _check(tmp_path)


def test_a_folder_is_of_one_run(data: FederatedData, tmp_path: Path) -> None:
    VirtualFederation.create(data, TERMS, tmp_path)
    with pytest.raises(ConfigurationError, match="name a new folder"):
        VirtualFederation.create(data, TERMS, tmp_path)
    with pytest.raises(ConfigurationError, match="workers: 0"):
        VirtualFederation.create(data, TERMS, tmp_path / "other", workers=0)


if __name__ == "__main__":
    terms = replace(TERMS, deadline=120.0)
    VirtualFederation.create(_data(), terms, Path(sys.argv[1]), workers=2).run()
