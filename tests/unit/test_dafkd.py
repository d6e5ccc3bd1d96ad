"""DaFKD and its rival FedDF: one round is two sums, and sums alone are what a server needs."""

import math

import numpy as np
import pytest
import torch

from secure_fd import models
from secure_fd.adversarial import AdversarialSettings, Adversary, Generator
from secure_fd.aggregation.base import PlainSum, SecureSum
from secure_fd.aggregation.masked import MaskedSum
from secure_fd.data.federated import FederatedData
from secure_fd.data.images import Images
from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.federation import Dropouts, Federation, participants_of
from secure_fd.methods.dafkd import DaFKD, feddf
from secure_fd.recipes import Schedule

SMALL = AdversarialSettings(latent=4, hidden=16, judge=16, sums=2, steps=2, batch=16)
QUICK = Schedule(warmup_steps=0, local_steps=2, proxy_steps=0)


class KnownSeed:
    """A sum whose joint seed is given, so that two runs draw the same x."""

    def __init__(self, sums: SecureSum) -> None:
        self._sums, self.seed = sums, bytes(32)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sums, name)


def federation(
    digits: FederatedData, method: DaFKD, sums: SecureSum, drop: float = 0.0
) -> Federation:
    networks = [models.build(models.SHARED, 10, 0) for _ in digits.clients]
    return Federation(
        participants_of(networks, digits.clients),
        None,
        method,
        aggregation=KnownSeed(sums),  # type: ignore[arg-type]
        schedule=QUICK,
        dropouts=Dropouts(drop, seed=3),
    )


@pytest.mark.parametrize("start", ["mean", "last"])
def test_masks_change_no_bit_of_the_ensemble_and_hide_every_upload(
    digits: FederatedData, start: str
) -> None:
    method = DaFKD(generated=32, steps=3, start=start, adversarial=SMALL)  # type: ignore[arg-type]
    clear, masked = (federation(digits, method, sums(4)) for sums in (PlainSum, MaskedSum))
    clear.fit(2)
    masked.fit(2)
    for ours, theirs in zip(clear.transcript.distillation, masked.transcript.distillation):  # noqa: B905 - equal by the next line
        assert np.array_equal(ours.total, theirs.total)
        assert np.array_equal(ours.ensemble.predictions, theirs.ensemble.predictions)
        assert ours.uploads is not None
        assert theirs.uploads is None
    assert len(clear.transcript.distillation) == len(masked.transcript.distillation) == 2
    assert len(clear.transcript.parameters) == 2
    assert masked.transcript.parameters[-1].uploads is None
    assert clear.global_parameters is not None
    assert np.array_equal(clear.global_parameters, masked.global_parameters)
    held = [models.flatten(model).numpy() for model in clear.models]
    assert all(np.array_equal(own, clear.global_parameters) for own in held)


def test_the_class_total_of_an_upload_is_the_clients_weight(digits: FederatedData) -> None:
    run = federation(digits, DaFKD(generated=32, steps=1, adversarial=SMALL), PlainSum(4))
    run.fit(1)
    seen = run.transcript.distillation[0]
    assert seen.uploads is not None
    shares = [units.reshape(32, 10).sum(axis=1) / seen.levels for units in seen.uploads.values()]
    assert all(0 < share.min() <= share.max() < 1 for share in shares)
    alpha = np.stack(shares) / np.sum(shares, axis=0)
    assert np.allclose(alpha.sum(axis=0), 1)
    even = federation(digits, feddf(generated=32, steps=1, adversarial=SMALL), PlainSum(4))
    even.fit(1)
    whole = even.transcript.distillation[0]
    assert (whole.total.reshape(32, 10).sum(axis=1) == 4 * whole.levels).all()


def test_absent_clients_take_over_what_they_missed(digits: FederatedData) -> None:
    method = DaFKD(generated=16, steps=1, adversarial=SMALL)
    run = federation(digits, method, PlainSum(4), drop=0.4)
    reports = run.fit(4)
    assert any(report.missing for report in reports)
    here = set(range(4)) - {k for k, _ in reports[-1].missing}
    assert run.global_parameters is not None
    for k in here:
        assert np.array_equal(models.flatten(run.models[k]).numpy(), run.global_parameters)


def test_what_is_no_model_is_refused(digits: FederatedData) -> None:
    run = federation(digits, DaFKD(generated=16, steps=1, adversarial=SMALL), PlainSum(4))
    half = run.clients[0].half
    for subject, sentence in (
        (b"short", "too short"),
        (bytes(8), "no global network"),
        (bytes(11), "neither a network nor"),
        (bytes(8) + b"n123", "are not"),
    ):
        with pytest.raises(PeerError, match=sentence):
            next(half.round(subject))
    size = sum(p.numel() for p in run.models[0].parameters())
    with pytest.raises(PeerError, match="not finite"):
        next(half.round(bytes(8) + b"n" + np.full(size, np.inf, "<f4").tobytes()))


@pytest.mark.parametrize(
    ("changed", "field"),
    [({"weight": "loud"}, "weight"), ({"start": "zero"}, "start"), ({"generated": 0}, "generated")],
)
def test_a_setting_is_refused_by_name(changed: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        DaFKD(**changed)  # type: ignore[arg-type]
    assert refused.value.field == field
    with pytest.raises(ConfigurationError, match="rate"):
        AdversarialSettings(rate=math.inf)
    with pytest.raises(ConfigurationError, match="latent"):
        AdversarialSettings(latent=0)


def test_a_discriminator_approaches_its_optimum() -> None:
    """Theorem 1 with the generator held at p: one of two clients on a line, 400 steps.

    Mean error over the mixture, seeds 0 to 9: .255 to .275 before training, .026 to .050 after.
    """
    random = torch.Generator().manual_seed(0)
    own, other = (0.07 * torch.randn(4000, 1, generator=random) + m for m in (0.4, 0.6))
    mixture = torch.cat([own, other])
    settings = AdversarialSettings(
        judge=64, batch=256, rate=1e-2, class_weight=0.0, spread=1.0, blur=0.0
    )
    records = Images(own[:, :, None, None], torch.zeros(4000, dtype=torch.int64))
    unused = Generator((1, 1, 1), 2, settings, seed=0)
    client = Adversary(unused, torch.nn.Identity(), records, settings, 0, torch.device("cpu"))
    near, far = (torch.exp(-(((mixture - m) / 0.07) ** 2) / 2) for m in (0.4, 0.6))
    optimum = (near / (near + (near + far) / 2))[:, 0]

    def error() -> float:
        return float((client.weigh(mixture) - optimum).abs().mean())

    def drawn(points: torch.Tensor) -> torch.Tensor:
        return points[torch.randint(len(points), (256,), generator=random)]

    before = error()
    for _ in range(400):
        client.judge_step(drawn(own), drawn(mixture))
    assert before > 0.2
    assert error() < 0.06
