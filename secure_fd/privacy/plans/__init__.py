"""What is going to be released, with its unit in the type: a plan makes its own event.

No function of this package prices a bare noise level: it takes one of these four, so that an
epsilon always comes with what it protects, from which change, and by which noise.
"""

from secure_fd.privacy.plans.base import Plan, Sensitivity
from secure_fd.privacy.plans.client import LEAST_CLIENTS, ClientPlan, NoiseKind
from secure_fd.privacy.plans.label import LabelPlan
from secure_fd.privacy.plans.record import RecordPlan
from secure_fd.privacy.plans.training import TrainingPlan

__all__ = [
    "LEAST_CLIENTS",
    "ClientPlan",
    "LabelPlan",
    "NoiseKind",
    "Plan",
    "RecordPlan",
    "Sensitivity",
    "TrainingPlan",
]
