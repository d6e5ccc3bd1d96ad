"""Identities of ML-DSA-65, and channels that refuse to go without ML-KEM-768."""

import os

import numpy as np
import pytest

from secure_fd.aggregation.masked import MaskedSum
from secure_fd.crypto.primitives import IdentityKey, IdentityPublic, quantum_safe_available
from secure_fd.errors import ConfigurationError, LocalError, PeerError
from secure_fd.secagg.session import Roster, RoundTerms
from tests.secagg_cohort import flip

needs = pytest.mark.skipif(not quantum_safe_available(), reason="no ML-DSA in this cryptography")


@needs
def test_an_identity_of_either_scheme_signs_and_nothing_else_passes() -> None:
    for safe, public, signature in ((False, 32, 64), (True, 1952, 3309)):
        key, other = (IdentityKey.generate(os.urandom, quantum_safe=safe) for _ in range(2))
        signed = key.sign(b"a cohort")
        assert (len(key.public.raw), len(signed)) == (public, signature)
        assert key.public.signature_bytes == signature
        IdentityPublic(key.public.raw).verify(signed, b"a cohort", "it")
        for wrong, text in ((flip(signed), b"a cohort"), (signed, b"another")):
            with pytest.raises(PeerError, match="the signature on it does not verify"):
                key.public.verify(wrong, text, "it")
        with pytest.raises(PeerError):
            other.public.verify(signed, b"a cohort", "it")
    with pytest.raises(LocalError, match="32 or 1952 bytes"):
        IdentityPublic(bytes(31))


@needs
def test_a_roster_has_one_scheme() -> None:
    keys = [IdentityKey.generate(os.urandom, quantum_safe=safe) for safe in (False, True)]
    with pytest.raises(ConfigurationError, match="one scheme"):
        Roster({k: key.public.raw for k, key in enumerate(keys)})


@needs
def test_rounds_under_quantum_safe_identities_sum_exactly() -> None:
    """With and without a client whose input is lost: every kind of signature is in it."""
    sums = MaskedSum(4, quantum_safe_identities=True, hybrid=True)
    server, clients = sums.server(), [sums.client(k) for k in range(4)]
    for index, lost in enumerate((None, 3, None)):
        terms = RoundTerms(index, 20, 3)
        relayed = server.open(terms)
        for k, client in enumerate(clients):
            for data in client.load(terms, np.full(20, k, np.uint64)):
                server.receive(k, data)
        while True:
            for k in relayed.keys() - {lost}:
                for data in clients[k].receive(relayed[k]):
                    server.receive(k, data)
            if not server.busy:
                break
            relayed = server.advance()
        assert server.result is not None
        assert server.result.total.tolist() == [3 if lost else 6] * 20
