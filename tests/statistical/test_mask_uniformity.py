"""What the server sees of one client is uniform: every claim beside a twin that is broken.

The test and its error rates are in drivers/uniform_words.py: about fifty views are accepted below,
so over all seeds one of them would be rejected with probability 5e-5.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from secure_fd.crypto.keys import AgreementKey
from secure_fd.secagg import masks as masking
from secure_fd.secagg.channel import Channel
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.masks import RoundSecrets, round_key
from secure_fd.secagg.session import RoundScope, RoundTerms
from secure_fd.votes.codec import WordArray
from secure_fd.wire import HEADER_BYTES, Place
from tests.drivers.cohort import Cohort
from tests.drivers.uniform_words import (
    copied_key,
    drop_contexts,
    leave_out,
    looks_uniform,
    one_root,
    repeat_secrets,
)

LENGTH = 2**17
BOUND = 2**55
"""One value a word at three clients, so that words can be read as values."""
PAIR_STREAM, SELF_STREAM = masking.pair_stream, masking.self_stream


# What the server sees of one client.


def inputs(kind: str, client: int) -> WordArray:
    rng = np.random.default_rng(client)
    return {
        "zero": np.zeros(LENGTH, np.uint64),
        "bound": np.full(LENGTH, BOUND, np.uint64),
        "votes": rng.integers(0, 2, LENGTH, dtype=np.uint64),
    }[kind]


@dataclass(frozen=True)
class Had:
    """A client's secrets of one round. pairs: by peer, what their channel gave for it."""

    root: int
    seed: int
    key: AgreementKey
    pairs: dict[int, bytes]


def server_views(
    cohort: Cohort, index: int, kind: str = "votes"
) -> tuple[dict[int, WordArray], dict[int, Had]]:
    """The words that the server reads of each client in one round, and each client's secrets."""
    values = {k: inputs(kind, k) for k in cohort.clients}
    current = cohort.open(RoundTerms(index, LENGTH, BOUND), values)
    told = current.prepare()
    held = {k: secrets_of(machine) for k, machine in current.clients.items()}
    sent = current.answer(told)
    current.deliver(sent)
    size = current.server.scope.words
    views = {
        k: np.frombuffer(message, "<u8", size, HEADER_BYTES).astype(np.uint64)
        for k, message in sent.items()
    }
    return views, held


def secrets_of(machine: ClientRound) -> Had:
    assert machine._held is not None
    assert machine._held.prepared is not None
    drawn, index = machine._held.prepared.secrets, machine.scope.terms.index
    channels = machine._enrolment.channels
    pairs = {peer: channel.pair_secret(index) for peer, channel in channels.items()}
    return Had(drawn.root, drawn.seed, drawn.key, pairs)


def without_self_mask(cohort: Cohort, index: int, view: WordArray, client: int, seed: int) -> None:
    """Take off what follows from the seed, as the server does for a survivor."""
    scope = RoundScope(cohort.session, RoundTerms(index, LENGTH, BOUND))
    masking.mask_words(view, [], [SELF_STREAM(scope, client, seed)])


def without_pair_masks(
    cohort: Cohort,
    index: int,
    view: WordArray,
    client: int,
    keys: dict[int, AgreementKey],
    pairs: dict[int, bytes],
) -> None:
    """Take off what follows from the root, as the server could for one that dropped out."""
    scope = RoundScope(cohort.session, RoundTerms(index, LENGTH, BOUND))
    streams = {
        peer: PAIR_STREAM(scope, client, peer, keys[client], keys[peer].public, secret)
        for peer, secret in pairs.items()
    }
    added = [stream for peer, stream in streams.items() if client < peer]
    subtracted = [stream for peer, stream in streams.items() if client > peer]
    masking.mask_words(view, subtracted, added)


@pytest.mark.parametrize("kind", ["zero", "bound", "votes"])
def test_every_masked_input_is_uniform_whatever_it_hides(kind):
    views, _ = server_views(Cohort(3, seed=5), 0, kind)
    assert all(looks_uniform(words) for words in views.values())


def test_twin_with_masks_of_a_narrow_range_is_rejected(monkeypatch):
    real = masking.mask_words

    def narrow(words: WordArray, added: object, subtracted: object) -> None:
        hidden = words.copy()
        real(words, added, subtracted)
        mask = (words - hidden) & np.uint64(2**62 - 1)
        np.add(hidden, mask, out=words)

    monkeypatch.setattr(masking, "mask_words", narrow)
    views, _ = server_views(Cohort(3, seed=5), 0, "zero")
    assert not any(looks_uniform(words) for words in views.values())


def test_no_sum_of_masked_inputs_shows_anything_before_the_unmasking():
    views, _ = server_views(Cohort(4, seed=6), 0, "zero")
    everything = sum(views.values(), np.zeros(LENGTH, np.uint64))
    assert looks_uniform(everything)
    for view in views.values():
        assert looks_uniform(everything - view)


def test_twin_without_self_masks_shows_the_sum_too_early(monkeypatch):
    leave_out(monkeypatch, "self_stream")
    views, _ = server_views(Cohort(4, seed=6), 0, "zero")
    everything = sum(views.values(), np.zeros(LENGTH, np.uint64))
    assert not everything.any()
    assert all(looks_uniform(view) for view in views.values())


@pytest.mark.parametrize("broken", [False, True])
def test_a_seed_alone_opens_nothing(broken, monkeypatch):
    """A survivor's seed is opened; its pair masks stay. The twin has none."""
    if broken:
        leave_out(monkeypatch, "pair_stream")
    cohort = Cohort(3, seed=12)
    views, held = server_views(cohort, 0)
    without_self_mask(cohort, 0, views[1], 1, held[1].seed)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


@pytest.mark.parametrize("broken", [False, True])
def test_a_root_alone_opens_nothing(broken, monkeypatch):
    """A client was late and its root opened; its self mask stays. The twin has none."""
    if broken:
        leave_out(monkeypatch, "self_stream")
    cohort = Cohort(3, seed=13)
    views, held = server_views(cohort, 0)
    keys = {k: secrets.key for k, secrets in held.items()}
    without_pair_masks(cohort, 0, views[1], 1, keys, held[1].pairs)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


# Between rounds.


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_rounds_are_apart_unless_secrets_and_contexts_repeat(reused, mixed, monkeypatch):
    """Fresh secrets alone, and contexts alone, keep rounds apart; the twin has neither.

    reused: the same secrets in both rounds. mixed: one context for all keys.
    """
    if reused:
        repeat_secrets(monkeypatch)
    if mixed:
        drop_contexts(monkeypatch)
    cohort = Cohort(3, seed=7)
    (first, _), (second, _) = server_views(cohort, 0), server_views(cohort, 1)
    assert all(looks_uniform(words) for words in first.values())
    for k in first:
        assert looks_uniform(first[k] - second[k]) is not (reused and mixed)


@pytest.mark.parametrize("broken", [False, True])
def test_a_root_of_a_later_round_opens_no_earlier_one(broken, monkeypatch):
    """Round 0 ended well, and client 1's seed was opened; in round 1 it drops out.

    The twin draws its root once for the session, with the round in every context: that is not
    enough, since the root gives the keys of all rounds.
    """
    if broken:
        monkeypatch.setattr(RoundSecrets, "draw", classmethod(one_root))
    cohort = Cohort(3, seed=14)
    (views, held), (_, later) = server_views(cohort, 0), server_views(cohort, 1)
    without_self_mask(cohort, 0, views[1], 1, held[1].seed)
    keys = {k: secrets.key for k, secrets in held.items()}
    keys[1] = round_key(Place(cohort.session.id, 0), 1, later[1].root)
    without_pair_masks(cohort, 0, views[1], 1, keys, held[1].pairs)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken


# A malicious client: it gives another client's round key as its own.


@pytest.mark.parametrize("broken", [False, True])
def test_a_copied_key_does_not_make_masks_cancel(broken, monkeypatch):
    """Client 1 is in the middle: it subtracts its pair with 0 and adds its pair with 2.

    The twin has neither pairs in its contexts nor pair secrets.
    """
    monkeypatch.setattr(RoundSecrets, "draw", classmethod(copied_key))
    if broken:
        drop_contexts(monkeypatch)
        monkeypatch.setattr(Channel, "pair_secret", lambda *_: bytes(32))
    cohort = Cohort(3, seed=9)
    views, held = server_views(cohort, 0)
    assert held[0].key.public == held[2].key.public
    without_self_mask(cohort, 0, views[1], 1, held[1].seed)
    assert looks_uniform(views[1]) is not broken
    assert bool((views[1] == inputs("votes", 1)).all()) is broken
