"""Values that must never leave a party of the masked sum."""

import copy
import logging
import pickle
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from rich.pretty import pretty_repr

from secure_fd.crypto import keys as prg
from secure_fd.crypto import shamir
from secure_fd.crypto.keys import AgreementKey, Sealer, insecure_bytes
from secure_fd.deployment.recovery import _StoredSum
from secure_fd.errors import LocalError, PeerError, SecureFDError
from secure_fd.prio3.messages import Report
from secure_fd.privacy.ledger import _Answer
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.machine import PartyMemory
from secure_fd.secagg.masks import RoundSecrets
from secure_fd.secagg.setup import ClientSetup
from secure_fd.secure_sum.masked import MaskedSum
from tests.drivers.cohort import Cohort, Round, Stage, round_of


def forms(secret: bytes) -> list[str]:
    number = int.from_bytes(secret, "big")
    return [secret.hex(), repr(secret)[2:-1], str(list(secret))[1:-1], str(number), hex(number)]


def private(key: AgreementKey) -> bytes:
    found: X25519PrivateKey = key._key
    return found.private_bytes_raw()


def secrets_of(setups: Iterable[ClientSetup], rounds: Iterable[ClientRound]) -> set[bytes]:
    """Every secret of a set-up and of rounds that have begun; not the nonce, which is revealed."""
    found: set[bytes] = set()
    for machine in setups:
        if machine._held is not None:
            found.add(private(machine._held.channel_key))
    for each in rounds:
        held, channels = each._held, each._enrolment.channels
        found.add(each._enrolment.authenticator.key)
        found |= {channel._chain for channel in channels.values()}
        found |= {channel.pair_secret(each.scope.terms.index) for channel in channels.values()}
        if held is not None and held.prepared is not None:
            secrets, own = held.prepared.secrets, held.prepared.own
            found |= {shamir.encode(secrets.root), shamir.encode(secrets.seed)}
            found |= {private(secrets.key), own.root, own.seed}
        if held is not None and held.words is not None:
            found.add(held.words.tobytes())
    return found


def refusals(current: Round) -> list[str]:
    """Tracebacks of each client's error for bytes that are no message, with all its causes."""
    shown = []
    for machine in current.clients.values():
        with pytest.raises(SecureFDError) as refused:
            machine.receive(bytes(100))
        shown += traceback.format_exception(refused.value)
    return shown


def test_secrets_are_in_no_text_no_log_and_on_no_wire(caplog):
    caplog.set_level(logging.DEBUG)
    cohort = Cohort(4, enrolled=False)
    setup = cohort.open_setup()
    secrets = secrets_of(setup.clients.values(), [])
    wire = list(setup.start().values())
    text = repr([setup.clients, [machine._held for machine in setup.clients.values()]])
    cohort.enrol()

    current = round_of(cohort)
    outbound = current.start()
    rounds = list(current.clients.values())
    secrets |= secrets_of([], rounds)
    held = [machine._held for machine in rounds]
    secrets.add(private(cohort.key))
    text += repr([cohort.clients, rounds, current.server, cohort.identities, cohort.session])
    text += repr([cohort.key, cohort.server, current.server._enrolment, rounds[0]._enrolment])
    text += repr([cohort.server._enrolment, rounds[0]._enrolment.channels])
    text += repr([held, [kept.prepared for kept in held if kept], cohort.clients[0]._enrolment])
    inbound = current.deliver(outbound)
    outbound |= current.answer(inbound)
    text += repr([kept.shares for kept in held if kept])
    wire += [*outbound.values(), *inbound.values()]
    text += "".join(refusals(current)) + caplog.text

    assert len(secrets) == 4 + 6 * 2 + 4 * (2 + 3 + 1) + 4 + 1
    assert not any(form in text for secret in secrets for form in forms(secret))
    assert not any(secret in message for secret in secrets for message in wire)
    assert caplog.records == []


def test_a_planted_share_in_a_repr_is_found(monkeypatch):
    monkeypatch.setattr(RoundSecrets, "__repr__", lambda self: f"RoundSecrets(root={self.root})")
    current = round_of(Cohort(4))
    current.prepare()
    rounds = list(current.clients.values())
    held = [machine._held.prepared for machine in rounds if machine._held]
    text = repr([prepared.secrets for prepared in held if prepared])
    secrets = secrets_of([], rounds)
    assert any(form in text for secret in secrets for form in forms(secret))


# Refusals that happen with secrets in hand.

SECRET_VALUE = 2**40 + 1


def wrong_value(stage: Stage) -> None:
    """The same values again, each far above the bound."""
    held, scope = stage.machines[0]._held, stage.machines[0].scope
    values = scope.layout.unpack(held.words, scope.terms.length) + np.uint64(SECRET_VALUE)
    Cohort(4).clients[0].open_round(scope.terms, values)


def bad_key(stage: Stage) -> None:
    relayed = stage.relayed()
    stage.tell(relayed | {1: replace(relayed[1], key=bytes(32))})


def bad_cohort(stage: Stage) -> None:
    stage.tell(stage.relayed(cohort=(0, 1)), (0, 1))


@pytest.mark.parametrize("misuse", [wrong_value, bad_key, bad_cohort])
def test_no_error_tells_a_secret_or_a_value(misuse):
    stage = Stage.opened()
    secrets = secrets_of([], stage.machines.values())
    with pytest.raises((LocalError, PeerError)) as refused:
        misuse(stage)
    text = "".join(traceback.format_exception(refused.value)) + repr(refused.value.args)
    assert not any(form in text for secret in secrets if any(secret) for form in forms(secret))
    assert str(SECRET_VALUE) not in text


# Pickles and copies.


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_what_holds_secrets_cannot_be_pickled_or_copied(protocol):
    cohort = Cohort(4)
    setup = Cohort(4, enrolled=False).open_setup()
    stage = Stage.opened(cohort)
    stage.tell(stage.relayed())
    machine, waiting = stage.machines[0], stage.machines[1]
    holders = [
        cohort.identities[0],
        cohort.clients[0],
        machine,
        machine._held,
        machine._held.shares[1],
        waiting._held.prepared.secrets,
        waiting._held.prepared,
        machine._enrolment,
        machine._enrolment.channels[1],
        machine._enrolment.authenticator,
        cohort.server,
        cohort.server._enrolment,
        cohort.key,
        setup.clients[0],
        setup.clients[0]._held,
        AgreementKey.generate(insecure_bytes(0)),
        Sealer(bytes(32)),
        prg.Keystream(bytes(32)),
        MaskedSum(3, random=insecure_bytes(0), hybrid=False),
    ]
    for holder in holders:
        for copied in (partial(pickle.dumps, protocol=protocol), copy.copy, copy.deepcopy):
            with pytest.raises(LocalError, match="pickled or copied"):
                copied(holder)
        assert not hasattr(holder, "__dict__")


def test_structs_with_secrets_show_none_in_a_traceback_of_rich():
    secret = b"a secret of a party"
    kept = (
        Report(b"", b"", b"", b"", secret),
        PartyMemory(b"", -1, used=False, agreed=None, channels={1: secret}),
        _Answer(b"", secret),
        _StoredSum(opened=True, why="", words=secret),
    )
    for text in (*map(repr, kept), *map(pretty_repr, kept)):
        assert "secret of" not in text
        assert "secret" in text
