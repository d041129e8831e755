"""Find where two states, or two trainables, differ: bit for bit, and by a path that the user knows.

Called by `check`. Imports neither numpy nor torch: whether two arrays or tensors are the same bits
is asked from the codec, for which equal things have equal bytes.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any, TypeAlias

from dasktune.errors import StageError
from dasktune.space.value import shown
from dasktune.store.codec import encode

_Object: TypeAlias = Any
"""Whatever a state or a trainable may hold."""

_MAX_DEPTH = 12
_MOST_COUNTED = 1_000_000
"""Elements of an array that are compared one by one, for the message."""
_MOST_PATHS = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """A place where two things differ."""

    path: str
    """How the user reaches it."""
    words: str
    """What is different."""

    def __str__(self) -> str:
        return f"{self.path} ({self.words})"


def first_difference(a: object, b: object, path: str) -> Difference | None:
    """Return the first place where two states are not the same bits in the same order.

    Args:
        a: A state that the codec takes.
        b: Another.
        path: How the user calls both.
    """
    return next(_differences(a, b, path), None)


def _differences(a: _Object, b: _Object, path: str) -> Iterator[Difference]:
    if type(a) is not type(b):
        yield Difference(path, f"{_kind(a)} in one, {_kind(b)} in the other")
    elif isinstance(a, dict):
        yield from _of_dicts(a, b, path)
        left, right = getattr(a, "_metadata", None), getattr(b, "_metadata", None)  # torch's
        yield from _differences(left, right, f"{path}._metadata")
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            yield Difference(path, f"{len(a)} items in one, {len(b)} in the other")
        for i, (left, right) in enumerate(zip(a, b, strict=False)):
            yield from _differences(left, right, f"{path}[{i}]")
    elif encode(a) != encode(b):
        yield Difference(path, _how(a, b))


def _of_dicts(
    a: dict[_Object, _Object], b: dict[_Object, _Object], path: str
) -> Iterator[Difference]:
    for key, value in a.items():
        if key in b:
            yield from _differences(value, b[key], f"{path}[{key!r}]")
    for key in [*a, *b]:
        if key not in a or key not in b:
            yield Difference(f"{path}[{key!r}]", "missing in one")
    if a.keys() == b.keys() and list(a) != list(b):
        yield Difference(path, "the same keys in another order")


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _how(a: _Object, b: _Object) -> str:
    """Say how two values of one type differ."""
    shapes = [getattr(each, "shape", None) for each in (a, b)]
    if shapes == [None, None]:
        return f"{shown(a)} in one, {shown(b)} in the other"
    kinds = [(getattr(each, "dtype", None), tuple(each.shape)) for each in (a, b)]
    if kinds[0] != kinds[1]:
        return " in one, ".join(f"{dtype} of shape {shape}" for dtype, shape in kinds) + (
            " in the other"
        )
    if prod(a.shape) > _MOST_COUNTED:
        return "other values"
    with suppress(Exception):  # a dtype without arithmetic
        left, right = _flat(a), _flat(b)
        pairs = list(zip(left, right, strict=True))
        n = sum(x != y for x, y in pairs)
        most = max(abs(x - y) for x, y in pairs)
        return f"{n} of {len(pairs)} elements, by up to {most:.3g}"
    return "other values"


def _flat(array: _Object) -> list[float]:
    tensor = array.detach().cpu() if hasattr(array, "detach") else array
    values = tensor.reshape(-1).tolist()
    return values if isinstance(values, list) else [values]


# --- what a state does not say


def differing_attributes(
    a: object, b: object, *, besides: Collection[str] = (), most: int = 3
) -> list[Difference]:
    """Return the attributes of two trainables that differ, one place for each, generators first.

    Args:
        a: A trainable.
        b: Another of the same class.
        besides: Paths of places that are known to differ: these are left out.
        most: How many.
    """
    found: list[Difference] = []
    for each in _by_attribute(a, b):
        found += islice((one for one in each if one.path not in besides), 1)
    found.sort(key=lambda one: (one.words != _GENERATOR, one.path))
    return found[:most]


def differing_paths(a: object, b: object) -> frozenset[str]:
    """Return the path of each place at which two trainables of one class differ, up to many."""
    paths = (one.path for each in _by_attribute(a, b) for one in each)
    return frozenset(islice(paths, _MOST_PATHS))


def _by_attribute(a: object, b: object) -> Iterator[Iterator[Difference]]:
    left, right = _attributes(a), _attributes(b)
    for name in left.keys() & right.keys():
        yield _deep(left[name], right[name], f"self.{name}", (0, set()))


_GENERATOR = "a generator that stands elsewhere"


def is_generator(difference: Difference) -> bool:
    """Say whether two generators of random numbers are what differs."""
    return difference.words == _GENERATOR


def _deep(a: _Object, b: _Object, path: str, where: tuple[int, set[int]]) -> Iterator[Difference]:
    """Compare as far as there is something to compare; what cannot be looked into is no difference.

    Args:
        a: Something that a trainable holds.
        b: The same of another.
        path: How the user reaches it.
        where: How deep this is, and the objects above.
    """
    depth, above = where
    if a is b or depth > _MAX_DEPTH or id(a) in above or _is_code(a):
        return
    deeper = (depth + 1, above | {id(a)})
    states = [_generator_state(each) for each in (a, b)]
    if type(a) is type(b) and states[0] is not None:
        if first_difference(_plain(states[0]), _plain(states[1]), path) is not None:
            yield Difference(path, _GENERATOR)
    elif type(a) is type(b) and isinstance(a, dict):
        for key in a.keys() & b.keys():
            yield from _deep(a[key], b[key], f"{path}[{key!r}]", deeper)
        if a.keys() != b.keys() and all(isinstance(key, _PLAIN) for key in [*a, *b]):
            yield Difference(path, "other keys")
    elif type(a) is type(b) and isinstance(a, list | tuple) and len(a) == len(b):
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _deep(left, right, f"{path}[{i}]", deeper)
    else:
        yield from _of_objects(a, b, path, deeper)


def _of_objects(
    a: _Object, b: _Object, path: str, where: tuple[int, set[int]]
) -> Iterator[Difference]:
    try:
        yield from islice(_differences(a, b, path), 1)
        return
    except StageError:
        pass  # nothing that a state may hold: an object
    if callable(getattr(a, "state_dict", None)) and not _is_module(a):
        with suppress(Exception):
            yield from _deep(a.state_dict(), b.state_dict(), path, where)
    left, right = _attributes(a), _attributes(b)
    for name in left:
        if name in right:
            yield from _deep(left[name], right[name], f"{path}.{name}", where)


_PLAIN = (str, int, float, bytes, tuple, type(None))
"""Keys that mean the same in two objects; others are those objects' own, as parameters are."""
_PARTS = ("_parameters", "_buffers", "_modules")
"""Where a module of torch has what users reach by name; a buffer may be in no state_dict()."""


def _is_module(thing: object) -> bool:
    return all(isinstance(getattr(thing, part, None), dict) for part in _PARTS)


def _is_code(thing: object) -> bool:
    """Say whether this is a function or a class, and no object that can be called."""
    return isinstance(thing, type) or (
        callable(thing) and not callable(getattr(thing, "state_dict", None))
    )


def _attributes(thing: object) -> Mapping[str, object]:
    """Return attributes by name, sorted; the parts of a module last."""
    found = getattr(thing, "__dict__", None)
    if not isinstance(found, dict):
        return {}
    own = dict(sorted(found.items()))
    if not _is_module(thing):
        return own
    parts = [own.pop(name) for name in _PARTS]
    return own | {name: part for each in parts for name, part in each.items()}


def _generator_state(thing: _Object) -> object:
    """Return the state of a generator of random numbers; None if it is none."""
    if isinstance(thing, type):
        return None
    for name in ("getstate", "get_state"):  # random.Random; torch.Generator, numpy's RandomState
        state = getattr(thing, name, None)
        if callable(state):
            with suppress(Exception):
                return state()
    with suppress(Exception):
        return thing.bit_generator.state  # numpy.random.Generator
    return None


def _plain(state: object) -> object:
    """Turn what is no state for the codec into text."""
    try:
        encode(state)
    except StageError:
        return repr(state)
    return state
