"""Attack results: one seed, the mean over seeds, and a table by row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import numpy as np

from attacks.core.result import COLUMN_ERROR, AttackResult, ImageArray
from secure_fd.errors import ConfigurationError, SecureFDError

if TYPE_CHECKING:
    from attacks.core.statistics import OverSeeds

PLAYED = ("game-server", "game-lira", "game-labels")
"""Attacks on small runs under a row's protocol: by what the server reads, and by an outsider who
asks the final networks."""
NOT_APPLICABLE, NOT_RUN = "not applicable: ", "not run: "
"""Prefixes of the sentence that replaces a missing figure."""
ERROR = "TV error"
"""Prefix of the name of a figure that is the error of estimated class shares."""
SIGNIFICANT = 0.05
"""The p-value below which a difference from the control is more than chance."""


def is_error(name: str) -> bool:
    """Return whether a figure of this name is an attacker's error: the lower, the more leaks."""
    return name.startswith((ERROR, COLUMN_ERROR))


Interval = tuple[float, float]
Pictures: TypeAlias = Mapping[str, ImageArray]
"""[n, H, W] in [0, 1] by "attack/name"."""
BETWEEN = "/"


Found: TypeAlias = AttackResult | str
"""A figure, or the sentence with the reason why there is none."""


def stored(found: Mapping[str, Found]) -> tuple[dict[str, Found], dict[str, ImageArray]]:
    """Figures or sentences as a cell keeps them, and their pictures by "attack/name"."""
    results = {attack: one for attack, one in found.items() if isinstance(one, AttackResult)}
    pictures = {
        f"{attack}{BETWEEN}{name}": np.asarray(images, dtype=np.float32)
        for attack, result in results.items()
        for name, images in (result.images or {}).items()
    }
    return {**found, **{name: replace(one, images=None) for name, one in results.items()}}, pictures


def keeping(found: Found, wanted: Callable[[str], bool]) -> Found:
    """Return an attack with those details alone whose name is wanted."""
    if isinstance(found, str):
        return found
    return replace(found, details={n: v for n, v in found.details.items() if wanted(n)})


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
    """Raise ConfigurationError for a sentence that does not begin with a kind of reason.

    >>> check_found({"lira": "not applicable: missing a model"})
    """
    for attack, why in found.items():
        if isinstance(why, str) and not why.startswith((NOT_APPLICABLE, NOT_RUN)):
            allowed = f"start it with {NOT_APPLICABLE!r} or {NOT_RUN!r}"
            raise ConfigurationError(attack, why, allowed)


@dataclass(frozen=True, slots=True)
class Measured:
    """One attack on one row over seeds. lacking: why other seeds gave no figure.

    every: the figures, by ascending seed, one or more. Intervals at 95 % are Student's over seeds;
    of one seed, the attack's own over records. adjusted: the p-value as a table of many figures
    corrects it; None leaves it as it is.
    """

    every: tuple[AttackResult, ...]
    lacking: tuple[str, ...] = ()
    adjusted: float | None = None

    @property
    def first(self) -> AttackResult:
        """Result of the first seed; all seeds share its names and unit."""
        return self.every[0]

    @property
    def _pairs(self) -> tuple[list[float], list[float]]:
        """Figures and controls."""
        return [one.figure for one in self.every], [one.control for one in self.every]

    @property
    def figure(self) -> float:
        """The mean."""
        return float(np.mean(self._pairs[0]))

    @property
    def interval(self) -> Interval | None:
        """Confidence interval of the mean."""
        from attacks.core.statistics import over_seeds

        return over_seeds(self._pairs[0]).interval or self.first.interval

    @property
    def control(self) -> float:
        """The mean of the controls."""
        return float(np.mean(self._pairs[1]))

    @property
    def difference(self) -> "OverSeeds":
        """Figure minus control, paired by seed: what both owe to a seed's records cancels."""
        from attacks.core.statistics import paired

        return paired(*self._pairs)

    @property
    def p_value(self) -> float:
        """p-value of the difference from the control: paired t-test over seeds, or the only seed's.

        A mean of those seeds that gave a figure decides nothing.
        """
        from attacks.core.statistics import paired_p_value

        if self.lacking:
            return 1.0
        return self.first.p_value if len(self.every) == 1 else paired_p_value(*self._pairs)

    @property
    def side(self) -> int:
        """1 above the control and -1 below, by the (adjusted) p-value; 0 where it may be chance."""
        chance = self.p_value if self.adjusted is None else self.adjusted
        if chance >= SIGNIFICANT:
            return 0
        return 1 if self.difference.value > 0 else -1

    @property
    def leaks(self) -> bool:
        """True if the figure shows more than its control, by more than chance explains."""
        return self.side == (-1 if is_error(self.first.figure_name) else 1)

    @property
    def caveats(self) -> list[str]:
        """Caveats of all seeds, each once."""
        found = [caveat for each in self.every for caveat in each.caveats]
        if self.lacking:
            why = "; ".join(self.lacking)
            found.append(f"other seeds gave no figure, so no difference is claimed: {why}")
        return list(dict.fromkeys(found))

    @property
    def details(self) -> dict[str, float]:
        """Means of the further figures, over the seeds that have them."""
        names = dict.fromkeys(name for found in self.every for name in found.details)
        every = {n: [f.details[n] for f in self.every if n in f.details] for n in names}
        return {name: float(np.mean(values)) for name, values in every.items()}


def together(found: Iterable[tuple[int, Found]]) -> Measured | str:
    """One attack on one row, by seed; a sentence where no seed has a figure.

    >>> together([(11, "not run: it is slow"), (10, "not run: it is slow")])
    'not run: it is slow'
    """
    ordered = [one for _, one in sorted(found, key=lambda pair: pair[0])]
    figures = tuple(one for one in ordered if isinstance(one, AttackResult))
    sentences = tuple(dict.fromkeys(one for one in ordered if isinstance(one, str)))
    return Measured(figures, sentences) if figures else "; ".join(sentences)


@dataclass(frozen=True, slots=True)
class Leakage:
    """Attack results for the rows of one set-up.

    rows: key -> label. cells: by row and attack, figures or why there are none; an attack without a
    cell was not run.
    """

    rows: Mapping[str, str]
    cells: Mapping[tuple[str, str], Measured | str]

    @classmethod
    def of(
        cls, rows: Mapping[str, str], found: Mapping[str, Sequence[tuple[int, Mapping[str, Found]]]]
    ) -> Self:
        """Collect results over seeds. found: by row, each seed with its results by attack."""
        cells = {
            (row, attack): together(
                (seed, named[attack]) for seed, named in runs if attack in named
            )
            for row, runs in found.items()
            for _, every in runs
            for attack in every
        }
        return cls(rows, cells)

    @property
    def attacks(self) -> dict[str, str]:
        """Name -> title; without the part in brackets where that differs between rows."""
        return {name: self._title(name) for name in dict.fromkeys(name for _, name in self.cells)}

    def _title(self, name: str) -> str:
        every = [result for found in self.measured(name).values() for result in found.every]
        titles = list(dict.fromkeys(result.title for result in every)) or [name]
        return titles[0] if len(titles) == 1 else titles[0].split(" (")[0]

    def cell(self, row: str, attack: str) -> Measured | str:
        """The figures of an attack on a row, or why there are none."""
        return self.cells.get((row, attack), NOT_RUN.removesuffix(": "))

    def figure(self, row: str, attack: str) -> Measured | None:
        """None where the attack does not apply or was not run."""
        found = self.cell(row, attack)
        return found if isinstance(found, Measured) else None

    def absence(self, row: str, attack: str) -> str:
        """Why a row has no figure, as a whole sentence; "" where it has one."""
        found = self.cell(row, attack)
        return found if isinstance(found, str) else ""

    def measured(self, attack: str) -> dict[str, Measured]:
        """Return the figures of an attack, by row key."""
        return {row: found for row in self.rows if (found := self.figure(row, attack))}

    def corrected(self) -> "Leakage":
        """The same with p-values that are adjusted for all figures, of all rows and attacks."""
        measured = {at: one for at, one in self.cells.items() if isinstance(one, Measured)}
        adjusted = holm({at: one.p_value for at, one in measured.items()})
        cells = {at: replace(one, adjusted=adjusted[at]) for at, one in measured.items()}
        return replace(self, cells={**self.cells, **cells})


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
