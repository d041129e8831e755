"""Find the draw that gives a configuration: walk the tree of a space backwards.

Called by the search space, for configurations that a user wrote. Options are tried in order. What
a template made is taken apart into arguments, these are found among what could be drawn, and the
schedule is built again and compared: arguments are kept in another form than the drawn one (an
integer may have become a float), so they only propose.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import eq
from typing import TypeAlias, final

from dasktune.errors import InvalidStudyError
from dasktune.space.domain import Domain, Int
from dasktune.space.schedule import Constant, Schedule, alike
from dasktune.space.spliced import Splice
from dasktune.space.template import Template, plain_of
from dasktune.space.tree import Built, Fixed, Node, Number, Odometer, Opened, Pick, held, names_of

Record: TypeAlias = dict[str, int | float]
"""Numbers by path, as a draw would have recorded them."""

_Space: TypeAlias = Iterable[tuple[str, Node]]
_Found: TypeAlias = tuple[Record, frozenset[str]]
"""A draw of some places, and the hyper-parameters that exist with it."""

_Equality: TypeAlias = Callable[[Schedule, Schedule], bool]
"""Says whether a schedule that could be drawn is the one that was given."""

_MOST_OUTCOMES = 10_000
"""Draws of a template that are tried one by one; a tenth of a second."""


def located(
    space: _Space, given: Mapping[str, Schedule], *, is_exact: bool, until: int = 0
) -> Record | None:
    """Find the first draw of a space that gives these schedules; None if there is none.

    Args:
        space: Names and trees.
        given: By name; what is fixed may be left out unless `is_exact`.
        is_exact: Numbers must have the type of their domain. Otherwise that is tried first.
        until: If not 0, functions of the step that give the same values at all steps below are
            taken for one where no draw has the very function; first those of one name.
    """
    readings = [_Reading(given)]
    if until > 0:
        readings += [
            _Reading(given, same=partial(alike, stop=until, by_name=by_name))
            for by_name in (True, False)
        ]
    if not is_exact:
        readings += [replace(reading, is_exact=False) for reading in readings]
    for reading in readings:
        for record, names in reading.of_space(space):
            if given.keys() == names if is_exact else given.keys() <= names:
                return record
    return None


def misfit(space: _Space, given: Mapping[str, Schedule]) -> str:
    """Say in a sentence why no draw of a space gives these schedules, read as not exact."""
    known = names_of(space)
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        return (
            f"{', '.join(unknown)} is no hyper-parameter of this space, which has "
            f"{', '.join(sorted(known))}"
        )
    reading = _Reading(given, is_exact=False)
    wrong = reading.misfit(space)
    if wrong is not None:
        return wrong
    _, names = next(reading.of_space(space))
    extra = sorted(given.keys() - names)
    return f"{', '.join(extra)} belongs to an option that is not chosen here: right are " + (
        ", ".join(sorted(names))
    )


@final
@dataclass(frozen=True, slots=True)
class _Reading:
    """One way to read what was given."""

    given: Mapping[str, Schedule]
    is_exact: bool = True
    same: _Equality = eq

    def of_space(self, space: _Space) -> Iterator[_Found]:
        """Give draws of a space, one for each set of names that can exist with what was given."""
        found: list[_Found] = [({}, frozenset())]
        for name, node in space:
            here = _by_names(self._of_name(name, node))
            found = _by_names((a | b, mine | other) for a, mine in found for b, other in here)
        return iter(found)

    def misfit(self, space: _Space) -> str | None:
        """Say what is missing or wrong in a space; None if each of its names fits by itself."""
        for name, node in space:
            if name not in self.given:
                if not isinstance(node, Fixed):
                    return f"{name} is missing: it must be in {_text(node)}"
            elif not any(True for _ in self._of_node(node, self.given[name])):
                return self._misfit(name, node)
        return None

    def _misfit(self, name: str, node: Node) -> str:
        chosen = self.given[name]
        for option in _opened(node):
            if option.outcome == chosen:
                below = self.misfit(option.space)
                if below is not None:
                    return f"{below} (with {name} {chosen.text})"
        kind = "must be" if isinstance(node, Fixed) else "must be in"
        return f"{name} {kind} {_text(node)}, got {chosen.text}"

    def _of_name(self, name: str, node: Node) -> Iterator[_Found]:
        if name in self.given:
            for record, names in self._of_node(node, self.given[name]):
                yield record, names | {name}
        elif isinstance(node, Fixed):
            yield {}, frozenset([name])

    def _of_node(self, node: Node, outcome: Schedule) -> Iterator[_Found]:
        match node:
            case Fixed(outcome=known) if self.same(held(known), outcome):
                yield {}, frozenset()
            case Opened(outcome=known, space=space) if self.same(known, outcome):
                yield from self.of_space(space)
            case Number(path=path, domain=domain) if isinstance(outcome, Constant):
                if domain.contains(outcome.v) or not self.is_exact:
                    yield from _recorded(path, domain, outcome.v)
            case Pick(path=path, options=options):
                for i, option in enumerate(options):
                    for record, names in self._of_node(option, outcome):
                        yield {path: i, **record}, names
            case Built():
                for record, made in self._arguments(node, outcome):
                    if isinstance(made, Schedule) and self.same(made, outcome):
                        yield record, frozenset()
                        return

    def _arguments(self, node: Node, outcome: object) -> Iterator[tuple[Record, object]]:
        """Give draws of an argument that may have become this outcome, with what they are."""
        match node:
            case Fixed(outcome=known):
                yield {}, known
            case Number(path=path, domain=domain):
                number = plain_of(outcome)
                if isinstance(domain, Int) and isinstance(number, float) and number.is_integer():
                    number = int(number)
                for record, _ in _recorded(path, domain, number):
                    yield record, record[path]
            case Pick(path=path, options=options):
                for i, option in enumerate(options):
                    if not isinstance(option, Fixed) or self._is_alike(option.outcome, outcome):
                        for record, made in self._arguments(option, outcome):
                            yield {path: i, **record}, made
            case Built():
                yield from self._built(node, outcome)

    def _built(self, node: Built, outcome: object) -> Iterator[tuple[Record, object]]:
        parts = node.definition.taken_apart(outcome)
        is_found = False
        if parts is not None and len(parts) == len(node.parts):
            for record, made in self._put_together(node, parts):
                if not isinstance(made, Schedule) or self._is_alike(made, outcome):
                    is_found = True
                    yield record, made
        if not is_found and _forgets(node):
            for record, made in _outcomes(node):
                if self._is_alike(made, outcome):
                    yield record, made

    def _put_together(
        self, node: Built, parts: Sequence[object]
    ) -> Iterator[tuple[Record, object]]:
        drawn = [self._arguments(*pair) for pair in zip(node.parts, parts, strict=True)]
        for combination in product(*drawn):
            record = {path: number for each, _ in combination for path, number in each.items()}
            with suppress(InvalidStudyError):
                yield record, node.definition.build([made for _, made in combination])

    def _is_alike(self, a: object, b: object) -> bool:
        """Tell whether two outcomes may be one, 1 and 1.0 not told apart."""
        a, b = plain_of(a), plain_of(b)
        if isinstance(a, Schedule) or isinstance(b, Schedule):
            return isinstance(a, Schedule) and isinstance(b, Schedule) and self.same(a, b)
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(self._is_alike, a, b))
        if isinstance(a, int | float) and isinstance(b, int | float):
            return float(a) == float(b)
        return a == b


def _recorded(path: str, domain: Domain, number: object) -> Iterator[_Found]:
    with suppress(InvalidStudyError):
        yield {path: domain.admit(number, path)}, frozenset()


def _by_names(found: Iterable[_Found]) -> list[_Found]:
    """Keep the first draw for each set of names: only the names decide whether others fit."""
    first: dict[frozenset[str], Record] = {}
    for record, names in found:
        first.setdefault(names, record)
    return [(record, names) for names, record in first.items()]


def _forgets(node: Built) -> bool:
    """Tell whether what it makes may no longer show its arguments, and draws can be tried."""
    definition = node.definition
    is_splice = isinstance(definition, Template) and definition.kind is Splice
    return is_splice and node.size is not None and node.size <= _MOST_OUTCOMES


def _outcomes(node: Built) -> Iterator[tuple[Record, object]]:
    odometer = Odometer()
    while True:
        record: Record = {}
        with suppress(InvalidStudyError):
            yield record, node.draw(odometer, record, {})
        if not odometer.advance():
            return


def _opened(node: Node) -> Iterator[Opened]:
    """Give the options that have hyper-parameters of their own."""
    if isinstance(node, Opened):
        yield node
    elif isinstance(node, Pick):
        for option in node.options:
            yield from _opened(option)


def _text(node: Node) -> str:
    """Give the definition that a tree was grown from."""
    match node:
        case Number(domain=domain) | Pick(domain=domain):
            return domain.text
        case Built(definition=definition):
            return definition.text
        case Fixed(outcome=outcome):
            return held(outcome).text
        case _:
            return "an option"
