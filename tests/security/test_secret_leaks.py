"""What must never leave a party of the masked sum."""

import copy
import logging
import pickle

import pytest

from secure_fd.aggregation.masked import MaskedSum
from secure_fd.crypto import prg
from secure_fd.crypto.keys import AgreementKey
from secure_fd.crypto.randomness import insecure_bytes
from secure_fd.errors import LocalError, PeerError
from secure_fd.secagg.client import ClientState
from tests.secagg_cohort import Cohort, round_of

# Secrets.


def forms(secret: bytes) -> list[str]:
    return [secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1]]


def test_secrets_are_in_no_text_no_log_and_on_no_wire(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    drawn: list[bytes] = []
    source = insecure_bytes(4)
    cohort = Cohort()

    def recorded(size: int) -> bytes:
        drawn.append(source(size))
        return drawn[-1]

    for client in cohort.clients.values():
        client._random = recorded
    current = round_of(cohort)
    text = repr([cohort.clients, current.clients, current.server, cohort.identities])
    text += repr([machine._held for machine in current.clients.values()])
    wire = [machine.start() for machine in current.clients.values()]
    with pytest.raises(PeerError) as refused:
        current.clients[0].receive(bytes(100))
    text += repr(refused.value) + caplog.text
    assert len(drawn) == 3
    assert not any(form in text for secret in drawn for form in forms(secret))
    assert not any(secret in message for secret in drawn for message in wire)
    assert caplog.records == []
    planted = repr(drawn[0]) + text
    assert any(form in planted for form in forms(drawn[0]))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_holds_secrets_cannot_be_pickled(protocol: int) -> None:
    cohort = Cohort()
    current = round_of(cohort)
    for holder in (
        cohort.identities[0],
        cohort.clients[0],
        current.clients[0],
        current.clients[0]._held,
        AgreementKey.generate(insecure_bytes(0)),
        prg.Keystream(bytes(32)),
        MaskedSum(3),
    ):
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            pickle.dumps(holder, protocol)
        with pytest.raises(LocalError, match="cannot be pickled or copied"):
            copy.deepcopy(holder)
        assert not hasattr(holder, "__dict__")


def test_a_finished_client_keeps_neither_key_nor_words() -> None:
    current = round_of()
    current.masked()
    for machine in current.clients.values():
        assert machine.state is ClientState.SENT
        assert machine._held is None
