"""Every audit and every self-test, by name."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from attacks.audit import client, end_to_end, label, record, training, twins, votes
from attacks.audit.bounds import Finding, Kind
from attacks.audit.setting import Setting
from attacks.audit.twins import Twin
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
_NOISE, _ONE, _END = Kind.MECHANISM, Kind.ONE_RUN, Kind.END_TO_END

AUDITS = {
    audit.name: audit
    for audit in (
        Audit("record", _NOISE, _RECORD, record.mechanism, twins.half_record_noise),
        Audit("record-replaced", _NOISE, _RECORD, record.replace_one, twins.half_record_noise),
        Audit("record-votes", _NOISE, _RECORD, votes.votes, twins.half_record_noise),
        Audit("dp-sgd", _NOISE, _RECORD, training.canaries, twins.half_training_noise),
        Audit(
            "dp-sgd-batches",
            _NOISE,
            _RECORD,
            training.background,
            twins.half_training_noise,
            blind=True,
        ),
        Audit("label", _NOISE, _LABEL, label.mechanism, twins.half_label_noise),
        Audit("client", _NOISE, _CLIENT, client.mechanism, twins.half_client_noise),
        Audit("client-skellam", _NOISE, _CLIENT, client.skellam, twins.half_client_noise),
        Audit("record-canaries", _ONE, _RECORD, record.one_run, twins.half_record_noise),
        Audit("record-trials", _ONE, _RECORD, record.one_run_gaussian, twins.half_record_noise),
        Audit("label-canaries", _ONE, _LABEL, label.one_run, twins.half_label_noise),
        Audit(
            "client-canaries", _ONE, _CLIENT, client.one_run, twins.half_client_noise, blind=True
        ),
        Audit("client-trials", _ONE, _CLIENT, client.one_run_gaussian, twins.half_client_noise),
        Audit(
            "record-images",
            _END,
            _RECORD,
            end_to_end.record_release,
            twins.half_record_noise,
            blind=True,
        ),
        Audit(
            "dp-sgd-images",
            _END,
            _RECORD,
            end_to_end.record_training,
            twins.half_training_noise,
            blind=True,
        ),
        Audit(
            "label-images",
            _END,
            _LABEL,
            end_to_end.label_answers,
            twins.half_label_noise,
            blind=True,
        ),
        Audit(
            "client-images",
            _END,
            _CLIENT,
            end_to_end.client_votes,
            twins.half_client_noise,
            blind=True,
        ),
    )
}
"""By name, in the table's order."""

MUTATIONS = (
    Mutation("half the noise, record", "record", twins.half_record_noise),
    Mutation("half the noise, DP-SGD", "dp-sgd", twins.half_training_noise),
    Mutation("half the noise, label", "label", twins.half_label_noise),
    Mutation("half the noise, client", "client", twins.half_client_noise),
    Mutation("abstention unprotected", "label", twins.abstention_unprotected),
    Mutation("fresh noise each round", "label", twins.fresh_noise_every_round),
    Mutation("replace-one as add-one", "record-replaced", twins.replace_one_as_add_one),
    Mutation("noise per client", "client", twins.noise_per_client),
    Mutation("noise after argmax", "record-votes", twins.noise_after_argmax),
    Mutation("seed shared, releases", "record", twins.seed_shared_between_clients),
    Mutation("seed shared, answers", "label", twins.seed_shared_between_answers),
    Mutation("seed shared, rounds", "client", twins.seed_shared_between_rounds),
    Mutation("true contributors divide", "record", twins.true_contributors_divide),
    Mutation("shuffled as Poisson", "dp-sgd-batches", twins.shuffled_batches, 1.0),
    Mutation("dropouts ignored", "client", twins.dropouts_ignored, 1.0),
)
"""Each must be caught; the audit's own code, unpatched, must pass."""
