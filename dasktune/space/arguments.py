"""Check the arguments of schedules and domains where they are born.

Called by every constructor of this package with the place to name, e.g. `step_decay: factor`.
Numbers come back as Python's own, unrounded: only values are rounded, or an error of 1e-12 in a
factor would grow with its powers. Never converts what only looks like a number (`True`, `"3"`).
"""

import math
from collections.abc import Iterable
from itertools import pairwise

from dasktune.errors import InvalidStudyError
from dasktune.space.value import canonical, shown, unwrapped


def number(value: object, where: str) -> int | float:
    """Check that a value is a finite number; bool is none."""
    plain = unwrapped(value)
    if isinstance(plain, float) and math.isfinite(plain):
        return float(plain)
    if type(plain) is int:
        canonical(plain, where)
        return plain
    raise InvalidStudyError(f"{where} must be a finite number such as 0.1, got {shown(value)}")


def positive(value: object, where: str) -> int | float:
    """Check that a value is a finite number above 0."""
    plain = number(value, where)
    if plain <= 0:
        raise InvalidStudyError(f"{where} must be above 0, such as 0.1, got {shown(value)}")
    return plain


def whole(value: object, where: str, least: int | None = None) -> int:
    """Check that a value is an integer, not below `least` where that is given."""
    plain = unwrapped(value)
    if type(plain) is not int:
        raise InvalidStudyError(f"{where} must be an integer such as 3, got {shown(value)}")
    canonical(plain, where)
    if least is not None and plain < least:
        raise InvalidStudyError(f"{where} must be at least {least}, got {shown(value)}")
    return plain


def rising(values: object, where: str) -> tuple[int, ...]:
    """Check that values are steps in strictly rising order, the first one at least 1."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidStudyError(
            f"{where} must be a list of steps such as [6, 12], got {shown(values)}"
        )
    steps = tuple([whole(step, f"{where}[{i}]", least=1) for i, step in enumerate(values)])
    for before, after in pairwise(steps):
        if before >= after:
            raise InvalidStudyError(
                f"{where} must rise strictly, got {list(steps)}: {after} follows {before}"
            )
    return steps
