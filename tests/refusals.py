"""A setting that must be refused, by its field: tests do not check sentences."""

import pytest

from secure_fd.errors import ConfigurationError


def refused(field: str) -> pytest.RaisesExc[ConfigurationError]:
    """Expect a ConfigurationError about one field."""
    return pytest.raises(ConfigurationError, check=lambda error: error.field == field)
