"""Hold a schedule some of whose arguments are still to be drawn.

Called by the constructors of schedules, which make a `Template` instead of a schedule as soon as
one argument, or an item of one, is a domain or a template. Built with drawn values it passes the
same checks as the plain call; its corners (bounds of numbers, all options of choices) are tried
when it is born, so that a wrong argument is refused then and not in the middle of a study. Never
draws.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import final

from dasktune.space.domain import Drawn
from dasktune.space.schedule import Constant, Schedule
from dasktune.space.value import named, shown

_MAX_CORNERS = 256
"""Combinations of arguments tried at birth: a millisecond; others are checked when drawn."""


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Items(Drawn):
    """An argument that is a list, or a mapping from steps, with items still to be drawn."""

    items: tuple[object, ...]
    keys: tuple[object, ...] | None = None
    """Steps to which the items belong; None for a list."""

    @property
    def text(self) -> str:
        """The list or mapping as it was written."""
        texts = [part_text(item) for item in self.items]
        if self.keys is None:
            return f"[{', '.join(texts)}]"
        pairs = zip(self.keys, texts, strict=True)
        return f"{{{', '.join(f'{key!r}: {text}' for key, text in pairs)}}}"

    def labels(self) -> tuple[str, ...]:
        """Give each item's place for paths: `[0]`, `[1]`, or the step it belongs to."""
        keys = range(len(self.items)) if self.keys is None else self.keys
        return tuple([f"[{key}]" for key in keys])

    def build(self, outcomes: Sequence[object]) -> object:
        """Give the list or mapping with definite items."""
        plain = [plain_of(outcome) for outcome in outcomes]
        return plain if self.keys is None else dict(zip(self.keys, plain, strict=True))

    def taken_apart(self, built: object) -> Sequence[object] | None:
        """Give the items of a list or mapping that has the same places; None for another one."""
        whole = plain_of(built)
        if isinstance(whole, Mapping):
            return tuple(whole.values()) if tuple(whole) == self.keys else None
        if self.keys is None and isinstance(whole, list | tuple) and len(whole) == len(self.items):
            return whole
        return None

    def corners(self) -> Iterator[object]:
        """Give lists of extreme items."""
        yield from map(self.build, _combinations(self.items))


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Template(Drawn):
    """A constructor of schedules with its arguments, some of them still to be drawn."""

    call: str
    kind: type[Schedule]
    arguments: tuple[tuple[str, object], ...]
    """Names in the constructor's order; values are plain, or `Drawn`."""

    @property
    def text(self) -> str:
        """The call that makes it."""
        (_, first), *others = self.arguments
        parts = [part_text(first), *(f"{name}={part_text(part)}" for name, part in others)]
        return f"{self.call}({', '.join(parts)})"

    def build(self, outcomes: Sequence[object]) -> Schedule:
        """Make the schedule from a definite outcome for each argument, in order.

        Raises:
            InvalidStudyError: If the plain constructor refuses these values.
        """
        return self.kind.of(*map(plain_of, outcomes))

    def taken_apart(self, built: object) -> Sequence[object] | None:
        """Give arguments that would build a schedule; None if this constructor can't make it."""
        return self.kind.taken_apart(built if isinstance(built, Schedule) else Constant(built))

    def corners(self) -> Iterator[object]:
        """Give schedules made of extreme outcomes."""
        return map(self.build, _combinations([part for _, part in self.arguments]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Template):
            return NotImplemented
        return self.kind is other.kind and _key(self) == _key(other)

    def __hash__(self) -> int:
        return hash(_key(self))


def made(call: str, kind: type[Schedule], **arguments: object) -> Schedule | Template:
    """Make the schedule, or its template where an argument is still to be drawn.

    Args:
        call: Name of the constructor, for texts and paths.
        kind: The schedule's class.
        arguments: The constructor's arguments, in the order of the class.

    Raises:
        InvalidStudyError: If the class refuses the arguments, or corners of what they may become.
    """
    parts = {name: _part(argument) for name, argument in arguments.items()}
    if not _has_drawn(parts.values()):
        return kind.of(*arguments.values())
    template = Template(call, kind, tuple(parts.items()))
    for _ in template.corners():
        pass
    return template


def part_text(part: object) -> str:
    """Give an argument as it would be written in a call."""
    if isinstance(part, Drawn | Schedule):
        return part.text
    if isinstance(part, tuple) and _has_functions(part):
        return f"[{', '.join(map(part_text, part))}]"
    return named(part) if callable(part) else shown(part)


def _part(argument: object) -> object:
    """Find what is to be drawn in an argument; copy lists and mappings, which could change."""
    if isinstance(argument, list | tuple):
        items = tuple(map(_part, argument))
        return Items(items) if _has_drawn(items) else items
    if isinstance(argument, Mapping):
        items = tuple(map(_part, argument.values()))
        return Items(items, tuple(argument)) if _has_drawn(items) else dict(argument)
    return argument


def _has_drawn(parts: Iterable[object]) -> bool:
    return any(isinstance(part, Drawn) for part in parts)


def _has_functions(parts: Iterable[object]) -> bool:
    return any(isinstance(part, Schedule) or callable(part) for part in parts)


def plain_of(outcome: object) -> object:
    """Take the value out of a constant: options of a choice are schedules, arguments values."""
    return outcome.v if isinstance(outcome, Constant) else outcome


def _combinations(parts: Sequence[object]) -> Iterator[tuple[object, ...]]:
    """Vary each part alone, so that no corner of one is left out, then many parts together."""
    corners = [tuple(p.corners()) if isinstance(p, Drawn) else (p,) for p in parts]
    first = tuple([each[0] for each in corners])
    yield first
    for i, each in enumerate(corners):
        for corner in each[1:]:
            yield (*first[:i], corner, *first[i + 1 :])
    yield from islice(product(*corners), _MAX_CORNERS)


def _key(part: object) -> Hashable:
    """Give what makes two arguments equal, `True`, 1 and 1.0 told apart."""
    if isinstance(part, Template):
        return (part.kind, *[(name, _key(value)) for name, value in part.arguments])
    if isinstance(part, Items):
        return (part.keys, *map(_key, part.items))
    if isinstance(part, list | tuple):
        return tuple(map(_key, part))
    if isinstance(part, Mapping):
        return tuple([(_key(key), _key(value)) for key, value in part.items()])
    try:
        hash(part)
    except TypeError:
        return id(part)
    return (type(part).__name__, part)
