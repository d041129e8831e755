"""Keep a store below its limit while a run fills it.

Drops what costs least to make again for each byte, never a state that this run may still begin
from, nor what another run has said that it needs, nor the best of any study. What was dropped is
told to the core as lost. What is needed may be more than the limit.
"""

from collections.abc import Callable, Iterator
from time import monotonic

from dasktune.plan.history import key_of
from dasktune.plan.needs import needed_states
from dasktune.store.store import Store
from dasktune.study.core import StudyCore
from dasktune.study.events import Event, StageFinished, StateLost
from dasktune.study.result import results_of
from dasktune.study.timeline import Timeline
from dasktune.units import Digest, Seconds

_EVERY = 8
"""Commits between two looks at the store, at most: a look lists all of it, and others fill it."""
_LARGER = 2
"""How many times larger than the mean of those that are there a new state is expected to be."""
_SAY_EVERY_S: Seconds = 30.0
"""How often a run that has no limit says what it needs: others may have one."""


class Room:
    """The room that a store has."""

    def __init__(
        self, store: Store, name: str, *, clock: Callable[[], Seconds] = monotonic
    ) -> None:
        """Look after a store.

        Args:
            store: With or without a limit.
            name: Of the run, under which its states are pinned.
            clock: Seconds that only grow.
        """
        self._store = store
        self._name = name
        self._clock = clock
        self._said_s = clock()
        self._n_left = 0
        """Commits before the next look."""

    def after(self, event: Event, core: StudyCore) -> Iterator[StateLost]:
        """Make room if an event has added a state and there is too little; yield what is lost."""
        if not isinstance(event, StageFinished):
            return
        if self._store.limit_bytes is None:
            if self._clock() - self._said_s >= _SAY_EVERY_S:
                self._say(_needed(core))
            return
        self._n_left -= 1
        if self._n_left >= 0:
            return
        needed = _needed(core)
        self._say(needed)
        for record in self._store.evict(needed | self._store.pinned()):
            yield StateLost(state=record.key)
        self._n_left = self._n_fitting()

    def at_end(self, core: StudyCore) -> None:
        """Keep the best state of each study, and what the same call would go on from."""
        self._store.pin(self._name, _best(core))
        has_stopped = core.why_stopped is not None
        self._say(_needed(core) if has_stopped else set())
        if self._store.limit_bytes is not None:
            self._store.evict(self._store.pinned())

    def _say(self, needed: set[Digest]) -> None:
        self._store.need(self._name, needed)
        self._said_s = self._clock()

    def _n_fitting(self) -> int:
        """Return how many commits may come before the next look."""
        limit_bytes = self._store.limit_bytes or 0
        used_bytes = self._store.used_bytes()
        if used_bytes > limit_bytes:  # all that could go is gone
            return _EVERY
        expected_bytes = _LARGER * used_bytes / max(len(self._store.keys()), 1)
        return min(int((limit_bytes - used_bytes) / max(expected_bytes, 1)), _EVERY)


def _needed(core: StudyCore) -> set[Digest]:
    return needed_states(core.plan) | _best(core)


def _best(core: StudyCore) -> set[Digest]:
    return {
        key_of(result.study.family, result.best.configuration, result.best.steps)
        for result in results_of(core, Timeline())
        if result.best is not None
    }
