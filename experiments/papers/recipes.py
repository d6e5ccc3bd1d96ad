"""The recipes of the papers' tables, by image set and split: ours, and the paper's for baselines.

Baselines take plain SGD at .1, constant, on images as they are. The difference between rows is
therefore one of method and schedule together; an ablation gives Selective-FD the baselines'.
"""

from dataclasses import replace

from secure_fd import recipes
from secure_fd.data.partition import parse_split
from secure_fd.recipes import IMAGE_SETS, Schedule, schedule

_BASELINE_ROUNDS = {"mnist": 25, "fashion_mnist": 25, "cifar10_features": 40, "chest_xray": 25}
_OTHER_ROUNDS = 30
_BATCH = 128
_MANY = 40


def rounds(image_set: str, split: str) -> int:
    """Rounds of Selective-FD on an image set and split."""
    return _ours(image_set, split, None).rounds


def ours(image_set: str, split: str, count: int) -> Schedule:
    """Of Selective-FD, over so many rounds."""
    return _ours(image_set, split, count).schedule


def baseline_rounds(image_set: str) -> int:
    """Rounds of the baselines, the same in every split."""
    return _BASELINE_ROUNDS.get(image_set, _OTHER_ROUNDS)


def in_rounds(image_set: str, schedule: Schedule) -> tuple[Schedule, int]:
    """The steps of one long round divided over many, each of which asks about some proxies."""
    divided = replace(
        schedule,
        proxy_steps=max(1, schedule.proxy_steps // _MANY),
        proxies_per_round=_proxies_per_round(image_set),
        anneal_over=_MANY,
    )
    return divided, _MANY


def baselines(image_set: str, split: str) -> Schedule:
    """The paper's steps and rate: 200 of warm-up, then 1 local and 10 proxy steps a round (IID 5
    and 6). Batches of 128 and memory are those of Selective-FD here, and proxies a round those of
    its non-IID splits.
    """
    steps = schedule(image_set, parse_split(split).kind)
    sgd = replace(steps.sgd, distillation_batch=_BATCH)
    return replace(steps, proxies_per_round=_proxies_per_round(image_set), sgd=sgd)


def _ours(image_set: str, split: str, count: int | None) -> recipes.Recipe:
    known = IMAGE_SETS[image_set]
    held = _classes_held(split, known.n_classes)
    return recipes.ours(known.n_classes, known.proxies, held, image_set=image_set, rounds=count)


def _proxies_per_round(image_set: str) -> int:
    """Where clients hold some classes each."""
    return _ours(image_set, "strong", None).schedule.proxies_per_round


def _classes_held(split: str, n_classes: int) -> float:
    """How many classes a client holds, as if evenly; a Dirichlet split goes from one to all."""
    chosen = parse_split(split)
    if chosen.kind == "dirichlet":
        return 1 + (n_classes - 1) * chosen.beta / (1 + chosen.beta)
    return {"strong": 1, "hospitals": 1, "weak": 2}.get(chosen.kind, n_classes)
