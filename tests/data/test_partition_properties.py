"""Shares of any split, seed and number of clients are disjoint and lose nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fd.data.partition import Split, partition

splits = st.one_of(
    st.sampled_from([Split("strong"), Split("weak"), Split("iid")]),
    st.floats(1e-3, 100.0).map(lambda beta: Split("dirichlet", beta)),
    st.just(Split("dirichlet", 1e-3)),
)


@settings(max_examples=150, deadline=None)
@given(
    split=splits,
    n_clients=st.integers(2, 10),
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(60, 120), min_size=10, max_size=10),
)
def test_shares_are_disjoint_and_lose_nothing(split, n_clients, seed, counts):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(10), counts))
    shares = partition(labels, split, n_clients, 10, rng)
    every = np.concatenate(shares)
    held = np.unique(labels[every])
    assert len(shares) == n_clients
    assert len(np.unique(every)) == len(every)
    # Classes are dealt whole: where some client holds one, all of its records are dealt.
    assert len(every) == sum(counts[c] for c in held)
    assert all(np.all(np.diff(share) > 0) for share in shares)
    sets = [np.unique(labels[share]) for share in shares]
    if split.kind == "strong":
        assert [list(s) for s in sets] == [[k] for k in range(n_clients)]
    elif split.kind == "weak":
        assert all(len(s) == 2 for s in sets)
    elif split.kind == "iid":
        assert all(len(s) == 10 for s in sets)
    else:
        assert min(len(share) for share in shares) >= 20
