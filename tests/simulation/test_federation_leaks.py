"""Views of the server and texts of a federation, in clear and under masks."""

import numpy as np
import pytest
from torch import nn

from attacks.core.view import Capability, Public, server_view
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.label import LabelUnit
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from tests.small_federation import all_proxies, federation, participants, run, verdict


def trained(data, aggregation):
    schedule, method = all_proxies(data), SelectiveFD("hard")
    return run(federation(data, method, aggregation=aggregation, schedule=schedule), 3)


def server(data, made):
    public = Public(data.proxies.pixels, 4, 10, lambda _: nn.Linear(1, 1))
    return server_view(made.transcript, public)


def test_under_masks_the_server_reads_the_sum_of_the_votes_alone(digits):
    """The same run in clear shows the very votes, and the capability to read them.

    The same votes every round, yet no masked word comes twice.
    """
    hidden, clear = trained(digits, MaskedSum(4, public_seed=0)), trained(digits, PlainSum(4))
    view = server(digits, hidden)
    with pytest.raises(MissingCapabilityError):
        view.require(Capability.READ_UPLOADS)
    assert server(digits, clear).capabilities - view.capabilities == {Capability.READ_UPLOADS}
    words, plain = [], []
    pairs = zip(hidden.transcript.distillation, clear.transcript.distillation, strict=True)
    for one, other in pairs:
        assert one.uploads is None
        assert np.array_equal(one.total, np.sum(list(other.uploads.values()), axis=0))
        words += one.payloads.values()
        plain += other.payloads.values()
    assert [len(np.unique(w)) == w.size for w in map(np.concatenate, (words, plain))] == [
        True,
        False,
    ]


class Careless:
    """Mutant: shows its value."""

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"Careless({self.held!r})"


def test_private_arrays_are_in_no_repr(digits):
    made = trained(digits, PlainSum(4))
    [first, *_] = made.transcript.distillation
    chosen, policy = verdict(digits, 1), made.clients[1].role.policy
    client = digits.clients[1]
    private = [
        *(first.uploads, first.uploads[1], first.payloads[1], first.total),
        *(policy.evidence, chosen.ratios, next(iter(made.models[0].parameters()))),
        *(client.train.pixels, client.train.labels, client.validation.labels),
    ]
    shown = server(digits, made)
    transcript, everything = made.transcript, [participants(digits), digits, policy, chosen]
    text = repr([made, transcript, transcript.distillation, *everything, shown, shown.rounds])
    assert not [secret for secret in private if repr(secret) in text]
    planted = repr([Careless(secret) for secret in private])
    assert all(repr(secret) in planted for secret in private)


def test_keys_and_ledgers_are_in_no_repr(digits):
    drawn = []

    def recorded(size):
        drawn.append(np.random.default_rng(len(drawn)).bytes(size))
        return drawn[-1]

    unit = LabelUnit(4.0, 1e-5, random=recorded)
    aggregation = MaskedSum(4, random=recorded)
    made = run(federation(digits, aggregation=aggregation, protection=unit), rounds=1)
    text = repr([made, made.transcript, unit, unit.parts, aggregation, aggregation.caveats])
    forms = [form for secret in drawn for form in (secret.hex(), repr(secret)[2:-1])]
    assert len(forms) > 20
    assert not [form for form in forms if form in text]
    assert repr(unit.parts[0]._named) not in text
    assert forms[0] in repr(drawn[0].hex())
