"""Rows of the comparison, trained and attacked in this process."""

import math
import os
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import attacks
from attacks import default_names
from attacks.core.base import AttackResult, Distributions
from attacks.core.view import View
from attacks.membership.tracing import Tracing
from attacks.server.label_distribution import LabelDistribution
from experiments.compare.comparison import Part, attacked, measured, needs, prepared, run_of
from experiments.core import runs
from experiments.core.measures import diagnose
from experiments.core.run_config import SEEDED_NOISE, RowSpec, RunConfig, row_config
from experiments.core.runs import Trained
from experiments.privacy_compare import Settings, cells, noise, plan
from secure_fd.crypto.public_draws import proxy_commitment
from secure_fd.data.images import Images, proxy_pixels
from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.simulation import build
from secure_fd.training.models import flatten

HARD = RowSpec("selective-fd", "hard")
MASKED = RowSpec("selective-fd", "hard", "masks")
TINY = {"dataset": "digits", "clients": 3, "rounds": 1, "proxies_per_round": 32, "quick": True}


def planned(spec=HARD, epsilon=None, **changes) -> RunConfig:
    """A row under seed 0."""
    made = plan(Settings(**TINY, secure_agg=True, dp_eps=epsilon), None)
    return row_config(replace(made.base, seed=0, **changes), spec, noise(made))


@pytest.fixture(scope="module")
def warm():
    start = planned().start
    return {start: runs.prepare(None, start)}


@pytest.fixture(scope="module")
def trained(warm):
    """Rows by specification and epsilon, each trained once."""

    @cache
    def row(spec, epsilon=None):
        return runs.run(planned(spec, epsilon), None, warm, attacked=True)

    return row


def weights(row: Trained) -> list[torch.Tensor]:
    """Return heads and networks: noisy heads differ that label few proxies all alike."""
    heads = [torch.as_tensor(seen.result) for seen in row.federation.transcript.heads]
    return heads + [flatten(model) for model in row.federation.models]


def same(one: Trained, other: Trained) -> bool:
    """Return True if heads, networks and accuracies are equal to the last bit."""
    pairs = zip(weights(one), weights(other), strict=True)
    return one.accuracies == other.accuracies and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("secure", ["masks", "he", "prio3"])
def test_hiding_votes_changes_no_figure_of_a_row(trained, secure):
    hidden = trained(RowSpec("selective-fd", "hard", secure))
    assert same(trained(HARD), hidden)
    assert not same(trained(HARD), trained(RowSpec("fedmd", "soft")))
    assert hidden.federation.transcript.distillation[0].uploads is None
    assert (hidden.sum.name, trained(HARD).sum.name) == (secure, "plain")
    assert hidden.sum.seconds > trained(HARD).sum.seconds > 0


def test_an_infinite_epsilon_is_the_row_without_noise(trained):
    """Bit for bit, for soft labels as well: nothing is sampled where nothing is protected."""
    for labels in ("soft", "hard"):
        bare = RowSpec("selective-fd", labels)
        noiseless = trained(RowSpec("selective-fd", labels, unit="label"), math.inf)
        assert same(trained(bare), noiseless)
        assert noiseless.claim is None
        assert "No differential privacy" in noiseless.notes["guarantee"]
    noisy = trained(RowSpec("selective-fd", "hard", unit="label"), 1.0)
    assert not same(trained(HARD), noisy)
    assert same(trained(RowSpec("fedavg")), trained(RowSpec("fedavg", unit="record"), math.inf))


def test_a_row_whose_every_round_was_aborted_is_still_a_row(warm, shared):
    for spec in (HARD, RowSpec("fedavg")):
        made = runs.run(planned(spec, drop=0.999999), None, warm, attacked=True)
        assert made.federation.transcript.aborted_rounds == 1
        assert diagnose(made.federation, made.data) == {}
        found = attacks_on(made, shared)
        assert str(found["label-distribution"]).startswith("not applicable: missing ")


def test_masks_commit_to_every_pixel_of_the_proxies(monkeypatch):
    given: list[bytes] = []
    monkeypatch.setattr(build, "MaskedSum", lambda _, proxies, **__: given.append(proxies))
    data = runs.data_of(planned())
    changed = data.proxies.pixels.clone()
    changed[-1, 0, 14, 14] = 1 - changed[-1, 0, 14, 14]
    altered = replace(data, proxies=Images(changed, data.proxies.labels))
    for held in (data, data, altered):
        runs.sum_of(planned(MASKED), held)
    assert given[0] == given[1] == proxy_commitment(proxy_pixels(data.proxies.pixels))
    assert given[0] != given[2]


# Attacks on rows.


def attacks_on(row: Trained, shared: dict[str, Any]) -> dict[str, AttackResult | str]:
    return attacked(replace(run_of(row), effort="quick", made=shared))


@pytest.fixture(scope="module")
def shared():
    name = "label-distribution"
    return {name: attacks.load(name).for_data(runs.data_of(planned()), 0, "quick")}


def test_an_attack_that_fails_its_own_check_costs_its_own_figure_alone(
    trained, shared, monkeypatch
):
    """Errors where a row is built and where it is prepared; a bug ends the run."""

    def fail(*_, **__):
        raise error

    for method in ("for_run", "for_data"):
        monkeypatch.setattr(Tracing, method, fail)
    run, part = run_of(trained(HARD)), Part("tracing", planned(), quick=True)
    for error in (LocalError("truth: it misses"), ConfigurationError("k", 1, "use 2")):
        for made in (None, prepared(None, part)):
            found = attacked(replace(run, made={"tracing": made, **shared}))
            assert found["tracing"] == f"not applicable: {error}"
            assert isinstance(found["label-distribution"], AttackResult)
    error = KeyError("bug")
    with pytest.raises(KeyError):
        attacked(replace(run, made={"tracing": None}))


RUN_ATTACKS = (*default_names(), "tracing")


def test_data_that_is_no_picture_has_attacks_that_need_none(tmp_path, monkeypatch):
    """Every attack answers on vectors of 20 features: with a figure, or why there is none."""
    (tmp_path / "vectors_of_20.py").write_text(VECTORS)
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        federation="vectors_of_20:make",
        rounds=2,
        rows="fedavg",
        attacks=",".join(RUN_ATTACKS),
        quick=True,
    )
    [cell] = cells(settings)
    found = measured(None, cell, {part: prepared(None, part) for part in needs(cell)}).attacks
    figures = {name for name, one in found.items() if isinstance(one, AttackResult)}
    of_updates = {"update-inversion", "update-inversion-8", "update-of-run"}
    assert figures == {"label-distribution", "server-members", "label-only", *of_updates}
    pictures = {*RUN_ATTACKS} - figures - {"tracing"}
    assert all(str(found[name]).startswith("not applicable: ") for name in pictures)


VECTORS = """
import torch
import secure_fd as fd

def part(n, seed):
    random = torch.Generator().manual_seed(seed)
    return fd.Images(torch.rand(n, 20, 1, 1, generator=random), torch.arange(n) % 3)

def make(seed):
    clients = fd.clients_of([part(60, k) for k in range(3)], n_classes=3, seed=seed)
    return fd.FederatedData("vectors", 3, tuple(clients), part(60, 7), part(30, 8), part(30, 9))
"""


def test_the_truth_that_scores_attacks_is_in_no_repr_and_in_no_estimate(trained, monkeypatch):
    seen = []
    estimate = LabelDistribution.estimate

    def recording(self: LabelDistribution, view: View, seed: int) -> Distributions:
        seen.append(self.truth)
        return estimate(self, view, seed)

    monkeypatch.setattr(LabelDistribution, "estimate", recording)
    run = replace(run_of(trained(HARD)), made={"label-distribution": 0.0})
    made = LabelDistribution.for_run(run)
    assert repr(made.truth) not in repr(made)
    assert run.attack("label-distribution").figure < 0.5
    assert seen == [None]


def test_an_attack_of_ones_own_is_one_file(trained):
    """examples/own_attack.py, by its name: it reads in clear, and guesses under masks."""
    name = "examples.own_attack:LargestClass"
    clear, masked = (attacks_on(trained(spec), {name: None})[name] for spec in (HARD, MASKED))
    assert clear.figure > masked.figure == masked.control


# Noise.


NOISY = (
    RowSpec("selective-fd", "hard", "masks", "label"),
    RowSpec("heads", "hard", "masks", "record"),
    RowSpec("fedavg", unit="record"),
)


@pytest.mark.parametrize("spec", NOISY, ids=lambda spec: spec.key)
def test_a_noisy_row_of_a_public_image_set_repeats_and_claims_what_fresh_noise_does(
    trained, warm, spec, monkeypatch
):
    seeded = trained(spec, 4.0)
    again = runs.run(planned(spec, 4.0), None, warm)
    assert same(seeded, again)
    assert seeded.seeded
    assert SEEDED_NOISE in seeded.notes["guarantee"]
    monkeypatch.setattr(runs, "seeds_noise", lambda _: False)
    fresh = runs.run(planned(spec, 4.0), None, warm)
    assert not same(seeded, fresh)
    assert seeded.claim == fresh.claim is not None
    assert not fresh.seeded


def test_noise_is_fresh_on_own_data_and_in_a_unit_by_itself():
    """An attacker who has a unit answer anew must not meet the same noise."""
    config = planned(NOISY[0], 4.0)
    assert runs.parts_of(config, runs.data_of(config)).protection.random is os.urandom
    assert runs.noise_of(replace(config, image_set="own-1x28x28-10-200")) is os.urandom
    assert runs.noise_of(config) is not os.urandom


def test_another_reason_against_an_epsilon_outlives_the_seed():
    config = planned(NOISY[1], 4.0)
    made = runs.prepared(config)
    run = runs.federation(config, made)
    run.protection.unmet.append("a client gave its noise away")
    run.fit(1)
    assert not runs.claimed(run, made.data).holds
