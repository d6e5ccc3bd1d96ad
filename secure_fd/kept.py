"""What of a run's parts outlives its process, as plain values; and how they are put back.

`KEPT` names, class by class, the attributes that change while a run goes on. All else follows from
the settings. Keys, masks and noise that is not yet released are in none of them: a run that goes on
makes its own. Values are numbers, texts, lists, dicts and tensors, which `torch.load` reads with
`weights_only`: nothing in a file is run.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.aggregation.base import Stage
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.knowledge import Ensemble
from secure_fd.methods.survey import Known
from secure_fd.transcript import DistillationRound, ParameterRound, SurveyRound

KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    "Learner": ("model", "round", "trainer"),
    "Trainer": ("_generator", "memory"),
    "Memory": ("_targets", "_known"),
    "Trust": ("value", "_said"),
    "Draws": ("_next", "_void", "_last", "_ledger"),
    "ReleaseLedger": ("_counts",),
    "_Terms": ("draws",),
    "VoteClient": ("learner", "_units", "_terms", "_memory", "_trust", "_surveyed", "_guard"),
    "VoteServer": ("ensemble", "known", "_terms", "_rule"),
    "FedED": ("_warmup", "_trainer", "_model", "_memory"),
    "FedAvgClient": ("learner", "_model", "diverged"),
    "FedAvgServer": ("_parameters", "_sent"),
    "IndependentClient": ("learner",),
    "IndependentServer": (),
    "Unguarded": (),
    "LabelGuard": ("ledger",),
    "LabelLedger": ("_named", "_released", "_unmet"),
    "Transcript": (
        *("up", "down", "distillation", "parameters", "survey"),
        *("survivors", "void_rounds", "missing", "refused"),
    ),
}
"""By class, what changes from round to round."""
_KINDS = (Ensemble, Known, DistillationRound, ParameterRound, SurveyRound)
_VALUES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in _KINDS}
_DTYPES: Final = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")
_PLAIN: Final = (bool, int, float, str, type(None))
_HOLDERS: Final = (list, tuple, dict, frozenset, bytes)


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


def damaged(why: str) -> ConfigurationError:
    """What is said of a file that no run wrote."""
    return ConfigurationError("path", why, "the file is damaged, or of another form of run")


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
    plain = (*_PLAIN, *_HOLDERS, np.ndarray, Tensor, torch.Generator, nn.Module, Stage)
    alone = isinstance(value, plain) or type(value).__name__ in _VALUES
    return type(value).__name__ in KEPT or not alone


def _given(value: object) -> object:
    if isinstance(value, nn.Module):
        return {"network": {n: t.detach().cpu().clone() for n, t in value.state_dict().items()}}
    if isinstance(value, torch.Generator):
        return {"generator": value.get_state()}
    return {"part": state_of(value)} if _is_part(value) else encode(value)


def _put(part: object, name: str, state: object) -> None:
    current: Any = getattr(part, name)
    kind, inner = state if isinstance(state, tuple) and len(state) == 2 else (None, None)
    try:
        if isinstance(current, nn.Module):
            current.load_state_dict(_under("network", state))
        elif isinstance(current, torch.Generator):
            current.set_state(_under("generator", state))
        elif current is not None and _is_part(current):
            restore(current, _under("part", state))
        elif isinstance(current, Tensor) and kind == "tensor":
            current.copy_(_same(current, inner))
        else:
            found = decode(state)
            if not (current is None or found is None or type(found) is type(current)):
                raise damaged(f"{name} is of another type")
            setattr(part, name, found)
    except (RuntimeError, TypeError, KeyError) as error:
        raise damaged(f"{name} does not fit") from error


def _under(kind: str, state: object) -> Any:  # noqa: ANN401 - of each kind its own
    if not isinstance(state, dict) or set(state) != {kind}:
        raise damaged(f"a {kind} is missing")
    return state[kind]


def _same(current: Tensor, found: object) -> Tensor:
    if isinstance(found, Tensor) and found.shape == current.shape and found.dtype == current.dtype:
        return found
    raise damaged("a tensor has another form")


# Values that stand alone.


def encode(value: object) -> Any:  # noqa: ANN401 - plain values of any depth
    """A value as numbers, texts, pairs (kind, content) and tensors.

    >>> encode([1, None]), encode(np.array([2], dtype=np.int64))[0]
    (('list', [1, None]), 'array')
    """
    if type(value) in _PLAIN:
        return value
    name = type(value).__name__
    if name in _VALUES and type(value) is _VALUES[name]:
        held = {f.name: encode(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
        return name, held
    for kind, form in _FORMS.items():
        if type(value) is kind:
            return form(value)
    if isinstance(value, np.ndarray):
        return "array", _array(value)
    if isinstance(value, Tensor):
        return "tensor", value.detach().cpu().clone()
    if isinstance(value, Stage):
        return "stage", value.value
    raise LocalError(f"a {name} has no form in a file")


def _many(kind: str) -> Callable[[Any], tuple[str, list[Any]]]:
    return lambda value: (kind, [encode(each) for each in value])


def _pairs(value: Mapping[Any, Any]) -> tuple[str, list[Any]]:
    return "dict", [[encode(key), encode(each)] for key, each in value.items()]


_FORMS: Final[Mapping[type, Callable[[Any], tuple[str, Any]]]] = {
    list: _many("list"),
    tuple: _many("tuple"),
    frozenset: lambda value: ("set", [encode(each) for each in sorted(value)]),
    bytes: lambda value: ("bytes", _octets(value)),
    dict: _pairs,
    Counter: lambda value: ("counter", _pairs(value)[1]),
}


def _array(value: "np.ndarray[Any, Any]") -> list[Any]:
    form = value.dtype.newbyteorder("<").str
    if form not in _DTYPES:
        raise LocalError(f"an array of {form} has no form in a file")
    return [form, list(value.shape), _octets(np.ascontiguousarray(value, form).tobytes())]


def _octets(value: bytes) -> Tensor:
    found = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.zeros(0)
    return found.to(torch.uint8)


def decode(state: object) -> Any:  # noqa: ANN401 - plain values of any depth
    """What `encode` took; ConfigurationError for anything else.

    >>> decode(encode({"a": (1, np.array([True]))}))
    {'a': (1, array([ True]))}
    """
    if type(state) in _PLAIN:
        return state
    if not isinstance(state, tuple) or len(state) != 2 or not isinstance(state[0], str):
        raise damaged("a value is no pair")
    kind, content = state
    if kind in _VALUES and isinstance(content, dict):
        wanted = [f.name for f in fields(_VALUES[kind])]
        if list(content) != wanted:
            raise damaged(f"a {kind} has other fields")
        return _VALUES[kind](**{name: decode(each) for name, each in content.items()})
    if kind not in _READERS:
        raise damaged(f"{kind} is no kind of value")
    wanted_type, read = _READERS[kind]
    if not isinstance(content, wanted_type):
        raise damaged(f"a {kind} is of another type")
    return read(content)


def _read_pairs(content: list[Any]) -> dict[Any, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in content):
        raise damaged("a dict has no pairs")
    return {decode(key): decode(each) for key, each in content}


def _read_array(content: list[Any]) -> "np.ndarray[Any, Any]":
    if len(content) != 3 or content[0] not in _DTYPES:
        raise damaged("an array is incomplete")
    form, shape, held = content
    sizes = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    whole = isinstance(held, Tensor) and held.dtype == torch.uint8 and held.dim() == 1
    if not (sizes and whole) or len(held) != math.prod(shape) * np.dtype(form).itemsize:
        raise damaged("an array has another size")
    native = np.dtype(form).newbyteorder("=")
    return np.frombuffer(held.numpy().tobytes(), form).astype(native).reshape(shape)


_READERS: Final[Mapping[str, tuple[type, Callable[[Any], object]]]] = {
    "tensor": (Tensor, lambda content: content),
    "array": (list, _read_array),
    "stage": (str, Stage),
    "bytes": (Tensor, lambda content: content.numpy().tobytes()),
    "list": (list, lambda content: [decode(each) for each in content]),
    "tuple": (list, lambda content: tuple(decode(each) for each in content)),
    "set": (list, lambda content: frozenset(decode(each) for each in content)),
    "dict": (list, _read_pairs),
    "counter": (list, lambda content: Counter(_read_pairs(content))),
}
"""By kind, the type of its content, and how that is read."""
