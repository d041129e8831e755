"""Draw each trial at random, independently, and never the same twice where that can be avoided.

A draw is a function of (seed, trial number, name of the parameter): adding a parameter to the space
or trials to the study changes no earlier draw. Uniform numbers come from a hash rather than from a
generator, whose state would tie each draw to all before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Self, final

from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.chance import unit_of
from dasktune.space.domain import Domain
from dasktune.space.search_space import Point

_MOST_REPEATS = 64
"""Draws that may repeat in a row before the first point not drawn yet is taken in grid order."""
_MOST_TRIES = 1000
"""Draws in a row after which a repeat is taken where there is no grid: bounds that agree to twelve
digits leave few values."""


@final
@dataclass(frozen=True, slots=True)
class Random(Sampler):
    """Random search; without replacement where the space is finite."""

    draws_ahead = True

    def start(self, context: SamplerContext) -> "SamplerRun":
        """Begin a run of this policy."""
        return _Run(context)


class _Run(SamplerRun):
    def __init__(self, context: SamplerContext) -> None:
        self._context = context
        self._size = context.space.size
        self._drawn: set[Point] = set()

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:  # noqa: ARG002
        space = self._context.space
        if self._size is not None and len(self._drawn) >= self._size:
            return None
        first = attempt * (_MOST_TRIES + 1)
        for repeat in count():
            point, _ = space.draw(_uniform(self._context.seed, number, first + repeat))
            if point not in self._drawn:
                return point
            if self._size is not None and repeat >= _MOST_REPEATS:
                return next(point for point in space.points() if point not in self._drawn)
            if repeat >= _MOST_TRIES:
                return point
        raise AssertionError("count() does not end")

    def record(self, number: int, point: Point) -> None:  # noqa: ARG002
        self._drawn.add(point)

    def copy(self) -> Self:
        twin = type(self)(self._context)
        twin._drawn = self._drawn.copy()
        return twin


def _uniform(seed: int, number: int, attempt: int) -> Callable[[str, Domain], int | float]:
    head = f"{seed}:{number}:{attempt}:".encode()

    def suggest(path: str, domain: Domain) -> int | float:
        return domain.from_unit(unit_of(head + path.encode()))

    return suggest
