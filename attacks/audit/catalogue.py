"""All audits, and the mutations of the real code that they must catch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from attacks.audit import mechanisms, mutations, noise_level
from attacks.audit.bounds import Finding
from attacks.audit.mutations import Mutant
from attacks.audit.setting import Setting
from secure_fd.privacy.guarantee import PrivacyUnit

Kind = Literal["noise-level", "mechanism"]
"""What an audit sees, from closest to the noise to furthest."""


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit of one privacy unit.

    Attributes:
        find: carries it out.
        less: the mutant with a share of what hides the data: its noise, or how far the sizes of its
            batches vary.
        assumes_shape: whether the bound needs noise of the claimed shape.
    """

    name: str
    kind: Kind
    unit: PrivacyUnit
    find: Callable[[Setting], Finding]
    less: Callable[[float], Mutant]
    assumes_shape: bool = True


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutant that the audit of this name must catch, with this share of its full trials."""

    name: str
    audit: str
    mutant: Callable[[], Mutant]
    size: float = 0.15


_RECORD, _LABEL, _CLIENT = PrivacyUnit.RECORD, PrivacyUnit.LABEL, PrivacyUnit.CLIENT
_SHARED, _ANSWERED = mutations.less_client_noise, mutations.less_label_noise
_POOLED, _TRAINED = mutations.less_pooled_noise, mutations.less_training_noise
_BATCHES = mutations.fixed_batches
_ALL = (
    Audit("pooled-noise", "noise-level", _RECORD, noise_level.pooled_noise, _POOLED),
    Audit("dp-sgd-noise", "noise-level", _RECORD, noise_level.training_noise, _TRAINED),
    Audit("dp-sgd-batches", "noise-level", _RECORD, noise_level.training_batches, _BATCHES),
    Audit("label-noise", "noise-level", _LABEL, noise_level.answer_noise, _ANSWERED, False),
    Audit("client-noise", "noise-level", _CLIENT, noise_level.client_noise, _SHARED),
    Audit("label", "mechanism", _LABEL, mechanisms.answers, _ANSWERED, False),
    Audit("client", "mechanism", _CLIENT, mechanisms.sum_of_shares, _SHARED),
)
AUDITS = {audit.name: audit for audit in _ALL}
"""By name, in the table's order."""

_NEARLY = 0.95
MUTATIONS = (
    Mutation("noise x0.95, pooled", "pooled-noise", partial(_POOLED, _NEARLY), 1.0),
    Mutation("noise x0.95, DP-SGD", "dp-sgd-noise", partial(_TRAINED, _NEARLY), 1.0),
    Mutation("noise x0.95, label", "label-noise", partial(_ANSWERED, _NEARLY), 1.0),
    Mutation("noise x0.95, client", "client-noise", partial(_SHARED, _NEARLY), 1.0),
    Mutation("noise shared by clients", "pooled-noise", mutations.seed_shared_in_a_sum, 1.0),
    Mutation("two entries, one noise", "pooled-noise", mutations.two_entries_share),
    Mutation("shuffled as Poisson", "dp-sgd-batches", partial(_BATCHES, 0.0)),
    Mutation("twice the sampling rate", "dp-sgd-batches", mutations.twice_the_rate),
    Mutation("clipped at twice the norm", "dp-sgd-batches", mutations.clipped_too_late),
    Mutation("abstention unprotected", "label", mutations.abstention_unprotected),
    Mutation("fresh noise each round", "label", mutations.fresh_noise_every_round),
    Mutation("seed shared, answers", "label", mutations.seed_shared_between_answers),
    Mutation("seed shared, rounds", "client", mutations.seed_shared_between_rounds),
    Mutation("dropouts ignored", "client", mutations.dropouts_ignored, 1.0),
)
"""Each must be caught; the audit's own code, unpatched, must pass."""
