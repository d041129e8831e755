"""The arithmetic of rungs, and the ranking of the trials that stand on one.

Shared by the halving family: where the rungs are, how many go on, who is ahead of whom.

References:
    [1] Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
        Optimization", AISTATS 2016: successive halving.
    [2] Li et al., "Hyperband", JMLR 18(185), 2018: r, R and eta; here `min_steps`, `max_steps` and
        `reduction_factor`.
    [3] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020 (ASHA):
        promote a trial that stands among the best floor(n / eta) of the n on its rung.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import pairwise
from math import inf
from typing import Literal, TypeAlias, get_args

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.units import Step

Ties: TypeAlias = Literal["number", "spread"]
"""How equal scores are ranked: by the trial's number, or so that trials which part before the next
rung come before trials that will still share everything there."""

_SLACK = 1 + 1e-12
"""Lets count as whole what only rounding keeps below: 45 * 1.4 and 135 / 1.08 in floats."""


def check_ties(ties: object) -> None:
    """Refuse a rule for ties that does not exist."""
    if ties not in get_args(Ties):
        raise InvalidStudyError(f"ties is {ties!r}; it must be 'number' or 'spread'")


def check_factor(factor: object) -> None:
    """Refuse a reduction factor that reduces nothing."""
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 < factor < inf:
        raise InvalidStudyError(f"reduction_factor is {factor!r}; it must be a number > 1")


def rung_steps(min_steps: Step, max_steps: Step, reduction_factor: float) -> tuple[Step, ...]:
    """Return the steps at which trials are compared: r, r eta, r eta² … below R, and last R.

    Powers that are not whole are rounded down, and never repeat a step.

    Example:
        >>> rung_steps(2, 18, 3)
        (2, 6, 18)
        >>> rung_steps(1, 20, 4)
        (1, 4, 16, 20)
    """
    whole(min_steps, "min_steps", 1)
    whole(max_steps, "max_steps", 1)
    check_factor(reduction_factor)
    if min_steps > max_steps:
        raise InvalidStudyError(
            f"min_steps is {min_steps} and max_steps is {max_steps}; min_steps must not be larger"
        )
    steps: list[Step] = []
    at = float(min_steps)
    while (step := int(min(at * _SLACK, max_steps))) < max_steps:
        if not steps or step > steps[-1]:
            steps.append(step)
        at *= reduction_factor
    return (*steps, max_steps)


def check_rungs(rungs: object) -> tuple[Step, ...]:
    """Return rungs given one by one, or refuse them."""
    if isinstance(rungs, str | bytes) or not isinstance(rungs, Iterable):
        raise InvalidStudyError(f"rungs is {rungs!r}; it must be a list of steps such as [2, 6]")
    steps = tuple([whole(step, f"rungs[{i}]", 1) for i, step in enumerate(rungs)])
    if not steps or any(a >= b for a, b in pairwise(steps)):
        raise InvalidStudyError(
            f"rungs is {list(steps)!r}; it must be ascending steps, at least one"
        )
    return steps


def n_promoted(n_trials: int, reduction_factor: float) -> int:
    """Return how many of the trials on a rung go on: floor(n / eta)."""
    return int(n_trials / reduction_factor * _SLACK)


def survivors(n_trials: int, n_rungs: int, reduction_factor: float) -> tuple[int, ...]:
    """Return how many trials stand on each rung of synchronous halving; at least one goes on.

    Example:
        >>> survivors(36, 3, 3)
        (36, 12, 4)
    """
    counts = [n_trials]
    while len(counts) < n_rungs:
        counts.append(min(counts[-1], max(1, n_promoted(counts[-1], reduction_factor))))
    return tuple(counts)


class Ranking:
    """The trials that have finished a rung, best first.

    Ranked by score, then by the rule for ties. Trials that diverged or failed stand last: they
    count, and are never ahead of anybody.
    """

    __slots__ = ("_branches", "_places", "_ranked", "_ties")

    def __init__(self, ties: Ties) -> None:
        self._ties = ties
        self._ranked: list[tuple[float, int, int]] = []  # (-score, how often seen, trial)
        self._places: dict[int, tuple[float, int, int]] = {}
        self._branches: Counter[tuple[float, Hashable]] = Counter()

    def __len__(self) -> int:
        """Return how many trials have finished the rung."""
        return len(self._ranked)

    def add(self, trial: int, score: float, branch: Hashable = None) -> tuple[float, int, int]:
        """Put a trial in its place, and return the place: places compare as the ranking does.

        Args:
            trial: Its number.
            score: Greater is better; `-inf` for a trial that gave no usable score.
            branch: Identity of its history up to the next rung.
        """
        seen = 0
        if self._ties == "spread" and branch is not None:
            seen = self._branches[score, branch]
            self._branches[score, branch] += 1
        place = (-score, seen, trial)
        insort(self._ranked, place)
        self._places[trial] = place
        return place

    def rank(self, trial: int) -> int:
        """Return how many trials are ahead of this one. O(log n)."""
        return bisect_left(self._ranked, self._places[trial])

    def n_better(self, score: float) -> int:
        """Return how many trials have a better score. O(log n)."""
        return bisect_left(self._ranked, (-score, -1, 0))

    def best(self, n: int) -> list[int]:
        """Return the numbers of the best `n` trials that have a usable score, best first."""
        return [trial for lost, _, trial in self._ranked[:n] if lost != inf]

    def copy(self) -> "Ranking":
        """Return a ranking that goes on from here by itself."""
        twin = Ranking(self._ties)
        twin._ranked = self._ranked.copy()
        twin._places = self._places.copy()
        twin._branches = self._branches.copy()
        return twin
