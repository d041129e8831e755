"""Answer which value a hyper-parameter has at a step, and where two of them part.

Called by configurations (the value a Trainable gets), by the makers of keys (which steps change a
value) and by the search plan (how far two trials are the same). A schedule is a pure function of
the integer step, constant within the step; how a step is reached never matters, so that a trial
resumed anywhere sees the same values. Never knows which hyper-parameter it belongs to.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, final

from dasktune.errors import InvalidStudyError
from dasktune.space.value import Value, canonical, named, same, token


class Schedule(ABC):
    """A hyper-parameter as a function of the step: frozen, hashable, equal by definition.

    Equal schedules have equal values at all steps. The reverse need not hold: a `piecewise` may
    say the same as a `step_decay`. `same_until` compares values.
    """

    __slots__ = ()

    start: ClassVar[str] = "v"
    """Name of the one argument of the constructor from which the value at step 0 is taken."""

    __match_args__: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The call that makes this schedule; for a constant the `repr` of its value."""

    @abstractmethod
    def _value(self, step: int) -> Value:
        """Give the canonical value at a step that is known to be at least 0."""

    @abstractmethod
    def _steps(self, start: int, stop: int) -> Iterable[int]:
        """Give, rising, all steps of [start, stop) at which the value may differ from before.

        Step 0 counts. May give more steps than change, never fewer.
        """

    @abstractmethod
    def _parts(self) -> tuple[Hashable, ...]:
        """Give what makes two schedules of this class equal, `True`, 1 and 1.0 told apart."""

    @classmethod
    def of(cls, *arguments: object) -> "Schedule":
        """Make the schedule of the constructor's arguments: a simpler one where that is the same.

        Raises:
            InvalidStudyError: If the arguments are wrong.
        """
        return cls(*arguments)

    @classmethod
    def taken_apart(cls, schedule: "Schedule") -> tuple[object, ...] | None:
        """Give arguments from which `of` would make a schedule; None if it makes none like it."""
        return schedule.arguments() if type(schedule) is cls else None

    def arguments(self) -> tuple[object, ...]:
        """Give the constructor's arguments in their order, in the form in which they are kept."""
        return tuple([getattr(self, name) for name in self.__match_args__ if name[0] != "_"])

    @final
    def at(self, step: int) -> Value:
        """Give the canonical value during a step, counted from 0."""
        if step < 0:
            raise InvalidStudyError(f"step must be at least 0, got {step}")
        return self._value(step)

    @final
    def changes(self, start: int, stop: int) -> Iterator[tuple[int, Value]]:
        """Give lazily each step of [start, stop) whose value differs from the one before it.

        Returns:
            Pairs (step, new value), steps rising. Step 0 is a change. O(changes) for constants
            and milestones, O(steps) for what moves at every step.
        """
        if start < 0:
            raise InvalidStudyError(f"start must be at least 0, got {start}")
        return self._changes(start, stop)

    def _changes(self, start: int, stop: int) -> Iterator[tuple[int, Value]]:
        if start >= stop:
            return
        is_known = start > 0
        current = self._value(start - 1) if is_known else None
        for step in self._steps(start, stop):
            value = self._value(step)
            if not is_known or not same(value, current):
                yield step, value
                current, is_known = value, True

    @final
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Schedule):
            return NotImplemented
        return type(self) is type(other) and self._parts() == other._parts()

    @final
    def __hash__(self) -> int:
        return hash((type(self), self._parts()))

    @final
    def __repr__(self) -> str:
        return f"constant({self.text})" if isinstance(self, Constant) else self.text


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Constant(Schedule):
    """The same value at every step."""

    v: Value

    def __init__(self, v: object) -> None:
        object.__setattr__(self, "v", canonical(v, "constant: v"))

    @property
    def text(self) -> str:
        """The `repr` of the value."""
        return repr(self.v)

    def _value(self, step: int) -> Value:  # noqa: ARG002  (constant)
        return self.v

    def _steps(self, start: int, stop: int) -> Iterable[int]:  # noqa: ARG002  (constant)
        return (0,) if start == 0 else ()

    def _parts(self) -> tuple[Hashable, ...]:
        return (token(self.v),)


@final
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FunctionSchedule(Schedule):
    """A user's function of the step, asked once a step; equal only to the same function."""

    function: Callable[[int], object]
    _known: dict[int, Value] = field(default_factory=dict, init=False)
    """Answers by step: the function may be slow, and must not be able to change its mind."""

    @property
    def text(self) -> str:
        """The function's name, without an address: the same in every process."""
        return named(self.function)

    def _value(self, step: int) -> Value:
        try:
            return self._known[step]
        except KeyError:
            value = self._known[step] = self._ask(step)
            return value

    def _ask(self, step: int) -> Value:
        try:
            answer = self.function(step)
        except Exception as error:
            raise InvalidStudyError(
                f"the schedule {self.text} raised {type(error).__name__} ({error}) at step {step}: "
                "a function of the step must answer for every step from 0"
            ) from error
        return canonical(answer, f"{self.text} at step {step}")

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (id(self.function),)

    def __reduce__(self) -> tuple[type["FunctionSchedule"], tuple[Callable[[int], object]]]:
        return (FunctionSchedule, (self.function,))


def alike(a: Schedule, b: Schedule, stop: int, *, by_name: bool) -> bool:
    """Tell whether two schedules are equal if functions of the step count by what they give.

    Args:
        a: A schedule, which may hold functions of the step in any depth.
        b: Another one.
        stop: Functions are compared at the steps below this one.
        by_name: Whether they must have the same name too.
    """
    return a == b or _are_alike(a, b, stop, by_name=by_name)


def _are_alike(a: object, b: object, stop: int, *, by_name: bool) -> bool:
    if isinstance(a, FunctionSchedule) and isinstance(b, FunctionSchedule):
        return (a.text == b.text or not by_name) and _give_the_same(a, b, stop)
    if isinstance(a, Schedule) and isinstance(b, Schedule) and type(a) is type(b):
        a, b = a._parts(), b._parts()
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return all(_are_alike(x, y, stop, by_name=by_name) for x, y in zip(a, b, strict=True))
    return a == b


def _give_the_same(a: Schedule, b: Schedule, stop: int) -> bool:
    try:
        return same_until(a, b, stop) == stop
    except InvalidStudyError:  # one of them has no answer for a step
        return False


def as_schedule(value: object, where: str) -> Schedule:
    """Give a schedule as it is, wrap a function of the step, and hold a plain value constant."""
    if isinstance(value, Schedule):
        return value
    if callable(value):
        return FunctionSchedule(value)
    return Constant(canonical(value, where))


def same_until(a: Schedule, b: Schedule, stop: int) -> int:
    """Give the first step below `stop` at which two schedules differ, else `stop`.

    O(1) where they differ at step 0 or are equal; else O(changes before the difference).
    """
    if a is b or stop <= 0:
        return stop
    if not same(a.at(0), b.at(0)):
        return 0
    if a == b:
        return stop
    return _first_difference(a.changes(1, stop), b.changes(1, stop), stop)


def _first_difference(
    a: Iterator[tuple[int, Value]], b: Iterator[tuple[int, Value]], stop: int
) -> int:
    """Walk two lists of changes in lockstep; up to the first unequal pair the values agree."""
    end: tuple[int, Value] = (stop, None)
    while True:
        (step_a, value_a), (step_b, value_b) = next(a, end), next(b, end)
        if step_a != step_b:
            return min(step_a, step_b)
        if step_a == stop or not same(value_a, value_b):
            return step_a
