"""All audits by name, and the mutations of the real code that they must catch."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial

from attacks.audit import audits, broken_code, noise_level
from attacks.audit.bounds import Finding, Kind
from attacks.audit.broken_code import Twin
from attacks.audit.setting import Setting, Shown
from secure_fd.privacy.guarantee import PrivacyUnit

GAUSSIAN = "noise of Gaussian shape"
SAMPLED = "Gaussian steps on Poisson batches"
CHARGED = "noise of the claimed shape, charged by the claim's own accountant"


@dataclass(frozen=True, slots=True)
class Audit:
    """show: carries the audit out. less: the twin with a share of what hides the data: its noise,
    or how far the sizes of its batches vary. assumes: what the bound needs of its shape.
    """

    name: str
    kind: Kind
    unit: PrivacyUnit
    show: Callable[[Setting], Shown]
    less: Callable[[float], AbstractContextManager[None]]
    assumes: str = ""

    def find(self, setting: Setting) -> Finding:
        """Run it."""
        shown = self.show(setting)
        return Finding(
            kind=self.kind,
            unit=self.unit,
            name=shown.title,
            claimed=shown.claimed,
            delta=shown.delta,
            miss=setting.miss,
            assumes=self.assumes,
            also=shown.also,
            finds=shown.finds,
            **asdict(shown.proof),
        )


@dataclass(frozen=True, slots=True)
class Mutation:
    """A twin that the audit of this name must catch, with this share of its full trials."""

    name: str
    audit: str
    twin: Twin
    size: float = 0.15


_NOISE, _SEEN = Kind.NOISE, Kind.MECHANISM
_RECORD, _LABEL, _CLIENT = PrivacyUnit.RECORD, PrivacyUnit.LABEL, PrivacyUnit.CLIENT
_SHARED, _ANSWERED = broken_code.less_client_noise, broken_code.less_label_noise
_POOLED, _TRAINED = broken_code.less_pooled_noise, broken_code.less_training_noise
_BATCHES = broken_code.fixed_batches

AUDITS = {
    audit.name: audit
    for audit in (
        Audit("pooled-noise", _NOISE, _RECORD, noise_level.pooled_noise, _POOLED, CHARGED),
        Audit("dp-sgd-noise", _NOISE, _RECORD, noise_level.training_noise, _TRAINED, CHARGED),
        Audit("dp-sgd-batches", _NOISE, _RECORD, noise_level.training_batches, _BATCHES, CHARGED),
        Audit("label-noise", _NOISE, _LABEL, noise_level.answer_noise, _ANSWERED),
        Audit("client-noise", _NOISE, _CLIENT, noise_level.client_noise, _SHARED, CHARGED),
        Audit("dp-sgd", _SEEN, _RECORD, audits.canary_gradients, _TRAINED, SAMPLED),
        Audit("label", _SEEN, _LABEL, audits.answers, _ANSWERED),
        Audit("client", _SEEN, _CLIENT, audits.sum_of_shares, _SHARED, GAUSSIAN),
    )
}
"""By name, in the table's order."""

_ROUNDS_TWIN = partial(broken_code.seed_shared_between_rounds, audits.Fleet().present)
_NEARLY, _HALF = 0.95, 0.5

MUTATIONS = (
    Mutation("noise x0.95, pooled", "pooled-noise", partial(_POOLED, _NEARLY), 1.0),
    Mutation("noise x0.95, DP-SGD", "dp-sgd-noise", partial(_TRAINED, _NEARLY), 1.0),
    Mutation("noise x0.95, label", "label-noise", partial(_ANSWERED, _NEARLY), 1.0),
    Mutation("noise x0.95, client", "client-noise", partial(_SHARED, _NEARLY), 1.0),
    Mutation("noise per client, pooled", "pooled-noise", broken_code.pooled_noise_per_client),
    Mutation("noise shared by clients", "pooled-noise", broken_code.seed_shared_in_a_sum, 1.0),
    Mutation("noise on every other entry", "pooled-noise", broken_code.every_other_entry),
    Mutation("two entries, one noise", "pooled-noise", broken_code.two_entries_share),
    Mutation("two weights, one noise", "dp-sgd-noise", broken_code.two_weights_share, 1.0),
    Mutation("shuffled as Poisson", "dp-sgd-batches", broken_code.shuffled_batches),
    Mutation("twice the sampling rate", "dp-sgd-batches", broken_code.twice_the_rate),
    Mutation("half the noise, DP-SGD", "dp-sgd", partial(_TRAINED, _HALF)),
    Mutation("half the noise, label", "label", partial(_ANSWERED, _HALF)),
    Mutation("half the noise, client", "client", partial(_SHARED, _HALF)),
    Mutation("abstention unprotected", "label", broken_code.abstention_unprotected),
    Mutation("fresh noise each round", "label", broken_code.fresh_noise_every_round),
    Mutation("noise per client", "client", broken_code.noise_per_client),
    Mutation("seed shared, answers", "label", broken_code.seed_shared_between_answers),
    Mutation("seed shared, rounds", "client", _ROUNDS_TWIN),
    Mutation("dropouts ignored", "client", broken_code.dropouts_ignored, 1.0),
)
"""Each must be caught; the audit's own code, unpatched, must pass."""
