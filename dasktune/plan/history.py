"""Compare configurations as histories: what they give at each step, however they are written.

Called by the prefix tree and the keys; knows schedules by two questions only, `at` and `changes`.
"""

from collections.abc import Iterator
from heapq import merge

from dasktune.space.configuration import Configuration
from dasktune.space.schedule import Schedule
from dasktune.space.schedule import same_until as schedule_same_until
from dasktune.space.value import token
from dasktune.units import Step


def tokens_at(configuration: Configuration, step: Step) -> tuple[tuple[str, str], ...]:
    """Return the (name, token) pairs of all values during `step`, sorted by name."""
    return tuple([(name, token(schedule.at(step))) for name, schedule in configuration.schedules])


def same_until(a: Configuration, b: Configuration, stop: Step) -> Step:
    """Return the first step before `stop` at which the two differ in any value, else `stop`.

    Configurations that do not have the same names differ at step 0.
    """
    if a is b:
        return stop
    if len(a.schedules) != len(b.schedules):
        return 0
    for (name_a, schedule_a), (name_b, schedule_b) in zip(a.schedules, b.schedules, strict=True):
        if name_a != name_b:
            return 0
        if schedule_a is not schedule_b:
            stop = schedule_same_until(schedule_a, schedule_b, stop)
    return stop


def changes(
    configuration: Configuration, start: Step, stop: Step
) -> Iterator[tuple[Step, list[tuple[str, str]]]]:
    """Yield each step in [start, stop) at which a value changes, with the changed pairs by name.

    Step 0 counts as a change of everything.
    """
    step = -1
    changed: list[tuple[str, str]] = []
    for at, name, value in merge(
        *[_tagged(*pair, start, stop) for pair in configuration.schedules]
    ):
        if at != step:
            if changed:
                yield step, changed
            step, changed = at, []
        changed.append((name, value))
    if changed:
        yield step, changed


def _tagged(
    name: str, schedule: Schedule, start: Step, stop: Step
) -> Iterator[tuple[Step, str, str]]:
    for step, value in schedule.changes(start, stop):
        yield step, name, token(value)
