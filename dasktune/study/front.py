"""Find what nothing else dominates, where several metrics are tuned.

Called by results. Scores are tuples of which every part is better when greater. One dominates
another if it is at least as good in every part and better in one; the front is what no other
dominates (K. Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE
Trans. Evol. Comp. 6(2), 2002, section III).
"""

from collections.abc import Iterable
from typing import TypeAlias

Scores: TypeAlias = tuple[float, ...]
"""Every tuned metric with its mode applied: greater is better."""


def front_of(scores: Iterable[Scores]) -> set[Scores]:
    """Return the scores that no others dominate; equal ones are one. O(all · front).

    Args:
        scores: All of one length, finite.
    """
    front: list[Scores] = []
    # From the greatest down no later one dominates an earlier one, so what is in stays in.
    for candidate in sorted(set(scores), reverse=True):
        if not any(_covers(other, candidate) for other in front):
            front.append(candidate)
    return set(front)


def _covers(one: Scores, other: Scores) -> bool:
    """Tell whether scores are at least as good in every part."""
    return all(mine >= yours for mine, yours in zip(one, other, strict=True))
