"""A server that injects proxies asks clients' selectors about their raw training images."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attacks.core.base import AttackResult, draw_challenge, pooled
from attacks.core.run import labelled, public_of
from attacks.core.view import AnswerFunction, Capability, Oracle, server_view
from attacks.server.selector import FlipRadius
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Cell, Scene
from experiments.suite.scenes.shared import federated, noted
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.label import LabelUnit, RandomizedResponse
from secure_fd.privacy.samplers import Random, SeededRandom
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.selectors import (
    FittedKulsif,
    FittedSelector,
    KulsifSelector,
    ProxyRatioSelector,
)
from secure_fd.votes.codec import HARD_LEVELS, KnowledgeCodec, Released

_BUDGET = 1_000_000
_MASKED, _NOISY = "kulsif-masks", "kulsif-dp-label"


def _rows(cell: Cell) -> Mapping[str, str]:
    """The paper's selector under masks, and with noise on labels; the default without either."""
    return {
        _MASKED: "KuLSIF + masks",
        _NOISY: f"KuLSIF + DP label unit (ε = {cell.epsilon:g})",
        "proxy-ratio": "Proxy ratio in clear",
    }


def _prepare(cell: Cell, data_dir: Path | None) -> FederatedData:
    """One class a client."""
    return federated(cell, data_dir, 3 if cell.quick else 10)


def _votes(
    cell: Cell, method: SelectiveFD, cohort: Sequence[FittedSelector], classes: int, noise: Random
) -> AnswerFunction:
    """Return the sum [N, 1, C] of a cohort's votes about images [N, C, H, W].

    The networks are untrained, so that only the selectors answer.
    """
    codec = KnowledgeCodec(classes, HARD_LEVELS)

    def released(fitted: FittedSelector, images: Tensor) -> Released:
        every, uniform = np.arange(len(images)), np.full((len(images), classes), 1 / classes)
        opinion = method.policy_of(fitted.predict(images), classes)
        honest = opinion.contribution(every, uniform, method.labels, trust=1.0)
        if cell.row != _NOISY:
            return Released.of(honest)
        unit = LabelUnit(cell.epsilon, cell.delta, random=noise)  # a ledger of these new proxies
        unit.agree(len(images), classes)
        return unit.client(0).release(every, lambda _: honest)

    def votes(images: Tensor) -> Tensor:
        total = np.sum([codec.encode(released(fitted, images)) for fitted in cohort], axis=0)
        return torch.from_numpy(total / HARD_LEVELS).reshape(len(images), 1, classes)

    return votes


def _behind(fitted: FittedSelector, train: Images, column: int) -> Images:
    """The records of a class that a client's estimator was built from."""
    own = train[train.labels == column]
    if not isinstance(fitted, FittedKulsif):
        return own
    points = torch.from_numpy(fitted.points(own.pixels))
    local = torch.from_numpy(fitted.estimators[fitted.classes.index(column)][0].local)
    return own[torch.cdist(local, points).argmin(dim=1)]


def members(cell: Cell, data: FederatedData) -> AttackResult:
    """Records behind each client's estimator against as many held out of its class.

    The server reads the votes of one client, or of all under masks. Under the label unit also what
    the answers of one client compose to at record level.
    """
    kind = ProxyRatioSelector() if cell.row == "proxy-ratio" else KulsifSelector()
    method = SelectiveFD("hard", kind, votes="counted")  # only abstentions vary
    fitted = [kind.fit(client, data.proxies.pixels) for client in data.clients]
    estimates, truths, noise = [], [], SeededRandom(cell.seed)
    for k, client in enumerate(data.clients[: 2 if cell.quick else None]):
        column = client.classes[0]
        cohort = fitted if cell.row == _MASKED else fitted[k : k + 1]
        oracle = Oracle(_votes(cell, method, cohort, data.n_classes, noise), _BUDGET)
        seen = Transcript(len(data.clients))
        view = server_view(seen, public_of(data), {Capability.INJECT_PROXIES: oracle})
        inside = _behind(fitted[k], client.train, column)
        outside = data.held_out[data.held_out.labels == column]
        count = min(len(inside), len(outside), 10 if cell.quick else 20)
        first = torch.arange(count)
        challenge = draw_challenge(labelled(inside[first]), labelled(outside[first]), cell.seed)
        attack = FlipRadius(challenge.candidates.images, column)
        estimates.append(attack.estimate(view, cell.seed))
        truths.append(challenge.is_member)
    found = attack.with_truth(np.concatenate(truths)).score(pooled(estimates), cell.seed)
    if cell.row != _NOISY:
        return found
    asked = round(found.queries / len(truths))
    mechanism = RandomizedResponse(cell.epsilon, data.n_classes + 1)
    claim = mechanism.guarantee(releases=asked, delta=cell.delta)
    details = {"composed_epsilon": claim.composes_to[0].epsilon}
    return noted(found, details)


def _attempts(cell: Cell, made: FederatedData) -> Mapping[str, Attempt]:
    """Membership, as far as the server's reading of a row allows."""
    return {FlipRadius.name: partial(members, cell, made)}


SCENE = Scene(
    title="The client selector as an oracle on raw images",
    about="A malicious server injects proxies and reads only whether a client answers. "
    "It is measured where clients hold one class each, because any network, trained or not, "
    "then names that class: the selector alone causes the leak. KuLSIF is measured under masks, "
    "where the server reads less than in clear; the proxy ratio in clear, where it reads most.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
    limits=(
        "The server must be able to inject proxies; where it commits to them, it cannot.",
        "Members are the records that the estimator is built from; other records only move its "
        "threshold.",
        "Epsilon of the label unit is that of one answer; all answers compose to much more.",
    ),
)
