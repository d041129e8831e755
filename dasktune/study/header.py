"""Describe studies in the first line of their journal, and read them back without the user's code.

Written by the runner once, before the first entry; read by `recall`, for `explain` on the command
line, and by replay, to say what has changed since. Spaces and tuners are written as the calls that
make them. Reading executes nothing of a journal: calls are looked up among the public constructors
of dasktune, and their arguments must be literals or such calls. A function of the step is written
as the values that it gives up to the last step of the study.
"""

import ast
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.choice import Branch, Choice
from dasktune.space.composed import Join, Warmup
from dasktune.space.domain import Drawn
from dasktune.space.schedule import FunctionSchedule, Schedule, as_schedule
from dasktune.space.search_space import Point
from dasktune.space.spliced import Splice
from dasktune.space.stepwise import Piecewise
from dasktune.space.template import Items, Template
from dasktune.space.value import Value
from dasktune.study.fingerprint import Fingerprint, difference
from dasktune.study.limits import Limits
from dasktune.study.study import Study
from dasktune.tuners.tuner import Tuner
from dasktune.units import Digest, Step

_Read: TypeAlias = Any
"""What a text, or a line of JSON, turns out to hold."""

_PLAIN = ("name", "n_trials", "seed", "training_seed", "retries", "max_failures")
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_MOST_VALUES = 10_000
"""Values of a function that are written; a longer one is only named."""


# --- writing


def write_header(studies: Sequence[Study]) -> str:
    """Return the studies of a journal as a line of JSON, without the newline."""
    return json.dumps({"studies": [_described(s) for s in studies]}, separators=(",", ":"))


def _described(study: Study) -> dict[str, object]:
    space = {name: _call(part, study.max_steps) for name, part in study.space.definitions}
    fingerprint = {"digest": study.fingerprint.digest, "parts": study.fingerprint.parts}
    return {
        **{name: getattr(study, name) for name in _PLAIN},
        "metric": list(study.metrics),
        "mode": list(study.modes),
        "rank_by": study.metric,
        "limits": asdict(study.limits),
        "first": [dict(point) for point in study.first],
        "taken_over": [dict(point) for point in study.taken_over],
        "warm_start": len(study.warm_start),
        "space": space,
        "sampler": repr(study.sampler),
        "draws_ahead": study.sampler.draws_ahead,
        "tuner": repr(study.tuner),
        "fingerprint": fingerprint,
    }


def _call(part: object, stop: Step) -> str:
    """Write a definition, an option or an argument as the call that makes it."""

    def row(parts: Iterable[object]) -> str:
        return ", ".join([_call(each, stop) for each in parts])

    match part:
        case FunctionSchedule():
            text = _table(part, stop)
        case Warmup(n=n, then=then):
            text = f"warmup({n}, {_call(then, stop)})"
        case Join(schedules=schedules, boundaries=boundaries):
            text = f"join([{row(schedules)}], at={list(boundaries)})"
        case Splice(schedules=schedules, boundaries=boundaries):
            text = f"splice([{row(schedules)}], at={list(boundaries)})"
        case Choice(options=options) if any(isinstance(option, Branch) for option in options):
            text = f"choice({{{', '.join([_branch(option, stop) for option in options])}}})"
        case Choice(options=options):
            text = f"choice([{row(options)}])"
        case Template(call=call, arguments=((_, first), *others)):
            named = [f", {name}={_call(each, stop)}" for name, each in others]
            text = f"{call}({_call(first, stop)}{''.join(named)})"
        case Items(items=items, keys=None):
            text = f"[{row(items)}]"
        case Items(items=items, keys=tuple(keys)):
            pairs = zip(keys, items, strict=True)
            text = f"{{{', '.join([f'{key!r}: {_call(each, stop)}' for key, each in pairs])}}}"
        case Schedule() | Drawn():
            text = part.text
        case _ if callable(part):
            text = _table(as_schedule(part, "a schedule"), stop)
        case _:
            text = repr(part)
    return text


def _branch(option: object, stop: Step) -> str:
    """Write an option of a choice that has sub-spaces."""
    if not isinstance(option, Branch):
        return f"{_call(option, stop)}: {{}}"
    inner = ", ".join([f"{name!r}: {_call(each, stop)}" for name, each in option.space])
    return f"{option.schedule.text}: {{{inner}}}"


def _table(function: Schedule, stop: Step) -> str:
    """Write a function of the step with its values, or with its name only if it lacks some."""
    name = repr(function.text)
    try:
        values = dict(function.changes(0, stop))
    except InvalidStudyError:  # it has no answer for steps that nobody may ever ask for
        return f"function({name})"
    return f"function({name}, {values})" if len(values) <= _MOST_VALUES else f"function({name})"


# --- reading


def is_header(line: str) -> bool:
    """Say whether a line of a journal describes its studies."""
    return line.startswith('{"studies":')


def read_header(line: str) -> list[Study]:
    """Return the studies of a journal; their training code is gone, all else is as it was.

    Raises:
        BackendError: They cannot be told from the line.
    """
    try:
        return [_study(described) for described in json.loads(line)["studies"]]
    except _UNREADABLE as error:
        raise BackendError(
            f"the studies of this journal cannot be told from its first line ({error}); ask where "
            "their code is: dasktune.explain(result)"
        ) from error


def taken_over_in(line: str) -> list[tuple[Point, ...]]:
    """Return for each study of a header the trials that it took over from an earlier timeline."""
    return [_points(described["taken_over"]) for described in json.loads(line)["studies"]]


def _points(described: Sequence[Mapping[str, int | float]]) -> tuple[Point, ...]:
    return tuple([Point.of(point) for point in described])


def changes_since(line: str, studies: Sequence[Study]) -> tuple[str, ...]:
    """Say in words what is different in studies since their journal was begun, if that is known."""
    now = json.loads(write_header(studies))["studies"]
    words: list[str] = []
    with suppress(*_UNREADABLE):
        for old, new in zip(json.loads(line)["studies"], now, strict=False):
            known = {key: new[key] for key in old.keys() & new.keys() - {"taken_over"}}
            words += _differences({key: old[key] for key in known}, known, str(new["name"]))
    return tuple(words)


def _differences(old: Mapping[str, _Read], new: Mapping[str, _Read], study: str) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key):
            continue
        if key == "fingerprint":
            yield from difference(_fingerprint(old[key]), _fingerprint(new[key]))
        elif key in ("space", "limits"):
            yield from _differences(old[key], new[key], study)
        else:
            yield f"{key} of {study} was {old.get(key)} and is {new.get(key)}"


def _fingerprint(described: Mapping[str, _Read]) -> Fingerprint:
    parts = tuple((str(name), Digest(digest)) for name, digest in described["parts"])
    return Fingerprint(digest=Digest(described["digest"]), parts=parts)


def _study(described: Mapping[str, _Read]) -> Study:
    sampler = described["sampler"]
    try:
        sampler = _value(sampler)
    except ValueError:  # the user's own; its draws are in the journal
        sampler = _Recorded(sampler, draws_ahead=bool(described["draws_ahead"]))
    study = Study(
        _Gone(),
        space={name: _value(text) for name, text in described["space"].items()},
        sampler=sampler,
        tuner=_value(described["tuner"]),
        metric=described["metric"],
        mode=described["mode"],
        rank_by=described["rank_by"],
        **{name: described[name] for name in _PLAIN},
    )
    # What is known already need not be checked again, or cannot be told from a text.
    known: dict[str, object] = {
        "fingerprint": _fingerprint(described["fingerprint"]),
        "limits": Limits(**described["limits"]),
        "first": _points(described["first"]),
        "taken_over": _points(described["taken_over"]),
    }
    for name, value in known.items():
        object.__setattr__(study, name, value)
    return study


def _value(text: str) -> _Read:
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


def _function(name: str, values: Mapping[int, object] | None = None) -> Schedule:
    """Return a function of the step that has a name, and gives these values."""
    if values is None:
        raise ValueError(f"the values of the function {name} are not written down")
    return FunctionSchedule(_Tabulated(name, Piecewise(values)))


class _Tabulated:
    """A function of the step, of which the values are left."""

    def __init__(self, name: str, values: Schedule) -> None:
        self.__qualname__ = name
        self._values = values

    def __call__(self, step: Step) -> Value:
        return self._values.at(step)


class _Gone:
    """Stands for training code that is not here."""

    def setup(self, hp: object, seed: int) -> None:  # noqa: ARG002
        raise BackendError(
            "the training code of this study is not here: its result was read from a store; "
            "load_state(trial) gives what the code's load_state_dict takes"
        )

    def step(self, hp: object, t: int) -> None: ...
    def evaluate(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> object: ...
    def load_state_dict(self, state: object) -> None: ...


@dataclass(frozen=True, slots=True, repr=False)
class _Recorded(Sampler):
    """Stands for a sampler of the user's: what it drew is recorded."""

    text: str
    draws_ahead: bool

    def __repr__(self) -> str:
        return self.text

    def start(self, context: SamplerContext) -> SamplerRun:  # noqa: ARG002
        return _RecordedRun()


class _RecordedRun(SamplerRun):
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:  # noqa: ARG002
        return None

    def record(self, number: int, point: Point) -> None:
        pass

    def copy(self) -> "_RecordedRun":
        return self
