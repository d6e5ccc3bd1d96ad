"""The study of what hard votes say: weights of each encoding, cells, and a small game."""

from dataclasses import replace

import numpy as np
import pytest

from experiments import vote_encodings
from experiments.measures import ACCURACY
from experiments.scenes import Job, membership
from experiments.study import SCHEMA, Result, Results
from experiments.tables import Table
from experiments.vote_encodings import AUC, ENCODINGS, Cell, Settings, cells, method, tables
from secure_fd.errors import ConfigurationError
from secure_fd.selection.client import Selection

EVIDENCE = np.array([[0.81, 0.04], [0.09, 0.25]])
PREDICTIONS = np.array([[0.25, 0.75], [0.25, 0.75]])


def weights(encoding: str) -> tuple[list[float], list[int]]:
    """Of two proxies, and the classes named: a client of both classes that is trusted in full."""
    verdict = Selection((0, 1), EVIDENCE, np.zeros(2), EVIDENCE)
    found = method(encoding).opinion_of(verdict, 2)
    said = found.contribution(np.arange(2), PREDICTIONS, "hard", trust=1.0)
    return np.round(said.weights, 3).tolist(), said.predictions.argmax(axis=1).tolist()


def test_a_vote_weighs_what_its_encoding_says() -> None:
    both = np.round(np.sqrt([0.81 * 0.25, 0.25 * 0.75]), 3).tolist()
    assert weights("2 bits") == (both, [0, 1])
    assert weights("selector alone, 2 bits") == ([0.9, 0.5], [0, 1])
    assert weights("class alone, everywhere") == ([1.0, 1.0], [0, 1])


def test_every_encoding_is_run_in_every_game() -> None:
    made = cells(Settings())
    assert len({cell.label for cell in made}) == len(made) == 3 * 3 * len(ENCODINGS)
    assert {cell.encoding for cell in made} == set(ENCODINGS)
    one = cells(Settings(encodings="answer or abstain, 1 bit", games="accuracy", seeds="4"))
    assert one == (Cell("accuracy", "answer or abstain, 1 bit", "clear", 4),)
    with pytest.raises(ConfigurationError, match="encodings"):
        cells(Settings(encodings="5 bits"))
    assert vote_encodings.STUDY.image_set(made[0]) is None


def test_a_small_game_is_played_and_shown() -> None:
    """One encoding, clear and masked; of so few runs the figure itself is noise."""
    scale = replace(membership.QUICK, runs=6, rounds=1)
    made = membership.draw(Job(), scale, 0)
    found = []
    for secure in ("clear", "masks"):
        cell = Cell("membership", "2 bits", secure, 0)
        figures = vote_encodings.tell_members(cell, made, lambda _: None)
        assert 0 <= figures[f"{AUC}, low"] <= figures[AUC] <= figures[f"{AUC}, high"] <= 1
        found.append(Result(cell, figures, 1.0))
    found.append(Result(Cell("accuracy", "2 bits", "clear", 0), {ACCURACY: 0.97}, 1.0))
    results = Results(SCHEMA, "x", "2026-01-01T00:00:00+00:00", cells=tuple(found))
    shown = tables(results)[0]
    assert isinstance(shown, Table)
    clear, masked = (f"{result.figures[AUC]:.2f}" for result in found[:2])
    assert shown.rows == [("2 bits", clear, masked, "97.0")]
