"""Say what a hyper-parameter's value may be, and when two values are the same one.

Called by the schedules, the domains and whoever makes keys of values. Two trials share a step only
if all their values are the same, so sameness is decided here once: a float is rounded to 12
significant digits (`0.1 * 0.1` and `0.01` are one value), `-0.0` is `0.0`, and `True`, `1` and
`1.0` are three. Never guesses: what has no deterministic form is refused with its path.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from dasktune.errors import InvalidStudyError

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | None"
"""What a Trainable may receive under the name of a hyper-parameter."""

_MAX_BITS = 1023
"""Longest integer that still has a float beside it; far beyond any hyper-parameter."""

_MAX_SHOWN = 120
"""Characters of a wrong value that an error message repeats."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def canonical(value: object, where: str) -> Value:
    """Give the one form of a value that is stored, hashed and handed to the Trainable.

    Idempotent. Lists become tuples, numpy-like scalars become Python's.

    Args:
        value: What the user wrote.
        where: Path of the value for the error message, e.g. `lr[1].at[0]`.

    Raises:
        InvalidStudyError: For NaN and for everything that is no `Value`.
    """
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124  (NaN; faster than math.isnan, and this is the hot path)
            raise InvalidStudyError(f"{where} is nan: a value must be a number, or inf, or None")
        return rounded(value)
    if type(value) is int:
        if value.bit_length() > _MAX_BITS:
            raise InvalidStudyError(
                f"{where} has {value.bit_length()} bits: an integer may have up to {_MAX_BITS}"
            )
        return value
    if type(value) is str:
        return _encodable(value, where)
    if value is None or type(value) is bool:
        return value
    if isinstance(value, list | tuple):
        return _canonical_items(value, where)
    scalar = unwrapped(value)
    if scalar is value:
        raise InvalidStudyError(
            f"{where} is {shown(value)} of type {type(value).__name__}: a value is a bool, int, "
            "float, str, None, or a tuple of these"
        )
    return canonical(scalar, where)


def rounded(number: float) -> float:
    """Round to 12 significant digits, without a negative zero. Idempotent and monotone."""
    return float(f"{number:.12g}") + 0.0


def unwrapped(value: object) -> object:
    """Turn a numpy-like scalar (it answers `.item()`) into Python's; leave the rest as it is."""
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        scalar = item()
    except Exception:  # an array of many: the caller refuses it by name
        return value
    return scalar if type(scalar) in {bool, int, float, str} else value


def token(value: Value) -> str:
    """Encode a canonical value: equal tokens mean the same value of the same type.

    The first character is the type. A row of tokens is not self-delimiting: who joins several
    adds their lengths, as is done here inside a tuple.
    """
    kind = type(value)
    if kind is float:
        return f"f{value!r}"
    if kind is int:
        return f"i{value}"
    if kind is str:
        return f"s{value}"
    if kind is bool:
        return "b1" if value else "b0"
    if isinstance(value, tuple):
        tokens = [token(item) for item in value]
        return "t" + "".join(f"{len(part)}:{part}" for part in tokens)
    return "n"


def same(a: Value, b: Value) -> bool:
    """Tell whether two canonical values have the same token, without making tokens."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def shown(value: object) -> str:
    """Give a short `repr` for an error message, even of an object that has none."""
    try:
        text = repr(value)
    except Exception:  # foreign code; the message must come out all the same
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def described(thing: object) -> str:
    """Give the `repr` of an object of the user's, or its class; the same text in every process.

    An object that says nothing of itself is named by its class, and the addresses of what it holds
    are left out.
    """
    cls = type(thing)
    if cls.__repr__ is object.__repr__:
        return cls.__qualname__
    try:
        return _ADDRESS.sub("", repr(thing))
    except Exception:  # foreign code, and only a name is asked for
        return cls.__qualname__


def named(function: Callable[..., object]) -> str:
    """Name a function, a method, a partial or a callable object; the same in every process."""
    if isinstance(function, partial):
        given = [f"{name}={_argument(value)}" for name, value in function.keywords.items()]
        parts = [named(function.func), *map(_argument, function.args), *given]
        return f"partial({', '.join(parts)})"
    qualname = getattr(function, "__qualname__", None)
    return qualname if isinstance(qualname, str) else described(function)


def _argument(value: object) -> str:
    return named(value) if callable(value) else described(value)[:_MAX_SHOWN]


def _encodable(text: str, where: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidStudyError(
                f"{where} is {shown(text)}, which has no UTF-8 form: remove the lone surrogate"
            ) from error
    return text


def _canonical_items(items: Sequence[object], where: str) -> Value:
    try:
        return tuple([canonical(item, f"{where}[{i}]") for i, item in enumerate(items)])
    except RecursionError:
        raise InvalidStudyError(
            f"{where[:_MAX_SHOWN]} is nested too deeply: a tuple must not contain itself"
        ) from None
