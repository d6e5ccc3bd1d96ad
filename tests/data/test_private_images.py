"""No file of a comparison on the user's own images shows one of them, unless the user asks for it.

Every private image holds one planted pattern. All files, and all that is printed, are decoded:
arrays in npz files, numbers in JSON, PNG files, base64 in text. A plane shows a private image where
it matches the pattern at any place and size, whatever the brightness and contrast.
"""

import base64
import io
import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import tyro
from PIL import Image
from scipy.signal import fftconvolve

from attacks.core.base import AttackResult, Distributions
from attacks.core.run import Attack
from attacks.core.scoring import score_distributions
from attacks.core.view import Capability
from attacks.inversion import gmi
from attacks.inversion import prior as priors
from experiments.compare.comparison import measured, needs, prepared
from experiments.core import study
from experiments.privacy_compare import STUDY, Settings
from experiments.report.report import NOT_SHOWN
from experiments.report.verdict import SHOWN_PRIVATE

SIDE = 16
LIMIT, SLACK = 20.0, 4.0
"""dB: a picture above LIMIT counts as the private image, and scaling costs SLACK at most."""


class Shows(Attack):
    """An attack of the user's own whose result holds the private images themselves."""

    name, title = "shows", "Shows everything"
    needs = (frozenset({Capability.GLOBAL_PARAMETERS}),)
    figure_name, control_name = "classes named", "a guess"

    @classmethod
    def for_run(cls, run):
        return cls(truth=run)

    def estimate(self, view, seed):  # noqa: ARG002 - nothing is drawn
        guess = np.zeros(view.public.n_clients, dtype=np.int64)
        return Distributions(guess, guess)

    def score(self, estimate, seed):
        made = score_distributions(self, estimate, self.truth.histograms.argmax(axis=1), seed)
        clients = self.truth.data.clients
        shown = {f"client {k}": own.train.pixels[:2, 0].numpy() for k, own in enumerate(clients)}
        return replace(made, images=shown)


# A run in this process.


def pattern():
    """[SIDE, SIDE] in [0.1, 0.9]: smooth, so that it survives scaling, and like nothing else."""
    rng, made = np.random.default_rng(5), np.zeros((SIDE, SIDE))
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE
    for _ in range(12):
        (a, b), phase = rng.integers(0, 3, 2), rng.uniform(0, 2 * np.pi)
        made += rng.normal() * np.cos(2 * np.pi * (a * x + b * y) + phase)
    return np.asarray(0.5 + 0.4 * np.tanh(1.5 * made / made.std()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Private images of three clients, about 30 dB from the pattern; public ones without it."""
    root, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    private, public = root / "clinics", root / "public"
    for client in "abc":
        for kind in ("ill", "well"):
            folder = private / client / kind
            folder.mkdir(parents=True)
            for index in range(14):
                save(pattern() + rng.normal(0, 0.03, (SIDE, SIDE)), folder / f"{index}.png")
    for kind in ("ill", "well"):
        (public / kind).mkdir(parents=True)
        for index in range(16):
            save(rng.random((SIDE, SIDE)), public / kind / f"{index}.png")
    return private, public


def save(pixels, path):
    Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(path)


@pytest.fixture
def run(folders, tmp_path, monkeypatch, capsys):
    """The whole comparison without worker processes; what it prints goes to files too."""
    monkeypatch.setattr(priors, "QUICK_PRIOR", priors.PriorSettings(4, 2, steps=2, batch=4))
    monkeypatch.setattr(gmi, "QUICK", gmi.InversionSettings(steps=2, restarts=1, per_class=2))
    monkeypatch.setattr(study, "run_missing", in_this_process)

    def made(*more):
        private, public = folders
        out = tmp_path / "results"
        given = [
            *(f"--images={private}", f"--proxies={public}", f"--image-size={SIDE}", "--quick"),
            *("--rounds=1", "--secure-agg", "--dp-eps=4", "--rows=fedavg,heads-masks-dp-record"),
            f"--attacks=inversion,{__name__}:Shows",
            *(f"--out={out}", *more),
        ]
        assert study.run(STUDY, tyro.cli(Settings, args=given), given) == 0
        printed = capsys.readouterr()
        (out / "stdout").write_text(printed.out)
        (out / "stderr").write_text(printed.err)
        return out

    return made


def in_this_process(_, cells, store, data_dir, __, claim, executor):  # noqa: ARG001 - the call's
    claim()
    for cell in cells:
        parts = {part: prepared(data_dir, part) for part in needs(cell)}
        store.save(measured(data_dir, cell, parts))


# Every picture that a folder holds.


def planes_of(folder, counts):
    """Every array of two dimensions that the files hold, with where it is."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        counts["files"] += 1
        counts["bytes"] += len(content)
        for kind, plane in decoded(path.suffix, content):
            counts[kind] += 1
            yield f"{path.relative_to(folder)}: {kind}", plane


def decoded(suffix, content):
    if content.startswith(b"PK"):
        with np.load(io.BytesIO(content)) as kept:
            for name in kept:
                yield from ((f"npz {name}", plane) for plane in flat(kept[name]))
    elif content.startswith(b"\x89PNG"):
        yield "png", np.asarray(Image.open(io.BytesIO(content)).convert("L"), np.float64) / 255
    else:
        text = content.decode()
        for found in re.findall(r"base64,([A-Za-z0-9+/=]+)", text):
            yield from (("base64", p) for _, p in decoded("", base64.b64decode(found)))
        if suffix == ".json":
            yield from (("json", plane) for plane in nested(json.loads(text)))


def nested(value):
    """Lists of numbers as long as a picture, at any depth."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return
    try:
        yield from flat(np.asarray(value, np.float64))
    except (TypeError, ValueError):
        for item in value:
            yield from nested(item)


def flat(array):
    """[n, H, W] planes of an array; a vector of n squares as n squares."""
    found = np.asarray(array, np.float64)
    if found.ndim >= 2 and min(found.shape[-2:]) >= 8:
        yield from found.reshape(-1, *found.shape[-2:])
    elif found.size >= SIDE * SIDE and found.size % (SIDE * SIDE) == 0:
        yield from found.reshape(-1, SIDE, SIDE)


# Whether a plane shows the pattern.

_ENOUGH = np.sqrt(1 - 10 ** ((SLACK - LIMIT) / 10) / pattern().var())
"""Correlation with the pattern at these dB, at the best brightness and contrast."""


def shown(plane):
    """The largest correlation with the pattern, at any place, of widths from 8 pixels up.

    From 16 pixels up in a plane of more than 400, which is a drawing.
    """
    best, widths = 0.0, range(8, 14)
    shrunk = 2.0 if max(plane.shape) > 400 else 1.0
    while min(plane.shape) >= 8 * shrunk:
        part = scaled(plane, *(int(side / shrunk) for side in plane.shape))
        for width in widths:
            if width <= min(part.shape):
                best = max(best, correlation(part, scaled(pattern(), width, width)))
        shrunk, widths = 1.17 * shrunk, range(12, 14)
    return best


def scaled(plane, height, width):
    made = Image.fromarray(plane.astype(np.float32)).resize((width, height), Image.Resampling.BOX)
    return np.asarray(made, np.float64)


def correlation(plane, template):
    """The largest magnitude over all places; a window without contrast shows nothing."""
    count, ones = template.size, np.ones(template.shape)
    centred = (template - template.mean())[::-1, ::-1]
    sums, squares = (fftconvolve(p, ones, "valid") for p in (plane, plane**2))
    spread = squares - sums**2 / count
    seen = np.abs(fftconvolve(plane, centred, "valid"))[spread > 1e-4 * count]
    if not seen.size:
        return 0.0
    return float((seen / np.sqrt((centred**2).sum() * spread[spread > 1e-4 * count])).max())


def leaks(folder):
    """Count what was read, and return by place the planes that show the pattern."""
    counts, seen, found = Counter(), {}, {}
    for place, plane in planes_of(folder, counts):
        key = plane.tobytes()
        if key not in seen:
            seen[key] = shown(plane)
        if seen[key] >= _ENOUGH:
            found[place] = seen[key]
    return found, counts


def test_no_file_of_a_run_on_own_images_shows_one(run):
    out = run()
    found, counts = leaks(out)
    assert found == {}
    assert counts["png"] >= 1
    assert counts["base64"] >= 1
    assert not list(out.rglob("*.npz"))
    results = study.read_results(STUDY, out / "privacy_compare.json")
    figures = [f for cell in results.cells for f in cell.attacks.values()]
    assert sum(isinstance(f, AttackResult) for f in figures) == 2  # the attacks did run
    assert NOT_SHOWN in (out / "report.html").read_text()


def test_the_search_finds_private_images_where_the_user_asks_for_them(run):
    out = run("--show-private")
    found, _ = leaks(out)
    kinds = {place.partition(": ")[2] for place in found}
    assert {"png", "base64", "npz inversion/originals"} <= kinds
    assert any(name.startswith(f"npz {__name__}:Shows/") for name in kinds)
    for name in ("report.html", "privacy_compare.txt"):
        assert SHOWN_PRIVATE in " ".join((out / name).read_text().split())
