"""Figures of attacks that rebuild images: PSNR as papers print it, its excess, and the images."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attacks.base import ImageArray
from attacks.statistics import OverSeeds
from experiments.plots import INK, MUTED, SMALL, beside, headed, margins, new_figure, wrapped
from experiments.results import EXCESS
from experiments.suite.drawing import LEFT, Drawing, draw_interval, name_rows, row_style
from experiments.suite.pictures import strips
from experiments.suite.results import SceneResults
from experiments.suite.text import precise, reading

LITERAL, DELTA = "A", "delta"
"""Further figures of an attack in dB: best PSNR to a private image, and its excess Δ.

Those of a control carry its name in front: "black: A".
"""
_COLUMNS = 10
_GAP = 2
"""White pixels between images."""


@dataclass(frozen=True, slots=True)
class _Line:
    label: str
    literal: OverSeeds
    excess: OverSeeds
    colour: str


def literal_and_excess(scene: SceneResults, attack: str) -> Iterator[Drawing]:
    """PSNR as papers report it beside its excess over held-out images; controls below."""
    lines = [*_rows(scene, attack), *_controls(scene, attack)]
    if not lines:
        return
    figure = new_figure(8.4, 1.5 + 0.32 * len(lines))
    left, bottom, width, height = margins(figure, left=LEFT, right=0.25)
    places = [(left + i * 0.53 * width, bottom, 0.47 * width, height) for i in range(2)]
    literal, excess = map(figure.add_axes, places)
    for y, line in enumerate(lines):
        literal.barh(y, line.literal.value, height=0.6, color=line.colour, alpha=0.6, linewidth=0)
        draw_interval(literal, y, line.literal.value, line.literal.interval, INK)
        draw_interval(excess, y, line.excess.value, line.excess.interval, line.colour)
        excess.plot(line.excess.value, y, "o", color=line.colour, markersize=5.5)
    for axes in (literal, excess):
        name_rows(axes, [line.label for line in lines])
    excess.axvline(0, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    excess.set_yticklabels([])
    literal.set_xlabel("best PSNR to a private image (A), dB", fontsize=SMALL, color=INK)
    excess.set_xlabel("excess over held-out images (Δ), dB", fontsize=SMALL, color=INK)
    heading = "PSNR as papers print it, and its excess over held-out images"
    headed(figure, f"{scene.attacks[attack]}: A and Δ")
    alt = "; ".join(
        f"{line.label}: A {precise(line.literal.value)} dB, Δ {precise(line.excess.value)}"
        for line in lines
    )
    caption = (
        "Left, the literal figure: it rewards blur, so images made without access score high. "
        "Right, what remains against as many images that nobody trained on; grey lines are "
        "controls without access."
    )
    yield Drawing(f"psnr-{attack}", attack, heading, caption, alt, figure)


def _rows(scene: SceneResults, attack: str) -> Iterator[_Line]:
    for row, found in scene.measured(attack).items():
        is_excess = found.first.figure_name.startswith(EXCESS)
        literal = found.detail(LITERAL)
        excess = OverSeeds(found.figure, found.interval) if is_excess else found.detail(DELTA)
        if literal is not None and excess is not None:
            yield _Line(scene.rows[row], literal, excess, row_style(scene, row)[0])


def _controls(scene: SceneResults, attack: str) -> Iterator[_Line]:
    """Controls whose figures are the same in every row; other names belong to one row's access."""
    measured = list(scene.measured(attack).values())
    for name in dict.fromkeys(name for found in measured for name in found.details):
        control, _, what = name.rpartition(": ")
        if not control or what != LITERAL:
            continue
        pairs = [(f.detail(name), f.detail(f"{control}: {DELTA}")) for f in measured]
        literal, excess = pairs[0]
        if literal is not None and excess is not None and all(p == pairs[0] for p in pairs):
            yield _Line(f"control: {control}", literal, excess, MUTED)


def rebuilt(
    scene: SceneResults, attack: str, by_row: Mapping[str, Mapping[str, ImageArray]]
) -> Iterator[Drawing]:
    """Lines of images: originals, what each row gave away, and controls."""
    lines = strips(scene.rows, by_row) if by_row else []
    if not lines:
        return
    made = [_strip(images) for _, images in lines]
    width = max(strip.shape[1] for strip in made)
    height = made[0].shape[0] + _GAP
    wide = [
        np.pad(strip, ((0, _GAP), (0, width - strip.shape[1])), constant_values=np.nan)
        for strip in made
    ]
    scale = 0.5 / height
    figure = new_figure(LEFT + 2.0 + scale * width, 1.0 + scale * height * len(made))
    axes = figure.add_axes(margins(figure, left=LEFT, right=2.0))
    axes.imshow(np.concatenate(wide), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    centres = height * np.arange(len(made)) + (height - _GAP) / 2
    axes.set_yticks(centres, [wrapped(label) for label, _ in lines])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    axes.spines[:].set_visible(False)
    figures = {scene.rows[row]: reading(f) for row, f in scene.measured(attack).items()}
    for centre, (label, _) in zip(centres, lines, strict=True):
        beside(axes, centre, figures.get(label, ""))
    headed(figure, f"{scene.attacks[attack]}: images")
    caption = (
        "One seed. Right: the row's figure over all seeds. A plausible image is no leak where the "
        "controls look the same."
    )
    alt = f"Lines of images: {'; '.join(label for label, _ in lines)}."
    yield Drawing(f"images-{attack}", attack, "What was rebuilt", caption, alt, figure)


def _strip(images: ImageArray) -> NDArray[np.floating]:
    """At most _COLUMNS of [n, H, W], evenly chosen, side by side; NaN draws as paper."""
    chosen = images[:: max(1, len(images) // _COLUMNS)][:_COLUMNS]
    padded = np.pad(chosen, ((0, 0), (0, 0), (0, _GAP)), constant_values=np.nan)
    return np.concatenate(list(padded), axis=1)
