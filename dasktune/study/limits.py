"""When a study ends although its tuner would go on: time, steps, a target, patience.

`Limits` are part of the study's description; a `Watch` follows one study and says once, and why,
that it is enough. Time is the core's business: it is told when.
"""

import re
from dataclasses import dataclass
from math import isfinite

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.units import Seconds

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a study may use up, and what is good enough; None: no limit."""

    timeout_s: Seconds | None = None
    """Seconds since the study started; time in which nobody drove it does not count."""
    max_steps_executed: int | None = None
    """Steps that workers train, for all studies of a run together."""
    target: float | None = None
    """A value of the tuned metric that is good enough."""
    patience: int | None = None
    """Trials that report, one after the other, without a better best."""


def limits(
    *, timeout: object, max_steps_executed: object, target: object, patience: object
) -> Limits:
    """Check what a user gave.

    Args:
        timeout: Seconds, or a text such as "90s", "30m", "2h", "1d"; > 0.
        max_steps_executed: At least 1.
        target: A finite number.
        patience: At least 1.

    Raises:
        InvalidStudyError: One of them is none of these.
    """
    return Limits(
        timeout_s=None if timeout is None else _seconds(timeout),
        max_steps_executed=(
            None
            if max_steps_executed is None
            else whole(max_steps_executed, "max_steps_executed", 1)
        ),
        target=None if target is None else _finite(target, "target"),
        patience=None if patience is None else whole(patience, "patience", 1),
    )


def _seconds(timeout: object) -> Seconds:
    if isinstance(timeout, str):
        match = _DURATION.fullmatch(timeout.strip())
        seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    else:
        seconds = _finite(timeout, "timeout")
    if seconds <= 0:
        raise InvalidStudyError(
            f"timeout is {timeout!r}; it must be seconds greater than 0, or a text such as "
            "'90s', '30m', '2h' or '1d'"
        )
    return seconds


def _finite(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidStudyError(f"{name} is {value!r}; it must be a finite number")
    return float(value)


class Watch:
    """What one study has come to, against its limits."""

    __slots__ = ("_best", "_limits", "_target", "_without")

    def __init__(self, limits: Limits, *, target: float | None) -> None:
        """Begin with nothing reported.

        Args:
            limits: Of the study.
            target: The limit's target as a score: greater is better.
        """
        self._limits = limits
        self._target = target
        self._best = -float("inf")
        self._without: set[int] = set()  # trials that reported since the best did

    def reported(self, trial: int, score: float) -> str | None:
        """Take in a report; return why it is enough, or None if it is not."""
        if score > self._best:
            self._best = score
            self._without.clear()
        else:
            self._without.add(trial)
        if self._target is not None and self._best >= self._target:
            return f"the target {self._limits.target} is reached"
        patience = self._limits.patience
        if patience is not None and len(self._without) >= patience:
            return f"{patience} trials in a row reported nothing better than the best"
        return None

    def executed(self, steps: int) -> str | None:
        """Take in how many steps were trained; return why it is enough, or None if it is not."""
        most = self._limits.max_steps_executed
        if most is not None and steps >= most:
            return f"{steps} steps were executed; max_steps_executed is {most}"
        return None

    def copy(self) -> "Watch":
        """Return a watch that goes on from here by itself."""
        twin = Watch(self._limits, target=self._target)
        twin._best = self._best
        twin._without = self._without.copy()
        return twin
