"""What Opacus' numerical composition (Gopi, Lee and Wutschitz, 2021) knows of DP-SGD's price."""

import warnings

from opacus.accountants import PRVAccountant


def opacus_bounds(
    noise: float, rate: float, steps: int, delta: float, error: float
) -> tuple[float, float]:
    """Epsilon is between the two, about twice `error` apart."""
    accountant = PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        # It sizes its grid with a bound whose tightness does not matter.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        composed = accountant._get_dprv(eps_error=error, delta_error=delta / 1e4)
    lower, _, upper = composed.compute_epsilon(delta, delta / 1e4, error)
    return float(lower), float(upper)
