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
"""Commits between two looks at the store: a look lists all of it."""


class Room:
    """The room that a store has."""

    def __init__(self, store: Store, name: str) -> None:
        """Look after a store.

        Args:
            store: With or without a limit.
            name: Of the run, under which its best states are pinned.
        """
        self._store = store
        self._name = name
        self._n_commits = 0

    def after(self, event: Event, core: StudyCore) -> Iterator[StateLost]:
        """Make room if an event has added a state and there is too little; yield what is lost."""
        if self._store.limit_bytes is None or not isinstance(event, StageFinished):
            return
        self._n_commits += 1
        if self._n_commits % _EVERY:
            return
        best = self.pin_best(core)
        protected = needed_states(core.plan) | best | self._store.pinned()
        for record in self._store.evict(protected):
            yield StateLost(state=record.key)

    def pin_best(self, core: StudyCore) -> set[Digest]:
        """Pin the best state of each study of a run, and return their keys."""
        best = {
            key_of(result.study.family, result.best.configuration, result.best.steps)
            for result in results_of(core, Timeline())
            if result.best is not None
        }
        self._store.pin(self._name, best)
        return best
