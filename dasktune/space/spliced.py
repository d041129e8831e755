"""Follow one schedule up to a step and another from there on, each at the step of training.

Called by users (`splice`), and by tuners that change a configuration in mid-training. A part of a
`join` counts from its own step 0; a part of a splice is asked for the step of training itself, so
that a splice keeps what was trained so far and takes over what another trial would do from here.
Kept in one form: no part is itself a splice or a `piecewise`, and no neighbours are equal.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, final, overload

from dasktune.space.composed import Part, sequence
from dasktune.space.domain import Drawn
from dasktune.space.schedule import Constant, Schedule
from dasktune.space.stepwise import Piecewise
from dasktune.space.template import Template, made
from dasktune.space.value import Value


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Splice(Schedule):
    """Schedules that take turns, each asked for the step of training; made by `of`."""

    start: ClassVar[str] = "schedules"

    schedules: tuple[Schedule, ...]
    """At least two, not all constant."""
    boundaries: tuple[int, ...]
    """First steps of all schedules but the first."""

    def __init__(self, schedules: tuple[Schedule, ...], boundaries: tuple[int, ...]) -> None:
        object.__setattr__(self, "schedules", schedules)
        object.__setattr__(self, "boundaries", boundaries)

    @classmethod
    def of(cls, *arguments: object) -> Schedule:
        """Make the simplest schedule that has these values: constants alone are a `piecewise`."""
        schedules, at = arguments
        parts, boundaries = sequence("splice", schedules, at)
        runs = _merged(zip((0, *boundaries), parts, strict=True))
        if len(runs) == 1:
            return runs[0][1]
        ends = [begin for begin, _ in runs[1:]]
        within = zip(runs, [*ends, None], strict=True)
        pieces = _merged(
            chain.from_iterable(_pieces(part, begin, end) for (begin, part), end in within)
        )
        if len(pieces) == 1:
            return pieces[0][1]
        values = {begin: part.v for begin, part in pieces if isinstance(part, Constant)}
        if len(values) == len(pieces):
            return Piecewise(values)
        return cls(tuple([part for _, part in pieces]), tuple([begin for begin, _ in pieces[1:]]))

    @classmethod
    def taken_apart(cls, schedule: Schedule) -> tuple[object, ...]:
        """Give the pieces of any schedule: one that is no splice has a single one."""
        begins, parts = zip(*_pieces(schedule, 0, None), strict=True)
        return parts, begins[1:]

    @property
    def text(self) -> str:
        """The call that makes it."""
        parts = ", ".join([part.text for part in self.schedules])
        return f"splice([{parts}], at={list(self.boundaries)})"

    def _value(self, step: int) -> Value:
        return self.schedules[bisect_right(self.boundaries, step)]._value(step)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        begins, ends = (0, *self.boundaries), (*self.boundaries, stop)
        first, last = bisect_right(self.boundaries, start), bisect_left(self.boundaries, stop)
        for i in range(first, last + 1):
            begin, end = max(start, begins[i]), min(ends[i], stop)
            if begin == begins[i] < end:  # whatever the part itself does there
                yield begin
                begin += 1
            if begin < end:
                yield from self.schedules[i]._steps(begin, end)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.schedules, self.boundaries)


@overload
def splice(schedules: Sequence[Part], *, at: Sequence[int]) -> Schedule: ...
@overload
def splice(
    schedules: Sequence[Part | Drawn], *, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template: ...
def splice(
    schedules: Sequence[Part | Drawn], *, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template:
    """Switch from one schedule to the next, each asked for the step of training, not its own.

    Args:
        schedules: At least one.
        at: From where the second, third, ... hold: one step fewer than there are schedules, rising.

    Example:
        >>> [splice([0.1, lambda step: step], at=[5]).at(step) for step in (4, 5, 6)]
        [0.1, 5, 6]
        >>> splice([splice([0.1, 0.2], at=[5]), 0.4], at=[9])
        piecewise({0: 0.1, 5: 0.2, 9: 0.4})
    """
    return made("splice", Splice, schedules=schedules, at=at)


def _merged(parts: Iterable[tuple[int, Schedule]]) -> list[tuple[int, Schedule]]:
    """Leave out the parts that go on with their predecessor."""
    kept: list[tuple[int, Schedule]] = []
    for begin, part in parts:
        if not kept or kept[-1][1] != part:
            kept.append((begin, part))
    return kept


def _pieces(schedule: Schedule, begin: int, end: int | None) -> Iterator[tuple[int, Schedule]]:
    """Give the pieces of a schedule in [begin, end), each with its first step there."""
    parts: Sequence[Schedule] = (schedule,)
    boundaries: tuple[int, ...] = ()
    if isinstance(schedule, Splice):
        parts, boundaries = schedule.schedules, schedule.boundaries
    elif isinstance(schedule, Piecewise):
        parts, boundaries = [*map(Constant, schedule.values)], schedule.milestones
    for i in range(bisect_right(boundaries, begin), len(parts)):
        first = max(begin, boundaries[i - 1] if i else 0)
        if end is not None and first >= end:
            return
        yield first, parts[i]
