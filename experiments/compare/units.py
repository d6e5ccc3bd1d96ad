"""What stands before the wire in each row: the privacy unit, at the settings' epsilon."""

from experiments.compare.rows import RowSpec
from experiments.compare.settings import Plan
from secure_fd.privacy.plans import ClientPlan
from secure_fd.protection.base import NoProtection, Protection
from secure_fd.protection.client import ClientUnit
from secure_fd.protection.label import LabelUnit
from secure_fd.protection.record import RecordUnit


def protection_for(plan: Plan, spec: RowSpec) -> Protection:
    """The protection of a row; none where no epsilon was asked for, or an infinite one."""
    if spec.unit is None or plan.epsilon is None:
        return NoProtection()
    if spec.unit == "label":
        chosen = plan.settings
        return LabelUnit(plan.epsilon, chosen.dp_delta, chosen.label_alphabet)
    if spec.unit == "client":
        return _client_unit(plan, plan.epsilon)
    return RecordUnit(plan.epsilon, plan.settings.dp_delta)


def _client_unit(plan: Plan, epsilon: float) -> ClientUnit:
    """Provisioned for as many absent clients as masks open a sum without, and a tenth corrupt."""
    clients = plan.settings.clients
    votes = ClientPlan(
        clients=clients,
        proxies=plan.schedule.proxies_per_round,
        rounds=plan.rounds,
        classes=plan.image_set.n_classes,
        absent=clients // 3,
        corrupt=clients // 10,
    )
    delta, small = plan.settings.dp_delta, plan.settings.dp_small_fleet
    return ClientUnit(epsilon, delta, votes, small_fleet=small)
