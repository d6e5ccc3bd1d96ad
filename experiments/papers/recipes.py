"""How long and how clients train: the paper's steps for its baselines, ours for Selective-FD.

Baselines take plain SGD at .1, constant, on images as they are. The difference between rows is
therefore one of method and schedule together; an ablation gives Selective-FD the baselines'.

Ours was chosen on pooled validation records and proxy labels of seed 0: Nesterov momentum, a rate
that falls to zero, random views where they keep a label, private records in every distillation
batch, as many as the client's classes would have in it, and no warm-up: alone with one or two
classes, networks run so far towards them that some never come back.

Where clients hold all classes it is the other way round: networks that learnt alone first, and came
to rest, label the proxies better than the selector does, and better than any network that is still
being taught. So all proxies are answered once, in one round, and learnt until the rate is zero.
"""

from dataclasses import dataclass, replace

from secure_fd.data.partition import Split, parse_split
from secure_fd.recipes import IMAGE_SETS, SGD, Schedule, schedule


@dataclass(frozen=True, slots=True)
class Iid:
    """Where clients hold all classes: one round. warmup: steps before it; steps: in it."""

    steps: int
    views: str = "none"
    warmup: int = 1500


@dataclass(frozen=True, slots=True)
class Recipe:
    """Of one image set. rounds: of Selective-FD, and of baselines. views: see `augmentation`."""

    rounds: int
    baseline_rounds: int
    proxies_per_round: int
    views: str
    iid: Iid


_RECIPES = {
    "mnist": Recipe(50, 25, 1000, "shift", Iid(2000, "turn")),
    "fashion_mnist": Recipe(40, 25, 1000, "none", Iid(2000, "mirror")),
    "cifar10_features": Recipe(40, 40, 2000, "none", Iid(400)),
    "chest_xray": Recipe(25, 25, 750, "none", Iid(250)),
}
_SMALL = Recipe(30, 30, 128, "none", Iid(300, warmup=500))
_BATCH = 128
_MOST_OWN = 64
_SMOOTHING = 0.1
_MANY = 40


def rounds(image_set: str, split: str) -> int:
    """Rounds of Selective-FD on an image set and split."""
    return 1 if split == "iid" else _RECIPES.get(image_set, _SMALL).rounds


def baseline_rounds(image_set: str) -> int:
    """Rounds of the baselines, the same in every split."""
    return _RECIPES.get(image_set, _SMALL).baseline_rounds


def in_rounds(image_set: str, schedule: Schedule) -> tuple[Schedule, int]:
    """The steps of one long round divided over many, each of which asks about some proxies."""
    divided = replace(
        schedule,
        proxy_steps=max(1, schedule.proxy_steps // _MANY),
        proxies_per_round=_RECIPES.get(image_set, _SMALL).proxies_per_round,
        anneal_over=_MANY,
    )
    return divided, _MANY


def ours(image_set: str, split: str, count: int) -> Schedule:
    """Of Selective-FD, over so many rounds."""
    known = _RECIPES.get(image_set, _SMALL)
    chosen = parse_split(split)
    every = IMAGE_SETS[image_set].n_classes
    own = min(_MOST_OWN, round(_BATCH * _classes_held(chosen, every) / every))
    iid = known.iid if chosen.kind == "iid" else None
    return Schedule(
        warmup_steps=iid.warmup if iid else 0,
        local_steps=0,
        proxy_steps=iid.steps if iid else 10,
        proxies_per_round=IMAGE_SETS[image_set].proxies if iid else known.proxies_per_round,
        anneal_over=count,
        anneal_warmup=iid is not None,
        augment=iid.views if iid else known.views,
        sgd=SGD(
            0.05,
            distillation_batch=_BATCH,
            own_batch=own,
            momentum=0.9,
            smoothing=_SMOOTHING if iid else 0.0,
        ),
    )


def _classes_held(split: Split, n_classes: int) -> float:
    """How many classes a client holds, as if evenly; a Dirichlet split goes from one to all."""
    if split.kind == "dirichlet":
        return 1 + (n_classes - 1) * split.beta / (1 + split.beta)
    return {"strong": 1, "hospitals": 1, "weak": 2}.get(split.kind, n_classes)


def baselines(image_set: str, split: str) -> Schedule:
    """The paper's steps and rate: 200 of warm-up, then 1 local and 10 proxy steps a round (IID 5
    and 6). Batches of 128 and memory are those of Selective-FD here, and proxies a round those of
    its non-IID splits.
    """
    known = _RECIPES.get(image_set, _SMALL)
    steps = schedule(image_set, parse_split(split).kind)
    sgd = replace(steps.sgd, distillation_batch=_BATCH)
    return replace(steps, proxies_per_round=known.proxies_per_round, sgd=sgd)
