"""A row of the comparison in a small membership game, where what it tells of records can show.

Clients of one class hide members behind the class, and one run has no shadow. So every row is
played in eight small runs (`leakage_rows`), and the same runs are attacked by what the server reads
and by an outsider who asks the networks in the end. In place of the row's data stand scikit-learn's
digits; method, secure sum, unit and epsilon are the row's own. Rounds, steps, delta and the number
of class sums are the game's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from torch import nn

from attacks import PLAYED
from attacks.core.base import AttackResult, Labelled
from attacks.core.view import View
from attacks.membership.budgets import RUNS, ModelLiRA, TracedLiRA, server_sees
from attacks.membership.label_shadows import QUICK, ShadowedLabels
from attacks.membership.shadows import IndirectMembership, LiRA, UploadLiRA
from attacks.on_run import POSITIVE
from experiments.compare import leakage_rows as small
from experiments.compare.leakage import NOT_APPLICABLE, NOT_RUN, Attempt, thinned, tried
from experiments.compare.leakage_rows import Row
from experiments.core.rows import RowSpec, Terms
from experiments.core.runs import selective
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedmd import FedMD

Found = Mapping[str, AttackResult | str]
"""By name of `PLAYED`."""
SERVER, BY_PROBABILITIES, BY_LABELS = PLAYED
_QUICK_RUNS = 6
SET_UP: Final = (
    "a game of its own: {runs} runs of three clients with eleven records a class of "
    "scikit-learn's digits, the row's method in the game's rounds, {protection}"
)
UNPROTECTED: Final[Mapping[str, Row]] = {
    "independent": small.ALONE,
    "fedavg": small.ROWS["fedavg"],
    "votes": small.ROWS["selective-fd-soft"],
    "class sums": replace(small.ROWS["pooled-heads"], masks=True),
}
"""What everything is read of: the positive controls of rows that read as they do."""
_READ: Final[Mapping[str, str]] = {
    UploadLiRA.name: "fedavg",
    ModelLiRA.name: "fedavg",
    IndirectMembership.name: "votes",
    TracedLiRA.name: "class sums",
}
"""By attack, the unprotected row whose figure is its positive control."""


@dataclass(frozen=True, slots=True, eq=False)
class Baselines:
    """Rows that nothing protects, as they were played once for all. found: by key."""

    found: Mapping[str, Found] = field(repr=False)

    def of(self, row: Row) -> Found | None:
        """What was found of an equal row, whatever it is called."""
        same = (
            self.found[key]
            for key, known in UNPROTECTED.items()
            if replace(known, label="") == replace(row, label="")
        )
        return next(same, None)

    def positive(self, name: str, attack: str) -> dict[str, float]:
        """What the same attack reaches where nothing is protected: outside, of clients alone."""
        found = self.found[_READ[attack] if name == SERVER else "independent"][name]
        return {POSITIVE: found.figure} if isinstance(found, AttackResult) else {}


def played(
    terms: Terms,
    spec: RowSpec,
    seed: int,
    known: Baselines,
    names: Sequence[str],
    *,
    quick: bool,
) -> Found:
    """What is found of a row, by name of `PLAYED`; a sentence where there is no such game.

    known: of the same names.
    """
    try:
        row = row_of(terms, spec, seed)
    except MissingCapabilityError as missing:
        return dict.fromkeys(names, f"{NOT_APPLICABLE}{missing}")
    found = known.of(row) or play(row, seed, names, quick=quick)
    runs = _QUICK_RUNS if quick else RUNS
    set_up = SET_UP.format(runs=runs, protection=_protection(row))
    return {name: _told(found[name], name, known, set_up) for name in names}


_SUMS: Final = {
    "masks": "masked sums",
    "he": "sums under homomorphic encryption",
    "prio3": "sums of votes that prove their range (Prio3)",
}
_NOISE: Final[Mapping[object, str]] = {
    small.votes: "noise on labels",
    small.parameters: "DP-SGD",
    small.class_sums: "noise on one class sum",
}


def _protection(row: Row) -> str:
    """What the game protects clients by."""
    sums = _SUMS[row.hidden_by] if row.masks else "in clear"
    if row.epsilon is None:
        return f"{sums}, no noise"
    return f"{sums}, {_NOISE[row.make]} at ε = {row.epsilon:g} and δ = {small.DELTA:g}"


def _told(
    found: AttackResult | str, name: str, known: Baselines, set_up: str
) -> AttackResult | str:
    """With the set-up, the positive control, and a curve of few points."""
    if isinstance(found, str):
        return found
    made = replace(
        found,
        name=name,
        details={**found.details, **known.positive(name, found.name)},
        caveats=(*found.caveats, set_up),
    )
    return thinned(made)


def row_of(terms: Terms, spec: RowSpec, seed: int) -> Row:
    """The small row of a row of the comparison.

    Raises MissingCapabilityError for a method that no small row plays, for the client unit, which
    takes a fleet, and for the record unit over votes.
    """
    epsilon = terms.epsilon if spec.unit is not None else None
    protected: dict[str, Any] = {"masks": spec.secure is not None, "epsilon": epsilon}
    if spec.secure is not None:
        protected["hidden_by"] = spec.secure
    if spec.unit == "client":
        raise MissingCapabilityError("missing a small game of a fleet")
    if spec.kind == "independent":
        return small.ALONE
    if spec.kind == "fedavg":
        return replace(small.ROWS["fedavg"], **protected)
    if spec.kind == "heads":
        return replace(small.ROWS["pooled-heads"], **protected)
    if spec.unit == "record" and epsilon is not None:
        raise MissingCapabilityError("missing a small game of the record unit over votes")
    if spec.kind == "fedmd":
        return Row("", small.votes, FedMD(spec.labels), **protected)
    if spec.kind == "selective-fd":
        return Row("", small.votes, selective(terms.run(spec, seed)), **protected)
    raise MissingCapabilityError("missing a small game of this method")


_BY_LABELS: Final = partial(ShadowedLabels.prepare, settings=QUICK)


def play(row: Row, seed: int, names: Sequence[str], *, quick: bool) -> Found:
    """The figures of these names; in a quick look the server's alone."""
    game = small.game(seed, _QUICK_RUNS if quick else RUNS)
    networks: list[Sequence[nn.Module]] = []
    proxies = small.digits().proxies

    def seen(records: Sequence[Labelled], run_seed: int) -> View:
        run = row.make(row, records, run_seed)
        networks.append(run.models)
        return server_sees(run, proxies, small.CLASSES)

    absent = ""
    if quick:
        absent = f"{NOT_RUN}a quick look"
    elif row.make is small.class_sums:
        absent = f"{NOT_APPLICABLE}missing a network: what is deployed is the head of the sums"
    found: dict[str, AttackResult | str] = {n: absent for n in names if absent and n != SERVER}
    asked = [name for name in names if name not in found]
    if not asked:
        return found
    views = game.views(seen)
    attempts: dict[str, Attempt] = {
        SERVER: lambda: game.read(views),
        BY_PROBABILITIES: lambda: game.outside(LiRA.prepare, networks, proxies.images),
        BY_LABELS: lambda: game.outside(_BY_LABELS, networks, proxies.images),
    }
    chosen = {name: attempts[name] for name in asked}
    return found | tried(chosen)
