"""Call something when a time has come, from a thread of its own."""

import threading
from collections.abc import Callable

from dasktune.units import Seconds

_LONGEST_S = float(threading.TIMEOUT_MAX)


class Timers:
    """Calls that are still to come; closing takes them back."""

    def __init__(self) -> None:
        self._timers: list[threading.Timer] = []

    def set(self, after_s: Seconds, call: Callable[[], None]) -> None:
        """Call once after so many seconds; at once if they are not positive."""
        timer = threading.Timer(min(max(after_s, 0.0), _LONGEST_S), call)
        timer.daemon = True  # a driver that ends does not wait for a deadline
        timer.start()
        self._timers.append(timer)

    def close(self) -> None:
        """Let nothing more be called."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
