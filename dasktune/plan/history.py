"""Compare configurations as histories: what they give at each step, however they are written.

Called by the prefix tree and the keys; knows schedules by two questions only, `at` and `changes`.
"""

from collections.abc import Iterator
from heapq import merge

from dasktune.plan.keys import Family, Link, extended, first_link, next_link, state_key
from dasktune.space.configuration import Configuration
from dasktune.space.schedule import Schedule
from dasktune.space.schedule import same_until as schedule_same_until
from dasktune.space.value import token
from dasktune.units import Digest, Step


def tokens_at(configuration: Configuration, step: Step) -> tuple[tuple[str, str], ...]:
    """Return the (name, token) pairs of all values during `step`, sorted by name."""
    return tuple([(name, token(schedule.at(step))) for name, schedule in configuration.schedules])


class Comparison:
    """Compare histories, and remember where schedules part.

    The trials of a study are made of few schedules, met again and again: a pair that was walked
    once is looked up from then on. Pairs that differ at once are not worth remembering.
    """

    def __init__(self) -> None:
        # By the identity of both; the schedules are kept, so that no identity is used twice.
        self._parted: dict[tuple[int, int], tuple[Step, Step, Schedule, Schedule]] = {}

    def same_until(self, a: Configuration, b: Configuration, stop: Step) -> Step:
        """Return the first step before `stop` at which the two differ in any value, else `stop`.

        Configurations that do not have the same names differ at step 0.
        """
        if a is b:
            return stop
        if len(a.schedules) != len(b.schedules):
            return 0
        for (name_a, mine), (name_b, other) in zip(a.schedules, b.schedules, strict=True):
            if name_a != name_b:
                return 0
            if mine is not other:
                stop = self._schedules(mine, other, stop)
        return stop

    def _schedules(self, a: Schedule, b: Schedule, stop: Step) -> Step:
        pair = (id(a), id(b))
        known = self._parted.get(pair)
        if known is not None:
            parted, walked = known[:2]
            if parted < walked or stop <= walked:
                return min(parted, stop)
        parted = schedule_same_until(a, b, stop)
        if parted:
            if len(self._parted) >= _MOST_PAIRS:
                self._parted.clear()
            self._parted[pair] = (parted, stop, a, b)
        return parted


_MOST_PAIRS = 100_000
"""Pairs of schedules remembered; some 20 MB."""


def same_until(a: Configuration, b: Configuration, stop: Step) -> Step:
    """Return the first step before `stop` at which the two differ in any value, else `stop`."""
    return Comparison().same_until(a, b, stop)


def key_of(family: Family, configuration: Configuration, step: Step) -> Digest:
    """Name the state of a history after some steps, from its beginning. O(changes)."""
    first = first_link(family, tokens_at(configuration, 0))
    return state_key(extended(first, changes(configuration, 1, step)), step)


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


def link_spans(
    link: Link, configuration: Configuration, start: Step, stop: Step
) -> Iterator[tuple[Link, Step, Step]]:
    """Yield the links of a history with the steps [begin, end) that they cover; the last at `stop`.

    Args:
        link: Of the state at `start`.
        configuration: The history.
        start: Where to begin.
        stop: Where to end.
    """
    begin = start
    for step, tokens in changes(configuration, max(start, 1), stop):
        yield link, begin, step
        link, begin = next_link(link, step, tokens), step
    yield link, begin, stop
