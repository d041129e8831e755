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

    def ask(self, number: int, new_steps: NewSteps) -> Point | None:  # noqa: ARG002
        return next((point for point in self._points if point not in self._drawn), None)

    def record(self, number: int, point: Point) -> None:  # noqa: ARG002
        self._drawn.add(point)

    def copy(self) -> Self:
        self._points, points = tee(self._points)
        twin = type(self)(points)
        twin._drawn = self._drawn.copy()
        return twin
