"""Write events and commands as lines of JSON, and read the events back.

One line an entry: when, what happened, what was decided. A stage is written by its key and steps;
its values follow from the draws. Only events are read back: commands are compared as they were
written, so nothing of a journal is ever executed.

A field that has its default is left out. So a field that events or commands get later, with a
default, changes no line of the journals that there are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from typing import Any, TypeAlias, cast, get_args

from dasktune.errors import BackendError
from dasktune.plan.stage import Stage
from dasktune.space.search_space import Point
from dasktune.study.commands import Command, StudyStatus
from dasktune.study.events import Event
from dasktune.trial import TrialId, TrialStatus
from dasktune.units import Seconds

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}
_COMMANDS = {kind.__name__: kind for kind in get_args(Command)}

_Read: TypeAlias = Any
"""What a line of JSON turns out to hold."""


def write_entry(now: Seconds, event: Event, commands: Sequence[Command]) -> str:
    """Return an entry as a line of JSON, without the newline."""
    entry = {"at_s": now, "event": _plain(event), "commands": [_plain(c) for c in commands]}
    return json.dumps(entry, allow_nan=False, separators=(",", ":"))


def read_entry(line: str) -> tuple[Seconds, Event, dict[TrialId, Point]]:
    """Return the time and event of a line, and the draws that were made at it, by trial.

    Raises:
        BackendError: The line is not an entry.
    """
    try:
        entry = json.loads(line)
        kind = _EVENTS[entry["event"].pop("is")]
        arguments = entry["event"]
        if arguments.get("metrics") is not None:
            arguments["metrics"] = {k: _number(v) for k, v in arguments["metrics"].items()}
        event = cast("Event", kind(**arguments))
        points = {
            TrialId(*command["trial"]): Point.of(command["point"])
            for command in entry["commands"]
            if command["is"] in ("DrawTrial", "BranchTrial")
        }
        at_s = entry["at_s"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BackendError(
            f"the line {line[:80]!r} of a timeline cannot be read: it must be a JSON entry with "
            f"at_s, event and commands ({error})"
        ) from error
    return at_s, event, points


def say_the_same(line: str, other: str) -> bool:
    """Say whether two lines are one entry; defaults may be spelled out in one of them.

    Args:
        line: An entry, as `read_entry` takes it.
        other: Another one.
    """
    return line == other or _shortened(line) == _shortened(other)


def _shortened(line: str) -> str:
    """Return an entry without the fields that have their default, its keys in order."""
    entry = json.loads(line)
    shortened = {
        **entry,
        "event": _without_defaults(entry["event"], _EVENTS),
        "commands": [_without_defaults(each, _COMMANDS) for each in entry["commands"]],
    }
    return json.dumps(shortened, sort_keys=True)


def _without_defaults(plain: _Read, kinds: Mapping[str, type]) -> _Read:
    """Return what `_plain` makes today of what was written perhaps long ago."""
    kind = kinds.get(str(plain["is"]))
    defaults = {} if kind is None else dict(_fields(kind))
    return {
        name: value
        for name, value in plain.items()
        if not _is_default(value, defaults.get(name, MISSING))
    }


def _plain(value: Event | Command) -> dict[str, object]:
    kind = type(value)
    plain: dict[str, object] = {"is": kind.__name__}
    for name, default in _fields(kind):
        found = _plain_field(getattr(value, name))
        if not _is_default(found, default):
            plain[name] = found
    return plain


def _is_default(value: object, default: object) -> bool:
    # By type too: True is equal to 1.
    return type(value) is type(default) and value == default


def _fields(kind: Any) -> tuple[tuple[str, object], ...]:  # noqa: ANN401  (some dataclass)
    """Return the names of a kind's fields, each with its default as it is written, or MISSING."""
    # Looked up once for each kind: this runs for every event of a study.
    found = _FIELDS.get(kind)
    if found is None:
        named = [(field.name, _plain_field(field.default)) for field in fields(kind)]
        found = _FIELDS[kind] = tuple(named)
    return found


_FIELDS: dict[type, tuple[tuple[str, object], ...]] = {}


def _plain_field(value: object) -> object:
    match value:
        case TrialId():
            return list(value)
        case TrialStatus() | StudyStatus():
            return value.value
        case tuple():  # the stages of a path
            return [_stage(stage) for stage in value]
        case Mapping():  # metrics or a point
            return {key: _finite(number) for key, number in value.items()}
        case _:
            return value


def _stage(stage: Stage) -> dict[str, object]:
    return {
        "key": stage.key,
        "start_key": stage.start_key,
        "start": stage.start,
        "stop": stage.stop,
        "report_steps": list(stage.report_steps),
        "evaluates": stage.evaluates,
    }


def _finite(number: object) -> object:
    # JSON has no word for infinities and NaN.
    return repr(float(number)) if isinstance(number, float) and not isfinite(number) else number


def _number(value: object) -> object:
    return float(value) if isinstance(value, str) else value
