"""The network of a site as a file that stands alone: weights, architecture, class names, head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from secure_fd.data.images import checked_pixels, in_range
from secure_fd.errors import ConfigurationError
from secure_fd.methods.pooled_heads import PREDICTORS, HeadClient, PublicHead
from secure_fd.protocol.messages import ClientRole
from secure_fd.simulation import saved
from secure_fd.simulation.saved import damaged
from secure_fd.training import models

SCHEMA: Final = "secure-fd/site-network/1"
_PRETRAINED: Final = "-pretrained"


class SiteNetwork(nn.Module):
    """What a site answers with: images [N, channels, H, W] in [0, 1] -> probabilities [N, C].

    The scaling of pixels is part of `network`, which gives logits [N, C]. classes: names, in the
    order of labels. shape: channels, height and width of an image. answers: "network"; of pooled
    heads and AFL also "head", the linear head on public features, or "mean", the mean of both.
    """

    def __init__(
        self,
        architecture: str,
        classes: Sequence[str],
        shape: Sequence[int],
        answers: str,
        head: PublicHead | None,
    ) -> None:
        super().__init__()
        if answers not in PREDICTORS or (head is None) is not (answers == "network"):
            raise damaged("it does not say what the site answers with")
        if not isinstance(head, PublicHead | None):
            raise damaged("it holds no head")
        # The weights are in the file: nothing is to be downloaded for them.
        self.network = models.build(architecture.removesuffix(_PRETRAINED), len(classes), seed=0)
        self.classes, self.shape = tuple(classes), tuple(shape)
        self.answers, self._head = answers, head

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities [N, C] of each class.

        Raises ConfigurationError for images of another shape, or with pixels outside of [0, 1].
        """
        pixels = checked_pixels("images", images)
        if tuple(pixels.shape[1:]) != self.shape:
            raise ConfigurationError("images", tuple(pixels.shape), f"use [N, *{list(self.shape)}]")
        if not in_range(pixels):
            raise ConfigurationError("images", "some pixels", "use numbers in [0, 1], and no NaN")
        if self._head is None:
            return torch.softmax(self.network(pixels), dim=1)
        by_head = torch.from_numpy(self._head.answers(pixels.detach())).to(pixels)
        if self.answers == "head":
            return by_head
        return (by_head + torch.softmax(self.network(pixels), dim=1)) / 2


def write(
    path: Path,
    role: ClientRole,
    architecture: str,
    classes: tuple[str, ...],
    shape: tuple[int, ...],
) -> None:
    """Replace the file as a whole, mode 0600, with what a client answers with now."""
    answers, head = role.exported() if isinstance(role, HeadClient) else ("network", None)
    content = {
        "architecture": architecture,
        "classes": list(classes),
        "shape": list(shape),
        "answers": answers,
        "network": role.learner.model.state_dict(),
        "head": head,
    }
    saved.write(path, content, SCHEMA)


def load_site_network(path: Path | str) -> SiteNetwork:
    """The network of a site, from the file network.pt in its home, in evaluation mode.

    It takes images [N, channels, H, W] in [0, 1] of `shape`, scales their pixels as the site did,
    and gives the probabilities [N, C] of `classes`; its `network` gives the logits. Nothing in
    the file is run. Raises ConfigurationError for a file that is missing or damaged.

    >>> load_site_network("nowhere.pt")
    Traceback (most recent call last):
    secure_fd.errors.ConfigurationError: path: 'nowhere.pt' is not allowed; there is no such file
    """
    found = saved.read(Path(path), SCHEMA)
    try:
        parts = (found[name] for name in ("architecture", "classes", "shape", "answers", "head"))
        made = SiteNetwork(*parts).eval()
        made.network.load_state_dict(found["network"])
        with torch.inference_mode():
            fits = tuple(made(torch.zeros(1, *made.shape)).shape) == (1, len(made.classes))
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if isinstance(error, ConfigurationError) and error.field == "path":
            raise
        raise damaged("it holds no network of a site") from error
    if not fits:
        raise damaged("its parts do not fit")
    return made
