"""Every audit and every self-test, by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from attacks.audit import broken_code, client, label, record, training, votes
from attacks.audit.bounds import Finding, Kind
from attacks.audit.broken_code import Twin
from attacks.audit.setting import Setting
from secure_fd.privacy.units import PrivacyUnit

Run = Callable[[Setting], Finding]


@dataclass(frozen=True, slots=True)
class Audit:
    """run: the audit. half: the twin with half the noise, which measures the audit's power.
    blind: whether it would miss even a twin without any noise: then it finds other mistakes, and
    says nothing of the claim unless it refutes it.
    """

    name: str
    kind: Kind
    unit: PrivacyUnit
    run: Run
    half: Twin
    blind: bool = False

    def find(self, setting: Setting) -> Finding:
        """Run it; a blind audit that refutes nothing has the verdict that it cannot tell."""
        return replace(self.run(setting), blind=self.blind)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A twin that the audit of this name must catch, with this share of its full trials."""

    name: str
    audit: str
    twin: Twin
    size: float = 0.15


_RECORD, _LABEL, _CLIENT = PrivacyUnit.RECORD, PrivacyUnit.LABEL, PrivacyUnit.CLIENT
_NOISE, _ONE = Kind.MECHANISM, Kind.ONE_RUN

AUDITS = {
    audit.name: audit
    for audit in (
        Audit("record", _NOISE, _RECORD, record.mechanism, broken_code.half_record_noise),
        Audit(
            "record-replaced", _NOISE, _RECORD, record.replace_one, broken_code.half_record_noise
        ),
        Audit("record-votes", _NOISE, _RECORD, votes.votes, broken_code.half_record_noise),
        Audit("dp-sgd", _NOISE, _RECORD, training.canaries, broken_code.half_training_noise),
        Audit(
            "dp-sgd-batches",
            _NOISE,
            _RECORD,
            training.background,
            broken_code.half_training_noise,
            blind=True,
        ),
        Audit("label", _NOISE, _LABEL, label.mechanism, broken_code.half_label_noise),
        Audit("client", _NOISE, _CLIENT, client.mechanism, broken_code.half_client_noise),
        Audit("record-canaries", _ONE, _RECORD, record.one_run, broken_code.half_record_noise),
        Audit(
            "record-trials", _ONE, _RECORD, record.one_run_gaussian, broken_code.half_record_noise
        ),
        Audit("label-canaries", _ONE, _LABEL, label.one_run, broken_code.half_label_noise),
        Audit(
            "client-trials", _ONE, _CLIENT, client.one_run_gaussian, broken_code.half_client_noise
        ),
    )
}
"""By name, in the table's order."""

MUTATIONS = (
    Mutation("half the noise, record", "record", broken_code.half_record_noise),
    Mutation("half the noise, DP-SGD", "dp-sgd", broken_code.half_training_noise),
    Mutation("half the noise, label", "label", broken_code.half_label_noise),
    Mutation("half the noise, client", "client", broken_code.half_client_noise),
    Mutation("abstention unprotected", "label", broken_code.abstention_unprotected),
    Mutation("fresh noise each round", "label", broken_code.fresh_noise_every_round),
    Mutation("replace-one as add-one", "record-replaced", broken_code.replace_one_as_add_one),
    Mutation("noise per client", "client", broken_code.noise_per_client),
    Mutation("noise after argmax", "record-votes", broken_code.noise_after_argmax),
    Mutation("seed shared, releases", "record", broken_code.seed_shared_between_clients),
    Mutation("seed shared, answers", "label", broken_code.seed_shared_between_answers),
    Mutation("seed shared, rounds", "client", broken_code.seed_shared_between_rounds),
    Mutation("true contributors divide", "record", broken_code.true_contributors_divide),
    Mutation("shuffled as Poisson", "dp-sgd-batches", broken_code.shuffled_batches, 1.0),
    Mutation("dropouts ignored", "client", broken_code.dropouts_ignored, 1.0),
)
"""Each must be caught; the audit's own code, unpatched, must pass."""
