"""The model of a site: a file with all that it answers with, and a program for plain PyTorch."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from secure_fd.data.patches import PatchMap
from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically
from secure_fd.methods.pooled_heads import PREDICTORS, HeadClient, PublicHead
from secure_fd.protocol.messages import ClientRole
from secure_fd.selection.density_ratio import Whitening
from secure_fd.simulation import saved
from secure_fd.simulation.saved import damaged
from secure_fd.training import models

SCHEMA: Final = "secure-fd/site-network/1"
PROGRAM: Final = "model.pt2"
CARD: Final = "card.json"
CARD_SCHEMA: Final = "secure-fd/model/1"
_PRETRAINED: Final = "-pretrained"
_OF_MAP: Final = {PatchMap: ("mean", "filters", "centre", "axes"), Whitening: ("mean", "basis")}
"""Tensors or arrays of a public map."""
_OF_ROWS: Final = [1, 1]
"""Height and width of a record that is a row of a table."""
_MOST_PIXELS: Final = 1 << 14
"""Pixels of an image's side, at most."""


class Head(nn.Module):
    """A linear head on public features: images [N, channels, H, W] -> probabilities [N, C].

    Rows of a table are [N, D, 1, 1].
    """

    def __init__(self, head: PublicHead) -> None:
        super().__init__()
        if type(head.map) not in _OF_MAP:
            raise damaged("its head has no public map")
        self._map, self._names = head.map, _OF_MAP[type(head.map)]
        parts = {name: torch.as_tensor(getattr(head.map, name)) for name in self._names} | {
            "frequencies": torch.from_numpy(head.fourier.frequencies).float(),
            "coefficients": torch.from_numpy(head.coefficients).float(),
        }
        for name, tensor in parts.items():
            # A view of a larger one, or one by columns, is not exported well.
            self.register_buffer(name, tensor.clone(memory_format=torch.contiguous_format))

    def forward(self, pixels: Tensor) -> Tensor:
        """Features of the images times the head; negative scores count as 0."""
        angles = self._whitened(pixels).float() @ self.get_buffer("frequencies")
        features = torch.cat([angles.cos(), angles.sin()], dim=1) / angles.shape[1] ** 0.5
        scores = (features @ self.get_buffer("coefficients")).clamp_min(0).double()
        total = scores.sum(dim=1, keepdim=True)
        even = torch.full_like(scores, 1 / scores.shape[1])
        return torch.where(total > 0, scores / total.clamp_min(1e-300), even).float()

    def _whitened(self, pixels: Tensor) -> Tensor:
        tensors: dict[str, Any] = {name: self.get_buffer(name) for name in self._names}
        if isinstance(self._map, Whitening):
            flat = pixels.flatten(1).double()
            return torch.matmul(flat - tensors["mean"], tensors["basis"])
        return replace(self._map, **tensors).whitened(pixels)


class SiteModel(nn.Module):
    """Trained network of a site: images [N, channels, H, W] in [0, 1] -> probabilities [N, C].

    Images of any size are scaled to `shape`, as the site's records were, and the network scales
    their pixels. classes: names, in the order of labels. shape: channels, height and width of an
    image. answers: "network"; of pooled heads and AFL also "head", the linear head on public
    features, or "mean", the mean of both.
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
        self.architecture = architecture
        if answers not in PREDICTORS or (head is None) is not (answers == "network"):
            raise damaged("it does not name the predictor that the site answers with")
        if not isinstance(head, PublicHead | None):
            raise damaged("it holds no head")
        # The weights are in the file: nothing is to be downloaded for them.
        self.network = models.build(architecture.removesuffix(_PRETRAINED), len(classes), seed=0)
        self.head = None if head is None else Head(head)
        self.classes, self.shape, self.answers = tuple(classes), tuple(shape), answers

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities [N, C] of each class."""
        size = list(self.shape[1:])
        if size != _OF_ROWS:
            scaled = functional.interpolate(images, size, mode="bicubic", antialias=True)
            images = scaled.clamp(0, 1)
        if self.head is None:
            return torch.softmax(self.network(images), dim=1)
        by_head: Tensor = self.head(images)
        if self.answers == "head":
            return by_head
        return (by_head + torch.softmax(self.network(images), dim=1)) / 2


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


def load(path: Path) -> SiteModel:
    """Read what `write` wrote, in evaluation mode; nothing in the file is run.

    Raises ConfigurationError for a file that is missing or damaged.
    """
    found = saved.read(path, SCHEMA)
    try:
        parts = (found[name] for name in ("architecture", "classes", "shape", "answers", "head"))
        made = SiteModel(*parts).eval().requires_grad_(False)
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


def export(made: SiteModel, folder: Path, about: dict[str, object]) -> None:
    """Write the program model.pt2 and its card into a folder, for their owner alone.

    The program takes float32 images [N, channels, H, W] in [0, 1] of any size, or encoded rows
    [N, D, 1, 1], and gives probabilities [N, C]; `torch.export.load(path).module()` loads it where
    this package is not installed. about: further lines of the card.
    """
    from torch.export import Dim  # slow to import

    folder.mkdir(mode=0o700, exist_ok=True)
    channels, height, width = made.shape
    sizes, example = {0: Dim("records")}, torch.zeros(2, channels, height, width)
    if [height, width] != _OF_ROWS:
        sizes |= {2: Dim("height", max=_MOST_PIXELS), 3: Dim("width", max=_MOST_PIXELS)}
        example = torch.zeros(2, channels, height + 1, width + 2)
    program = torch.export.export(made, (example,), dynamic_shapes=(sizes,))
    write_atomically(folder / PROGRAM, lambda file: torch.export.save(program, file), mode=0o600)
    card = {
        "schema": CARD_SCHEMA,
        "classes": list(made.classes),
        "channels": channels,
        "size": height,
        "answers": made.answers,
        **about,
    }
    text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / CARD, lambda file: file.write(text.encode()), mode=0o600)
