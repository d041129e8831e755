"""Keep a store below its limit while a run fills it.

Drops what costs least to make again for each byte, never a state that something may still begin
from, nor the best of this or another study. What was dropped is told to the core as lost.
"""

from collections.abc import Iterator

from dasktune.plan.history import key_of
from dasktune.plan.needs import needed_states
from dasktune.store.store import Store
from dasktune.study.core import StudyCore
from dasktune.study.events import Event, StageFinished, StateLost
from dasktune.study.result import results_of
from dasktune.study.timeline import Timeline
from dasktune.units import Digest

_EVERY = 8
"""Commits between two looks at the store, at most: a look lists all of it, and others fill it."""
_LARGER = 2
"""How many times larger than the mean of those that are there a new state is expected to be."""


class Room:
    """The room that a store has."""

    def __init__(self, store: Store, name: str) -> None:
        """Look after a store.

        Args:
            store: With or without a limit.
            name: Of the run, under which its states are pinned.
        """
        self._store = store
        self._name = name
        self._n_left = 0
        """Commits that there is certainly room for, as far as is known."""

    def after(self, event: Event, core: StudyCore) -> Iterator[StateLost]:
        """Make room if an event has added a state and there is too little; yield what is lost."""
        if self._store.limit_bytes is None or not isinstance(event, StageFinished):
            return
        self._n_left -= 1
        if self._n_left >= 0:
            return
        needed = needed_states(core.plan) | _best(core)
        self._store.pin(self._name, needed)  # others that share the store may be evicting too
        for record in self._store.evict(needed | self._store.pinned()):
            yield StateLost(state=record.key)
        self._n_left = self._fits()

    def at_end(self, core: StudyCore) -> None:
        """Keep the best state of each study, and if there is too little room only the best."""
        self._store.pin(self._name, _best(core))
        if self._store.limit_bytes is not None:
            self._store.evict(self._store.pinned())

    def _fits(self) -> int:
        """Return how many commits may come before the next look."""
        limit_bytes = self._store.limit_bytes or 0
        used_bytes = self._store.used_bytes()
        expected_bytes = _LARGER * used_bytes / max(len(self._store.keys()), 1)
        return min(int((limit_bytes - used_bytes) / max(expected_bytes, 1)), _EVERY)


def _best(core: StudyCore) -> set[Digest]:
    return {
        key_of(result.study.family, result.best.configuration, result.best.steps)
        for result in results_of(core, Timeline())
        if result.best is not None
    }
