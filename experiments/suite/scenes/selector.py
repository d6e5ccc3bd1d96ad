"""A server that injects proxies asks clients' selectors about their raw training images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from attacks.core.base import AttackResult, draw_challenge, pooled
from attacks.core.view import Capability, Oracle, View, server_view
from attacks.on_run import public_of
from attacks.server.selector import (
    Answers,
    FlipRadius,
    Victim,
    behind,
)
from experiments.compare.leakage import Attempt
from experiments.suite.scenes import Job, Scene, Turn, noted
from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import concatenate
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.label import LabelUnit, RandomizedResponse
from secure_fd.protocol.transcript import Transcript
from secure_fd.selection.selectors import KulsifSelector, ProxyRatioSelector, Selection
from secure_fd.votes.codec import Released

_CLIENTS, _QUICK_CLIENTS = 10, 3
_CANDIDATES = 20
_BUDGET = 1_000_000
_QUICK_ROWS = ("kulsif", "kulsif-masks", "kulsif-dp-label")


@dataclass(frozen=True, slots=True, eq=False)
class _Play:
    """One row under one seed. data: of one class a client, or of two."""

    job: Job
    row: str
    seed: int
    data: FederatedData

    @property
    def sums_only(self) -> bool:
        """Whether a client has to be read through the sum over all."""
        return "masks" in self.row

    def judged(self) -> int:
        """How many clients' records are asked about: a sum asks all clients about each."""
        most = 2 if self.job.quick else 3 if self.row.endswith("weak") else _CLIENTS
        return min(most, len(self.data.clients))

    def view(self, victim: Victim) -> View:
        """The malicious server's, with a fresh budget."""
        oracle = Oracle(victim.votes(self.data.n_classes), _BUDGET)
        run = Transcript(len(self.data.clients))
        return server_view(run, public_of(self.data), {Capability.INJECT_PROXIES: oracle})

    def victims(self) -> list[Victim]:
        """A class of each client that is judged, and the records behind what the server reads."""
        kind = ProxyRatioSelector() if self.row == "proxy-ratio" else KulsifSelector()
        method = SelectiveFD("hard", kind, votes="counted")  # what abstention alone tells
        asked = self.data.clients if self.sums_only else self.data.clients[: self.judged()]
        fitted = [kind.fit(client, self.data.proxies.pixels) for client in asked]
        everyone = tuple(self._released(method, one.predict) for one in fitted)
        found = []
        for k in range(self.judged()):
            column = self.data.clients[k].classes[0]
            read = range(len(fitted)) if self.sums_only else (k,)
            holders = [i for i in read if column in self.data.clients[i].classes]
            own = [behind(fitted[i], self.data.clients[i].train, column) for i in holders]
            cohort = tuple(everyone[i] for i in read)
            found.append(Victim(column, cohort, concatenate(own)))
        return found

    def _released(self, method: SelectiveFD, judge: Callable[[Tensor], Selection]) -> Answers:
        noisy = self.row.endswith("dp-label")
        classes = self.data.n_classes

        def answers(images: Tensor) -> Released:
            opinion = method.policy_of(judge(images), classes)
            every = np.arange(len(images))
            said = np.full((len(images), classes), 1 / classes)  # a network that knows nothing
            honest = opinion.contribution(every, said, method.labels)
            if not noisy:
                return Released.of(honest)
            unit = LabelUnit(self.job.epsilon, self.job.delta)  # a ledger of these new proxies
            unit.agree(len(images), classes)
            return unit.client(0).release(every, lambda _: honest)

        return answers


def _tell_members(play: _Play) -> AttackResult:
    """Records behind each estimator against as many held out."""
    estimates, truths = [], []
    most = 10 if play.job.quick else _CANDIDATES
    for victim in play.victims():
        challenge = draw_challenge(*victim.sides(play.data.held_out, most), play.seed)
        images = challenge.candidates.images
        attack = FlipRadius.prepare(public_of(play.data), images, victim.column)
        estimates.append(attack.run(play.view(victim), play.seed))
        truths.append(challenge.is_member)
    return attack.score(pooled(estimates), np.concatenate(truths), play.seed)


def _spent(play: _Play) -> AttackResult:
    """The same, with what the answers that were read of one client compose to at record level."""
    found = _tell_members(play)
    asked = round(found.queries / play.judged())
    mechanism = RandomizedResponse(play.job.epsilon, play.data.n_classes + 1)
    claim = mechanism.guarantee(releases=asked, delta=play.job.delta)
    details = {"composed_epsilon": claim.composes_to[0].epsilon, "answers_a_client": float(asked)}
    return noted(found, details, ["many answers are no longer one: see the composed epsilon"])


def _rows(job: Job) -> Mapping[str, str]:
    """Selectors in clear, under masks, and with the label unit's noise."""
    rows = {
        "kulsif": "KuLSIF in clear",
        "kulsif-masks": "KuLSIF + masks",
        "kulsif-masks-weak": "KuLSIF + masks, two clients a class",
        "kulsif-dp-label": f"KuLSIF + DP label unit (ε = {job.epsilon:g})",
        "proxy-ratio": "Proxy ratio in clear",
    }
    return {key: rows[key] for key in _QUICK_ROWS} if job.quick else rows


def _prepare(job: Job, seed: int) -> Mapping[str, FederatedData]:
    """The data of one class a client, and of two, by split."""
    source = load(job.dataset, job.data_dir)
    clients = _QUICK_CLIENTS if job.quick else _CLIENTS
    return {k: federate(source, parse_split(k), clients, seed) for k in ("strong", "weak")}


def _attempts(turn: Turn[Mapping[str, FederatedData]]) -> Mapping[str, Attempt]:
    """Membership, as far as what a row's server reads allows."""
    data = turn.made["weak" if turn.row.endswith("weak") else "strong"]
    play = _Play(turn.job, turn.row, turn.seed, data)
    noisy = turn.row == "kulsif-dp-label"
    return {FlipRadius.name: partial(_spent if noisy else _tell_members, play)}


SCENE = Scene(
    name="selector",
    title="The client selector as an oracle on raw images",
    about="A malicious server injects proxies and reads only whether a client answers. "
    "It is measured where clients hold one class each, because any network, trained or not, "
    "then names that class: what leaks is the selector's doing alone.",
    rows=_rows,
    prepare=_prepare,
    attempts=_attempts,
)
