"""Schedules that hold a value for a while and then jump, or shrink by a factor.

Called by users: `constant`, `step_decay`, `piecewise`, `exponential`. The first three name the few
steps at which they change, so that asking for changes costs what there are, whatever the length
of training.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, final, overload

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, positive, rising, whole
from dasktune.space.domain import Drawn
from dasktune.space.schedule import Constant, Schedule
from dasktune.space.template import Template, made
from dasktune.space.value import Value, canonical, rounded, shown, token, unwrapped

Plain: TypeAlias = bool | int | float | str | list[object] | tuple[object, ...] | None
"""What a user may write as a value."""


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class StepDecay(Schedule):
    """A value multiplied by a factor at each milestone."""

    v: int | float
    factor: int | float
    milestones: tuple[int, ...]

    def __init__(self, v: object, factor: object, at: object) -> None:
        first = number(v, "step_decay: v")
        ratio = positive(factor, "step_decay: factor")
        milestones = rising(at, "step_decay: at")
        if type(first) is int and type(ratio) is int:
            canonical(first * ratio ** len(milestones), "step_decay: the last value")
        else:
            first, ratio = float(first), float(ratio)
        object.__setattr__(self, "v", first)
        object.__setattr__(self, "factor", ratio)
        object.__setattr__(self, "milestones", milestones)

    @property
    def text(self) -> str:
        """The call that makes it."""
        return f"step_decay({self.v!r}, factor={self.factor!r}, at={list(self.milestones)})"

    def _value(self, step: int) -> Value:
        n = bisect_right(self.milestones, step)
        if type(self.v) is int:
            return canonical(self.v * self.factor**n, "step_decay")
        return _geometric(self.v, self.factor, n)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return _within(self.milestones, start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (type(self.v).__name__, self.v, self.factor, self.milestones)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Piecewise(Schedule):
    """Given values from given steps on."""

    start: ClassVar[str] = "values"

    milestones: tuple[int, ...]
    """Steps after 0 from which the next value holds."""
    values: tuple[Value, ...]

    def __init__(self, values: object) -> None:
        if not isinstance(values, Mapping):
            raise InvalidStudyError(
                f"piecewise takes a mapping such as {{0: 0.1, 9: 0.01}}, got {shown(values)}"
            )
        steps = sorted([whole(step, "piecewise: a step", least=0) for step in values])
        if not steps or steps[0] != 0:
            raise InvalidStudyError(f"piecewise must say a value for step 0, got {shown(values)}")
        pieces = tuple([_piece(values[step], step) for step in steps])
        object.__setattr__(self, "milestones", tuple(steps[1:]))
        object.__setattr__(self, "values", pieces)

    @property
    def text(self) -> str:
        """The call that makes it."""
        (values,) = self.arguments()
        return f"piecewise({values!r})"

    def arguments(self) -> tuple[object, ...]:
        """Give the mapping from steps to values."""
        return (dict(zip((0, *self.milestones), self.values, strict=True)),)

    def _value(self, step: int) -> Value:
        return self.values[bisect_right(self.milestones, step)]

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return _within(self.milestones, start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.milestones, *map(token, self.values))


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Exponential(Schedule):
    """A value multiplied by a rate at every step."""

    v: float
    rate: float

    def __init__(self, v: object, rate: object) -> None:
        object.__setattr__(self, "v", float(number(v, "exponential: v")))
        object.__setattr__(self, "rate", float(positive(rate, "exponential: rate")))

    @property
    def text(self) -> str:
        """The call that makes it."""
        return f"exponential({self.v!r}, rate={self.rate!r})"

    def _value(self, step: int) -> Value:
        return _geometric(self.v, self.rate, step)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.v, self.rate)


@overload
def constant(v: Plain) -> Schedule: ...
@overload
def constant(v: Plain | Drawn) -> Schedule | Template: ...
def constant(v: Plain | Drawn) -> Schedule | Template:
    """Hold one value at every step.

    Example:
        >>> constant(0.1).at(7)
        0.1
    """
    return made("constant", Constant, v=v)


@overload
def step_decay(v: float, *, factor: float, at: Sequence[int]) -> Schedule: ...
@overload
def step_decay(
    v: float | Drawn, *, factor: float | Drawn, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template: ...
def step_decay(
    v: float | Drawn, *, factor: float | Drawn, at: Sequence[int | Drawn] | Drawn
) -> Schedule | Template:
    """Multiply a value by a factor at each milestone.

    Args:
        v: Value from step 0 on. Where it and the factor are integers, so are all values (a batch
            size that doubles).
        factor: Above 0.
        at: Milestones, rising from 1 on: the first steps with the next value.

    Example:
        >>> [step_decay(0.1, factor=0.1, at=[6, 12]).at(step) for step in (5, 6, 12)]
        [0.1, 0.01, 0.001]
    """
    return made("step_decay", StepDecay, v=v, factor=factor, at=at)


@overload
def piecewise(values: Mapping[int, Plain]) -> Schedule: ...
@overload
def piecewise(values: Mapping[int, Plain | Drawn]) -> Schedule | Template: ...
def piecewise(values: Mapping[int, Plain | Drawn]) -> Schedule | Template:
    """Hold each value from its step on, until the next one's.

    Args:
        values: From step to value, of any type; step 0 must be among them.

    Example:
        >>> piecewise({0: 64, 9: 128}).at(9)
        128
    """
    return made("piecewise", Piecewise, values=_by_step(values))


@overload
def exponential(v: float, rate: float) -> Schedule: ...
@overload
def exponential(v: float | Drawn, rate: float | Drawn) -> Schedule | Template: ...
def exponential(v: float | Drawn, rate: float | Drawn) -> Schedule | Template:
    """Multiply a value by a rate (above 0) at every step: `v * rate**step`."""
    return made("exponential", Exponential, v=v, rate=rate)


def _geometric(v: float, ratio: float, n: int) -> float:
    """Give `v * ratio**n`, infinite where it leaves the floats."""
    try:
        return rounded(v * ratio**n)
    except OverflowError:
        return math.copysign(math.inf, v) if v else 0.0


def _by_step(values: object) -> object:
    """Sort a mapping by step, so that the first item is the one of step 0; leave wrong ones."""
    if isinstance(values, Mapping) and all(isinstance(unwrapped(step), int) for step in values):
        return {step: values[step] for step in sorted(values)}
    return values


def _piece(value: object, step: int) -> Value:
    if isinstance(value, Schedule) or callable(value):
        raise InvalidStudyError(
            f"piecewise: the value of step {step} is the schedule {shown(value)}: "
            "schedules follow one another by join([...], at=[...])"
        )
    return canonical(value, f"piecewise: the value of step {step}")


def _within(milestones: tuple[int, ...], start: int, stop: int) -> Iterable[int]:
    """Give step 0 and the milestones that lie in [start, stop)."""
    inside = milestones[bisect_left(milestones, start) : bisect_left(milestones, stop)]
    return (0, *inside) if start == 0 else inside
