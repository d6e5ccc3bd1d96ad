"""What the command line of the comparison takes, checked before any work starts."""

import difflib
import math
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import tyro

from attacks.registry import COMPARED
from secure_fd.data.partition import Split, check_clients, parse_split
from secure_fd.errors import ConfigurationError
from secure_fd.privacy.plans import LEAST_CLIENTS
from secure_fd.recipes import ImageSet, Schedule, image_set, schedule

DATASETS = ("mnist5k", "digits", "mnist", "fashion_mnist")
"""Image sets of 28 x 28 grey pixels, which every row and attack of the comparison takes."""
_UNITS = ("label", "record", "client")
_QUICK_ROUNDS = 4
_QUICK_WARMUP = 25
FIRST_SEED = 10
"""Seeds below were looked at while defaults were chosen; results should not come from them."""
# Below, no noise suffices for DP-SGD's accountant; above, samplers are not exact enough for it, and
# it promises nothing.
LEAST_EPSILON, MOST_EPSILON = 0.01, 50.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Compare what collaborating costs and leaks, on real images, in one run.

    Rows: FedAvg, independent learning, FedMD, Selective-FD; with --secure-agg the last under
    masks (with --aggregation he also under homomorphic encryption); with --dp-eps under
    differential privacy as well, beside FedAvg with DP-SGD.
    """

    dataset: str = "mnist5k"
    """Image set: mnist5k and digits are bundled; mnist and fashion_mnist come from --data-dir."""
    data_dir: Annotated[
        Path | None, tyro.conf.arg(help_behavior_hint="(default: $SECURE_FD_DATA)")
    ] = None
    """Folder that holds mnist/ or fashion_mnist/ with IDX .gz files."""
    split: str = "strong"
    """Strong (one class a client), weak (two), iid, or dirichlet:BETA."""
    clients: int = 10
    """Number of clients."""
    rounds: int | None = None
    """Rounds of every method; by default what the image set needs."""
    proxies_per_round: int | None = None
    """Proxies that clients answer in a round; by default what the image set needs."""
    labels: Literal["soft", "hard", "both"] = "both"
    """What Selective-FD and FedMD share; with both, protected rows share hard labels."""
    selector: Literal["proxy-ratio", "kulsif"] = "proxy-ratio"
    """Client selector of Selective-FD: the density ratio to the proxies, or the paper's KuLSIF."""
    secure_agg: bool = False
    """Sum under pairwise masks, so that the server sees sums only."""
    aggregation: Literal["masks", "he"] = "masks"
    """With --secure-agg: masks alone, or beside them a row under homomorphic encryption."""
    drop: float = 0.0
    """Chance that a client drops out of a round, at any stage of it: a simulation of faults."""
    releases: int | None = None
    """How often a client answers one proxy in all; by default once in every round."""
    dp_eps: float | None = None
    """Epsilon of differential privacy, from 0.01 to 50; inf switches every noise off."""
    dp_delta: float = 1e-5
    """Delta of the record and client units, and of what the label unit composes to."""
    dp_unit: str = "label,record"
    """Units to show, with commas: label, record, client (which needs --secure-agg and a fleet)."""
    dp_small_fleet: bool = False
    """Client unit: go on below 300 clients, where its noise drowns the votes."""
    label_alphabet: Literal["full", "declared"] = "full"
    """Label unit: answer over all classes, or over those that a client declares in public."""
    rows: str = "all"
    """Rows to run: all, or their keys with commas (fedavg, selective-fd-hard-masks, ...)."""
    attacks: str = "all"
    """Attacks to run: all, none, or names with commas."""
    seeds: int = 1
    """Repetitions, with seeds from 10 on; attacks run on the first."""
    out: Path | None = None
    """Folder of the results; by default runs/DATASET-SPLIT-TIME."""
    workers: int | None = None
    """Processes that share the work; by default one a core."""
    quick: bool = False
    """A minute's look: few rounds, small attacks. Figures are not comparable with a full run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings that were found to be allowed, with everything that follows from them."""

    settings: Settings
    image_set: ImageSet
    split: Split
    schedule: Schedule
    rounds: int
    units: tuple[str, ...]
    attacks: tuple[str, ...]
    data_dir: Path | None
    out: Path

    @property
    def seeds(self) -> range:
        """The seeds of data and training, one a repetition."""
        return range(FIRST_SEED, FIRST_SEED + self.settings.seeds)

    @property
    def epsilon(self) -> float | None:
        """Epsilon where differential privacy is asked for and does anything."""
        wanted = self.settings.dp_eps
        return None if wanted is None or math.isinf(wanted) else wanted


def plan(settings: Settings, environment_dir: str | None) -> Plan:
    """Check every setting. Raises ConfigurationError, one sentence, at the first that fails."""
    known = _image_set(settings.dataset)
    split = parse_split(settings.split)
    check_clients(split, settings.clients, known.n_classes)
    if settings.secure_agg and settings.clients < 3:
        raise ConfigurationError(
            "clients", settings.clients, "--secure-agg needs 3 or more: a sum of two hides neither"
        )
    _check_numbers(settings, known)
    steps = schedule(settings.dataset, split.kind)
    if settings.proxies_per_round is not None:
        steps = replace(steps, proxies_per_round=settings.proxies_per_round)
    rounds = settings.rounds or known.rounds
    if settings.quick:
        steps = replace(steps, warmup_steps=_QUICK_WARMUP)
        rounds = settings.rounds or _QUICK_ROUNDS
    units = _listed("dp_unit", settings.dp_unit, _UNITS)
    _check_client_unit(settings, units)
    _check_releases(settings, known, rounds * steps.proxies_per_round)
    return Plan(
        settings=settings,
        image_set=known,
        split=split,
        schedule=steps,
        rounds=rounds,
        units=units,
        attacks=_attacks(settings.attacks),
        data_dir=data_folder(settings.data_dir, environment_dir),
        out=_out(settings),
    )


def _image_set(name: str) -> ImageSet:
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigurationError("dataset", name, f"use one of {', '.join(DATASETS)}{hint}")
    return image_set(name)


def _check_numbers(settings: Settings, known: ImageSet) -> None:
    for name in ("seeds", "rounds", "workers", "releases"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigurationError(name, value, "use 1 or more")
    if not 0 <= settings.drop < 1:
        raise ConfigurationError("drop", settings.drop, "use a number from 0 to less than 1")
    if settings.aggregation == "he" and not settings.secure_agg:
        raise ConfigurationError("aggregation", "he", "use it together with --secure-agg")
    asked = settings.proxies_per_round
    if asked is not None and not 1 <= asked <= known.proxies:
        raise ConfigurationError(
            "proxies_per_round",
            asked,
            f"{known.title} has {known.proxies:,} proxies: use 1 or more of them",
        )
    epsilon = settings.dp_eps
    if epsilon is not None and not (
        LEAST_EPSILON <= epsilon <= MOST_EPSILON or epsilon == math.inf
    ):
        allowed = f"use a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or inf"
        raise ConfigurationError("dp_eps", epsilon, allowed)
    if not 0 < settings.dp_delta < 1:
        raise ConfigurationError("dp_delta", settings.dp_delta, "use a number between 0 and 1")


def _check_releases(settings: Settings, known: ImageSet, answers: int) -> None:
    """Refuse a run whose ledgers would end it: `answers` are asked of every client in all."""
    if settings.releases is not None and settings.releases * known.proxies < answers:
        least = math.ceil(answers / known.proxies)
        raise ConfigurationError(
            "releases",
            settings.releases,
            f"{answers:,} answers about {known.proxies:,} proxies take {least} or more, "
            f"fewer rounds or fewer --proxies-per-round",
        )


def _check_client_unit(settings: Settings, units: tuple[str, ...]) -> None:
    if "client" not in units or settings.dp_eps is None:
        return
    if not settings.secure_agg:
        raise ConfigurationError("dp_unit", "client", "it hides in the sum: add --secure-agg")
    if settings.clients < LEAST_CLIENTS and not settings.dp_small_fleet:
        raise ConfigurationError(
            "clients",
            settings.clients,
            f"the client unit needs {LEAST_CLIENTS} or more for its noise to leave a signal; "
            f"add --dp-small-fleet to go on all the same",
        )


def _listed(field: str, text: str, allowed: tuple[str, ...], also: str = "") -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    for part in chosen:
        if part not in allowed:
            raise ConfigurationError(field, part, f"use {also}one or more of {', '.join(allowed)}")
    return tuple(dict.fromkeys(chosen))


def _attacks(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return COMPARED if text == "all" else ()
    return _listed("attacks", text, COMPARED, "all, none, or ")


def data_folder(asked: Path | None, environment_dir: str | None) -> Path | None:
    """The folder of the image sets, if any. ConfigurationError where it is not there."""
    chosen = asked or (Path(environment_dir) if environment_dir else None)
    if chosen is not None and not chosen.is_dir():
        raise ConfigurationError("data_dir", str(chosen), "it must be an existing folder")
    return chosen


def _out(settings: Settings) -> Path:
    """The folder of the results, which is made at the end; whether it can be is known now."""
    chosen = settings.out or _default_out(settings)
    nearest = next(
        path for path in (chosen, *chosen.absolute().parents) if os.access(path, os.F_OK)
    )
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise ConfigurationError("out", str(chosen), "it must be a folder, or one that can be made")
    return chosen


def _default_out(settings: Settings) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{settings.dataset}-{settings.split.replace(':', '')}-{moment}"
