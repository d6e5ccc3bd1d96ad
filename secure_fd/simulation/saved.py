"""Networks and states in a file: mode 0600, and read without running code from it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.data.patches import PatchMap
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically
from secure_fd.methods.pooled_heads import PublicHead
from secure_fd.selection.density_ratio import FourierFeatures, Whitening
from secure_fd.training.dp_sgd import PrivateTrainer
from secure_fd.votes.codec import Ensemble

if TYPE_CHECKING:
    from secure_fd.simulation.federation import Federation

SCHEMA: Final = "secure-fd/run/2"
_MOST_BYTES: Final = 4 << 30
_MARK: Final = b"PK\x03\x04"
VALUES: Final = (Ensemble, FourierFeatures, PatchMap, PublicHead, Whitening)
"""Classes of this package that a file may hold beside numbers, texts, arrays and tensors."""
_ARRAYS: Final[tuple[Any, ...]] = (
    *(np.ndarray, np.dtype, bytes, np.zeros(0).__reduce__()[0]),
    *(type(np.dtype(name)) for name in ("bool", "u1", "i4", "i8", "u4", "u8", "f4", "f8")),
)


def load(file: IO[bytes]) -> Any:  # noqa: ANN401 - the caller checks what it is
    """Read what `torch.save` wrote; an object of any class but the allowed ones is refused."""
    with torch.serialization.safe_globals([*VALUES, *_ARRAYS]):
        return torch.load(file, map_location="cpu", weights_only=True)


def damaged(why: str) -> ConfigurationError:
    """Make the error for a file that no run wrote.

    >>> damaged("it is empty").field
    'path'
    """
    return ConfigurationError("path", why, "the file is damaged, or of another form of run")


def write(path: Path, content: Mapping[str, Any], schema: str = SCHEMA) -> None:
    """Write plain values and tensors, mode 0600, whole or not at all."""
    made = {"schema": schema, **content}
    write_atomically(path, lambda file: torch.save(made, file), mode=0o600)


def read(path: Path, schema: str = SCHEMA) -> dict[str, Any]:
    """Read what `write` wrote. Raises ConfigurationError for any other file."""
    if not path.is_file():
        raise ConfigurationError("path", str(path), "there is no such file")
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ConfigurationError("path", str(path), f"it has {size:,} bytes; 4 GiB are allowed")
    with path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            raise ConfigurationError("path", str(path), "it is no file of this package")
        file.seek(0)
        try:
            found = load(file)
        except Exception as error:
            raise ConfigurationError(
                "path", str(path), f"it cannot be read ({type(error).__name__})"
            ) from error
    if not isinstance(found, dict) or found.get("schema") != schema:
        raise ConfigurationError("path", str(path), f"it is not of the schema {schema}")
    return found


def state_of(part: object) -> dict[str, Any]:
    """Return what changes in a part of a run from round to round, as plain values and tensors.

    A class names these attributes in `checkpointed`; a child class has to name its own. Empty for
    a class that names none. Keys, masks and noise are never among them.
    """
    names = vars(type(part)).get("checkpointed", ())
    return {name: _plain(getattr(part, name)) for name in names}


def restore(part: object, state: Mapping[str, Any]) -> None:
    """Put back what `state_of` returned, in place; ConfigurationError for anything else."""
    names = vars(type(part)).get("checkpointed", ())
    if not isinstance(state, Mapping) or tuple(state) != names:
        raise damaged(f"it has no state of a {type(part).__name__}")
    for name, value in state.items():
        try:
            _put(part, name, value)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise damaged(f"{name} does not fit") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - of each kind its own
    if isinstance(value, nn.Module):
        return {name: _plain(tensor) for name, tensor in value.state_dict().items()}
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, torch.optim.Optimizer):
        return dict(value.state_dict()["state"])
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    return state_of(value) or value


def _put(part: object, name: str, state: Any) -> None:  # noqa: ANN401 - as `_plain` returned it
    current = getattr(part, name)
    if isinstance(current, nn.Module):
        _fill(current, state)
    elif isinstance(current, torch.Generator):
        current.set_state(state)
    elif isinstance(current, torch.optim.Optimizer):
        groups = current.state_dict()["param_groups"]
        current.load_state_dict({"state": state, "param_groups": groups})
    elif isinstance(current, Tensor):
        if (state.shape, state.dtype) != (current.shape, current.dtype):
            raise damaged("a tensor has another form")
        current.copy_(state)
    elif state_of(current):
        restore(current, state)
    elif current is None or state is None or type(state) is type(current):
        setattr(part, name, state)
    else:
        raise damaged(f"{name} is of another type")


def _fill(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load tensors in the memory layout that they had: the rounding of sums depends on it."""
    network.load_state_dict(state)
    for name, own in network.state_dict(keep_vars=True).items():
        if own.stride() != state[name].stride():
            own.data = state[name].to(own).clone()


def start_from(run: "Federation", networks: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Fill clients' networks, and the server's where clients share parameters.

    Raises ConfigurationError where the server has one network and cannot start from these.
    """
    if run.global_parameters is not None:
        _check_start(run, networks)
        start = deepcopy(run.models[0])
        start.load_state_dict(networks[0])
        run.server_role.start_from(start)
    for model, state in zip(run.models, networks, strict=True):
        model.load_state_dict(state)


def _check_start(run: "Federation", networks: Sequence[Mapping[str, torch.Tensor]]) -> None:
    if run.begun:
        allowed = "load networks before the first round: the server has sent its own by now"
        raise ConfigurationError("run", "begun", allowed)
    if any(isinstance(role.learner.trainer, PrivateTrainer) for role in run.roles):
        allowed = "the server releases what it starts from, and epsilon does not cover a file"
        raise ConfigurationError("networks", "DP-SGD", allowed)
    names = [name for name, _ in run.models[0].named_parameters()]
    if not all(torch.equal(own[name], networks[0][name]) for own in networks for name in names):
        allowed = f"clients of {run.method.name} start from one network: use a file of equal ones"
        raise ConfigurationError("networks", "different ones", allowed)
