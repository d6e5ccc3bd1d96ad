"""The mutation that all attacks on masked sums must find."""

import pytest


@pytest.fixture
def unmasked(monkeypatch):
    """Masked sums whose masks are left out."""
    monkeypatch.setattr("secure_fd.secagg.client.mask_input", lambda *_: None)
    monkeypatch.setattr("secure_fd.secagg.unmasking.mask_words", lambda *_: None)
