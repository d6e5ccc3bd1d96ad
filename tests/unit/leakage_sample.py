"""Invented findings of attacks: three rows, one to three seeds."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from attacks.core.base import AttackResult, Labelled, Scores
from attacks.core.scoring import score_scores
from attacks.membership.label_only import LabelOnlyGap
from experiments.compare.leakage import Leakage, stored

ROWS = {"fedavg": "FedAvg", "hard": "Selective-FD hard", "masked": "Selective-FD hard + masks"}
MISSING = "not applicable: missing clients' uploads in clear"
FEW = "TPR at 0.1 % FPR: not resolvable with 200 non-members"


@cache
def membership(shift: float, seed: int, name: str = "label-only", n: int = 200) -> AttackResult:
    """An attack whose members score higher by `shift` deviations; its control is at chance."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(shift, 1, n), rng.normal(0, 1, n)])
    unnamed = LabelOnlyGap(Labelled(torch.zeros(1, 1), torch.zeros(1)))
    found = score_scores(unnamed, Scores(values), np.arange(2 * n) < n, seed)
    return replace(
        found,
        name=name,
        title=f"Membership by {name}",
        control=0.5 + rng.normal(0, 0.004),
        control_name="a model that saw no member",
        queries=1000 + seed,
        caveats=("thresholds come from shadows", FEW),
        details={"blocks": shift / 3, **found.details},
    )


def inversion(delta: float, seed: int, target: str = "student") -> AttackResult:
    """An attack in dB, with pictures and two controls."""
    rng = np.random.default_rng(seed)
    found = delta + rng.normal(0, 0.05)
    images = {
        name: rng.random((12, 14, 14), dtype=np.float32)
        for name in ("originals", "attack", "black", "public class mean")
    }
    return AttackResult(
        name="inversion",
        title=f"Model inversion ({target})",
        figure=found,
        figure_name="Δ PSNR",
        unit="dB",
        interval=(found - 0.2, found + 0.2),
        control=rng.normal(0, 0.05),
        control_name="Δ of the public-only target",
        caveats=("raw PSNR (A) rewards blur",),
        details={
            "A": 13.0 + delta,
            "delta_p_value": 0.01 if delta else 0.5,
            "black: A": 13.8,
            "black: delta": 0.0,
            "public class mean: A": 15.3,
            "public class mean: delta": -0.1,
        },
        images=images,
    )


def findings(seeds: tuple[int, ...]) -> dict[tuple[str, int], dict[str, AttackResult | str]]:
    """FedAvg leaks both ways; hard labels leak nothing; masks leave an attack inapplicable."""
    found: dict[tuple[str, int], dict[str, AttackResult | str]] = {}
    for seed in seeds:
        found["fedavg", seed] = {
            "label-only": membership(1.0, seed),
            "lira": membership(2.0, seed, "lira"),
            "inversion": inversion(2.0, seed, "global model"),
        }
        found["hard", seed] = {
            "label-only": membership(0.0, seed),
            "lira": membership(0.5, seed, "lira"),
            "inversion": inversion(0.0, seed),
        }
        found["masked", seed] = {
            "label-only": membership(0.0, seed + 1),
            "lira": MISSING,
            "inversion": MISSING,
        }
    return found


def leakage(seeds: tuple[int, ...]) -> Leakage:
    """The findings over seeds."""
    given = findings(seeds)
    return Leakage.of(
        ROWS, {row: [(seed, stored(given[row, seed])[0]) for seed in seeds] for row in ROWS}
    )
