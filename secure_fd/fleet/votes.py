"""Every client's hard votes, from its few records through the public feature map.

A client's ratio for class c at proxy x is phi(x)^T (H + beta I)^-1 h_c, and h_c is a mean over its
records (see `selection.density`). So the ratios of all clients are sums of rows of one matrix,
records by proxies, which is made and reduced in blocks of clients.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from secure_fd.data.images import Images
from secure_fd.errors import LocalError
from secure_fd.knowledge import IntArray
from secure_fd.selection.density import ProxyReference

ABSTAIN = -1
ACCEPTED = 0.75
"""A client with k of C classes answers about this share, times k / C, of the proxies."""
_BLOCK = 2048
"""Records in a block: features and scores of one take 40 MB for 2,000 features and proxies."""
_RIDGE_RECORDS = 20
"""Ridge 1 / (20 n): a mean of n records is uncertain by 1 / n. The 20 was chosen on seed 0."""

Scores = NDArray[np.float32]
Labels = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class FleetVotes:
    """labels: [K, M], each client's label of each proxy, or ABSTAIN. indices: [M], the proxies."""

    labels: Labels = field(repr=False)
    indices: IntArray = field(repr=False)


def cast_votes(
    records: Images,
    owners: IntArray,
    reference: ProxyReference,
    indices: IntArray,
    progress: Callable[[int], None] = lambda _: None,
) -> FleetVotes:
    """Votes of clients 0..max(owners) about the proxies at `indices` [M].

    owners: [N]. progress hears percent. Raises LocalError where a client holds no record.
    """
    labels = records.labels.cpu().numpy()
    order = np.lexsort((labels, owners))
    starts = _runs(owners[order])
    n_clients = len(starts)
    if not np.array_equal(owners[order][starts], np.arange(n_clients)):
        raise LocalError("a client of the fleet holds no record")
    n_classes = int(labels.max()) + 1
    weights = _weights(reference, indices, len(labels) / n_clients)
    votes = np.empty((n_clients, len(indices)), dtype=np.int8)
    ends = np.append(starts[1:], len(order))
    first = 0
    while first < n_clients:
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + _BLOCK, side="right")))
        block = order[starts[first] : ends[last - 1]]
        scores = _scores(records, block, reference, weights)
        votes[first:last] = _block_votes(scores, owners[block], labels[block], n_classes)
        first = last
        progress(100 * first // n_clients)
    return FleetVotes(votes, indices)


def _weights(reference: ProxyReference, indices: IntArray, records: float) -> Scores:
    """[D, M] (H + beta I)^-1 phi(x), for clients of so many records; public."""
    ridge = max(1.0 / len(reference.proxy_features), 1.0 / (_RIDGE_RECORDS * records))
    head = reference.solver(ridge).head(reference.proxy_features[indices], (0,) * len(indices))
    return head.coefficients.astype(np.float32)


def _scores(records: Images, block: IntArray, reference: ProxyReference, weights: Scores) -> Scores:
    """[n, M] what each record of a block adds to its client's ratios."""
    import torch

    parts = np.array_split(block, max(1, -(-len(block) // _BLOCK)))  # one client may exceed it
    return np.concatenate(
        [
            reference.features(records.pixels[torch.from_numpy(p)]).astype(np.float32) @ weights
            for p in parts
        ]
    )


def _block_votes(scores: Scores, owners: IntArray, labels: IntArray, n_classes: int) -> Labels:
    """[clients, M] of a block that is sorted by owner and label.

    Each client's own number of records scales all its ratios alike, so sums serve as means.
    """
    groups = _runs(owners * n_classes + labels)
    ratios = np.add.reduceat(scores, groups, axis=0)
    clients = _runs(owners[groups])
    ends = np.append(clients[1:], len(groups))
    votes = np.full((len(clients), scores.shape[1]), ABSTAIN, dtype=np.int8)
    for row, (begin, end) in enumerate(zip(clients, ends, strict=True)):
        own = ratios[begin:end]
        accepted = _accepted(own.max(axis=0), (end - begin) / n_classes)
        votes[row, accepted] = labels[groups[begin:end]][own[:, accepted].argmax(axis=0)]
    return votes


def _accepted(best: Scores, share: float) -> IntArray:
    """The proxies of the largest ratios: a rule of ranks, which needs no data to be set."""
    count = max(1, round(ACCEPTED * share * len(best)))
    return np.argpartition(-best, count - 1)[:count]


def _runs(keys: IntArray) -> IntArray:
    """Where each run of equal keys starts; keys are sorted."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
