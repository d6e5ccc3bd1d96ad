"""Checks that every secure sum makes on its input before anything is sent, and who is left."""

from collections.abc import Mapping

from secure_fd.aggregation.base import Stage, Traffic, VoidRoundError
from secure_fd.errors import LocalError
from secure_fd.knowledge import UnitArray

_BEFORE_INPUT = (Stage.PREPARE, Stage.INPUT)


def agreed_length(vectors: Mapping[int, UnitArray], n_clients: int) -> int:
    """The one length of all vectors; LocalError for an unknown client, or lengths that differ.

    Raises VoidRoundError where there is no vector at all.
    """
    _check_known(vectors, n_clients)
    shapes = {vector.shape for vector in vectors.values()}
    if len(shapes) > 1:
        raise LocalError(f"vectors of one sum need one length, not {sorted(shapes)}")
    if not shapes:
        nobody = dict.fromkeys(range(n_clients), Stage.PREPARE)
        raise VoidRoundError("no client has a vector; nothing is sent", nobody, Traffic({}, {}, 0))
    return int(next(iter(vectors.values())).size)


def absences(
    vectors: Mapping[int, UnitArray],
    n_clients: int,
    dropouts: Mapping[int, Stage] | None,
) -> dict[int, Stage]:
    """By client, ascending, the first stage that it does not answer.

    A client without a vector is silent from the start. LocalError for an unknown client.
    """
    silent = dict(dropouts or {})
    _check_known(silent, n_clients)
    silent |= {client: Stage.PREPARE for client in range(n_clients) if client not in vectors}
    return dict(sorted(silent.items()))


def uploaders(missing: Mapping[int, Stage], n_clients: int) -> tuple[int, ...]:
    """The clients whose input arrives, ascending: all that are not silent until after it."""
    return tuple(k for k in range(n_clients) if missing.get(k) not in _BEFORE_INPUT)


def _check_known(clients: Mapping[int, object], n_clients: int) -> None:
    unknown = sorted(set(clients) - set(range(n_clients)))
    if unknown:
        raise LocalError(f"clients {unknown} are not of the cohort 0 to {n_clients - 1}")
