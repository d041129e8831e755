"""The record of a stored state: a few lines of JSON that say which blob stands for a key.

Written last and atomically, so a state is there if and only if its record is. A checksum over the
record itself keeps a damaged metric from deciding a promotion. It keeps nobody from writing what
he likes, so every field is checked when a record is read: it becomes part of paths, sizes, sums.

It also keeps the metrics of report steps that were passed on the way to the state: a key names the
whole history behind it, so it names them as well, and they need no states of their own. Version 2
is version 1 with these (`"passed"`: metrics by step, as text); a record that has none of them is
written as version 1, byte for byte as ever.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from typing import Any, Self, TypeAlias, TypeGuard

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.store.names import checked_digest, checked_key
from dasktune.units import Digest, Seconds, Step

Metrics: TypeAlias = Mapping[str, float | None]
"""What `evaluate()` gave, by name."""

Passed: TypeAlias = Mapping[Step, Mapping[str, float | None]]
"""Metrics of earlier states of a history, by step."""

_VERSION = 2
_VERSION_WITHOUT_PASSED = 1
_LARGEST = 2**63 - 1
"""Of a step or a size: what a file system can say; sums and quotients stay within floats."""


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
    passed: Passed = field(default_factory=dict)
    """Metrics that were reported on the way to it, by step: of states of the same history, most of
    which are not stored."""

    @property
    def seconds(self) -> Seconds:
        """How long it took to make; 0 if that is not known."""
        seconds = self.facts.get("seconds", 0.0)
        is_number = _is_number(seconds) and not isinstance(seconds, bool)
        return float(seconds) if is_number else 0.0

    def with_metrics(self, metrics: Metrics | None) -> Self:
        """Return the record with more metrics; equal names take the new value."""
        if metrics is None:
            return self
        return replace(self, metrics={**(self.metrics or {}), **metrics})

    def with_passed(self, passed: Passed) -> Self:
        """Return the record with more reports from the way to it; of a step the first stands."""
        if passed.keys() <= self.passed.keys():
            return self
        return replace(self, passed={**passed, **self.passed})

    def to_bytes(self) -> bytes:
        """Return the record as JSON.

        Raises:
            InvalidStudyError: A metric is no number, or JSON cannot say the facts.
        """
        plain: dict[str, object] = {
            "version": _VERSION if self.passed else _VERSION_WITHOUT_PASSED,
            "key": self.key,
            "step": self.step,
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "metrics": None if self.metrics is None else _plain_metrics(self.metrics),
            "facts": dict(self.facts),
        }
        if self.passed:
            plain["passed"] = {str(t): _plain_metrics(each) for t, each in self.passed.items()}
        try:
            # There and back, as JSON makes text of keys that are none, which then sort otherwise.
            text = _canonical(json.loads(_canonical(plain)))
            # The name comes first in the order of names, so what follows stays as it is.
            return f'{{"check":"{_check(text)}",{text[1:]}\n'.encode()
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
            if version not in (_VERSION, _VERSION_WITHOUT_PASSED):
                raise BackendError(
                    f"a record in the store has version {version!r}, and this dasktune reads "
                    f"up to {_VERSION}: use the dasktune that wrote it, or a newer one"
                )
            metrics = plain.pop("metrics")
            if metrics is not None:
                metrics = _numbers(metrics)
            passed = {_step(t): _numbers(each) for t, each in plain.pop("passed", {}).items()}
            record = cls(metrics=metrics, passed=passed, **plain)
            _check_fields(record)
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
        if not isinstance(name, str) or not (value is None or _is_number(value)):
            raise InvalidStudyError(
                f"metric {name!r} is {value!r}; it must be a number or None, by name"
            )
        # A subclass, such as numpy.float64, becomes a plain float.
        checked[name] = float(value) if isinstance(value, float) else value
    return checked


def checked_passed(passed: Mapping[Any, Mapping[Any, object]] | None) -> Passed:
    """Return reports by step as plain numbers.

    Raises:
        InvalidStudyError: A step is no whole number, or a metric no number.
    """
    checked: dict[Step, Metrics] = {}
    for step, metrics in (passed or {}).items():
        if type(step) is not int or step < 1:
            raise InvalidStudyError(f"step {step!r} was passed; it must be a whole number above 0")
        checked[step] = checked_metrics(metrics) or {}
    return checked


def _plain_metrics(metrics: Metrics) -> dict[str, object]:
    # JSON has no word for infinities and NaN.
    return {
        name: repr(value) if isinstance(value, float) and not isfinite(value) else value
        for name, value in metrics.items()
    }


def _numbers(metrics: Mapping[str, object]) -> Metrics:
    return {name: _number(value) for name, value in metrics.items()}


def _number(value: object) -> float | None:
    if value is None or _is_number(value):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    raise ValueError(f"{value!r} is no metric")


def _is_number(value: object) -> TypeGuard[int | float]:
    """Say whether something is a number that a float can hold, as all that is compared must be."""
    try:
        return isinstance(value, int | float) and isinstance(float(value), float)
    except OverflowError:
        return False


def _step(text: str) -> Step:
    step = int(text)
    if str(step) != text or not 1 <= step <= _LARGEST:
        raise ValueError(f"{text[:40]!r} is no step")
    return step


def _check_fields(record: Record) -> None:
    checked_key(record.key)
    checked_digest(record.sha256, "sha256")
    for name, value in (("step", record.step), ("size_bytes", record.size_bytes)):
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(f"{name} must be a whole number")
    if not isinstance(record.facts, dict):
        raise TypeError("facts must be an object")


def _canonical(plain: Mapping[str, object]) -> str:
    return json.dumps(plain, allow_nan=False, sort_keys=True, separators=(",", ":"))


def _check(text: str) -> str:
    return sha256(text.encode()).hexdigest()
