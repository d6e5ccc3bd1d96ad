"""Image files through Pillow, and the one place that imports torchvision.

A torchvision built for CUDA fails to import beside a CPU-only torch because two of its operators
are not registered. Declaring their schemas first lets datasets, transforms and models work; a
matching pair of builds never reaches that branch.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from secure_fd.errors import ConfigurationError
from secure_fd.optional import extra

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a Library that is collected takes its schemas along


def torchvision() -> ModuleType:
    """Import torchvision.

    Raises MissingCapabilityError where torchvision is not installed.
    """
    try:
        with extra():
            return importlib.import_module("torchvision")
    except RuntimeError as error:  # "operator torchvision::nms does not exist"
        if "torchvision::" not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
    return importlib.import_module("torchvision")


@contextmanager
def picture(path: Path, field: str) -> Iterator[Any]:
    """Open an image file, which Pillow decodes where its pixels are read.

    Raises ConfigurationError about `field` for a file that is missing or damaged, or no image.
    """
    with extra():
        from PIL import Image  # slow to import

    try:
        with Image.open(path) as opened:
            yield opened
    except FileNotFoundError:
        raise ConfigurationError(field, str(path), "this file must exist") from None
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        allowed = f"an image has at most {limit:,} pixels: scale it down"
        raise ConfigurationError(field, str(path), allowed) from error
    except (OSError, SyntaxError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        allowed = f"it is no image, or a damaged one ({why}): fetch it anew"
        raise ConfigurationError(field, str(path), allowed) from error
