"""Describe simulated machines: how many, how fast, what loading and saving take, what breaks.

Values only. What a simulated trial scores is a function of its history, as with a deterministic
trainer: trials that share a state share its metrics.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, positive, whole
from dasktune.space.configuration import Configuration
from dasktune.space.value import Value
from dasktune.units import Seconds, Step

StepSeconds: TypeAlias = Seconds | Callable[[Mapping[str, Value]], Seconds]
"""Seconds of one step on a worker of speed 1: a number, or a function of the step's values."""

Curve: TypeAlias = Callable[[Configuration, Step], Mapping[str, float]]
"""What `evaluate()` gives for a configuration after so many steps. It must depend on the values of
those steps only, not on later ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDies:
    """A worker breaks off at a given time, with what it has not committed."""

    worker: int
    """Its index, from 0."""
    at_s: Seconds
    """When; nothing happens if it is away then."""
    back_after_s: Seconds | None = None
    """Seconds until it joins again; None: never."""

    def __post_init__(self) -> None:
        """Refuse a moment that never comes."""
        whole(self.worker, "worker", 0)
        _check_seconds("at_s", self.at_s)
        if self.back_after_s is not None:
            _check_seconds("back_after_s", self.back_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRaises:
    """Some attempts at stages raise, after half their steps; chosen by hash, not by chance."""

    fraction: float
    """Of attempts, in [0, 1]."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no share of attempts."""
        if not 0 <= number(self.fraction, "fraction") <= 1:
            raise InvalidStudyError(
                f"fraction is {self.fraction!r}; it must be a number between 0 and 1"
            )
        whole(self.seed, "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVanishes:
    """At a given time the state that was committed last cannot be read any more."""

    at_s: Seconds

    def __post_init__(self) -> None:
        """Refuse a moment that never comes."""
        _check_seconds("at_s", self.at_s)


def deaths(
    *,
    seed: int,
    workers: int,
    mean_s: Seconds,
    until_s: Seconds,
    back_after_s: Seconds | None = None,
) -> tuple[WorkerDies, ...]:
    """Return a seeded script of deaths: each worker's come independently of the others'.

    Args:
        seed: Another seed gives another script.
        workers: How many workers there are.
        mean_s: Mean seconds between two deaths of one worker (exponentially distributed).
        until_s: No death comes later.
        back_after_s: Seconds until a dead worker joins again; None: it stays away, and dies once.
    """
    positive(mean_s, "mean_s")
    script = []
    for worker in range(workers):
        draws = Random(f"{seed}:{worker}")
        at_s = draws.expovariate(1 / mean_s)
        while at_s <= until_s:
            script.append(WorkerDies(worker=worker, at_s=at_s, back_after_s=back_after_s))
            if back_after_s is None:
                break
            at_s += back_after_s + draws.expovariate(1 / mean_s)
    return tuple(script)


Fault: TypeAlias = WorkerDies | StageRaises | StateVanishes


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Simulated machines."""

    workers: int | Sequence[float] = 1
    """How many of speed 1, or the speed of each: a worker of speed 2 takes half as long."""
    step_s: StepSeconds = 1.0
    """Seconds of one step."""
    startup_s: Seconds = 0.0
    """Seconds of `setup`, for each path on a slot that does not hold its start."""
    load_s: Seconds = 0.0
    """Seconds to load a state, for each path from a stored state that the slot does not hold."""
    save_s: Seconds = 0.0
    """Seconds to commit a state."""
    evaluate_s: Seconds = 0.0
    """Seconds of `evaluate()`."""
    join_s: Seconds | Sequence[Seconds] = 0.0
    """When the workers join: all at once, or each."""
    curve: Curve | None = None
    """What trials score; None: a number in [0, 1) drawn from each state's key."""
    faults: Sequence[Fault] = field(default=())
    """What breaks, and when."""

    def __post_init__(self) -> None:
        """Refuse what no machine can be."""
        if isinstance(self.workers, str | bytes):
            raise InvalidStudyError(
                f"workers is {self.workers!r}; it must be how many there are, or the speed of each"
            )
        if not isinstance(self.workers, Sequence):
            whole(self.workers, "workers", 1)
        for speed in self.speeds:
            positive(speed, "the speed of a worker")
        if not self.speeds:
            raise InvalidStudyError(f"workers is {self.workers!r}; there must be at least one")
        if len(self.join_times) != len(self.speeds):
            raise InvalidStudyError(
                f"join_s has {len(self.join_times)} times; it must have one for each of "
                f"{len(self.speeds)} workers"
            )
        for name in ("startup_s", "load_s", "save_s", "evaluate_s"):
            _check_seconds(name, getattr(self, name))
        for at in self.join_times:
            _check_seconds("join_s", at)
        if not callable(self.step_s):
            _check_seconds("step_s", self.step_s)
        if self.curve is not None and not callable(self.curve):
            raise InvalidStudyError(
                f"curve is {self.curve!r}; it must be a function of a configuration and a step"
            )
        self._check_faults()

    def _check_faults(self) -> None:
        if not isinstance(self.faults, Sequence):
            raise InvalidStudyError(f"faults is {self.faults!r}; it must be a list of faults")
        for fault in self.faults:
            if not isinstance(fault, WorkerDies | StageRaises | StateVanishes):
                raise InvalidStudyError(
                    f"a fault is {fault!r}; it must be a WorkerDies, StageRaises or StateVanishes"
                )
            if isinstance(fault, WorkerDies) and fault.worker >= len(self.speeds):
                raise InvalidStudyError(
                    f"{fault!r} is about worker {fault.worker}; the last of {len(self.speeds)} "
                    f"workers is {len(self.speeds) - 1}"
                )

    @property
    def speeds(self) -> tuple[float, ...]:
        """The speed of each worker."""
        if isinstance(self.workers, Sequence):
            return tuple(self.workers)
        return (1.0,) * self.workers

    @property
    def join_times(self) -> tuple[Seconds, ...]:
        """When each worker joins."""
        if isinstance(self.join_s, Sequence):
            return tuple(self.join_s)
        return (self.join_s,) * len(self.speeds)

    def train_s(self, configuration: Configuration, start: Step, stop: Step) -> Seconds:
        """Return the seconds of some steps on a worker of speed 1."""
        if callable(self.step_s):
            seconds = [self.step_s(configuration.at(step)) for step in range(start, stop)]
            for taken in seconds:
                _check_seconds("what step_s gives", taken)
            return sum(seconds)
        return self.step_s * (stop - start)


def _check_seconds(name: str, value: Seconds) -> None:
    if number(value, name) < 0:
        raise InvalidStudyError(f"{name} is {value!r}; it must be a number of seconds >= 0")
