"""What the scripts of all studies share: parse, run what is missing, save, show."""

import os
import sys
from functools import partial

import tyro

from experiments.cli import command, exit_status
from experiments.papers import results
from experiments.papers.settings import Plan, Settings, plan
from experiments.papers.study import Study
from experiments.papers.tables import rendered
from experiments.results import write_atomically

_DPI = 180


def main(study: Study) -> int:
    """The command line of a study; returns the exit status."""
    about = f"{study.about} {Settings.__doc__}"
    settings = tyro.cli(Settings, prog=study.script, description=about)
    kept = "finished cells are kept; run the same again to go on"
    return exit_status(
        lambda: _run(plan(study, settings, os.environ.get("SECURE_FD_DATA"))), interrupted=kept
    )


def _run(checked: Plan) -> int:
    # Heavy imports come after the checks, so that --help and mistakes answer at once.
    from experiments.papers import driver

    study, out = checked.study, checked.out
    store = results.Store(out / "cells")
    print(f"{len(checked.cells)} cells, into {out}", file=sys.stderr)
    driver.run_missing(checked.cells, store, checked.data_dir, checked.settings.workers)
    found = [result for cell in checked.cells if (result := store.find(cell)) is not None]
    gathered = results.gathered(study.name, found, command(study.script, sys.argv[1:]))
    path = results.save(gathered, out)
    shown = rendered(study.shown(gathered))
    (out / f"{study.name}.txt").write_text(shown, encoding="utf-8")
    _draw(study, gathered, checked)
    print(shown)
    print(f"results: {path}")
    return 0


def _draw(study: Study, gathered: results.Results, checked: Plan) -> None:
    """The figure as PNG and SVG; what an earlier run drew goes where there is nothing to draw."""
    made = study.figure(gathered)
    for kind in ("png", "svg"):
        path = checked.out / f"{study.name}.{kind}"
        if made is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, partial(made.savefig, format=kind, dpi=_DPI))
