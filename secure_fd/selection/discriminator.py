"""DaFKD's discriminator as a client selector: a network that tells records from public proxies.

f = p_k / (p_k + p) for the proxies' density p (Theorem 1 of DaFKD's supplement, with the generator
at the proxies), so that f / (1 - f) is the density ratio that other selectors estimate.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from secure_fd.adversarial import BETAS, AdversarialSettings, discriminator, judge_step
from secure_fd.data.federated import ClientData
from secure_fd.knowledge import FloatArray
from secure_fd.selection.client import Selection, otsu_thresholds


@dataclass(frozen=True, slots=True)
class DiscriminatorSelector:
    """One discriminator a client, for all of its classes together. seed: of start and batches.

    >>> DiscriminatorSelector(steps=100).settings.batch
    64
    """

    steps: int = 1000
    settings: AdversarialSettings = field(default_factory=AdversarialSettings)
    seed: int = 0

    def fit(self, client: ClientData, proxies: Tensor) -> "FittedDiscriminator":
        """Train it on the client's training records against the proxies."""
        random, chosen = torch.Generator().manual_seed(self.seed), self.settings
        judge = discriminator(tuple(proxies.shape[1:]), chosen, self.seed).to(proxies.device)
        optimiser = torch.optim.Adam(judge.parameters(), chosen.rate, BETAS)
        records = client.train.pixels.to(proxies.device)
        for _ in range(self.steps):
            drawn = [
                each[torch.randint(len(each), (chosen.batch,), generator=random).to(each.device)]
                for each in (records, proxies)
            ]
            judge_step(judge, optimiser, *drawn)
        threshold = float(otsu_thresholds(_logits(judge, proxies)[:, None])[0])
        return FittedDiscriminator(judge, client.classes, threshold)

    def select(self, client: ClientData, proxies: Tensor) -> Selection:
        """The verdict on the proxies that it was trained against."""
        return self.fit(client, proxies).judge(proxies)


@dataclass(frozen=True, slots=True, eq=False)
class FittedDiscriminator:
    """It cannot tell a client's classes apart: each of them is granted an equal part of f."""

    network: nn.Module = field(repr=False)
    classes: tuple[int, ...]
    threshold: float

    def judge(self, images: Tensor) -> Selection:
        """The verdict on any images; Otsu's threshold split the proxies' own logits."""
        ratios = np.repeat(_logits(self.network, images)[:, None], len(self.classes), axis=1)
        f = 1 / (1 + np.exp(-ratios))
        threshold = np.full(len(self.classes), self.threshold)
        return Selection(self.classes, ratios, threshold, f / len(self.classes))


@torch.no_grad()
def _logits(network: nn.Module, images: Tensor) -> FloatArray:
    found: Tensor = network(images)[:, 0]
    return np.asarray(found.double().cpu().numpy())
