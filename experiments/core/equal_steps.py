"""Equal terms: every network takes 200 steps of 128 images through the same views.

Where private records join a step on proxies, they are among its 128. Steps have Nesterov's
momentum, but for those that a client of one or two classes takes before the first round, and a rate
that falls to zero; FedED's network at the server keeps its rate and takes no views. Rate, rounds
and share of steps alone of every row stand in `chosen_settings.json`: of four settings a row, the
one with the best accuracy on pooled validation records of seed 0 at half of the steps, while
private records still joined a step beside its 128 proxies. A rate of .1 counts as .05, as one in
five networks never learnt at .1. Where the file has no settings of an image set under a split,
those of the CIFAR-10 features under that split are used. DaFKD has the rate and the rounds of its
recipe.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from experiments.core.grid import HOSPITALS, our_recipe
from experiments.core.run_config import RunConfig, unlabelled
from secure_fd.training.recipes import SGD, Schedule

STEPS = 200
"""Steps of every network, in all."""
_VIEWS: Mapping[str, str] = {"mnist": "turn", "mnist5k": "turn"}
"""Views of training images by image set; none for any other, as 200 steps are few."""
_BATCH = 128


class Setting(NamedTuple):
    """Chosen settings of a row. rounds: among which the steps are divided.

    warm_up: the share of the steps that a client takes alone before the first round.
    """

    rate: float
    rounds: int
    warm_up: float = 0.0


Fields = Mapping[str, Any]
"""What a row sets of a run."""
QUICK = Setting(0.02, 4)
"""Of every row, for a quick look."""
_QUICK_STEPS = 20


def _chosen() -> Mapping[str, Mapping[str, Setting]]:
    held = json.loads(Path(__file__).with_name("chosen_settings.json").read_text(encoding="utf-8"))
    return {
        place: {key: Setting(*values) for key, values in by_row.items()}
        for place, by_row in held.items()
    }


_CHOSEN = _chosen()


def setting(key: str, image_set: str, split: str) -> Setting | None:
    """The chosen setting of a row; None for a row that trains no network.

    >>> setting("fedavg", "mnist", "strong")
    Setting(rate=0.05, rounds=50, warm_up=0.0)
    """
    own = _CHOSEN.get(f"{image_set} {split}") or _CHOSEN[f"cifar10_features {split}"]
    return own.get(key)


def equal_cell(
    own: Fields, chosen: Setting | None, image_set: str, split: str, seed: int, *, quick: bool
) -> RunConfig:
    """Return one run. own: a row's method, and its schedule and rounds if they are not the usual.

    If clients hold all classes, their networks name the class of a vote of Selective-FD, as in its
    recipe.

    >>> equal_cell({"method": "fedavg"}, QUICK, "mnist", "strong", 0, quick=False).rounds
    4
    """
    fields, ours = dict(own), own["method"] == "selective-fd"
    if "schedule" not in fields and chosen is not None:
        steps = _QUICK_STEPS if quick else STEPS
        fields["schedule"] = _schedule(own, image_set, split, chosen, steps)
        fields.setdefault("rounds", chosen.rounds)
    return RunConfig(
        image_set=image_set,
        split=split,
        seed=seed,
        clients=4 if split == HOSPITALS else 10,
        class_by="network" if ours and split == "iid" else "both",
        every=fields["rounds"],
        **{"selector": "ratio" if ours else "", **fields},
    )


def _schedule(own: Fields, image_set: str, split: str, chosen: Setting, steps: int) -> Schedule:
    """As many steps for every row: alone, on private records in the rounds, or on proxies."""
    alone = round(chosen.warm_up * steps)
    sgd = SGD(chosen.rate, local_batch=_BATCH, distillation_batch=_BATCH, momentum=0.9)
    plan = Schedule(
        warmup_steps=alone,
        local_steps=0,
        proxy_steps=0,
        proxies_per_round=our_recipe(image_set, "strong").schedule.proxies_per_round,
        anneal_over=chosen.rounds,
        anneal_warmup=True,
        augment=_VIEWS.get(image_set, "none"),
        sgd=sgd,
    )
    if "rounds" in own:  # one lesson, after the last sum
        return replace(plan, proxy_steps=steps, anneal_over=1)
    each = (steps - alone) // chosen.rounds
    if unlabelled(own["method"]):
        return replace(plan, local_steps=each)
    own_batch = our_recipe(image_set, split).schedule.sgd.own_batch
    shared = replace(sgd, own_batch=own_batch, distillation_batch=_BATCH - own_batch)
    return replace(plan, proxy_steps=each, sgd=shared)
