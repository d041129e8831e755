"""A virtual clock: a heap of things that will happen.

Things that happen at one time happen in the order in which they were scheduled, so a run repeats.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from dasktune.units import Seconds

Action: TypeAlias = Callable[[], None]


class Kernel:
    """Time, and what is still to come."""

    def __init__(self) -> None:
        self.now: Seconds = 0.0
        self._coming: list[tuple[Seconds, int, Action]] = []
        self._n_scheduled = 0

    def schedule(self, delay_s: Seconds, action: Action) -> None:
        """Let something happen `delay_s` >= 0 from now."""
        self._n_scheduled += 1
        heappush(self._coming, (self.now + delay_s, self._n_scheduled, action))

    def advance(self) -> bool:
        """Go on to the next thing and let it happen; False if nothing is to come."""
        if not self._coming:
            return False
        self.now, _, action = heappop(self._coming)
        action()
        return True
