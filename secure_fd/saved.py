"""A whole run as a file: for its owner alone, and read without running anything in it."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically
from secure_fd.kept import restore, state_of
from secure_fd.kept_ledgers import go_on_with_ledgers, move_on_at_next_draw, state_of_ledgers
from secure_fd.kept_values import damaged, decode, encode

if TYPE_CHECKING:
    from secure_fd.federation import Federation

SCHEMA: Final = "secure-fd/run/2"
_MOST_BYTES: Final = 4 << 30
_MARK: Final = b"PK\x03\x04"
_BUDGET: Final = ("_epsilon", "_delta", "delta", "_declared", "_declares")
"""Of protections whose terms do not say it."""


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain values and tensors, mode 0600, whole or not at all."""
    made = {"schema": SCHEMA, **content}
    write_atomically(path, lambda file: torch.save(made, file), mode=0o600)


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote; ConfigurationError for a file that is missing, too long or another."""
    if not path.is_file():
        raise ConfigurationError("path", str(path), "there is no such file")
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ConfigurationError("path", str(path), f"it has {size:,} bytes; 4 GiB are allowed")
    with path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            raise damaged("it is no file of this package")
        file.seek(0)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise damaged(f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise damaged(f"it is not of the schema {SCHEMA}")
    return found


# The state of a federation: what its couriers, parties and halves need to stand where they stood.


def state_of_run(run: "Federation") -> dict[str, Any]:
    """What changed since the start, as plain values, for a run of the same form to go on from.

    Clients' networks, batches' generators, what was taught, asked and released, all broadcasts
    and the transcript, ledgers in memory; no keys, no masks, no noise to come and no records.
    ConfigurationError before the first round, and for methods and protections of one's own whose
    parts have no form in a file.
    """
    if not run._begun:
        raise ConfigurationError("run", "fresh", "there is nothing to save before it begins")
    made = {
        "form": _form(run),
        "ledgers": state_of_ledgers(run),
        "protection": state_of(run._protection),
        "next": run._next,
        "answered": run._answered.tolist(),
        "transcript": state_of(run.transcript),
        "halves": [state_of(half) for half in run._halves],
        "server half": state_of(run._server_half),
        "told": encode(run.server.told),
        "server": encode(run.server.place),
        "clients": [encode((c.position, c.place)) for c in run.clients],
    }
    move_on_at_next_draw(run)
    return made


def go_on(run: "Federation", state: Mapping[str, Any]) -> None:
    """Go on from what `state` gave, as the run that was saved would: equal where it is seeded.

    Parties make keys of their own for it, whose messages are not counted. Raises
    ConfigurationError for a run that has begun, or is of another form, and for ledgers that do not
    stand where they stood.
    """
    if run._begun:
        raise ConfigurationError("run", "begun", "load into a fresh run of the same settings")
    form, ours = state.get("form"), _form(run)
    for name, own in ours.items():
        theirs = form.get(name) if isinstance(form, dict) else None
        if theirs != own:
            raise ConfigurationError(name, own, f"the saved run has {theirs!r}")
    go_on_with_ledgers(run, state.get("ledgers"))
    with run._training:
        run._begin(learn=False)
        _take_over(run, state)
    move_on_at_next_draw(run)


def _take_over(run: "Federation", state: Mapping[str, Any]) -> None:
    try:
        for half, kept in zip(run._halves, state["halves"], strict=True):
            restore(half, kept)
        restore(run._server_half, state["server half"])
        restore(run._protection, state["protection"])
        restore(run.transcript, state["transcript"])
        log = run.server.resume_at(decode(state["told"]), decode(state["server"]))
        for client, kept in zip(run.clients, state["clients"], strict=True):
            position, place = decode(kept)
            client.resume_at(log[:position], place)
        run._next, run._answered = int(state["next"]), np.array(state["answered"], float)
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise damaged("it is incomplete") from error


def _form(run: "Federation") -> dict[str, str]:
    """What must be the same for a run to go on: public terms, and hashes of long ones."""
    known, proxies = run._setting, run._setting.proxies
    shown = b"" if proxies is None else proxies.cpu().numpy().tobytes()
    return {
        "seed": hashlib.sha256(known.seed).hexdigest()[:16],
        "method": f"{run.method.name} {_said(getattr(run.method, 'rule', run.method))}",
        "clients": f"{known.n_clients} of {known.records}",
        "classes": f"{known.n_classes} at {known.shape}",
        "proxies": hashlib.sha256(shown).hexdigest()[:16],
        "schedule": repr(known.schedule),
        "training": run.training.name,
        "releases": repr(known.releases),
        "dropouts": repr(run._dropouts),
        "aggregation": run._sum.name,
        "protection": run._protection.name,
        "terms": hashlib.sha256(run._protection.terms).hexdigest()[:16],
        "budget": repr([getattr(run._protection, name, None) for name in _BUDGET]),
    }


def _said(rule: object) -> str:
    """What a method says of its settings, in any process: without addresses in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(rule))
