"""Reconstructions made with no access to the run: what an attack must beat before it leaks.

Each uses public proxies alone. Those that need their labels are left out where nobody labelled
them.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attacks.fit import Fit, fit
from attacks.gmi import InversionSettings, Reconstruction, invert
from attacks.prior import Prior
from attacks.seeds import substream
from attacks.view import Public

RANDOM_TARGET = "randomly initialised target"
PUBLIC_TARGET = "public-only target"
CENTROIDS = 8


def inversion_controls(
    public: Public,
    prior: Prior,
    classes: Tensor,
    *,
    settings: InversionSettings,
    training: Fit,
    seed: int,
) -> Mapping[str, Reconstruction]:
    """Every control by name, each with reconstructions of all classes [c]."""
    controls = _images_alone(public, prior, classes, settings, seed)
    fresh = public.architecture(substream(seed, "random target"))
    controls[RANDOM_TARGET] = invert(
        fresh, prior, classes, settings, substream(seed, RANDOM_TARGET)
    )
    if public.labels is not None:
        taught = fit(
            public.architecture,
            public.proxies,
            public.labels,
            training,
            substream(seed, "public target"),
        )
        controls[PUBLIC_TARGET] = invert(
            taught, prior, classes, settings, substream(seed, PUBLIC_TARGET)
        )
    return controls


def _images_alone(
    public: Public, prior: Prior, classes: Tensor, settings: InversionSettings, seed: int
) -> dict[str, Reconstruction]:
    """Controls that consult no network but the prior."""
    proxies = public.proxies
    samples = prior.sample(len(classes) * settings.per_class, substream(seed, "prior samples"))
    controls = {
        "black": _same_for_all(torch.zeros_like(proxies[:1]), classes),
        "public mean": _same_for_all(proxies.mean(dim=0, keepdim=True), classes),
        "prior without target": Reconstruction(
            samples, classes.repeat_interleave(settings.per_class)
        ),
    }
    if public.labels is None:
        controls["public centroids"] = _same_for_all(_centroids(proxies, seed), classes)
        return controls
    controls["public class mean"] = _by_class(public, classes, _mean)
    controls["public class centroids"] = _by_class(
        public, classes, lambda images: _centroids(images, seed)
    )
    return controls


def _by_class(
    public: Public, classes: Tensor, summary: Callable[[Tensor], Tensor]
) -> Reconstruction:
    """A summary of each class's public images; of all of them for a class that has none."""
    labels = public.require_labels()
    parts = []
    for c in classes.tolist():
        found = public.proxies[labels == c]
        parts.append(summary(found if len(found) else public.proxies))
    sizes = torch.tensor([len(part) for part in parts])
    return Reconstruction(torch.cat(parts), classes.repeat_interleave(sizes))


def _same_for_all(images: Tensor, classes: Tensor) -> Reconstruction:
    return Reconstruction(
        images.repeat(len(classes), 1, 1, 1), classes.repeat_interleave(len(images))
    )


def _mean(images: Tensor) -> Tensor:
    return images.mean(dim=0, keepdim=True)


def _centroids(images: Tensor, seed: int) -> Tensor:
    """[k, 1, H, W] centres of k-means, k at most CENTROIDS and at most the images."""
    k = min(CENTROIDS, len(torch.unique(images.flatten(1), dim=0)))
    from sklearn.cluster import KMeans  # slow to import, and only controls need it

    means = KMeans(k, n_init=1, random_state=substream(seed, "centroids"))
    centers = means.fit(images.flatten(1).numpy()).cluster_centers_
    return torch.from_numpy(centers).float().clamp(0, 1).view(k, *images.shape[1:])
