"""What a backend has to tell its core: events, each with the study time at which it was found out.

The core hears one at a time, and may decide by what it has heard so far while more wait for it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from dasktune.study.events import Event, WorkerLeft
from dasktune.units import Seconds, WorkerId


class Unheard:
    """Events that the core has not heard yet, oldest first."""

    def __init__(self, clock: Callable[[], Seconds], since_s: Seconds) -> None:
        """Begin with none.

        Args:
            clock: Seconds that only grow.
            since_s: Study time that has passed already, in earlier runs.
        """
        self._clock = clock
        self._zero_s = clock() - since_s
        self._events: deque[tuple[Event, Seconds]] = deque()

    def __bool__(self) -> bool:
        """Say whether there is any."""
        return bool(self._events)

    @property
    def now_s(self) -> Seconds:
        """Study time."""
        return self._clock() - self._zero_s

    def tell(self, event: Event) -> None:
        """Add an event that was found out now."""
        self._events.append((event, self.now_s))

    def next(self) -> tuple[Event, Seconds]:
        """Take the oldest event.

        Raises:
            IndexError: There is none.
        """
        return self._events.popleft()

    def excuses(self, worker: WorkerId) -> bool:
        """Say whether the core is still to hear that a worker left.

        Whatever it gives that worker until then is not run, so the worker broke nothing of it off.
        """
        for place, (event, at_s) in enumerate(self._events):
            if isinstance(event, WorkerLeft) and event.worker == worker:
                self._events[place] = replace(event, died=False), at_s
                return True
        return False
