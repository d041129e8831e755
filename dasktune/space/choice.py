"""Let one of several options be drawn, and with it the parameters that only it has.

Called by users (`choice`) and by search spaces. As a domain a choice is the set of its options'
indices: a sampler draws, and a record keeps, an index. Options are values, schedules, functions of
the step, domains, templates, or values with a sub-space of their own, as in ConfigSpace's and
Optuna's conditional parameters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeAlias, final

from dasktune.errors import InvalidStudyError
from dasktune.space.domain import Domain, Drawn
from dasktune.space.schedule import Constant, Schedule, as_schedule
from dasktune.space.stepwise import Plain
from dasktune.space.value import shown, unwrapped

Definition: TypeAlias = Schedule | Drawn
"""What stands for a hyper-parameter: a schedule is fixed, the rest is drawn."""

Option: TypeAlias = Plain | Schedule | Drawn | Callable[[int], object]
"""What a user may write as an option, or as a hyper-parameter."""


@final
@dataclass(frozen=True, slots=True, repr=False)
class Branch:
    """An option with hyper-parameters that exist only when it is drawn."""

    schedule: Constant
    """The option's own value."""
    space: tuple[tuple[str, Definition], ...]
    """Names and definitions, sorted by name; at least one."""

    @property
    def text(self) -> str:
        """The option as it is written in a mapping."""
        inner = ", ".join([f"{name!r}: {definition.text}" for name, definition in self.space])
        return f"{self.schedule.text}: {{{inner}}}"

    def __repr__(self) -> str:
        return f"{{{self.text}}}, whose sub-space belongs directly at a name of the search space"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Choice(Domain):
    """One of several options, drawn by its index, each as likely."""

    options: tuple[Schedule | Drawn | Branch, ...]

    @property
    def text(self) -> str:
        """The call that makes it."""
        if not any(isinstance(option, Branch) for option in self.options):
            return f"choice([{', '.join([option.text for option in self.options])}])"
        texts = [o.text if isinstance(o, Branch) else f"{o.text}: {{}}" for o in self.options]
        return f"choice({{{', '.join(texts)}}})"

    @property
    def size(self) -> int:
        """How many options there are."""
        return len(self.options)

    def from_unit(self, u: float) -> int:
        """Map a number of [0, 1) to an index, so that uniform numbers give fair indices."""
        if not 0 <= u < 1:
            raise InvalidStudyError(f"from_unit takes a number of [0, 1), got {u!r}")
        return min(int(u * len(self.options)), len(self.options) - 1)

    def contains(self, value: object) -> bool:
        """Tell whether this is an index of an option."""
        return type(value) is int and 0 <= value < len(self.options)

    def grid(self) -> range:
        """Give all indices."""
        return range(len(self.options))

    def admit(self, answer: object, where: str) -> int:
        """Give the index that an answer from outside means."""
        plain = unwrapped(answer)
        if type(plain) is int and 0 <= plain < len(self.options):
            return plain
        raise InvalidStudyError(
            f"{where} must be an index from 0 to {len(self.options) - 1}, got {shown(answer)}"
        )

    def corners(self) -> Iterator[object]:
        """Give every option, and the extreme outcomes of those that are drawn themselves."""
        for option in self.options:
            if isinstance(option, Drawn):
                yield from option.corners()
            else:
                yield option


def choice(options: Iterable[Option] | Mapping[Plain, Mapping[str, Option]]) -> Choice:
    """Draw one of several options.

    Args:
        options: A list of values, schedules, functions of the step, domains or templates; or a
            mapping from values to the hyper-parameters that exist only with that value.

    Example:
        >>> choice([0.1, 0.2]).size
        2
        >>> choice({"sgd": {"momentum": choice([0.9, 0.95])}, "adam": {}}).text
        "choice({'sgd': {'momentum': choice([0.9, 0.95])}, 'adam': {}})"
    """
    if isinstance(options, Mapping):
        found: list[Schedule | Drawn | Branch] = [_branch(*pair) for pair in options.items()]
    else:
        found = [_option(each, f"choice: option {i}") for i, each in enumerate(_listed(options))]
    if not found:
        raise InvalidStudyError(f"choice takes at least one option, got {shown(options)}")
    first_index: dict[object, int] = {}
    for i, option in enumerate(found):
        if first_index.setdefault(option, i) != i:
            raise InvalidStudyError(
                f"choice: options {first_index[option]} and {i} are both {option.text}: "
                "give each option once"
            )
    return Choice(tuple(found))


def define(name: object, value: object) -> Definition:
    """Give the definition that a user wrote for a hyper-parameter.

    Raises:
        InvalidStudyError: For a list or mapping, with the way to write a choice.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidStudyError(
            f"a hyper-parameter's name must be an identifier such as 'weight_decay', "
            f"got {shown(name)}"
        )
    if isinstance(value, list):
        raise InvalidStudyError(
            f"{name} is the list {shown(value)}: write choice([...]) to draw one of its items, "
            "or a tuple to hold it as a value"
        )
    if isinstance(value, Mapping):
        raise InvalidStudyError(
            f"{name} is the mapping {shown(value)}: write choice({{...}}) to draw one of its keys, "
            "or piecewise({...}) for values by step"
        )
    return _option(value, name)


def _listed(options: object) -> Iterable[object]:
    if isinstance(options, str | bytes | AbstractSet) or not isinstance(options, Iterable):
        raise InvalidStudyError(
            f"choice takes a list of options such as [0.1, 0.2], got {shown(options)}"
        )
    return options


def _option(value: object, where: str) -> Definition:
    return value if isinstance(value, Drawn) else as_schedule(value, where)


def _branch(key: object, space: object) -> Schedule | Branch:
    if not isinstance(space, Mapping):
        raise InvalidStudyError(
            f"choice: the option {shown(key)} must map to its hyper-parameters such as "
            f"{{'momentum': choice([0.9, 0.95])}}, or to {{}}, got {shown(space)}"
        )
    constant = Constant(key)
    if not space:
        return constant
    pairs = [(name, define(name, definition)) for name, definition in space.items()]
    return Branch(constant, tuple(sorted(pairs, key=lambda pair: pair[0])))
