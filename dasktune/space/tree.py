"""Lay out what must be drawn for a hyper-parameter as a tree with named places.

Called by the search space, once when it is born (`grown`) and then for each draw. Samplers, grids
and replays all are a `suggest`: they are asked for one number per place, in a fixed order, and
only for places that exist given what was drawn before. Never decides which number.

Paths: the hyper-parameter's name; `[i]` for option i of a choice, `.argument` for an argument of a
schedule, `[i]` (or `[step]`) for an item of a list (or mapping) argument, `=option.name` for a
hyper-parameter of an option's sub-space: `lr`, `lr[1].v`, `lr[1].at[0]`, `optimizer=sgd.momentum`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from dasktune.errors import InvalidStudyError
from dasktune.space.choice import Branch, Choice
from dasktune.space.domain import Domain
from dasktune.space.schedule import Constant, Schedule
from dasktune.space.template import Items, Template

Suggest: TypeAlias = Callable[[str, Domain], int | float]
"""Gives a value of the domain at a path; for a choice the index of an option."""

_AMBIGUOUS = {"True", "False", "None", "inf", "nan"}
"""Texts that as bare words would read like values of another type."""


class Node(ABC):
    """Something that has an outcome when it is drawn."""

    __slots__ = ()

    size: int | None
    """How many outcomes there are; None where one of them is continuous."""
    is_unique_at_start: bool
    """The value at step 0 always comes from a continuous domain."""

    @abstractmethod
    def draw(
        self, suggest: Suggest, record: dict[str, int | float], found: dict[str, Schedule]
    ) -> object:
        """Draw the outcome.

        Args:
            suggest: Asked for each number.
            record: Takes each number under its path.
            found: Takes the hyper-parameters of sub-spaces under their names.
        """

    @abstractmethod
    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give all places that can exist, in the order of drawing."""

    @abstractmethod
    def sub_names(self) -> dict[str, bool]:
        """Give the sub-spaces' names, each with whether it always is unique at its start."""


@final
@dataclass(frozen=True, slots=True)
class Fixed(Node):
    """An outcome that is known."""

    outcome: object
    size: int | None = 1
    is_unique_at_start: bool = False

    def draw(
        self,
        suggest: Suggest,  # noqa: ARG002
        record: dict[str, int | float],  # noqa: ARG002
        found: dict[str, Schedule],  # noqa: ARG002
    ) -> object:
        """Give the known outcome."""
        return self.outcome

    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give none."""
        return iter(())

    def sub_names(self) -> dict[str, bool]:
        """Give none."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class Number(Node):
    """A number from a domain."""

    path: str
    domain: Domain
    size: int | None
    is_unique_at_start: bool

    def draw(
        self,
        suggest: Suggest,
        record: dict[str, int | float],
        found: dict[str, Schedule],  # noqa: ARG002
    ) -> object:
        """Take the suggested number."""
        path, domain = self.path, self.domain
        number = record[path] = domain.admit(suggest(path, domain), path)
        return number

    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give the one place."""
        yield self.path, self.domain

    def sub_names(self) -> dict[str, bool]:
        """Give none."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class Pick(Node):
    """One of several outcomes."""

    path: str
    domain: Choice
    options: tuple[Node, ...]
    size: int | None
    is_unique_at_start: bool

    def draw(
        self, suggest: Suggest, record: dict[str, int | float], found: dict[str, Schedule]
    ) -> object:
        """Draw the option at the suggested index."""
        path, domain = self.path, self.domain
        index = record[path] = domain.admit(suggest(path, domain), path)
        return self.options[index].draw(suggest, record, found)

    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give the choice's own place, then those of all options."""
        yield self.path, self.domain
        for option in self.options:
            yield from option.parameters()

    def sub_names(self) -> dict[str, bool]:
        """Give the names of all options; unique are those that are so wherever they occur."""
        names: dict[str, bool] = {}
        for option in self.options:
            for name, is_unique in option.sub_names().items():
                names[name] = is_unique and names.get(name, True)
        return names


@final
@dataclass(frozen=True, slots=True)
class Built(Node):
    """An outcome made of several others: a schedule of its arguments, a list of its items."""

    path: str
    definition: Template | Items
    parts: tuple[Node, ...]
    size: int | None
    is_unique_at_start: bool

    def draw(
        self, suggest: Suggest, record: dict[str, int | float], found: dict[str, Schedule]
    ) -> object:
        """Draw the parts in order and build."""
        outcomes = [part.draw(suggest, record, found) for part in self.parts]
        try:
            return self.definition.build(outcomes)
        except InvalidStudyError as error:
            raise InvalidStudyError(f"{self.path}: {error}") from error

    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give the places of all parts."""
        for part in self.parts:
            yield from part.parameters()

    def sub_names(self) -> dict[str, bool]:
        """Give none: a template refuses options with sub-spaces."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class Opened(Node):
    """An option's value together with the hyper-parameters that exist only with it."""

    outcome: Constant
    space: tuple[tuple[str, Node], ...]
    size: int | None
    is_unique_at_start: bool = False

    def draw(
        self, suggest: Suggest, record: dict[str, int | float], found: dict[str, Schedule]
    ) -> object:
        """Draw the sub-space and give the option's value."""
        for name, node in self.space:
            found[name] = held(node.draw(suggest, record, found))
        return self.outcome

    def parameters(self) -> Iterator[tuple[str, Domain]]:
        """Give the places of the sub-space."""
        for _, node in self.space:
            yield from node.parameters()

    def sub_names(self) -> dict[str, bool]:
        """Give the names of the sub-space and of those below it."""
        return names_of(self.space)


@final
class Odometer:
    """A `suggest` that runs through all draws, whatever places each one turns out to have."""

    __slots__ = ("_depth", "_trail")

    def __init__(self) -> None:
        self._trail: list[tuple[int, Sequence[int | float]]] = []
        self._depth = 0

    def __call__(self, path: str, domain: Domain) -> int | float:  # noqa: ARG002
        """Give the number of this turn at the next place."""
        if self._depth == len(self._trail):
            self._trail.append((0, domain.grid()))
        position, grid = self._trail[self._depth]
        self._depth += 1
        return grid[position]

    def advance(self) -> bool:
        """Turn the last place that can be turned, forgetting those behind it."""
        self._depth = 0
        while self._trail:
            position, grid = self._trail.pop()
            if position + 1 < len(grid):
                self._trail.append((position + 1, grid))
                return True
        return False


def held(outcome: object) -> Schedule:
    """Give the schedule that an outcome stands for: a number is held constant."""
    return outcome if isinstance(outcome, Schedule) else Constant(outcome)


def planted(definitions: Iterable[tuple[str, object]], prefix: str) -> tuple[tuple[str, Node], ...]:
    """Grow the trees of a space, or of a sub-space.

    Raises:
        InvalidStudyError: If one configuration could define a name twice.
    """
    pairs: list[tuple[str, Node]] = []
    taken: set[str] = set()
    for name, definition in definitions:
        node = grown(definition, prefix + name)
        for each in (name, *node.sub_names()):
            if each in taken:
                raise InvalidStudyError(
                    f"{prefix + name} defines {each!r}, which the space has already: only the "
                    "options of one choice may share a name"
                )
            taken.add(each)
        pairs.append((name, node))
    return tuple(pairs)


def grown(definition: object, path: str) -> Node:
    """Grow the tree of a definition, an option, or a schedule's argument."""
    match definition:
        case Choice():
            return _grown_choice(definition, path)
        case Domain():
            return Number(path, definition, definition.size, definition.size is None)
        case Template():
            names = [name for name, _ in definition.arguments]
            parts = [grown(part, f"{path}.{name}") for name, part in definition.arguments]
            first = parts[names.index(definition.kind.start)]
            return _built(path, definition, parts, first)
        case Items():
            places = zip(definition.labels(), definition.items, strict=True)
            parts = [grown(item, path + label) for label, item in places]
            return _built(path, definition, parts, parts[0])
        case Branch():
            space = planted(definition.space, f"{path}={_word(definition.schedule)}.")
            return Opened(definition.schedule, space, size_of(node for _, node in space))
        case _:
            return Fixed(definition)


def size_of(nodes: Iterable[Node]) -> int | None:
    """Give the number of joint outcomes; None where one of them is continuous."""
    sizes = [node.size for node in nodes]
    return None if None in sizes else math.prod([size for size in sizes if size is not None])


def names_of(space: Iterable[tuple[str, Node]]) -> dict[str, bool]:
    """Give all names of a space, those of sub-spaces included, as `Node.sub_names` does."""
    names: dict[str, bool] = {}
    for name, node in space:
        names[name] = node.is_unique_at_start
        names.update(node.sub_names())
    return names


def owned(space: Iterable[tuple[str, Node]]) -> Iterator[tuple[str, str]]:
    """Give all places of a space, each with the hyper-parameter that it belongs to."""
    for name, node in space:
        yield from _owned(node, name)


def _owned(node: Node, name: str) -> Iterator[tuple[str, str]]:
    match node:
        case Number(path=path):
            yield path, name
        case Pick(path=path, options=options):
            yield path, name
            for option in options:
                yield from _owned(option, name)
        case Built(parts=parts):
            for part in parts:
                yield from _owned(part, name)
        case Opened(space=space):
            yield from owned(space)


def _grown_choice(choice: Choice, path: str) -> Pick:
    options = tuple(
        [
            grown(option, path if isinstance(option, Branch) else f"{path}[{i}]")
            for i, option in enumerate(choice.options)
        ]
    )
    sizes = [option.size for option in options]
    size = None if None in sizes else sum([size for size in sizes if size is not None])
    is_unique = all(option.is_unique_at_start for option in options)
    return Pick(path, choice, options, size, is_unique)


def _built(path: str, definition: Template | Items, parts: list[Node], first: Node) -> Built:
    return Built(path, definition, tuple(parts), size_of(parts), first.is_unique_at_start)


def _word(constant: Constant) -> str:
    value = constant.v
    if isinstance(value, str) and value.isidentifier() and value not in _AMBIGUOUS:
        return value
    return repr(value)
