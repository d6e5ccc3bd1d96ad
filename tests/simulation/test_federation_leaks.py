"""Views of the server and texts of a federation, in clear and under masks."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from torch import nn

from attacks.core.view import Capability, Public, View, server_view
from secure_fd.crypto.keys import insecure_bytes
from secure_fd.data.federated import FederatedData
from secure_fd.errors import MissingCapabilityError, PeerError
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.privacy.label import LabelUnit
from secure_fd.secure_sum.base import SecureSum
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.secure_sum.plain import PlainSum
from secure_fd.simulation.federation import Federation
from secure_fd.votes.codec import WordArray
from secure_fd.votes.packing import LaneLayout
from tests.small_federation import all_proxies, federation, participants, run, verdict

ROUNDS = 3


def masked() -> MaskedSum:
    """Keys from a seed, so that every statistic below is the same in every run."""
    return MaskedSum(4, random=insecure_bytes(11), hybrid=False)


def trained(data: FederatedData, aggregation: SecureSum) -> Federation:
    made = federation(
        data, SelectiveFD("hard"), aggregation=aggregation, schedule=all_proxies(data)
    )
    return run(made, ROUNDS)


def server(data: FederatedData, made: Federation) -> View:
    public = Public(data.proxies.pixels, 4, 10, lambda _: nn.Linear(1, 1))
    return server_view(made.transcript, public)


# Under masks.


def test_under_masks_the_server_reads_the_sum_of_the_votes_alone(digits):
    """The same run in clear shows the very votes, and the capability to read them."""
    hidden, clear = trained(digits, masked()), trained(digits, PlainSum(4))
    view = server(digits, hidden)
    with pytest.raises(MissingCapabilityError):
        view.require(Capability.READ_UPLOADS)
    assert server(digits, clear).capabilities - view.capabilities == {Capability.READ_UPLOADS}
    pairs = zip(hidden.transcript.distillation, clear.transcript.distillation, strict=True)
    for one, other in pairs:
        assert one.uploads is None
        assert other.uploads is not None
        assert np.array_equal(one.total, np.sum(list(other.uploads.values()), axis=0))


def deviations(payloads: Mapping[int, WordArray]) -> dict[str, float]:
    """Standard deviations from uniform, of the share of ones: of all bits, and by position."""
    words = np.concatenate([payload[None] for payload in payloads.values()])
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little").reshape(-1, 64)
    n = len(bits)
    ones = (bits.mean(axis=0) - 0.5) * 2 * np.sqrt(n)
    return {
        "ones": float(abs(bits.mean() - 0.5) * 2 * np.sqrt(bits.size)),
        "worst bit position": float(np.abs(ones).max()),
    }


def test_masked_words_look_uniform_and_clear_ones_do_not(digits):
    """Bounds 5 and 5.5: false-alarm rates 6e-7, and 2.4e-6 over 64 positions, a round."""
    for aggregation, uniform in ((masked(), True), (PlainSum(4), False)):
        for seen in trained(digits, aggregation).transcript.distillation:
            found = deviations(seen.payloads)
            assert (found["ones"] < 5) == uniform
            assert (found["worst bit position"] < 5.5) == uniform


def test_masked_words_unpack_to_no_votes(digits):
    layout, length = LaneLayout(4, SelectiveFD("hard").levels), len(digits.proxies) * 10
    for seen in trained(digits, masked()).transcript.distillation:
        for words in seen.payloads.values():
            with pytest.raises(PeerError):
                layout.unpack(words, length)
    for seen in trained(digits, PlainSum(4)).transcript.distillation:
        assert seen.uploads is not None
        for client, words in seen.payloads.items():
            assert np.array_equal(layout.unpack(words, length), seen.uploads[client])


def test_a_client_s_masked_words_share_nothing_between_rounds_or_with_its_votes(digits):
    """The same votes every round, yet no word comes twice: masks are fresh in every round."""
    hidden = trained(digits, masked())
    rounds = [seen.payloads for seen in hidden.transcript.distillation]
    words = np.concatenate([payload for payloads in rounds for payload in payloads.values()])
    assert len(np.unique(words)) == len(words)
    clear = trained(digits, PlainSum(4))
    plain = np.concatenate([seen.payloads[0] for seen in clear.transcript.distillation])
    assert len(np.unique(plain)) < len(plain)


# Texts.


@dataclass
class Careless:
    """Mutant: shows its value."""

    held: object


def test_private_arrays_are_in_no_repr(digits):
    made = trained(digits, PlainSum(4))
    [first, *_] = made.transcript.distillation
    assert first.uploads is not None
    chosen, policy = verdict(digits, 1), made.clients[1].role.policy
    client = digits.clients[1]
    private: list[object] = [
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
    drawn: list[bytes] = []

    def recorded(size: int) -> bytes:
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
