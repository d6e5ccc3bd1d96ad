"""Capabilities of an attacker, in the words that a report prints."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.errors import (
    BudgetError,
    ConfigurationError,
    LocalError,
    MissingCapabilityError,
    PeerError,
)
from secure_fd.protocol.transcript import (
    Float32Array,
    ObservedParameters,
    ObservedRound,
    ObservedVotes,
    Transcript,
)
from secure_fd.votes.codec import Ensemble, UnitArray, WordArray
from secure_fd.votes.packing import LaneLayout

if TYPE_CHECKING:
    from secure_fd.selection.density_ratio import ReferenceSettings


class Capability(Enum):
    """Capability of an attacker: what it can read or may do. The value is its name in a report."""

    READ_UPLOADS = "clients' uploads in clear"
    READ_PAYLOADS = "clients' payloads as sent"
    READ_SUMS = "sums over clients"
    READ_ENSEMBLES = "ensemble predictions"
    GLOBAL_PARAMETERS = "global model parameters"
    CLIENT_PARAMETERS = "client model parameters in clear"
    HOLD_GENERATOR = "the generator that makes distilled samples"
    READ_GENERATED = "votes on generated samples, or their sums"
    HOLD_HEAD = "heads on public features"
    READ_STATISTICS = "clients' sums of features in clear"
    QUERY_FINAL_MODEL = "label queries to the final model"
    QUERY_SCORES = "probability queries to the final model"
    PUBLIC_PROXIES = "public proxy images"
    LABELLED_PUBLIC = "labels of public proxy images"
    INJECT_PROXIES = "injection of proxy images"
    OWN_BROADCAST = "a model of the server's own for all clients"


ACTIVE = frozenset(
    {Capability.QUERY_FINAL_MODEL, Capability.QUERY_SCORES, Capability.INJECT_PROXIES}
)
"""Capabilities that act through an oracle: the attacker asks and the run answers.

Answers, by capability: class ids [N] of the final model; its probabilities [N, C]; for
injected proxies the votes [N, R, C] that the server reads, where R is the number of clients whose
uploads are readable, or 1 where it sees the sum alone. An abstention is a row of zeros.
"""


QUERIES = frozenset({Capability.QUERY_FINAL_MODEL, Capability.QUERY_SCORES})
"""Active capabilities of an attacker without a part in the run."""


AnswerFunction = Callable[[Tensor], Tensor]
"""Images [N, C, H, W] or vectors [N, D] -> answers [N, ...]: class ids, probabilities, votes."""
LabelFunction = Callable[[Tensor], Tensor]
"""Images [N, C, H, W], or vectors [N, D], -> class ids [N]."""


class Oracle:
    """Answers about images; a repeated image is answered from memory and costs nothing."""

    def __init__(self, answer: AnswerFunction, budget: int = 1_000_000) -> None:
        if budget < 1:
            raise ConfigurationError("budget", budget, "use 1 query or more")
        self._answer = answer
        self._rows: dict[bytes, int] = {}
        self._answers: list[Tensor] = []
        self.budget = budget

    @property
    def queries(self) -> int:
        """Distinct images answered so far."""
        return len(self._rows)

    def __call__(self, images: Tensor) -> Tensor:
        """Answers [N, ...] about images [N, 1, H, W].

        Raises BudgetError, before anything is asked, where the batch would exceed the budget.
        """
        keys = [_key(image) for image in images]
        new = {key: i for i, key in enumerate(keys) if key not in self._rows}
        if self.queries + len(new) > self.budget:
            raise BudgetError(
                f"{len(new)} new queries after {self.queries} exceed the budget of {self.budget}"
            )
        if new:
            answers = self._answer(images[list(new.values())])
            self._check(answers, len(new))
            self._rows.update(zip(new, range(self.queries, self.queries + len(new)), strict=True))
            self._answers.extend(answers.detach().cpu().unbind())
        return torch.stack([self._answers[self._rows[key]] for key in keys])

    def _check(self, answers: Tensor, asked: int) -> None:
        if answers.ndim < 1 or len(answers) != asked:
            raise LocalError("an oracle gives one answer an image")


class LabelOracle(Oracle):
    """Answers with class ids [N] int64 alone."""

    def _check(self, answers: Tensor, asked: int) -> None:
        if answers.shape != (asked,) or answers.is_floating_point():
            raise LocalError("a label oracle answers with one class id an image")


def _key(image: Tensor) -> bytes:
    raw = image.detach().cpu().contiguous().numpy().tobytes()
    return blake2b(raw, digest_size=16).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """Values that every attacker knows before the run.

    proxies: [P, C, H, W] float32 in [0, 1], grey or colour, or feature vectors [P, D]. labels: [P]
    int64 where there are labels.
    architecture: seed -> a fresh network of the shared architecture, images -> logits [N, C].
    """

    proxies: Tensor = field(repr=False)
    n_clients: int
    n_classes: int
    architecture: Callable[[int], nn.Module] = field(repr=False)
    labels: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        images = self.proxies.ndim == 4 and self.proxies.shape[1] in (1, 3)
        if not (images or self.proxies.ndim == 2) or self.proxies.numel() == 0:
            shape = tuple(self.proxies.shape)
            raise LocalError(f"proxies: {shape} is not allowed; use [P, 1 or 3, H, W] or [P, D]")
        if images and (self.proxies.min() < 0 or self.proxies.max() > 1):
            raise LocalError("proxies: a pixel is outside [0, 1]")
        if self.labels is not None and self.labels.shape != self.proxies.shape[:1]:
            raise LocalError(f"labels: {len(self.labels)} labels for {len(self.proxies)} proxies")

    def pixels(self) -> Tensor:
        """The proxies as images [P, C, H, W]; MissingCapabilityError for feature vectors."""
        if self.proxies.ndim != 4:
            raise MissingCapabilityError("missing proxies that are images: these are vectors")
        return self.proxies

    def require_labels(self) -> Tensor:
        """[P] labels of the proxies; MissingCapabilityError where there are none."""
        if self.labels is None:
            raise MissingCapabilityError(f"missing {Capability.LABELLED_PUBLIC.value}")
        return self.labels


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One attacker's knowledge of one run; `server_view` and `outsider_view` build it.

    It holds nothing that the transcript lacks. A capability follows from what the transcript, the
    public knowledge or an oracle holds; an accessor whose capability is missing raises
    MissingCapabilityError.

    >>> from secure_fd.protocol.transcript import Transcript
    >>> known = Public(torch.zeros(2, 1, 8, 8), 2, 10, lambda seed: nn.Linear(1, 1))
    >>> sorted(c.value for c in server_view(Transcript(2), known).capabilities)
    ['public proxy images']
    """

    public: Public
    rounds: tuple[ObservedVotes, ...] = field(repr=False)
    models: tuple[ObservedParameters, ...] = field(repr=False)
    oracles: Mapping[Capability, Oracle] = field(repr=False)
    generator: ObservedParameters | None = field(default=None, repr=False)
    generated: tuple[ObservedVotes, ...] = field(default=(), repr=False)
    """Votes about generated samples, of which no ensemble was sent back."""
    heads: tuple[ObservedParameters, ...] = field(default=(), repr=False)
    """Sums of statistics: uploads where they were readable, and the heads that came of them."""
    features: "ReferenceSettings | None" = None
    """Settings of the public feature map under these heads."""
    survey: ObservedRound[None] | None = field(default=None, repr=False)
    """Sum of the survey, in which clients state which proxies they know, if one was made."""
    attacker: str = ""
    capabilities: frozenset[Capability] = frozenset()

    def require(self, *needed: Capability) -> None:
        """Raise MissingCapabilityError, naming every capability that this attacker lacks."""
        self.require_any(frozenset(needed))

    def require_any(self, *alternatives: frozenset[Capability]) -> None:
        """Raise MissingCapabilityError unless one whole set of capabilities is held."""
        if not any(needed <= self.capabilities for needed in alternatives):
            words = (
                " and ".join(sorted(c.value for c in needed - self.capabilities))
                for needed in alternatives
            )
            raise MissingCapabilityError(f"missing {', or '.join(words)} ({self.attacker})")

    def ensembles(self) -> tuple[Ensemble, ...]:
        """The ensembles of all rounds, oldest first."""
        self.require(Capability.READ_ENSEMBLES)
        return tuple(seen.result for seen in self.rounds)

    def global_parameters(self) -> Float32Array:
        """The newest global parameters, flattened."""
        self.require(Capability.GLOBAL_PARAMETERS)
        return self.models[-1].result

    def uploads_by_round(self, client: int) -> tuple[Float32Array, ...]:
        """Return a client's upload in each round that was kept readable, oldest first.

        The global parameters that the round gave stand in where the client was away from it.
        """
        self.require(Capability.CLIENT_PARAMETERS)
        return tuple(
            seen.uploads.get(client, seen.result)
            for seen in self.models
            if seen.uploads is not None
        )

    def generator_parameters(self) -> Float32Array:
        """Those of the generator that made the newest round's x, flattened."""
        self.require(Capability.HOLD_GENERATOR)
        return cast(ObservedParameters, self.generator).result

    def oracle(self, capability: Capability) -> Oracle:
        """The oracle behind an active capability."""
        self.require(capability)
        return self.oracles[capability]


def server_view(
    transcript: Transcript,
    public: Public,
    oracles: Mapping[Capability, Oracle] | None = None,
    *,
    sent_its_own: bool = False,
) -> View:
    """The server: everything that crossed the boundary, uploads only where it could read them.

    Honest but curious as long as it only reads; one that acts on the protocol through an oracle
    is malicious. sent_its_own: whether the server of this run sent all clients a model that is no
    mean of theirs.
    """
    held = oracles or {}
    acts = sent_its_own or not held.keys() <= QUERIES
    seen = View(
        public,
        tuple(transcript.distillation),
        tuple(transcript.parameters),
        held,
        transcript.generator,
        tuple(transcript.generated),
        tuple(transcript.heads),
        transcript.features,
        transcript.survey,
        attacker="malicious server" if acts else "server",
    )
    return _able(seen, {Capability.OWN_BROADCAST} if sent_its_own else set())


def outsider_view(public: Public, oracles: Mapping[Capability, Oracle] | None = None) -> View:
    """Someone outside the run, who queries the final model.

    Raises LocalError for an oracle that answers a server alone.
    """
    held = oracles or {}
    beyond = sorted(capability.value for capability in held.keys() - QUERIES)
    if beyond:
        raise LocalError(f"outsider: {', '.join(beyond)} is not this attacker's to have")
    return _able(View(public, (), (), held, attacker="outsider"))


def _able(seen: View, does: Collection[Capability] = ()) -> View:
    """With the capabilities that the observations and oracles of a view give, and what it does."""
    passive = [capability.value for capability in seen.oracles if capability not in ACTIVE]
    if passive:
        raise LocalError(f"oracles: {passive} is not allowed; a passive capability is observed")
    rounds, models = seen.rounds, seen.models
    evidence = {
        Capability.PUBLIC_PROXIES: True,
        Capability.LABELLED_PUBLIC: seen.public.labels is not None,
        Capability.READ_UPLOADS: any(r.uploads is not None for r in rounds),
        Capability.READ_PAYLOADS: any(r.payloads is not None for r in rounds)
        or any(m.payloads for m in models),
        Capability.READ_SUMS: any(r.total is not None for r in rounds),
        Capability.READ_ENSEMBLES: any(not r.result.of_classes for r in rounds),
        Capability.GLOBAL_PARAMETERS: bool(models),
        Capability.CLIENT_PARAMETERS: any(m.uploads is not None for m in models),
        Capability.HOLD_GENERATOR: seen.generator is not None,
        Capability.READ_GENERATED: bool(seen.generated),
        Capability.HOLD_HEAD: bool(seen.heads),
        Capability.READ_STATISTICS: any(sent.uploads is not None for sent in seen.heads),
    }
    observed = (capability for capability, there in evidence.items() if there)
    return replace(seen, capabilities=frozenset((*observed, *seen.oracles, *does)))


def read_unmasked(
    payloads: Mapping[int, WordArray], n_clients: int, bound: int, length: int
) -> dict[int, UnitArray]:
    """Return the [length] integers of every payload in clear, by client.

    A payload is in clear if no integer of it is above `bound`.

    A lane has room for the sum over all clients, so a masked integer is within `bound` with a
    chance of less than one half, and all of a payload with less than 2 ** -length.
    """
    found = {}
    for client, words in payloads.items():
        with suppress(PeerError):
            values = LaneLayout(n_clients, bound).unpack(words, length)
            if values.size and int(np.max(values)) <= bound:
                found[client] = values
    return found
