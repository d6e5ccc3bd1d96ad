"""IDEAL: what it reads, what it may ask, and what its figures catch; oracles of trained clients."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from attacks.core.base import Images
from attacks.core.fit import label_function, predict
from attacks.core.view import (
    AnswerFunction,
    Capability,
    Oracle,
    Public,
    View,
    outsider_view,
    server_view,
)
from attacks.inversion.gmi import InversionSettings
from attacks.inversion.ideal import IdealK1, IdealK2, IdealK3, IdealSettings
from attacks.inversion.prior import PriorSettings, train_prior
from experiments.core.rows import RowSpec, Terms
from experiments.core.runs import RowRun, data_of, parts_of, run_row, warm_up
from experiments.privacy_compare import Settings, plan
from experiments.suite.scenes.extraction import Clients
from secure_fd.data.federated import FederatedData
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.privacy.base import PrivacyMechanism
from secure_fd.protocol.transcript import Transcript
from secure_fd.votes.codec import Ensemble
from secure_fd.votes.codec import one_hot as rows_of
from tests.attack_games import TRAINING, answered, linear, mlp, part, prior, private_network
from tests.attack_games import inverted_truth as truth
from tests.attack_games import known as public

SMALL = IdealSettings(epochs=4, batch=50, generator_steps=6, latent=16, channels=4, passes=4)
SEARCH = InversionSettings(steps=15, restarts=1, per_class=2)


@cache
def ready() -> tuple[IdealK1, IdealK2, IdealK3]:
    shared = (public(), prior(), 0, SMALL, SEARCH, TRAINING)
    first = IdealK1.prepare(*shared)
    shared = (*shared, first.controls)
    return first, IdealK2.prepare(*shared), IdealK3.prepare(*shared)


def votes_of(labels: Tensor) -> Tensor:
    return one_hot(labels, 10).double()[:, None]


def honest(images: Tensor) -> Tensor:
    return votes_of(predict(private_network(), images).argmax(dim=1))


def guessing(images: Tensor) -> Tensor:
    """Says the same of an image every time, and knows nothing."""
    return votes_of((images.sum(dim=(1, 2, 3)) * 1e4).long() % 10)


def refusing(images: Tensor) -> Tensor:
    raise AssertionError(f"a passive attack asked about {len(images)} images")


def read(answer: AnswerFunction) -> Transcript:
    """A run whose one round asked about half of the proxies."""
    labels = answer(public().proxies[:300]).sum(dim=1).argmax(dim=1)
    ensemble = Ensemble(np.arange(300), rows_of(labels.numpy(), 10), np.ones(300, dtype=bool))
    return answered(ensemble)


def asking(answer: AnswerFunction, run: Transcript | None = None) -> View:
    active = (Capability.CHOOSE_INDICES, Capability.INJECT_PROXIES)
    oracles = {capability: Oracle(answer, SMALL.queries) for capability in active}
    return server_view(run or Transcript(3), public(), oracles)


@cache
def warm(level: int) -> Images:
    """What an attack finds that has read an honest round and may ask an honest teacher."""
    return ready()[level].estimate(asking(honest, read(honest)), 0)


def accuracy(found: Images) -> float:
    says = label_function(found.network)(truth().held_out.images)
    return float((says == truth().held_out.labels).double().mean())


def test_reading_never_asks():
    view = asking(refusing, read(honest))
    found = ready()[0].estimate(view, 0)
    assert found.queries == 0
    assert "acceptance_rate" not in found.details
    result = ready()[0].with_truth(truth()).score(found, 0)
    assert result.queries == 0
    assert "acceptance_rate" not in result.details
    assert result.details["answers"] == 300
    for attack in ready()[1:]:
        with pytest.raises(AssertionError, match="asked about 50 images"):
            attack.estimate(view, 0)


def test_a_missing_capability_is_refused():
    silent = server_view(Transcript(3), public())
    words = ("ensemble predictions", "choice of proxy indices", "injection of proxy images")
    for attack, missing in zip(ready(), words, strict=True):
        with pytest.raises(MissingCapabilityError, match=f"missing {missing} .server."):
            attack.estimate(silent, 0)
        with pytest.raises(MissingCapabilityError, match="outsider"):
            attack.estimate(outsider_view(read(honest), public()), 0)
    choosing = {Capability.CHOOSE_INDICES: Oracle(honest, SMALL.queries)}
    with pytest.raises(MissingCapabilityError, match="injection"):
        ready()[2].estimate(server_view(read(honest), public(), choosing), 0)


def test_ensembles_of_which_none_may_teach_are_not_enough_to_read():
    run = read(honest)
    seen = run.distillation[0].result
    dropped = Ensemble(seen.indices, seen.predictions, np.zeros(300, dtype=bool))
    run.distillation[0] = replace(run.distillation[0], result=dropped)
    with pytest.raises(MissingCapabilityError, match="ensemble prediction that was kept"):
        ready()[0].estimate(server_view(run, public()), 0)


def test_a_teacher_that_knows_is_stolen_and_one_that_guesses_is_not():
    """Power first: every level that can learn does; then chance, to 4 deviations (1 in 10^4)."""
    n = len(truth().held_out)
    chance = 0.1 + 4 * np.sqrt(0.09 / n)
    for level, attack in enumerate(ready()):
        assert accuracy(warm(level)) > 0.6
        null = attack.estimate(asking(guessing, read(guessing)), 0)
        assert accuracy(null) < chance + 0.04  # classes are a little unequal
        assert attack.with_truth(truth()).score(null, 0).details["delta_p_value"] > 0.001


def test_a_memorising_selector_shows_private_images_among_the_proxies():
    """A twin: members among the proxies, and clients that answer near their own records only."""
    inside = part(600, 700)
    mixed = Public(torch.cat([part(0, 200).images, inside.images]), 3, 10, mlp)

    def remembers(images: Tensor) -> Tensor:
        near = torch.cdist(images.flatten(1), truth().private.images.flatten(1)).min(dim=1).values
        return honest(images) * (near < 0.1)[:, None, None]

    settings = replace(SMALL, epochs=6)
    attack = replace(ready()[1], settings=settings)
    found = {}
    for name, answer in (("memorising", remembers), ("honest", honest)):
        oracles = {Capability.CHOOSE_INDICES: Oracle(answer, settings.queries)}
        run = attack.estimate(server_view(Transcript(3), mixed, oracles), 0)
        found[name] = attack.with_truth(truth()).score(run, 0)
    caught, fair = found["memorising"], found["honest"]
    assert caught.details["pool: delta"] > 30
    assert caught.details["pool: delta_p_value"] < 0.01
    assert caught.details["acceptance_rate"] < 0.6 < fair.details["acceptance_rate"] == 1.0
    assert fair.details["pool: delta"] < caught.details["pool: delta"] - 10


# What trained clients answer.


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    terms: Terms
    made: RowRun
    protection: PrivacyMechanism

    @property
    def data(self) -> FederatedData:
        return data_of(self.terms, 0)

    def clients(self, **how: bool) -> Clients:
        return replace(Clients.of(self.terms, self.made, self.data, self.protection), **how)


@cache
def trained(spec: RowSpec, selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio") -> Trained:
    settings = Settings(
        dataset="digits", clients=4, rounds=1, proxies_per_round=40, quick=True, attacks="none"
    )
    terms = plan(replace(settings, dp_eps=4.0, selector=selector), None).terms
    protection = parts_of(terms.run(spec, 0), data_of(terms, 0)).protection
    warm = warm_up(plan(settings, None).terms, 0)
    made = run_row(terms, spec, 0, warm, chosen=protection)
    return Trained(terms, made, protection)


HARD = RowSpec("selective-fd", "hard")
MASKED = RowSpec("selective-fd", "hard", "masks")


def test_injected_proxies_get_the_answers_of_a_round_and_masks_leave_their_sum():
    """After one more round's training: nothing but networks moved."""
    clear, masked = trained(HARD), trained(MASKED)
    proxies = clear.data.proxies.pixels[:30]
    votes = clear.clients().injected(proxies)
    assert votes.shape == (30, 4, 10)
    for answer in (masked.clients().injected, masked.clients().chosen):
        assert torch.equal(answer(proxies), votes.sum(dim=1, keepdim=True))
    found = trained(HARD, "kulsif")  # counts votes: the weight of a weighed one moves
    seen = found.made.transcript.distillation[0]
    assert seen.uploads is not None
    asked = found.clients().injected(found.data.proxies.pixels[seen.result.indices])
    for k in range(4):
        sent = seen.uploads[k].reshape(-1, 10).sum(axis=1) / seen.levels
        np.testing.assert_allclose(asked[:, k].sum(dim=1), sent, atol=1 / seen.levels)


def test_the_acceptance_rate_is_the_selectors():
    """The same attack with the selector in the way and with it off, its twin."""
    found = trained(HARD, "kulsif")
    proxies = found.data.proxies
    tiny = PriorSettings(latent=4, channels=2, steps=1, batch=4, critic_steps=1)
    known = Public(proxies.pixels, 4, 10, partial(linear, 784, 10), proxies.labels)
    attack = replace(
        ready()[2],
        prior=train_prior(proxies.pixels[:30], tiny, 0),
        settings=replace(SMALL, epochs=1),
    )
    rates = {}
    for selecting in (True, False):
        oracle = Oracle(found.clients(selecting=selecting).injected, 50)
        view = server_view(found.made.transcript, known, {Capability.INJECT_PROXIES: oracle})
        rates[selecting] = attack.estimate(view, 0).details["acceptance_rate"]
    assert rates[True] < 0.2
    assert rates[False] == 1.0


def test_only_public_proxies_can_be_chosen_of_rows_that_answer():
    found = trained(HARD)
    with pytest.raises(LocalError, match="one is not a public proxy"):
        found.clients().chosen(found.data.proxies.pixels[:2] + 0.123)
    fedavg = replace(found, made=replace(found.made, spec=RowSpec("fedavg")))
    with pytest.raises(ConfigurationError, match="row: 'fedavg' is not allowed"):
        fedavg.clients()


def test_the_label_unit_remembers_proxies_and_makes_new_images_noisy():
    found = trained(replace(MASKED, secure=None, unit="label"))
    proxies, clients = found.data.proxies.pixels, found.clients()
    chosen, injected = clients.chosen, clients.injected
    assert torch.equal(chosen(proxies[:60]), chosen(proxies[:60]))
    assert not torch.equal(injected(proxies[:60]), injected(proxies[:60]))
    # What was answered in the run is answered again, to the unit.
    seen = found.made.transcript.distillation[0]
    assert seen.uploads is not None
    again = chosen(proxies[seen.result.indices])
    np.testing.assert_array_equal(again[:, 2].reshape(-1), seen.uploads[2])
    debiased = found.clients(debias=True).injected(proxies[:60])
    assert debiased.shape == (60, 1, 10)
    assert debiased.min() >= 0
    assert not torch.equal(debiased, debiased.round())
