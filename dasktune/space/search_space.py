"""Turn named domains and templates into configurations, and remember what was drawn.

Called by the study (`SearchSpace({...})`, `point_of` for configurations of the user's), by samplers
(`draw` with their `suggest`, `points`, `parameters`) and by replay (`configuration` of a recorded
point). Random, grid, model-based and
replayed draws all are a `suggest`, so the traversal exists once. Never decides what is drawn.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from dasktune.errors import InvalidStudyError
from dasktune.space.choice import Definition, define
from dasktune.space.configuration import Configuration
from dasktune.space.domain import Domain
from dasktune.space.location import located, misfit
from dasktune.space.tree import Node, Odometer, Suggest, held, names_of, owned, planted, size_of
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

    @property
    def names(self) -> tuple[str, ...]:
        """All hyper-parameters that can exist, sorted."""
        return tuple(sorted(names_of(self._nodes)))

    def owners(self) -> dict[str, str]:
        """Give for each place that can exist the hyper-parameter whose schedule it is part of."""
        return dict(owned(self._nodes))

    def locate(
        self, configuration: Configuration | Mapping[str, object], *, until: int = 0
    ) -> Point | None:
        """Find the draw that gives a configuration: the inverse of `configuration`.

        Args:
            configuration: Equal, name by name, to what this space would draw; or a mapping to plain
                values, schedules and functions of the step. In a mapping what is fixed may be left
                out, and a number may be written as a sampler may answer it: 1 for 1.0.
            until: Functions of the step that give the same values at all steps below this one are
                taken for one; with 0 only the very same function is.

        Returns:
            The first such point in the order of the options; None if there is none. A template of
            `splice` that can be drawn in more than 10,000 ways is found only while its draw left as
            many pieces as it has schedules.

        Raises:
            InvalidStudyError: If what was given is no configuration.
        """
        is_exact = isinstance(configuration, Configuration)
        given = _by_name(configuration)
        record = located(self._nodes, given, is_exact=is_exact, until=until)
        return None if record is None else Point.of(record)

    def point_of(self, configuration: Configuration | Mapping[str, object]) -> Point:
        """Find the draw that gives what a user wrote, read as `locate` reads a mapping.

        Raises:
            InvalidStudyError: If the space has no such configuration, naming what doesn't fit.

        Example:
            >>> from dasktune.space.domain import uniform
            >>> dict(SearchSpace({"lr": uniform(0, 1), "batch_size": 64}).point_of({"lr": 0.1}))
            {'lr': 0.1}
        """
        given = _by_name(configuration)
        record = located(self._nodes, given, is_exact=False)
        if record is None:
            raise InvalidStudyError(misfit(self._nodes, given))
        return Point.of(record)

    def _points(self) -> Iterator[Point]:
        odometer = Odometer()
        yield self.draw(odometer)[0]
        while odometer.advance():
            yield self.draw(odometer)[0]


def _by_name(configuration: Configuration | Mapping[str, object]) -> dict[str, "Schedule"]:
    if not isinstance(configuration, Configuration):
        configuration = Configuration.of(configuration)
    return dict(configuration.schedules)
