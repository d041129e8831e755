"""Schedules that move from one value to another within a number of steps, and stay there.

Called by users: `linear`, `polynomial`, `cosine`. Each is `v * w + end * (1 - w)` with a weight
that falls from 1 to 0; written so, nothing overflows and both ends are met exactly.

References:
    [1] Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
        section 3: `cosine` is one period, `v` and `end` are their eta_max and eta_min, `steps`
        their T_i. Here the value after the period stays at `end`.
    [2] Chen et al., "DeepLab: Semantic Image Segmentation with Deep Convolutional Nets, Atrous
        Convolution, and Fully Connected CRFs", TPAMI 40(4), 2018: the "poly" policy.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import final, overload

from dasktune.space.arguments import number, positive, whole
from dasktune.space.domain import Drawn
from dasktune.space.schedule import Schedule
from dasktune.space.template import Template, made
from dasktune.space.value import Value, rounded


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Linear(Schedule):
    """From one value to another in equal steps."""

    v: float
    end: float
    steps: int

    def __init__(self, v: object, end: object, steps: object) -> None:
        object.__setattr__(self, "v", float(number(v, "linear: v")))
        object.__setattr__(self, "end", float(number(end, "linear: end")))
        object.__setattr__(self, "steps", whole(steps, "linear: steps", least=1))

    @property
    def text(self) -> str:
        """The call that makes it."""
        return f"linear({self.v!r}, end={self.end!r}, steps={self.steps})"

    def _value(self, step: int) -> Value:
        weight = max(self.steps - step, 0) / self.steps
        return rounded(self.v * weight + self.end * (1 - weight))

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, min(stop, self.steps + 1))

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.v, self.end, self.steps)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Polynomial(Schedule):
    """From one value to another with the weight `(1 - step / steps)**power`."""

    v: float
    end: float
    steps: int
    power: float

    def __init__(self, v: object, end: object, steps: object, power: object) -> None:
        object.__setattr__(self, "v", float(number(v, "polynomial: v")))
        object.__setattr__(self, "end", float(number(end, "polynomial: end")))
        object.__setattr__(self, "steps", whole(steps, "polynomial: steps", least=1))
        object.__setattr__(self, "power", float(positive(power, "polynomial: power")))

    @property
    def text(self) -> str:
        """The call that makes it."""
        v, end, power = self.v, self.end, self.power
        return f"polynomial({v!r}, end={end!r}, steps={self.steps}, power={power!r})"

    def _value(self, step: int) -> Value:
        weight = float((max(self.steps - step, 0) / self.steps) ** self.power)
        return rounded(self.v * weight + self.end * (1 - weight))

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, min(stop, self.steps + 1))

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.v, self.end, self.steps, self.power)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Cosine(Schedule):
    """From one value to another along half a wave."""

    v: float
    steps: int
    end: float

    def __init__(self, v: object, steps: object, end: object) -> None:
        object.__setattr__(self, "v", float(number(v, "cosine: v")))
        object.__setattr__(self, "steps", whole(steps, "cosine: steps", least=1))
        object.__setattr__(self, "end", float(number(end, "cosine: end")))

    @property
    def text(self) -> str:
        """The call that makes it."""
        end = f", end={self.end!r}" if self.end else ""
        return f"cosine({self.v!r}, steps={self.steps}{end})"

    def _value(self, step: int) -> Value:
        return half_wave(self.v, self.end, min(step / self.steps, 1.0))

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, min(stop, self.steps + 1))

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.v, self.steps, self.end)


def half_wave(v: float, end: float, done_fraction: float) -> float:
    """Give the value on the cosine from `v` to `end` when a fraction of the way is done."""
    weight = 0.5 * (1 + math.cos(math.pi * done_fraction))
    return rounded(v * weight + end * (1 - weight))


@overload
def linear(v: float, end: float, steps: int) -> Schedule: ...
@overload
def linear(v: float | Drawn, end: float | Drawn, steps: int | Drawn) -> Schedule | Template: ...
def linear(v: float | Drawn, end: float | Drawn, steps: int | Drawn) -> Schedule | Template:
    """Move in a straight line from `v` at step 0 to `end` at step `steps`, and stay there.

    Example:
        >>> list(linear(1.0, 0.0, 4).changes(0, 100))
        [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25), (4, 0.0)]
    """
    return made("linear", Linear, v=v, end=end, steps=steps)


@overload
def polynomial(v: float, end: float, steps: int, *, power: float) -> Schedule: ...
@overload
def polynomial(
    v: float | Drawn, end: float | Drawn, steps: int | Drawn, *, power: float | Drawn
) -> Schedule | Template: ...
def polynomial(
    v: float | Drawn, end: float | Drawn, steps: int | Drawn, *, power: float | Drawn
) -> Schedule | Template:
    """Move as `(1 - step / steps)**power` from `v` at step 0 to `end` at step `steps`."""
    return made("polynomial", Polynomial, v=v, end=end, steps=steps, power=power)


@overload
def cosine(v: float, steps: int, end: float = 0.0) -> Schedule: ...
@overload
def cosine(
    v: float | Drawn, steps: int | Drawn, end: float | Drawn = 0.0
) -> Schedule | Template: ...
def cosine(v: float | Drawn, steps: int | Drawn, end: float | Drawn = 0.0) -> Schedule | Template:
    """Move along half a cosine from `v` at step 0 to `end` at step `steps`, and stay there.

    Example:
        >>> [cosine(0.1, 4).at(step) for step in (0, 2, 4, 99)]
        [0.1, 0.05, 0.0, 0.0]
    """
    return made("cosine", Cosine, v=v, steps=steps, end=end)
