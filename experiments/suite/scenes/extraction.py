"""IDEAL steals a student from trained clients, by what a server may read or inject."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from attacks.core.run import attack_view, public_of
from attacks.core.view import AnswerFunction, Capability, Oracle, server_view
from attacks.inversion.ideal import DEFAULT, QUICK, Ideal
from experiments.compare.leakage import Attempt
from experiments.core.run_config import RowSpec, row_config
from experiments.core.runs import Trained, data_of, parts_of
from experiments.privacy_compare import Settings
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import Compared, as_sent, contribution
from secure_fd.errors import ConfigurationError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.training.trainer import predict
from secure_fd.votes.codec import Released

ROUNDS, QUICK_ROUNDS = 10, 2
"""Fewer than a comparison's: at 256 proxies a round nearly every proxy has been answered."""
_SPECS = {spec.key: spec for spec in (RowSpec("selective-fd", "soft"), RowSpec("selective-fd"))}


def answers(trained: Trained) -> AnswerFunction:
    """Return the votes [N, K, C] of trained clients of Selective-FD about any images.

    Answers pass through all that a round's would: the client's selector and network, and the codec.
    Raises ConfigurationError if the clients send no votes.
    """
    data = trained.data
    method = parts_of(trained.config, data).method
    if not isinstance(method, SelectiveFD):
        raise ConfigurationError("row", trained.config.row.key, "use Selective-FD")
    fitted = [method.selector.fit(client, data.proxies.pixels) for client in data.clients]

    def votes(images: Tensor) -> Tensor:
        answers = [
            contribution(method, selector, images, predict(network, images))
            for selector, network in zip(fitted, trained.federation.models, strict=True)
        ]
        return as_sent(list(map(Released.of, answers)), data.n_classes, method.levels)

    return votes


def _rows(_: Cell) -> Mapping[str, str]:
    """Selective-FD with soft and hard labels; masks change nothing, as IDEAL reads the sum."""
    return {key: spec.label for key, spec in _SPECS.items()}


def _prepare(cell: Cell, data_dir: Path | None) -> tuple[Compared, Ideal]:
    """The warm-up, and IDEAL with the comparison's prior, controls and truth."""
    rounds, theft = (QUICK_ROUNDS, QUICK) if cell.quick else (ROUNDS, DEFAULT)
    made = Compared.of(cell, data_dir, Settings(rounds=rounds))
    data = data_of(made.base, data_dir)
    attack = Ideal.for_data(data, cell.seed, "quick" if cell.quick else "full")
    return made, replace(attack, theft=theft)


def _attempts(cell: Cell, made: tuple[Compared, Ideal]) -> Mapping[str, Attempt]:
    """Train the row and attack it as a server that reads, and as one that injects."""
    compared, attack = made
    trained = compared.run(row_config(compared.base, _SPECS[cell.row]))
    known, seen = public_of(trained.data), trained.federation.transcript
    oracle = Oracle(answers(trained), attack.theft.queries)
    views = {
        "ideal-reads": server_view(seen, known),
        "ideal-injects": server_view(seen, known, {Capability.INJECT_PROXIES: oracle}),
    }
    return {n: partial(attack_view, attack, view, cell.seed) for n, view in views.items()}


SCENE = Scene(
    title="Model extraction, then reconstruction",
    about="IDEAL steals a student from clients of one class each, by reading their ensembles or "
    "by injecting images; the student is inverted with GMI's public "
    f"prior. {ROUNDS} rounds of training, one class a client: where each answer is one "
    "client's, and a selector has most to refuse.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
