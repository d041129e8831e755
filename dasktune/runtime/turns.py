"""Let the stages of a process train one at a time, at the one workplace that it has.

Steps seed the global generators, which are the process's: of two stages side by side each would
draw the other's numbers, and neither state would be what its key says. A worker of several threads
may be given a second stage all the same: Dask takes a stage whose driver is gone for over while its
thread is still in a step, and where plugins are refused drivers do not know of each other. So the
second waits for its turn.

One model is held from turn to turn, and closed when the last run that it was held for has left.
`close()` is the user's code, and may draw numbers, switch libraries over or free half of a device:
beside a stage it would change what that one trains, or take its memory. So it has a turn of its
own. Who waits for a close that hangs shows it, as it would show a step: drivers restart the process
then, in which nothing is left that anybody needs.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Thread
from time import monotonic

from dasktune.runtime.pulse import Pulse
from dasktune.runtime.stage import Workplace

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02
_SOON_S = 0.002
_CLOSE_WITHIN_S = 3.0
"""How long who leaves waits until a trainable is closed."""


@dataclass(slots=True)
class _Held:
    """A workplace, and the runs that it was used for."""

    store: bytes
    workplace: Workplace
    topics: set[str]


class Turns:
    """Whose turn it is to train in this process, and what is held in between."""

    def __init__(self, opened: Callable[[bytes], Workplace], topics: Collection[str]) -> None:
        """Begin with nothing held.

        Args:
            opened: Returns a new workplace for a store, given as bytes.
            topics: The runs that may still send stages; looked at again and again.
        """
        self._opened = opened
        self._topics = topics
        self._turn = Lock()
        self._now: Pulse | None = None
        self._closing: Pulse | None = None
        self._held: _Held | None = None
        self.are_over = False
        """Whether no stage is to begin in this process any more."""

    @contextmanager
    def taken(
        self, topic: str, store: bytes, pulse: Pulse, should_stop: Callable[[], bool]
    ) -> Iterator[Workplace | None]:
        """Wait for the turn; yield the workplace, or None if the stage is not to begin any more.

        Args:
            topic: The run that the stage is of.
            store: Names the store; a workplace of another one is closed first.
            pulse: Of the stage; while it waits, it shows how the one before it gets on.
            should_stop: Whether the stage is to be given up; asked while it waits, and after that.
        """
        has_waited = not self._turn.acquire(blocking=False)
        if has_waited and not self._wait(pulse, should_stop):
            yield None
            return
        try:
            self._now = pulse
            is_off = self.are_over or (has_waited and should_stop())
            yield None if is_off else self._workplace(topic, store, pulse)
        finally:
            self._now = None
            self._turn.release()
            self.let_go()

    def let_go(self) -> None:
        """Close what is held, if all runs that it was held for have left; don't wait for ever.

        While a stage trains, nothing happens: this is called again at the end of its turn.
        """
        if self.holds_for_nobody():
            closing = self._begin_to_let_go()
            closing.join(_CLOSE_WITHIN_S)
            if closing.is_alive() and self.holds_for_nobody():
                _say_that_it_lasts()

    async def left(self) -> None:
        """Let go without blocking an event loop; wait for that, but not for ever."""
        if not self.holds_for_nobody():
            return
        self._begin_to_let_go()
        until_s = monotonic() + _CLOSE_WITHIN_S
        while self.holds_for_nobody() and self._now is None:
            if monotonic() >= until_s:
                _say_that_it_lasts()
                return
            await asyncio.sleep(_SOON_S)

    def holds_for_nobody(self) -> bool:
        """Say whether something is held for runs that have all left."""
        held = self._held
        return held is not None and not any(topic in self._topics for topic in list(held.topics))

    def _begin_to_let_go(self) -> Thread:
        thread = Thread(target=self._let_go, name="dasktune-lets-go", daemon=True)
        thread.start()
        return thread

    def _let_go(self) -> None:
        has_let_go = False
        while self.holds_for_nobody() and self._turn.acquire(blocking=False):
            try:
                if self.holds_for_nobody():
                    self._close()
                    has_let_go = True
            finally:
                self._turn.release()
        if has_let_go and not self.are_over:
            _free_memory()

    def _wait(self, pulse: Pulse, should_stop: Callable[[], bool]) -> bool:
        """Wait for the turn; return whether it has come."""
        try:
            while not self.are_over and not should_stop():
                pulse.behind = self._closing or self._now
                if self._turn.acquire(timeout=_LOOK_EVERY_S):
                    return True
            return False
        finally:
            pulse.behind = None

    def _workplace(self, topic: str, store: bytes, pulse: Pulse) -> Workplace:
        if self._held is not None and self._held.store != store:
            self._close(pulse)
        if self._held is None:
            self._held = _Held(store, self._opened(store), set())
        self._held.topics.add(topic)
        return self._held.workplace

    def _close(self, pulse: Pulse | None = None) -> None:
        """Close what is held, in the turn of whoever calls.

        Args:
            pulse: Of the stage whose turn it is, if any.
        """
        held, closing = self._held, Pulse()
        if held is None:
            return
        closing.begin_closing()
        self._closing = closing
        if pulse is not None:
            pulse.behind = closing
        try:
            held.workplace.drop()
        except Exception:  # the user's close(): nobody is there to be told but the log
            logger.warning(
                "a trainable that is not needed any more could not be closed", exc_info=True
            )
        finally:
            self._held = self._closing = None
            if pulse is not None:
                pulse.behind = None


def _say_that_it_lasts() -> None:
    logger.warning(
        "a trainable that is not needed any more has not closed within %g s; stages that come to "
        "this process wait for it",
        _CLOSE_WITHIN_S,
    )


def _free_memory() -> None:
    """Give back what a model that was let go had: to the process, and of a GPU to other processes.

    Only where nothing trains: both take a while.
    """
    gc.collect()  # modules and optimizers are full of cycles
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # of a GPU that others have broken
            torch.cuda.empty_cache()
