"""Say why a study does not get on, while it does not: to the screen, and to the log once."""

import logging
from collections.abc import Callable
from time import monotonic

from dasktune.study.core import StudyCore
from dasktune.units import Seconds

logger = logging.getLogger(__name__)

STALLED_AFTER_S: Seconds = 3.0
"""How long nothing may run before that is said: workers need a moment to join and to answer."""


class Stalls:
    """Looks at a run every now and then, and says why nothing runs."""

    def __init__(
        self,
        core: StudyCore,
        why_waiting: Callable[[], str | None],
        show: Callable[[str], None],
        clock: Callable[[], Seconds] = monotonic,
    ) -> None:
        """Begin.

        Args:
            core: Of the run.
            why_waiting: Says what the machines know of the cause, None if nothing.
            show: Told what to show, whenever that changes; empty: nothing.
            clock: Seconds that only grow.
        """
        self._core = core
        self._why_waiting = why_waiting
        self._show = show
        self._clock = clock
        self._since_s: Seconds | None = None
        self._heard_s = core.now
        self._shown = ""
        self._logged = ""

    def look(self) -> None:
        """Look; call it every second or so."""
        text = self._text()
        if not text or self._core.now != self._heard_s:  # it may have run since the last look
            self._since_s = None
            self._heard_s = self._core.now
        if text and self._since_s is None:
            self._since_s = self._clock()
        lasts = self._since_s is not None and self._clock() - self._since_s >= STALLED_AFTER_S
        shown = text if lasts else ""
        if shown == self._shown:
            return
        self._shown = shown
        self._show(shown)
        if shown and shown != self._logged and self._core.why_idle() is not None:
            self._logged = shown
            logger.warning("nothing runs: %s", shown)

    def _text(self) -> str:
        idle, waiting = self._core.why_idle(), self._why_waiting()
        return ": ".join(each for each in (idle, waiting) if each)
