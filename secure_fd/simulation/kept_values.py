"""Values that stand alone, as numbers, texts, lists, dicts and tensors, and back.

`torch.load` reads these with `weights_only`: nothing in a file is run.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from secure_fd.data.patches import PatchMap
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.methods.pooled_heads import PublicHead
from secure_fd.methods.survey import Known
from secure_fd.selection.density_ratio import FourierFeatures, Whitening
from secure_fd.votes.codec import Ensemble

_KINDS: Final = (
    *(Ensemble, Known),
    *(FourierFeatures, PatchMap, PublicHead, Whitening),
)
_VALUES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in _KINDS}
_DTYPES: Final = ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")
_PLAIN: Final = (bool, int, float, str, type(None))
_HOLDERS: Final = (list, tuple, dict)


def damaged(why: str) -> ConfigurationError:
    """What is said of a file that no run wrote.

    >>> damaged("it is empty").field
    'path'
    """
    return ConfigurationError("path", why, "the file is damaged, or of another form of run")


def stands_alone(value: object) -> bool:
    """Whether `encode` takes it, what it holds apart.

    >>> stands_alone(np.zeros(2)), stands_alone(object())
    (True, False)
    """
    plain = (*_PLAIN, *_HOLDERS, np.ndarray, Tensor)
    return isinstance(value, plain) or type(value) in _KINDS


def encode(value: object) -> Any:  # noqa: ANN401 - plain values of any depth
    """A value as numbers, texts, pairs (kind, content) and tensors.

    >>> encode([1, None]), encode(np.array([2], dtype=np.int64))[0]
    (('list', [1, None]), 'array')
    """
    kind: type[object] = type(value)
    if kind in _PLAIN:
        return value
    if kind in _KINDS:
        held = {f.name: encode(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
        return kind.__name__, held
    if isinstance(value, list | tuple) and kind in _HOLDERS:
        return kind.__name__, [encode(each) for each in value]
    if isinstance(value, dict) and kind in _HOLDERS:
        return "dict", [[encode(key), encode(each)] for key, each in value.items()]
    if isinstance(value, np.ndarray):
        return "array", _array(value)
    if isinstance(value, Tensor):
        return "tensor", value.detach().cpu().clone()
    raise LocalError(f"a {kind.__name__} has no form in a file")


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
    "list": (list, lambda content: [decode(each) for each in content]),
    "tuple": (list, lambda content: tuple(decode(each) for each in content)),
    "dict": (list, _read_pairs),
}
"""By kind, the type of its content, and how that is read."""
