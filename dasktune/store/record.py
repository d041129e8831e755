"""The record of a stored state: a few lines of JSON that say which blob stands for a key.

Written last and atomically, so a state is there if and only if its record is. A checksum over the
record itself keeps a damaged metric from deciding a promotion.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from typing import Any, Self, TypeAlias

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.store.names import checked_key
from dasktune.units import Digest, Seconds, Step

Metrics: TypeAlias = Mapping[str, float | None]
"""What `evaluate()` gave, by name."""

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of a stored state."""

    key: Digest
    """Names the state by its history."""
    step: Step
    """Steps of training that it has behind it."""
    sha256: str
    """SHA-256 of the blob, and part of its name."""
    size_bytes: int
    """Of the blob."""
    metrics: Metrics | None = None
    """Metrics of the state, if they were taken."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: seconds, knobs, versions of libraries; whatever JSON can say."""

    @property
    def seconds(self) -> Seconds:
        """How long it took to make; 0 if that is not known."""
        seconds = self.facts.get("seconds", 0.0)
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        return float(seconds) if is_number else 0.0

    def with_metrics(self, metrics: Metrics | None) -> Self:
        """Return the record with more metrics; equal names take the new value."""
        if metrics is None:
            return self
        return replace(self, metrics={**(self.metrics or {}), **metrics})

    def to_bytes(self) -> bytes:
        """Return the record as JSON.

        Raises:
            InvalidStudyError: A metric is no number, or JSON cannot say the facts.
        """
        plain = {
            "version": _VERSION,
            "key": self.key,
            "step": self.step,
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "metrics": None if self.metrics is None else _plain_metrics(self.metrics),
            "facts": dict(self.facts),
        }
        try:
            # There and back, as JSON makes text of keys that are none, which then sort otherwise.
            plain = json.loads(_canonical(plain))
            return _canonical({**plain, "check": _check(_canonical(plain))}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidStudyError(
                f"facts are {self.facts!r:.200}; they must be what JSON can say: {error}"
            ) from error

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record that `to_bytes` gave.

        Raises:
            ValueError: It is no record, or damaged.
            BackendError: A newer dasktune wrote it.
        """
        try:
            plain = json.loads(data)
            check = plain.pop("check")
            if check != _check(_canonical(plain)):
                raise ValueError("its checksum does not fit")
            version = plain.pop("version")
            if version != _VERSION:
                raise BackendError(
                    f"a record in the store has version {version!r}, and this dasktune reads "
                    f"{_VERSION}: use the dasktune that wrote it, or a newer one"
                )
            metrics = plain.pop("metrics")
            if metrics is not None:
                metrics = {name: _number(value) for name, value in metrics.items()}
            record = cls(metrics=metrics, **plain)
            checked_key(record.key)
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{error!r}") from error
        return record


def checked_metrics(metrics: Mapping[Any, object] | None) -> Metrics | None:
    """Return metrics as plain numbers.

    Raises:
        InvalidStudyError: One is no number.
    """
    if metrics is None:
        return None
    checked: dict[str, float | None] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, int | float)):
            raise InvalidStudyError(
                f"metric {name!r} is {value!r}; it must be a number or None, by name"
            )
        # A subclass, such as numpy.float64, becomes a plain float.
        checked[name] = float(value) if isinstance(value, float) else value
    return checked


def _plain_metrics(metrics: Metrics) -> dict[str, object]:
    # JSON has no word for infinities and NaN.
    return {
        name: repr(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in metrics.items()
    }


def _number(value: object) -> float | None:
    if value is None or isinstance(value, int | float):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    raise ValueError(f"{value!r} is no metric")


def _canonical(plain: Mapping[str, object]) -> str:
    return json.dumps(plain, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _check(text: str) -> str:
    return sha256(text.encode()).hexdigest()
