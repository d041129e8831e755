"""Turn named domains and templates into configurations, and remember what was drawn.

Called by the study (`SearchSpace({...})`), by samplers (`draw` with their `suggest`, `points`,
`parameters`) and by replay (`configuration` of a recorded point). Random, grid, model-based and
replayed draws all are a `suggest`, so the traversal exists once. Never decides what is drawn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from dasktune.errors import InvalidStudyError
from dasktune.space.choice import Definition, define
from dasktune.space.configuration import Configuration
from dasktune.space.domain import Domain
from dasktune.space.tree import Node, Suggest, held, names_of, planted, size_of
from dasktune.space.value import shown

if TYPE_CHECKING:
    from dasktune.space.schedule import Schedule


@final
@dataclass(frozen=True, slots=True)
class Point(Mapping[str, "int | float"]):
    """The record of a draw: the number drawn at each place that exists in it.

    A choice is recorded by the index of its option. `dict(point)` is ready for JSON, and
    `Point.of` takes it back.
    """

    pairs: tuple[tuple[str, int | float], ...]
    """Paths and numbers, sorted by path."""

    @classmethod
    def of(cls, numbers: Mapping[str, int | float]) -> "Point":
        """Make a point of numbers by path, in any order."""
        return cls(tuple(sorted(numbers.items())))

    def __getitem__(self, path: str) -> int | float:
        for known, number in self.pairs:
            if known == path:
                return number
        raise KeyError(path)

    def __iter__(self) -> Iterator[str]:
        return iter([path for path, _ in self.pairs])

    def __len__(self) -> int:
        return len(self.pairs)


@final
@dataclass(frozen=True, slots=True, init=False)
class SearchSpace:
    """All configurations that a study may try."""

    definitions: tuple[tuple[str, Definition], ...]
    """Names, sorted, with what stands for each hyper-parameter."""
    size: int | None = field(compare=False)
    """Number of points, conditional ones counted exactly; None where a domain is continuous."""
    _nodes: tuple[tuple[str, Node], ...] = field(compare=False, repr=False)
    _is_flat: bool = field(compare=False, repr=False)
    """No sub-spaces: names come out sorted by themselves."""

    def __init__(self, definitions: Mapping[str, object]) -> None:
        """Check and lay out a space.

        Args:
            definitions: By name a domain, a template, a choice, or a fixed value, schedule or
                function of the step.

        Example:
            >>> from dasktune.space.choice import choice
            >>> SearchSpace({"lr": choice([0.1, 0.2]), "momentum": choice([0.9, 0.95])}).size
            4
        """
        given: object = definitions
        if not isinstance(given, Mapping) or not given:
            raise InvalidStudyError(
                "a search space is a mapping with at least one hyper-parameter such as "
                f"{{'lr': choice([0.1, 0.2])}}, got {shown(definitions)}"
            )
        defined = [(name, define(name, value)) for name, value in definitions.items()]
        defined.sort(key=lambda pair: pair[0])
        nodes = planted(defined, "")
        object.__setattr__(self, "definitions", tuple(defined))
        object.__setattr__(self, "size", size_of(node for _, node in nodes))
        object.__setattr__(self, "_nodes", nodes)
        object.__setattr__(self, "_is_flat", not any(node.sub_names() for _, node in nodes))

    def draw(self, suggest: Suggest) -> tuple[Point, Configuration]:
        """Draw one configuration.

        Args:
            suggest: Called as `suggest(path, domain)` for each place that exists, names sorted,
                an option's own places right after its choice.

        Raises:
            InvalidStudyError: If an answer is not in its domain, or a template refuses its values.
        """
        record: dict[str, int | float] = {}
        found: dict[str, Schedule] = {}
        for name, node in self._nodes:
            found[name] = held(node.draw(suggest, record, found))
        pairs = tuple(found.items())
        if not self._is_flat:
            pairs = tuple(sorted(pairs, key=lambda pair: pair[0]))
        return Point.of(record), Configuration(pairs)

    def configuration(self, point: Mapping[str, int | float]) -> Configuration:
        """Rebuild the configuration of a recorded point.

        Raises:
            InvalidStudyError: If the point lacks a place, has one too many, or a number that is
                not in its domain.
        """

        def recorded(path: str, domain: Domain) -> int | float:
            if path not in numbers:
                raise InvalidStudyError(
                    f"the point {shown(numbers)} lacks {path}, which is drawn from {domain.text}"
                )
            return numbers[path]

        numbers = dict(point)
        used, configuration = self.draw(recorded)
        extra = sorted(numbers.keys() - used.keys())
        if extra:
            raise InvalidStudyError(
                f"the point has {', '.join(extra)}, which this space does not draw there: "
                f"right are {', '.join(used)}"
            )
        return configuration

    def points(self) -> Iterator[Point]:
        """Give all points lazily, names sorted, the last name's numbers changing fastest.

        Raises:
            InvalidStudyError: If a domain is continuous, naming it.
        """
        for path, domain in self.parameters():
            if domain.size is None:
                raise InvalidStudyError(
                    f"{path} is drawn from {domain.text}, which is continuous: a grid needs "
                    "choice([...]), integers, or uniform with a step="
                )
        return self._points()

    def parameters(self) -> tuple[tuple[str, Domain], ...]:
        """Give all places that can exist, in the order of drawing."""
        return tuple([pair for _, node in self._nodes for pair in node.parameters()])

    def continuous_at_start(self) -> tuple[str, ...]:
        """Give the hyper-parameters that let no two trials share even their first step.

        Those whose value at step 0 always comes from a continuous domain: directly, or as the
        argument that a schedule starts from (`v`, `low`, `then`, the first of a `join`, step 0 of
        a `piecewise`); factors, rates, ends, milestones and lengths do not count. A choice counts
        if all its options do; a conditional one if it does wherever it occurs.
        """
        return tuple(sorted(name for name, is_so in names_of(self._nodes).items() if is_so))

    def _points(self) -> Iterator[Point]:
        odometer = _Odometer()
        yield self.draw(odometer)[0]
        while odometer.advance():
            yield self.draw(odometer)[0]


@final
class _Odometer:
    """A `suggest` that runs through all draws, whatever places each one turns out to have."""

    __slots__ = ("_depth", "_trail")

    def __init__(self) -> None:
        self._trail: list[tuple[int, Sequence[int | float]]] = []
        self._depth = 0

    def __call__(self, path: str, domain: Domain) -> int | float:  # noqa: ARG002
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
