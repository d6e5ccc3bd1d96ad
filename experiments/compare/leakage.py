"""What attacks found: one figure on disk, several seeds of it together, and a table of rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from attacks.core.result import AttackResult, ImageArray
from secure_fd.errors import ConfigurationError, SecureFDError

if TYPE_CHECKING:
    from attacks.core.statistics import OverSeeds

PLAYED = ("game-server", "game-lira", "game-labels")
"""Attacks on small runs under a row's protocol: by what the server reads, and by an outsider who
asks the final networks."""
NOT_APPLICABLE, NOT_RUN = "not applicable: ", "not run: "
"""How the sentence starts that stands in the place of a figure."""
ERROR = "TV error"
"""How the name of a figure starts that is an attacker's error: the lower, the more leaks."""
SIGNIFICANT = 0.05
"""The p-value below which a difference from the control is more than chance."""

Interval = tuple[float, float]
Pictures: TypeAlias = Mapping[str, ImageArray]
"""[n, H, W] in [0, 1] by "attack/name"."""
BETWEEN = "/"


Found: TypeAlias = AttackResult | str
"""A figure, or the sentence that says why there is none."""


def stored(found: Mapping[str, Found]) -> tuple[dict[str, Found], dict[str, ImageArray]]:
    """Figures or sentences as a cell keeps them, and their pictures by "attack/name"."""
    results = {attack: one for attack, one in found.items() if isinstance(one, AttackResult)}
    pictures = {
        f"{attack}{BETWEEN}{name}": np.asarray(images, dtype=np.float32)
        for attack, result in results.items()
        for name, images in (result.images or {}).items()
    }
    return {**found, **{name: replace(one, images=None) for name, one in results.items()}}, pictures


Attempt: TypeAlias = Callable[[], AttackResult | str | tuple[AttackResult, ...]]
"""Runs an attack: its result, first of several where it has more, or the reason not to run it."""


def tried(attempts: Mapping[str, Attempt]) -> dict[str, Found]:
    """Run attacks: by name, their results, or the reason why there is none.

    An error that this package raises on purpose is such a reason: a capability that the attacker
    lacks, data that the attack does not fit, a check of the attack's own truth that fails. One
    attack then costs its own figure only. Any other exception is a bug and is raised.

    >>> tried({"lira": lambda: "not run: it is slow"})
    {'lira': 'not run: it is slow'}
    """
    found: dict[str, Found] = {}
    for name, attempt in attempts.items():
        try:
            result = attempt()
        except SecureFDError as reason:
            result = f"{NOT_APPLICABLE}{reason}"
        first, *more = result if isinstance(result, tuple) else (result,)
        found |= {name: first, **{other.name: other for other in more}}
    return found


def check_found(found: Mapping[str, Found]) -> None:
    """Raise ConfigurationError for a sentence that does not say what kind of reason it is.

    >>> check_found({"lira": "not applicable: missing a model"})
    """
    for attack, why in found.items():
        if isinstance(why, str) and not why.startswith((NOT_APPLICABLE, NOT_RUN)):
            allowed = f"start it with {NOT_APPLICABLE!r} or {NOT_RUN!r}"
            raise ConfigurationError(attack, why, allowed)


@dataclass(frozen=True, slots=True)
class Measured:
    """One attack on one row over seeds. lacking: why other seeds gave no figure.

    Intervals at 95 % are Student's over seeds; of one seed, the attack's own over records.
    adjusted: the p-value as a table of many figures corrects it; None leaves it as it is.
    """

    seeds: tuple[tuple[int, AttackResult], ...]
    lacking: tuple[str, ...] = ()
    adjusted: float | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigurationError("seeds", 0, "a figure needs one or more")

    @property
    def every(self) -> list[AttackResult]:
        """The figures, by ascending seed."""
        return [found for _, found in self.seeds]

    @property
    def first(self) -> AttackResult:
        """What all seeds share: names and unit."""
        return self.every[0]

    @property
    def mean(self) -> "OverSeeds":
        """The mean figure; of one seed, with the attack's own interval."""
        found = _over([figure.figure for figure in self.every])
        return replace(found, interval=found.interval or self.first.interval)

    @property
    def figure(self) -> float:
        """The mean."""
        return self.mean.value

    @property
    def interval(self) -> Interval | None:
        """Of the mean."""
        return self.mean.interval

    @property
    def control(self) -> float:
        """The mean of the controls."""
        return _over([found.control for found in self.every]).value

    @property
    def difference(self) -> "OverSeeds":
        """Figure minus control, paired by seed: what both owe to a seed's records cancels."""
        from attacks.core.statistics import paired

        return paired([f.figure for f in self.every], [f.control for f in self.every])

    @property
    def p_value(self) -> float:
        """Of the difference from the control: Student's paired test over seeds, of one its own.

        A mean of those seeds that gave a figure decides nothing.
        """
        from attacks.core.statistics import paired_p_value

        if self.lacking:
            return 1.0
        if len(self.seeds) == 1:
            return self.first.p_value
        return paired_p_value([f.figure for f in self.every], [f.control for f in self.every])

    @property
    def side(self) -> int:
        """1 above the control and -1 below, by the (adjusted) p-value; 0 where it may be chance."""
        chance = self.p_value if self.adjusted is None else self.adjusted
        if chance >= SIGNIFICANT:
            return 0
        return 1 if self.difference.value > 0 else -1

    @property
    def leaks(self) -> bool:
        """Whether the figure tells more than its control, by more than chance explains."""
        return self.side == (-1 if self.first.figure_name.startswith(ERROR) else 1)

    @property
    def caveats(self) -> list[str]:
        """Of all seeds, each once."""
        said = [caveat for found in self.every for caveat in found.caveats]
        if self.lacking:
            why = "; ".join(self.lacking)
            said.append(f"other seeds gave no figure, so none is told apart: {why}")
        return list(dict.fromkeys(said))

    @property
    def details(self) -> dict[str, float]:
        """Means of the further figures, over the seeds that have them."""
        names = dict.fromkeys(name for found in self.every for name in found.details)
        every = {n: [f.details[n] for f in self.every if n in f.details] for n in names}
        return {name: float(np.mean(values)) for name, values in every.items()}


def _over(values: Sequence[float]) -> "OverSeeds":
    from attacks.core.statistics import over_seeds

    return over_seeds(values)


def together(found: Iterable[tuple[int, Found]]) -> Measured | str:
    """One attack on one row, by seed; a sentence where no seed has a figure.

    >>> together([(11, "not run: it is slow"), (10, "not run: it is slow")])
    'not run: it is slow'
    """
    ordered = sorted(found, key=lambda one: one[0])
    figures = tuple((seed, f) for seed, f in ordered if isinstance(f, AttackResult))
    sentences = tuple(dict.fromkeys(f for _, f in ordered if isinstance(f, str)))
    return Measured(figures, sentences) if figures else "; ".join(sentences)


Row: TypeAlias = Sequence[tuple[int, Mapping[str, Found]]]
"""What attacks found on a row, with its seed."""


@dataclass(frozen=True, slots=True)
class Leakage:
    """What attacks learn from the rows of one set-up. rows: key -> label; found: by row.

    What is not there was not run. adjusted: p-values by row and attack, where they are corrected.
    """

    rows: Mapping[str, str]
    found: Mapping[str, Row]
    adjusted: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = sorted(self.found.keys() - self.rows.keys())
        if unknown:
            raise ConfigurationError("row", unknown[0], f"use a row of {', '.join(self.rows)}")

    @property
    def attacks(self) -> dict[str, str]:
        """Name -> title; without what it says in brackets where that differs between rows."""
        every = [named for row in self.rows for _, named in self._of(row)]
        return {name: _title(name, every) for name in dict.fromkeys(n for e in every for n in e)}

    def _of(self, row: str) -> Row:
        return sorted(self.found.get(row, ()), key=lambda one: one[0])

    def cell(self, row: str, attack: str) -> Measured | str:
        """The figures of an attack on a row, or why there are none."""
        having = [(seed, named[attack]) for seed, named in self._of(row) if attack in named]
        found = together(having)
        if isinstance(found, Measured):
            return replace(found, adjusted=self.adjusted.get((row, attack)))
        return found or NOT_RUN.removesuffix(": ")

    def figure(self, row: str, attack: str) -> Measured | None:
        """None where the attack does not apply or was not run."""
        found = self.cell(row, attack)
        return found if isinstance(found, Measured) else None

    def absence(self, row: str, attack: str) -> str:
        """Why a row has no figure, as a whole sentence; "" where it has one."""
        found = self.cell(row, attack)
        return found if isinstance(found, str) else ""

    def measured(self, attack: str) -> dict[str, Measured]:
        """By row key, the figures of an attack."""
        return {row: found for row in self.rows if (found := self.figure(row, attack))}

    def corrected(self) -> "Leakage":
        """The same with p-values that are adjusted for all figures, of all rows and attacks."""
        every = {
            (row, attack): found.p_value
            for attack in self.attacks
            for row, found in self.measured(attack).items()
        }
        return replace(self, adjusted=holm(every))


Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Adjusted p-values, of which any is below a level by chance at most as often as the level.

    Reference: Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    found: dict[Name, float] = {}
    least = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        found[name] = least
    return found


def _title(name: str, every: Sequence[Mapping[str, Found]]) -> str:
    found = [named.get(name) for named in every]
    titles = list(dict.fromkeys(f.title for f in found if isinstance(f, AttackResult)))
    if not titles:
        return name
    return titles[0] if len(titles) == 1 else titles[0].split(" (")[0]
