"""All audits by name, in the order of the table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attacks.audit import dp_sgd, labels, shares
from attacks.audit.bounds import Finding, Setting
from secure_fd.privacy.guarantee import PrivacyUnit


@dataclass(frozen=True, slots=True)
class Audit:
    """One audit of one privacy unit."""

    unit: PrivacyUnit
    find: Callable[[Setting], Finding]

    @property
    def assumes_shape(self) -> bool:
        """True if the bound needs noise of the claimed shape; answers to labels are counted."""
        return self.unit is not PrivacyUnit.LABEL


AUDITS: Mapping[str, Audit] = {
    "pooled-noise": Audit(PrivacyUnit.RECORD, shares.pooled_noise),
    "dp-sgd-noise": Audit(PrivacyUnit.RECORD, dp_sgd.training_noise),
    "dp-sgd-batches": Audit(PrivacyUnit.RECORD, dp_sgd.training_batches),
    "label-noise": Audit(PrivacyUnit.LABEL, labels.answer_noise),
    "label": Audit(PrivacyUnit.LABEL, labels.answers),
    "client-noise": Audit(PrivacyUnit.CLIENT, shares.client_noise),
}
