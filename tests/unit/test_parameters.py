"""FedAvg's parameters as integers."""

import numpy as np
import pytest

from secure_fd.errors import LocalError
from secure_fd.methods.fedavg import parameter_codec


def test_the_mean_is_weighted_by_records():
    """Shares 1 and 1/2 weigh 2 : 1, so 3 and 0 average to 2; all are whole steps, so exactly."""
    codec = parameter_codec((1.0, 0.5))
    both = [codec.encode(k, np.full(4, v, dtype=np.float32)) for k, v in enumerate((3.0, 0.0))]
    assert codec.decode(both[0] + both[1], (0, 1)).tolist() == [2.0] * 4


def test_only_survivors_weigh_in_the_mean():
    codec = parameter_codec((1.0, 0.5, 0.25))
    sent = [codec.encode(k, np.full(4, v, dtype=np.float32)) for k, v in enumerate((3.0, 0.0, 6.0))]
    assert codec.decode(sent[0] + sent[2], (0, 2)).tolist() == pytest.approx([3.6] * 4)
    assert codec.decode(sent[1], (1,)).tolist() == [0.0] * 4
    forgetful = codec.decode(sent[0] + sent[2], (0, 1, 2))
    assert np.abs(forgetful - 3.6).min() > 1


def test_zero_is_the_middle_and_the_limits_are_the_ends():
    codec, step = parameter_codec((1.0,)), 2.0**-22
    values = np.array([-16.0, 0.0, 16.0, 0.48 * step, 0.56 * step], dtype=np.float32)
    middle = 1 << 26
    assert codec.encode(0, values).tolist() == [0, middle, 2 * middle, middle, middle + 1]
    assert codec.levels == 2 * middle


def test_one_upload_is_read_back_exactly_where_it_is_whole_steps():
    codec = parameter_codec((0.5, 0.25))
    values = np.array([-1.5, 0.0, 2**-10, 7.25], dtype=np.float32)
    for client in range(2):
        assert codec.decode(codec.encode(client, values), (client,)).tolist() == values.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 16.001, -1e30])
def test_diverged_parameters_are_refused(bad):
    codec = parameter_codec((1.0,))
    codec.encode(0, np.array([0.0, 16.0, -16.0], dtype=np.float32))
    with pytest.raises(LocalError, match="diverged"):
        codec.encode(0, np.array([0.0, bad], dtype=np.float32))
