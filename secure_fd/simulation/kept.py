"""The state of a server role as plain values, for the checkpoints of a deployment's server.

`KEPT` names, class by class, the attributes that change while a run goes on; all others follow from
the settings or are made anew. Keys, masks and noise are in none of them.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.errors import ConfigurationError
from secure_fd.simulation.saved import VALUES, damaged

KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    # server roles of methods
    "VoteServer": ("ensemble", "known", "terms"),
    "FedEDServer": (
        *("ensemble", "known", "terms"),
        *("_warmup", "_trainer", "_model", "_targets"),
    ),
    "FedAvgServer": ("_parameters", "_sent"),
    "IndependentServer": (),
    "HeadServer": ("head", "known", "_search"),
    "ClassMeansServer": ("ensemble",),
    "DaFKDServer": ("_sent", "_network", "_generator", "_averaged", "_ensemble"),
    # parts of these
    "Trainer": ("_generator", "_sgd"),
    "DistillationTargets": ("_targets", "_known"),
    "VoteTerms": ("draws", "surveyed", "survey_round"),
    "Draws": ("next_round", "_settled", "_last", "_counts"),
    "LeastSquares": (
        *("head", "_clients", "_damping", "_start", "_first"),
        *("_directions", "_images", "_inside", "_image"),
    ),
}
"""By class, what changes from round to round."""


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
    alone = (bool, int, float, str, list, tuple, dict, np.ndarray, Tensor, type(None), *VALUES)
    return type(value).__name__ in KEPT or not isinstance(value, alone)


def _given(value: object) -> object:
    if isinstance(value, nn.Module):
        return {"network": {n: t.detach().cpu().clone() for n, t in value.state_dict().items()}}
    if isinstance(value, torch.Generator):
        return {"generator": value.get_state()}
    if isinstance(value, torch.optim.Optimizer):
        return {"optimiser": dict(value.state_dict()["state"])}
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    return {"part": state_of(value)} if _is_part(value) else value


def _put(part: object, name: str, state: object) -> None:
    current: Any = getattr(part, name)
    try:
        if isinstance(current, nn.Module):
            _fill(current, _under("network", state))
        elif isinstance(current, torch.Generator):
            current.set_state(_under("generator", state))
        elif isinstance(current, torch.optim.Optimizer):
            groups = current.state_dict()["param_groups"]
            kept = _under("optimiser", state)
            current.load_state_dict({"state": kept, "param_groups": groups})
        elif current is not None and _is_part(current):
            restore(current, _under("part", state))
        elif isinstance(current, Tensor) and isinstance(state, Tensor):
            current.copy_(_same(current, state))
        elif current is None or state is None or type(state) is type(current):
            setattr(part, name, state)
        else:
            raise damaged(f"{name} is of another type")
    except (RuntimeError, TypeError, KeyError) as error:
        raise damaged(f"{name} does not fit") from error


def _fill(network: nn.Module, state: Mapping[str, Any]) -> None:
    """Its tensors, laid out in memory as they were: the rounding of sums hangs on that order."""
    network.load_state_dict(state)
    for name, own in network.state_dict(keep_vars=True).items():
        kept = state[name]
        if isinstance(own, Tensor) and own.stride() != kept.stride():
            own.data = kept.to(own).clone()


def _under(kind: str, state: object) -> Any:  # noqa: ANN401 - of each kind its own
    if not isinstance(state, dict) or set(state) != {kind}:
        raise damaged(f"a {kind} is missing")
    return state[kind]


def _same(current: Tensor, found: Tensor) -> Tensor:
    if found.shape == current.shape and found.dtype == current.dtype:
        return found
    raise damaged("a tensor has another form")
