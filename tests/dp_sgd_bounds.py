"""What dp-accounting's privacy-loss distributions (Doroshenko et al., 2022) know of DP-SGD's price.

The worse of the two directions: a record that is removed, and one that is added.
"""

from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism


def dp_sgd_bounds(
    noise: float, rate: float, steps: int, delta: float, grid: float
) -> tuple[float, float]:
    """Epsilon is between the two; they come closer with a finer grid of losses."""

    def composed(pessimistic: bool) -> float:
        step = from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=grid,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        )
        return float(step.self_compose(steps).get_epsilon_for_delta(delta))

    return composed(False), composed(True)
