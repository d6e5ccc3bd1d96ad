"""What of a run's parts outlives its process, as plain values; and how they are put back.

`KEPT` names, class by class, the attributes that change while a run goes on, and `SETTLED` all
others, which follow from the settings or are made anew: a field that neither names fails a test.
Keys, masks and noise that is not yet released are in none of `KEPT`: a run that goes on makes its
own.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from secure_fd.errors import ConfigurationError
from secure_fd.kept_values import damaged, decode, encode, stands_alone

_HEADS: Final = ("learner", "head", "chosen", "known")
_SUMS: Final = ("head", "known", "_recorded")
_SURVEYED: Final = ("_surveyed", "_survey_round")
_BUDGET: Final = ("taken", "chance")

KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    # what trains
    "Learner": ("model", "round", "_trainer"),
    "Trainer": ("_generator", "memory"),
    "PrototypeTrainer": ("_batches", "_sgd", "learning_rate"),
    "PrivateTrainer": ("budget",),
    "PrivateBudget": _BUDGET,
    "PaidBudget": (*_BUDGET, "_paid"),
    "FloatGaussian": ("unmet",),
    "_PaidNoise": ("unmet",),
    "Adversary": ("judge", "_judges", "_makes", "_random"),
    # halves of methods, and what they hold
    "Memory": ("_targets", "_known"),
    "Trust": ("value", "_said"),
    "Draws": ("_next", "_void", "_last", "_ledger"),
    "ReleaseLedger": ("_counts",),
    "_Terms": ("draws",),
    "VoteClient": ("learner", "_units", "_terms", "_memory", "_trust", "_guard", *_SURVEYED),
    "VoteServer": ("ensemble", "known", "_terms", "_rule", *_SURVEYED),
    "FedED": ("_warmup", "_trainer", "_model", "_memory"),
    "FedAvgClient": ("learner", "_model", "diverged"),
    "FedAvgServer": ("_parameters", "_sent"),
    "IndependentClient": ("learner",),
    "IndependentServer": (),
    "HeadClient": (*_HEADS, "_guard", "_ratios", "_answered"),
    "HeadServer": (*_SUMS, "_search"),
    "AFLClient": _HEADS,
    "AFLServer": _SUMS,
    "Search": (
        *("head", "_clients", "_damping", "_start", "_first"),
        *("_directions", "_images", "_inside", "_image"),
    ),
    "ClassMeansClient": ("learner", "_taught"),
    "ClassMeansServer": ("ensemble",),
    "FedProtoClient": ("learner", "prototypes", "known", "_taught"),
    "FedProtoServer": ("prototypes", "known"),
    "DaFKDClient": (
        *("learner", "adversary", "_generator", "_makes"),
        *("_budget", "_network", "_units"),
    ),
    "DaFKDServer": ("_sent", "_network", "_generator", "_makes", "_ensemble", "_recorded"),
    # protections, and clients' parts of them
    "NoProtection": (),
    "LabelUnit": (),
    "RecordUnit": (),
    "ClientUnit": ("voids",),
    "PooledRecordUnit": ("voids",),
    "LocalRecordUnit": ("voids",),
    "Unguarded": (),
    "LabelGuard": ("ledger",),
    "LabelLedger": ("_named", "_released", "_unmet"),
    "RecordGuard": ("_released", "_head", "_thresholds", "_shares", "_votes"),
    "ClientGuard": ("_odometer", "_rounds"),
    "PooledGuard": ("_odometer", "_sums"),
    "Odometer": ("_spent", "_unaccounted"),
    # what was seen
    "Transcript": (
        *("up", "down", "distillation", "parameters", "generated", "heads", "features"),
        *("generator", "survey", "survivors", "void_rounds", "missing", "refused"),
    ),
}
"""By class, what changes from round to round."""

_REASONS: Final = ("voids", "unmet")
"""Why there is no epsilon: lists that only grow."""
_UNIT: Final = ("_public", "_parts")
_POOLED: Final = (
    *(*_UNIT, "plan", "records", "delta", "noiseless", "masked", "local", "rules", "features"),
    *("_shares", "_ledgers", "_session", "_as_the_masks"),
)
_LABELLING: Final = ("public", "_own", "_proxies", "_leave", "_sharpness")
_SOLVING: Final = ("public", "_setting", "_before", "_surveys", "_validates")
_PLAN: Final = ("settings", "noise", "rate", "_plan")

SETTLED: Final[Mapping[str, tuple[str, ...]]] = {
    "Learner": ("schedule", "device", "_train", "_seed", "_training"),
    "Trainer": (
        *("model", "training", "_train", "_settings", "_device", "_augment"),
        *("_sgd", "_scheduler"),  # in `memory`
    ),
    "PrototypeTrainer": ("model", "_weight"),
    "PrivateTrainer": ("model", "_gradient", "_optimiser"),
    "PrivateBudget": _PLAN,
    "PaidBudget": (*_PLAN, "_ledger"),
    "FloatGaussian": ("_stream",),
    "_PaidNoise": ("_stream", "_pay"),
    "Adversary": (
        *("model", "settings", "learning_rate", "_generator", "_classifier", "_train", "_device"),
        *("_held", "_private"),
    ),
    "Memory": ("_proxies", "_remember", "_rare"),
    "Draws": ("_seed", "_per_round"),
    "ReleaseLedger": ("limit",),
    "_Terms": ("rule", "setting"),
    "VoteClient": ("_rule", "_own", "_proxies", "_opinion"),
    "VoteServer": ("_setting",),
    "FedED": ("labels", "_steps", "_proxies"),
    "FedAvgClient": ("_number", "_codec", "_steps"),
    "FedAvgServer": ("_codec",),
    "HeadClient": (
        *(*_LABELLING, "_residual_rounds", "_records", "_surveys", "_most", "_by_ratios"),
        "_announced",  # the next broadcast brings another
    ),
    "HeadServer": (*_SOLVING, "_last", "_most"),
    "AFLClient": (*_LABELLING, "_gram"),
    "AFLServer": (*_SOLVING, "_gram", "_ridge", "_records"),
    "Search": ("_solver", "_proxies", "_plain"),
    "ClassMeansClient": ("_rule", "_codec", "_asked"),
    "ClassMeansServer": ("_clients", "_codec"),
    "FedProtoClient": ("form", "_number", "_counts", "_asked"),
    "FedProtoServer": ("form",),
    "DaFKDClient": ("_terms", "_own", "_judge"),
    "DaFKDServer": ("_terms",),
    "NoProtection": _UNIT,
    "LabelUnit": (
        *(*_UNIT, "noiseless", "delta", "random", "_epsilon", "_declared", "_alphabets"),
        "_mechanism",
    ),
    "RecordUnit": (
        *(*_UNIT, "_declares", "_epsilon", "_delta", "_random", "_rules", "_ledgers", "_maps"),
    ),
    "ClientUnit": (*_UNIT, "noiseless", "delta", "masked", "plan", "_shares"),
    "PooledRecordUnit": _POOLED,
    "LocalRecordUnit": _POOLED,
    "LabelGuard": ("_unit",),
    "LabelLedger": ("_alphabet", "_mechanism"),
    "RecordGuard": ("_reference", "_n_classes"),
    "ClientGuard": ("_unit", "_shares"),
    "PooledGuard": ("_unit", "_shares", "_number", "_ledger", "_request"),
    "Transcript": ("n_clients", "keep_uploads"),
}
"""By class, its other fields, in an order that says nothing. Ledgers are in `kept_ledgers`."""


def state_of(part: object) -> dict[str, Any]:
    """What of a part changes, as plain values.

    ConfigurationError for a part that has no row in `KEPT`: it cannot go on elsewhere.
    """
    return {name: _given(getattr(part, name)) for name in _names(part)}


def restore(part: object, state: object) -> None:
    """Put back what `state_of` gave, in place; ConfigurationError for anything else."""
    names = _names(part)
    if not isinstance(state, dict) or tuple(state) != names:
        raise damaged(f"it has no state of a {type(part).__name__}")
    for name in names:
        _put(part, name, state[name])


def _names(part: object) -> tuple[str, ...]:
    names = KEPT.get(type(part).__name__)
    if names is not None and type(part).__module__.startswith("secure_fd."):
        return names
    settings: Any = getattr(type(part), "__dataclass_params__", None)
    if settings is not None and settings.frozen:
        return ()  # a rule without a state
    raise ConfigurationError(
        "run", type(part).__name__, "its state has no form in a file: save_networks keeps networks"
    )


def _is_part(value: object) -> bool:
    return type(value).__name__ in KEPT or not stands_alone(value)


def _given(value: object) -> object:
    if isinstance(value, nn.Module):
        return {"network": {n: t.detach().cpu().clone() for n, t in value.state_dict().items()}}
    if isinstance(value, torch.Generator):
        return {"generator": value.get_state()}
    if isinstance(value, torch.optim.Optimizer):
        return {"optimiser": encode(dict(value.state_dict()["state"]))}
    return {"part": state_of(value)} if _is_part(value) else encode(value)


def _put(part: object, name: str, state: object) -> None:
    current: Any = getattr(part, name)
    kind, inner = state if isinstance(state, tuple) and len(state) == 2 else (None, None)
    try:
        if isinstance(current, nn.Module):
            _fill(current, _under("network", state))
        elif isinstance(current, torch.Generator):
            current.set_state(_under("generator", state))
        elif isinstance(current, torch.optim.Optimizer):
            groups = current.state_dict()["param_groups"]
            kept = decode(_under("optimiser", state))
            current.load_state_dict({"state": kept, "param_groups": groups})
        elif current is not None and _is_part(current):
            restore(current, _under("part", state))
        elif isinstance(current, Tensor) and kind == "tensor":
            current.copy_(_same(current, inner))
        else:
            found = decode(state)
            if not (current is None or found is None or type(found) is type(current)):
                raise damaged(f"{name} is of another type")
            setattr(part, name, _joined(current, found) if name in _REASONS else found)
    except (RuntimeError, TypeError, KeyError) as error:
        raise damaged(f"{name} does not fit") from error


def _fill(network: nn.Module, state: Mapping[str, Any]) -> None:
    """Its tensors, laid out in memory as they were: the rounding of sums hangs on that order."""
    network.load_state_dict(state)
    for name, own in network.state_dict(keep_vars=True).items():
        kept = state[name]
        if isinstance(own, Tensor) and own.stride() != kept.stride():
            own.data = kept.to(own).clone()


def _joined(ours: Any, theirs: Any) -> Any:  # noqa: ANN401 - both lists, or both tuples
    """Why there is no epsilon: what was so stays so, whatever this run would say of itself."""
    return theirs + type(theirs)(reason for reason in ours if reason not in theirs)


def _under(kind: str, state: object) -> Any:  # noqa: ANN401 - of each kind its own
    if not isinstance(state, dict) or set(state) != {kind}:
        raise damaged(f"a {kind} is missing")
    return state[kind]


def _same(current: Tensor, found: object) -> Tensor:
    if isinstance(found, Tensor) and found.shape == current.shape and found.dtype == current.dtype:
        return found
    raise damaged("a tensor has another form")
