"""What crosses the boundary: contributions, their integers, and what the server sends back."""

import math
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_fd.data.images import pixel_bytes, proxy_pixels
from secure_fd.errors import LocalError, PeerError
from secure_fd.votes.codec import (
    HARD_LEVELS,
    SOFT_LEVELS,
    Contribution,
    Ensemble,
    KnowledgeCodec,
    Released,
    one_hot,
)

ROWS = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])


def test_hard_labels_are_counted_exactly():
    codec = KnowledgeCodec(4, HARD_LEVELS)
    votes = [[0, 1, 3], [0, 2, 3], [0, 2, 1]]
    weights = [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    encoded = [
        codec.encode(Released(np.array(w), one_hot(v, 4)))
        for v, w in zip(votes, weights, strict=True)
    ]
    sums = codec.decode(np.sum(encoded, axis=0, dtype=np.uint64), 3)
    assert sums.total.tolist() == [[3, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]
    assert sums.count.tolist() == [3, 2, 2]


def test_rounding_is_by_largest_remainder():
    """10 units at (.55, .33, .12): floors 5, 3, 1 leave one unit, and .5 is the largest rest."""
    codec = KnowledgeCodec(3, 10)
    row = np.array([[0.55, 0.33, 0.12]])
    assert codec.encode(Released(np.ones(1), row)).tolist() == [6, 3, 1]
    # Half the weight: 5 units at (2.75, 1.65, 0.6); floors 2, 1, 0 leave two, to .75 and .65.
    assert codec.encode(Released(np.full(1, 0.5), row)).tolist() == [3, 2, 0]


def test_an_abstention_is_zeros_whatever_the_network_says():
    codec = KnowledgeCodec(3, SOFT_LEVELS)
    assert not codec.encode(Released(np.zeros(2), ROWS)).any()
    assert not codec.encode(Released(np.zeros(2), np.zeros((2, 3)))).any()


BROKEN = ROWS + np.array([[0.0, 0.0, 0.0], [0.0, 0.0, np.nan]])


@pytest.mark.parametrize(
    ("weights", "rows", "why"),
    [
        *(([1.0, weight], ROWS, "weight") for weight in (-1e-9, 1 + 1e-9, -1.0, 2.0)),
        *(([1.0, bad], ROWS, "not finite") for bad in (np.nan, np.inf, -np.inf)),
        # Also where the client abstains: a later zero times NaN would be NaN.
        ([1.0, 0.0], BROKEN, "not finite"),
        ([1.0] * 3, ROWS, "weights"),
        ([[1.0], [1.0]], ROWS, "weights"),
        ([1.0] * 3, ROWS[0], "weights"),
    ],
)
def test_what_is_no_contribution_is_refused(weights, rows, why):
    Contribution(np.array([0.0, 1.0]), ROWS)
    with pytest.raises(LocalError, match=why):
        Contribution(np.array(weights), rows)


def test_no_proxies_are_no_integers():
    codec = KnowledgeCodec(3, 5)
    encoded = codec.encode(Released(np.zeros(0), np.zeros((0, 3))))
    assert encoded.shape == (0,)
    assert codec.decode(encoded, 1).total.shape == (0, 3)


def test_a_contribution_keeps_its_values_out_of_its_repr():
    shown = repr(Contribution(np.array([0.0, 0.123]), np.array([[0.5, 0.5], [0.877, 0.123]])))
    assert "0.123" not in shown
    assert "0.877" not in shown


def ensemble() -> Ensemble:
    predictions = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.6, 0.2, 0.2]])
    return Ensemble(np.array([7, 300, 70_000]), predictions, np.array([True, False, True]))


CODEC = KnowledgeCodec(3, 10)
UNITS = np.array([[0, 20, 0], [1, 2, 3], [12, 4, 4]])
"""Summed integers of two contributors about three proxies."""


@pytest.mark.parametrize(
    ("rows", "form", "size"),
    [
        (np.eye(3)[[1, 2, 0]], 0, 2 * 1),
        (UNITS / UNITS.sum(axis=1, keepdims=True), 1, 2 * 3),
        (np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]]), 2, 2 * 3 * 4),
    ],
)
def test_an_ensemble_reads_back_in_its_shortest_exact_form(rows, form, size):
    """Classes, summed integers, or float32; kept proxies alone have rows."""
    sent = replace(ensemble(), predictions=rows)
    message = CODEC.write(sent, sent.indices, UNITS.reshape(-1), 2)
    assert message[0] == form
    assert len(message) == 1 + 4 + 1 + size
    read = CODEC.read(message, sent.indices)
    assert read.kept.tolist() == [True, False, True]
    wanted = rows[sent.kept]
    exact = wanted.astype(np.float32) if form == 2 else wanted
    assert np.array_equal(read.predictions[sent.kept], exact)
    assert not read.predictions[1].any()


def test_a_broken_ensemble_is_refused():
    rows = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])
    floats = replace(ensemble(), predictions=rows)
    message = CODEC.write(floats, floats.indices, UNITS.reshape(-1), 2)
    indices = ensemble().indices
    named = replace(ensemble(), predictions=np.eye(3)[[1, 2, 0]])
    classes = CODEC.write(named, named.indices, UNITS.reshape(-1), 2)
    for broken in (
        b"",
        message[:-1],
        message + b"x",
        bytes([9]) + message[1:],
        classes[:-1] + b"\x07",
        message[:-4] + struct.pack("<f", math.inf),
    ):
        with pytest.raises(PeerError, match="ensemble"):
            CODEC.read(broken, indices)
    assert CODEC.read(message, indices).kept.any()


def test_proxies_are_sent_once_as_compressed_bytes():
    pixels = torch.randint(256, (20, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    packed = zlib.compress(pixels.byte().numpy().tobytes(), level=6)
    sent = pixel_bytes(proxy_pixels(pixels.float() / 255))
    assert sent == len(packed) > 20 * 784  # noise does not compress
    assert pixel_bytes(proxy_pixels(torch.zeros(20, 1, 28, 28))) < 100


def test_more_votes_than_contributors_void_the_round():
    codec = KnowledgeCodec(3, 5)
    honest, stuffed = np.array([5, 5, 0, 1, 0, 0]), np.array([5, 5, 1, 1, 0, 0])
    assert codec.decode(honest.astype(np.uint64), 2).count.tolist() == [2.0, 0.2]
    with pytest.raises(PeerError, match="more votes than its 2 contributors"):
        codec.decode(stuffed.astype(np.uint64), 2)
