"""Write events and commands as lines of JSON, and read the events back.

One line an entry: when, what happened, what was decided. A stage is written by its key and steps;
its values follow from the draws. Only events are read back: commands are compared as they were
written, so nothing of a journal is ever executed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from typing import cast, get_args

from dasktune.errors import BackendError
from dasktune.plan.stage import Stage
from dasktune.space.search_space import Point
from dasktune.study.commands import Command, StudyStatus
from dasktune.study.events import Event
from dasktune.trial import TrialId, TrialStatus
from dasktune.units import Seconds

_EVENTS = {kind.__name__: kind for kind in get_args(Event)}


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


def _plain(value: Event | Command) -> dict[str, object]:
    # `fields` of each kind is looked up once: this runs for every event of a study.
    kind = type(value)
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in fields(kind))
    plain: dict[str, object] = {"is": kind.__name__}
    for name in names:
        plain[name] = _plain_field(getattr(value, name))
    return plain


_FIELDS: dict[type, tuple[str, ...]] = {}


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
