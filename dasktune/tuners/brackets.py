"""The brackets of Hyperband: how many trials begin at which rung, and which trials they are.

Shared by Hyperband, which runs one bracket after the other, and asynchronous Hyperband, which runs
all at once. All arithmetic is exact: a factor such as 2.5 or 10 / 3 stands for the fraction that is
meant by it.

References:
    [1] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
        JMLR 18(185), 2018, algorithm 1. Symbols: R `max_steps`, eta `reduction_factor`, s the
        number of halvings in a bracket, from s_max down to 0; a bracket has
        n = ceil((s_max + 1) / (s + 1) eta^s) trials and rungs at R eta^(i - s), i = 0 … s.
    [2] Tijdeman, "The chairman assignment problem", Discrete Mathematics 32(3), 1980.

The paper's least resource is 1; here it is r, `min_steps`, and s_max = floor(log_eta(R / r)).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.tuners.rungs import check_factor, survivors
from dasktune.units import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """One run of successive halving."""

    n_trials: int
    """Trials that begin, if all take part."""
    rungs: tuple[Step, ...]
    """Steps at which they are compared, ascending; the last is the largest of the study."""


def check_brackets(min_steps: object, max_steps: object, reduction_factor: object) -> None:
    """Refuse what gives no brackets."""
    least = whole(min_steps, "min_steps", 1)
    most = whole(max_steps, "max_steps", 1)
    check_factor(reduction_factor)
    if least > most:
        raise InvalidStudyError(
            f"min_steps is {least} and max_steps is {most}; min_steps must not be larger"
        )
    if isinstance(reduction_factor, int | float) and reduction_factor < 2:  # noqa: PLR2004
        raise InvalidStudyError(
            f"reduction_factor is {reduction_factor!r}; for brackets it must be at least 2, or "
            "several would begin at the same step"
        )


@lru_cache(maxsize=64)  # asked for with every report
def bracket_table(min_steps: Step, max_steps: Step, reduction_factor: float) -> tuple[Bracket, ...]:
    """Return one round of brackets, that of most trials and earliest first rung first.

    Rungs that are not whole are rounded down. The rungs of each bracket are the last of the one
    before it.

    Example:
        >>> [(bracket.n_trials, bracket.rungs[0]) for bracket in bracket_table(1, 9, 3)]
        [(9, 1), (5, 3), (3, 9)]
    """
    eta = Fraction(reduction_factor).limit_denominator(10**6)
    most = 0  # s_max
    while min_steps * eta ** (most + 1) <= max_steps:
        most += 1
    return tuple(
        [
            Bracket(
                n_trials=ceil(Fraction(most + 1, s + 1) * eta**s),
                rungs=tuple([floor(max_steps / eta**i) for i in range(s, -1, -1)]),
            )
            for s in range(most, -1, -1)
        ]
    )


def in_turn(table: Sequence[Bracket], n_trials: int) -> list[tuple[Bracket, range]]:
    """Return the brackets that so many trials fill, round after round, and the trials of each.

    The last may have fewer trials than it has room for.

    Example:
        >>> [trials for _, trials in in_turn(bracket_table(1, 9, 3), 20)]
        [range(0, 9), range(9, 14), range(14, 17), range(17, 20)]
    """
    found = []
    first = 0
    while first < n_trials:
        for bracket in table:
            trials = range(first, min(first + bracket.n_trials, n_trials))
            if trials:
                found.append((bracket, trials))
            first = trials.stop
    return found


def bracket_of(table: Sequence[Bracket], trial: int) -> Bracket:
    """Return the bracket of a trial when brackets are filled one after the other.

    Example:
        >>> [bracket_of(bracket_table(1, 9, 3), trial).rungs[0] for trial in (8, 9, 16, 17)]
        [1, 3, 9, 1]
    """
    place = trial % sum(bracket.n_trials for bracket in table)
    for bracket in table:
        if place < bracket.n_trials:
            return bracket
        place -= bracket.n_trials
    raise AssertionError("a place in a round is in one of its brackets")


@lru_cache(maxsize=16)  # asked for with every look at the progress
def in_proportion(table: tuple[Bracket, ...], n_trials: int) -> tuple[int, ...]:
    """Return the place in the table of each trial's bracket.

    Of the first trials, however many, each bracket has its share but for less than one trial: of
    the brackets that are behind enough, the one that would first be behind by too much gets the
    next trial [2]. As many trials as a round has make exactly a round.

    Example:
        >>> in_proportion(bracket_table(1, 9, 3), 10)
        (0, 1, 0, 2, 0, 1, 0, 1, 0, 2)
    """
    weights = [bracket.n_trials for bracket in table]
    total = sum(weights)
    parts = max(2, 2 * len(weights) - 2)  # a bracket is behind enough by 1 / parts of a trial
    counts = [0] * len(weights)
    found = []
    for n in range(1, n_trials + 1):
        behind = [
            index
            for index, weight in enumerate(weights)
            if (weight * n - counts[index] * total) * parts >= total
        ]
        chosen = min(
            behind, key=lambda at: Fraction((counts[at] + 1) * parts - 1, parts * weights[at])
        )
        counts[chosen] += 1
        found.append(chosen)
    return tuple(found)


def n_trained_through(
    steps: Sequence[Step], parts: Iterable[tuple[Bracket, int]], reduction_factor: float
) -> tuple[int, ...]:
    """Return how many trials train at least as far as each step, if all go well.

    Args:
        steps: Rungs of the first bracket: all rungs there are.
        parts: Brackets, and how many trials begin in each.
        reduction_factor: eta.
    """
    totals = [0] * len(steps)
    for bracket, n_trials in parts:
        on_rungs = survivors(n_trials, len(bracket.rungs), reduction_factor)
        n_before = len(steps) - len(on_rungs)
        for index, n in enumerate([n_trials] * n_before + list(on_rungs)):
            totals[index] += n
    return tuple(totals)
