"""Turn metrics into scores: numbers of which greater is better."""

from math import isfinite
from typing import Literal, TypeAlias, cast

Mode: TypeAlias = Literal["max", "min"]
"""Whether more of a metric is better, or less."""


def score_of(value: object, mode: Mode) -> float | None:
    """Return a metric with greater as better; None if it is not a finite number."""
    if value is None or isinstance(value, str):
        return None
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError, OverflowError):
        return None
    if not isfinite(number):
        return None
    return number if mode == "max" else -number
