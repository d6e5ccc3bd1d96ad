"""The codecs lose nothing but rounding, and exactly as much of that as they say."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.methods.fedavg import parameter_codec
from secure_fd.votes.codec import SOFT_LEVELS, KnowledgeCodec, Released, one_hot


@st.composite
def contributions(draw: st.DrawFn, n_classes: int, m: int) -> Released:
    """Simplex rows from flat to one-hot to denormal, zero rows where the client abstains."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    concentration = draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
    rows = rng.dirichlet(np.full(n_classes, concentration), size=m)
    weights = np.array(
        draw(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=m, max_size=m))
    )
    kind = draw(st.sampled_from(["as drawn", "uniform", "near one-hot", "tiny"]))
    if kind == "uniform":
        rows[:] = 1.0 / n_classes
    elif kind == "near one-hot":
        rows = one_hot(rng.integers(n_classes, size=m), n_classes) * (1 - 1e-16) + 1e-17
    elif kind == "tiny":
        rows[:, 1:] = 5e-324
        rows[:, 0] = 1.0
    rows[weights == 0] = 0.0
    return Released(weights, rows)


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    n_classes=st.integers(2, 12),
    m=st.integers(1, 6),
    levels=st.sampled_from([1, 2, 3, 7, 255, SOFT_LEVELS, 1 << 20]),
    n_clients=st.integers(1, 6),
)
def test_counts_are_exact_and_sums_within_a_unit_a_client(data, n_classes, m, levels, n_clients):
    codec = KnowledgeCodec(n_classes, levels)
    given_ = [data.draw(contributions(n_classes, m)) for _ in range(n_clients)]
    encoded = [codec.encode(c) for c in given_]
    votes = []
    for contribution, units in zip(given_, encoded, strict=True):
        target = np.rint(contribution.weights * levels)
        table = units.reshape(m, n_classes)
        assert units.dtype == np.uint64
        assert units.max() <= levels
        assert table.sum(axis=1).tolist() == target.tolist()
        # Largest remainder moves an entry by less than a unit, always.
        ideal = target[:, None] * contribution.predictions
        assert (np.abs(table - ideal) < 1 + 1e-6).all()
        votes.append(target / levels)
    sums = codec.decode(np.sum(encoded, axis=0, dtype=np.uint64), n_clients)
    assert np.allclose(sums.count, np.sum(votes, axis=0), rtol=0, atol=1e-12 * n_clients)
    # The count is off the weights' own sum by half a unit a client, an entry by a unit more.
    true_count = np.sum([c.weights for c in given_], axis=0)
    true_total = np.sum([c.weights[:, None] * c.predictions for c in given_], axis=0)
    assert (np.abs(sums.count - true_count) <= (0.5 / levels + 1e-9) * n_clients).all()
    assert (np.abs(sums.total - true_total) <= (1.5 / levels + 1e-9) * n_clients).all()


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shares=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8),
    scale=st.sampled_from([1e-6, 0.1, 3.0, 15.9]),
)
def test_a_mean_of_parameters_is_within_half_a_step(seed, shares, scale):
    codec = parameter_codec(tuple(shares))
    rng = np.random.default_rng(seed)
    own = [rng.uniform(-scale, scale, 50).astype(np.float32) for _ in shares]
    vectors = [codec.encode(k, values) for k, values in enumerate(own)]
    assert max(int(v.max()) for v in vectors) <= codec.levels
    mean = codec.decode(np.sum(vectors, axis=0, dtype=np.uint64), range(len(shares)))
    step = 2 * codec.limit / codec.levels
    half_step = 0.5 * step / np.mean(shares)
    truth = np.average(np.array(own, dtype=np.float64), axis=0, weights=shares)
    assert (np.abs(mean - truth) <= half_step + 1e-12).all()
    for k, (vector, values) in enumerate(zip(vectors, own, strict=True)):
        back = codec.decode(vector, (k,)).astype(np.float32)
        slack = 0.5 * step / shares[k] + 1e-6 * scale  # float32 has 24 bits
        assert (np.abs(back - values) <= slack).all()
