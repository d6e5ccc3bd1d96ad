"""DaFKD's theorems on densities that are known, and that each check catches a broken weight."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.paper.dafkd_theory import densities, excess, optimal


@given(arrays(np.float64, (4, 5), elements=st.floats(0, 100)))
@settings(deadline=None)
def test_equation_19_holds_for_f_star_at_any_densities(p):
    assume((p.sum(axis=0) > 1e-6).all())
    assert excess(optimal(p), p).max() <= 1e-9


def test_other_weights_break_equation_19():
    at = (np.arange(40) + 0.5) / 40
    x = np.stack(np.meshgrid(at, at), axis=-1).reshape(-1, 1, 2)
    p = densities(np.random.default_rng(0)).pdf(x).prod(axis=2).T
    for broken in (np.ones_like(p), np.sqrt(optimal(p))):
        assert excess(broken, p).max() > 0.01
