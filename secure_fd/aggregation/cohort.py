"""Checks that every secure sum makes on its input before anything is sent."""

from collections.abc import Mapping

from secure_fd.errors import LocalError, MissingClientError
from secure_fd.knowledge import WordArray


def agreed_length(vectors: Mapping[int, WordArray], n_clients: int) -> int:
    """The one length of all vectors; LocalError for an unknown client, or lengths that differ."""
    unknown = sorted(set(vectors) - set(range(n_clients)))
    if unknown:
        raise LocalError(f"clients {unknown} are not of the cohort 0 to {n_clients - 1}")
    shapes = {vector.shape for vector in vectors.values()}
    if len(shapes) > 1:
        raise LocalError(f"vectors of one sum need one length, not {sorted(shapes)}")
    if not shapes:
        raise MissingClientError("no client has a vector; nothing is sent")
    return int(next(iter(vectors.values())).size)
