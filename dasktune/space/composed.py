"""Schedules made of schedules: a warm-up before another one, and one after the other.

Called by users: `warmup`, `join`. A part counts its own steps from 0, whatever step of training it
begins at. A function of the step, or a plain value, may stand for a part.

References:
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv:1706.02677,
    2017, section 2.2: gradual warm-up. Here its first step is not 0 but `then(0) / (n + 1)`, so
    that no step of training is without effect, and step n is the first of `then`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final, overload

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, rising, whole
from dasktune.space.domain import Drawn
from dasktune.space.schedule import Schedule, as_schedule
from dasktune.space.stepwise import Plain
from dasktune.space.template import Template, made
from dasktune.space.value import Value, rounded, shown

Part: TypeAlias = Schedule | Callable[[int], object] | Plain
"""What may stand for a part: a schedule, a function of the step, a plain value."""


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Warmup(Schedule):
    """Linear growth to the first value of another schedule, and then that schedule."""

    start: ClassVar[str] = "then"

    n: int
    then: Schedule
    _goal: float
    """The value at step n, approached in n equal increments."""

    def __init__(self, n: object, then: object) -> None:
        steps = whole(n, "warmup: n", least=0)
        following = as_schedule(then, "warmup: then")
        first = following.at(0)
        goal = float(number(first, "warmup: then at step 0")) if steps else 0.0
        object.__setattr__(self, "n", steps)
        object.__setattr__(self, "then", following)
        object.__setattr__(self, "_goal", goal)

    @property
    def text(self) -> str:
        """The call that makes it."""
        return f"warmup({self.n}, {self.then.text})"

    def _value(self, step: int) -> Value:
        if step < self.n:
            return rounded(self._goal * (step + 1) / (self.n + 1))
        return self.then.at(step - self.n)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        yield from range(start, min(self.n, stop))
        yield from _shifted(self.then, max(start, self.n), stop, begin=self.n)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.n, self.then)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Join(Schedule):
    """Schedules one after the other."""

    start: ClassVar[str] = "schedules"

    schedules: tuple[Schedule, ...]
    boundaries: tuple[int, ...]
    """First steps of all schedules but the first."""

    def __init__(self, schedules: object, at: object) -> None:
        parts, boundaries = sequence("join", schedules, at)
        object.__setattr__(self, "schedules", parts)
        object.__setattr__(self, "boundaries", boundaries)

    @property
    def text(self) -> str:
        """The call that makes it."""
        parts = ", ".join([part.text for part in self.schedules])
        return f"join([{parts}], at={list(self.boundaries)})"

    def _value(self, step: int) -> Value:
        i = bisect_right(self.boundaries, step)
        return self.schedules[i].at(step - self.boundaries[i - 1] if i else step)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        begins, ends = (0, *self.boundaries), (*self.boundaries, stop)
        first, last = bisect_right(self.boundaries, start), bisect_left(self.boundaries, stop)
        for i in range(first, last + 1):
            begin, end = begins[i], min(ends[i], stop)
            yield from _shifted(self.schedules[i], max(start, begin), end, begin=begin)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.schedules, self.boundaries)


@overload
def warmup(n: int, then: Part) -> Schedule: ...
@overload
def warmup(n: int | Drawn, then: Part | Drawn) -> Schedule | Template: ...
def warmup(n: int | Drawn, then: Part | Drawn) -> Schedule | Template:
    """Grow linearly for `n` steps to the first value of `then`, and go on with `then`.

    Args:
        n: Steps of the warm-up; with 0 it is `then`.
        then: What follows, counted from its own step 0; at step t < n the value is
            `then(0) * (t + 1) / (n + 1)`.

    Example:
        >>> [warmup(3, 0.4).at(step) for step in range(5)]
        [0.1, 0.2, 0.3, 0.4, 0.4]
    """
    return made("warmup", Warmup, n=n, then=then)


@overload
def join(schedules: Sequence[Part], *, at: Sequence[int]) -> Schedule: ...
@overload
def join(
    schedules: Sequence[Part | Drawn], *, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template: ...
def join(
    schedules: Sequence[Part | Drawn], *, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template:
    """Run schedules one after the other, each from its own step 0.

    Args:
        schedules: At least one.
        at: Where the second, third, ... begin: one step fewer than there are schedules, rising.
    """
    return made("join", Join, schedules=schedules, at=at)


def sequence(
    call: str, schedules: object, at: object
) -> tuple[tuple[Schedule, ...], tuple[int, ...]]:
    """Check schedules that follow one another, and the first steps of all but the first.

    Raises:
        InvalidStudyError: If they are no lists, or don't belong together; names the call.
    """
    if not isinstance(schedules, list | tuple) or not schedules:
        raise InvalidStudyError(
            f"{call} takes a list of at least one schedule, got {shown(schedules)}"
        )
    boundaries = rising(at, f"{call}: at")
    if len(boundaries) != len(schedules) - 1:
        raise InvalidStudyError(
            f"{call}: at must have one step fewer than the {len(schedules)} schedules, "
            f"got at={list(boundaries)}"
        )
    parts = [as_schedule(part, f"{call}: schedules[{i}]") for i, part in enumerate(schedules)]
    return tuple(parts), boundaries


def _shifted(schedule: Schedule, start: int, stop: int, begin: int) -> Iterator[int]:
    """Give the possible changes of a part that begins at `begin`, in steps of the whole."""
    if start >= stop:
        return
    for step in schedule._steps(start - begin, stop - begin):
        yield step + begin
