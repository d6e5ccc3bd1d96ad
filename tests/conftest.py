"""Its presence puts the repository root on the path, so that tests can share helpers."""

import pytest

from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.image_sets import Sizes
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load


@pytest.fixture(scope="session")
def digits() -> FederatedData:
    """Four clients of one class each, and 200 proxies, of the bundled digits."""
    sizes = Sizes(proxies=20, test=6, held_out=4, local=24)
    return federate(load("digits"), parse_split("strong"), 4, seed=0, sizes=sizes)
