"""Schedules that come back to where they were: warm restarts and triangles.

Called by users: `cosine_restarts`, `cyclic`.

References:
    [1] Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017,
        section 3: `v` and `end` are their eta_max and eta_min, `period` their T_0, `factor` their
        T_mult; T_cur counts whole steps.
    [2] Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017, section 3: the
        "triangular" policy, `half_period` is the paper's stepsize.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import ClassVar, final, overload

from dasktune.space.arguments import number, whole
from dasktune.space.domain import Drawn
from dasktune.space.schedule import Schedule
from dasktune.space.smooth import half_wave
from dasktune.space.template import Template, made
from dasktune.space.value import Value, rounded


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class CosineRestarts(Schedule):
    """Half cosine waves, one after the other, each as long as the last or longer."""

    v: float
    period: int
    factor: int
    end: float

    def __init__(self, v: object, period: object, factor: object, end: object) -> None:
        object.__setattr__(self, "v", float(number(v, "cosine_restarts: v")))
        object.__setattr__(self, "period", whole(period, "cosine_restarts: period", least=1))
        object.__setattr__(self, "factor", whole(factor, "cosine_restarts: factor", least=1))
        object.__setattr__(self, "end", float(number(end, "cosine_restarts: end")))

    @property
    def text(self) -> str:
        """The call that makes it."""
        end = f", end={self.end!r}" if self.end else ""
        return f"cosine_restarts({self.v!r}, period={self.period}, factor={self.factor}{end})"

    def _value(self, step: int) -> Value:
        length = self.period
        if self.factor == 1:
            step %= length
        while step >= length:
            step -= length
            length *= self.factor
        return half_wave(self.v, self.end, step / length)

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.v, self.period, self.factor, self.end)


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Cyclic(Schedule):
    """Straight up and straight down, for ever."""

    start: ClassVar[str] = "low"

    low: float
    high: float
    half_period: int

    def __init__(self, low: object, high: object, half_period: object) -> None:
        object.__setattr__(self, "low", float(number(low, "cyclic: low")))
        object.__setattr__(self, "high", float(number(high, "cyclic: high")))
        object.__setattr__(self, "half_period", whole(half_period, "cyclic: half_period", least=1))

    @property
    def text(self) -> str:
        """The call that makes it."""
        return f"cyclic({self.low!r}, high={self.high!r}, half_period={self.half_period})"

    def _value(self, step: int) -> Value:
        half = self.half_period
        weight = abs(step % (2 * half) - half) / half
        return rounded(self.low * weight + self.high * (1 - weight))

    def _steps(self, start: int, stop: int) -> Iterable[int]:
        return range(start, stop)

    def _parts(self) -> tuple[Hashable, ...]:
        return (self.low, self.high, self.half_period)


@overload
def cosine_restarts(v: float, period: int, factor: int = 1, end: float = 0.0) -> Schedule: ...
@overload
def cosine_restarts(
    v: float | Drawn, period: int | Drawn, factor: int | Drawn = 1, end: float | Drawn = 0.0
) -> Schedule | Template: ...
def cosine_restarts(
    v: float | Drawn, period: int | Drawn, factor: int | Drawn = 1, end: float | Drawn = 0.0
) -> Schedule | Template:
    """Fall along half a cosine from `v` towards `end`, and start again at `v`.

    Args:
        v: Value at step 0 and at every restart.
        period: Steps of the first fall.
        factor: How many times as long each fall is as the one before; an integer from 1 on.
        end: What each fall approaches; the restart comes one step before it would be met.
    """
    return made("cosine_restarts", CosineRestarts, v=v, period=period, factor=factor, end=end)


@overload
def cyclic(low: float, high: float, half_period: int) -> Schedule: ...
@overload
def cyclic(
    low: float | Drawn, high: float | Drawn, half_period: int | Drawn
) -> Schedule | Template: ...
def cyclic(
    low: float | Drawn, high: float | Drawn, half_period: int | Drawn
) -> Schedule | Template:
    """Go in straight lines from `low` at step 0 to `high` and back, `half_period` steps each.

    With `high` below `low` the triangle stands on its head, as one cycles a momentum.
    """
    return made("cyclic", Cyclic, low=low, high=high, half_period=half_period)
