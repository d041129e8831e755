"""Write spaces and policies as the calls that make them, and make them of such calls again.

Called by `header`. Reading executes nothing of a text: calls are looked up among the public
constructors of dasktune, and their arguments must be literals or such calls. A function of the step
is written as the values that it gives up to the last step of the study.
"""

import ast
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

from dasktune.errors import InvalidStudyError
from dasktune.samplers.sampler import Sampler
from dasktune.space.choice import Branch, Choice
from dasktune.space.composed import Join, Warmup
from dasktune.space.domain import Drawn
from dasktune.space.schedule import FunctionSchedule, Schedule, as_schedule
from dasktune.space.spliced import Splice
from dasktune.space.stepwise import Piecewise
from dasktune.space.template import Items, Template
from dasktune.space.value import Value
from dasktune.tuners.tuner import Tuner
from dasktune.units import Step

_Read: TypeAlias = Any
"""What a text turns out to hold."""

_MOST_VALUES = 10_000
"""Values of a function that are written; of a longer one their digest is."""


def written(part: object, stop: Step) -> str:
    """Write a definition, an option or an argument as the call that makes it.

    Args:
        part: Of a space.
        stop: Functions of the step are written by their values at the steps below.
    """

    def row(parts: Iterable[object]) -> str:
        return ", ".join([written(each, stop) for each in parts])

    match part:
        case FunctionSchedule():
            text = _table(part, stop)
        case Warmup(n=n, then=then):
            text = f"warmup({n}, {written(then, stop)})"
        case Join(schedules=schedules, boundaries=boundaries):
            text = f"join([{row(schedules)}], at={list(boundaries)})"
        case Splice(schedules=schedules, boundaries=boundaries):
            text = f"splice([{row(schedules)}], at={list(boundaries)})"
        case Choice(options=options) if any(isinstance(option, Branch) for option in options):
            text = f"choice({{{', '.join([_branch(option, stop) for option in options])}}})"
        case Choice(options=options):
            text = f"choice([{row(options)}])"
        case Template(call=call, arguments=((_, first), *others)):
            named = [f", {name}={_argument(each, stop)}" for name, each in others]
            text = f"{call}({_argument(first, stop)}{''.join(named)})"
        case Schedule() | Drawn():
            text = part.text
        case _:
            text = _argument(part, stop)
    return text


def _argument(part: object, stop: Step) -> str:
    """Write an argument of a schedule: a definition, a row, a function, or a plain value."""
    match part:
        case Items(items=items, keys=None):
            return f"[{', '.join([_argument(each, stop) for each in items])}]"
        case Items(items=items, keys=tuple(keys)):
            pairs = zip(keys, items, strict=True)
            return f"{{{', '.join([f'{key!r}: {_argument(each, stop)}' for key, each in pairs])}}}"
        case Schedule() | Drawn():
            return written(part, stop)
        case tuple():  # with nothing to draw, but it may have functions
            texts = [_argument(each, stop) for each in part]
            return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
        case _ if callable(part):
            return _table(as_schedule(part, "a schedule"), stop)
        case _:
            return repr(part)


def _branch(option: object, stop: Step) -> str:
    """Write an option of a choice that has sub-spaces."""
    if not isinstance(option, Branch):
        return f"{written(option, stop)}: {{}}"
    inner = ", ".join([f"{name!r}: {written(each, stop)}" for name, each in option.space])
    return f"{written(option.schedule, stop)}: {{{inner}}}"


def _table(function: Schedule, stop: Step) -> str:
    """Write a function of the step with its values, or their digest if they are many or not all."""
    name = repr(function.text)
    values: dict[Step, Value] = {}
    is_whole = True
    try:
        values.update(function.changes(0, stop))
    except InvalidStudyError:  # it has no answer for steps that nobody may ever ask for
        is_whole = False
    if is_whole and len(values) <= _MOST_VALUES:
        return f"function({name}, {values})"
    return f"function({name}, {sha256(repr(values).encode()).hexdigest()[:16]!r})"


def made_of(text: str) -> _Read:
    """Return what the text of a call makes.

    Raises:
        ValueError: It is no call of a public constructor.
    """
    try:
        return _made(ast.parse(text, mode="eval").body, _constructors())
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no call of dasktune's") from error


def _made(node: ast.expr | None, known: Mapping[str, Callable[..., object]]) -> _Read:
    def each(nodes: Sequence[ast.expr | None]) -> list[_Read]:
        return [_made(item, known) for item in nodes]

    made: _Read
    match node:
        case ast.Constant(value=made):
            pass
        case ast.Name(id="inf"):
            made = math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            made = -_made(operand, known)
        case ast.List(elts=items):
            made = each(items)
        case ast.Tuple(elts=items):
            made = tuple(each(items))
        case ast.Dict(keys=keys, values=values):
            made = dict(zip(each(keys), each(values), strict=True))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in known:
            named = {str(word.arg): _made(word.value, known) for word in keywords}
            made = known[name](*each(args), **named)
        case _:
            text = ast.unparse(node)[:80] if node else "**"
            raise ValueError(f"{text!r} is not of dasktune")
    return made


def _constructors() -> dict[str, Callable[..., object]]:
    """Return what makes spaces, tuners and samplers, by public name."""
    face = vars(sys.modules["dasktune"])  # this module is part of it, so it is there
    found = {name: face[name] for name in face["__all__"] if name in face}
    policies = (Tuner, Sampler)
    kept = {
        name: thing
        for name, thing in found.items()
        if (issubclass(thing, policies) if isinstance(thing, type) else _is_of_spaces(thing))
    }
    return kept | {"function": _function}


def _is_of_spaces(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("dasktune.space.")


def _function(name: str, values: Mapping[int, object] | str) -> Schedule:
    """Return a function of the step that has a name, and gives these values."""
    if isinstance(values, str):
        raise ValueError(
            f"the values of the function {name} are not written down, because it has more than "
            f"{_MOST_VALUES}, or none at some step"
        )
    return FunctionSchedule(_Tabulated(name, Piecewise(values)))


class _Tabulated:
    """A function of the step, of which the values are left."""

    def __init__(self, name: str, values: Schedule) -> None:
        self.__qualname__ = name
        self._values = values

    def __call__(self, step: Step) -> Value:
        return self._values.at(step)
