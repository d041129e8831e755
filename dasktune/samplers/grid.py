"""Go through every configuration of a finite space, in order: the last name varies fastest."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import tee
from typing import Self, final

from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.search_space import Point


@final
@dataclass(frozen=True, slots=True)
class Grid(Sampler):
    """Grid search."""

    draws_ahead = True

    def start(self, context: SamplerContext) -> "SamplerRun":
        """Begin a run of this policy; refuse a space with a continuous domain."""
        return _Run(context.space.points())


class _Run(SamplerRun):
    def __init__(self, points: Iterator[Point]) -> None:
        self._points = points
        self._drawn: set[Point] = set()
        self._proposed: list[Point] = []  # in order, until they are recorded

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:  # noqa: ARG002
        self._proposed = [point for point in self._proposed if point not in self._drawn]
        while len(self._proposed) <= attempt:
            point = next((p for p in self._points if p not in self._drawn), None)
            if point is None:
                return None
            self._proposed.append(point)
        return self._proposed[attempt]

    def record(self, number: int, point: Point) -> None:  # noqa: ARG002
        self._drawn.add(point)

    def copy(self) -> Self:
        self._points, points = tee(self._points)
        twin = type(self)(points)
        twin._drawn = self._drawn.copy()
        twin._proposed = self._proposed.copy()
        return twin
