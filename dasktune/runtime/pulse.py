"""What a process can say of the stages that it is running: whether they get on, and where they are.

Asked for by drivers in Dask's event loop, while the stage runs in a thread of its own.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeAlias

from dasktune.units import Seconds

Signs: TypeAlias = tuple[Seconds | None, Seconds | None]
"""How long the step that is running has taken so far, None between steps; and the longest step of
the stage that has ended, None before the first one has."""


class Pulse:
    """How the steps of one stage get on; told by the thread that runs it."""

    __slots__ = ("_began_s", "_longest_s", "_thread", "behind")

    def __init__(self) -> None:
        self._began_s: Seconds | None = None
        self._longest_s: Seconds | None = None
        self._thread = threading.get_ident()
        self.behind: Pulse | None = None
        """Of the stage that this one waits for: then that one's signs are shown. If it hangs, so do
        all behind it, and nobody else may be left to see it."""

    def begin(self) -> None:
        """Note that a step begins."""
        self._began_s = monotonic()

    def end(self) -> None:
        """Note that it has ended."""
        began_s, self._began_s = self._began_s, None
        if began_s is not None:
            took_s = monotonic() - began_s
            if self._longest_s is None or took_s > self._longest_s:
                self._longest_s = took_s

    def begin_closing(self) -> None:
        """Note that a trainable is being closed that nobody needs: it must not keep others waiting.

        So it is measured as a step after steps that took no time.
        """
        self._longest_s = 0.0
        self.begin()

    def signs(self) -> Signs:
        """Say how the steps get on; may be called by another thread."""
        behind = self.behind
        if behind is not None:
            return behind.signs()
        began_s = self._began_s
        return None if began_s is None else monotonic() - began_s, self._longest_s

    def stack(self) -> str:
        """Return where the thread of the stage is now, the innermost call last."""
        behind = self.behind
        if behind is not None:
            return behind.stack()
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame))


PULSES: dict[tuple[str, int], Pulse] = {}
"""The stages that this process is running, by topic and number of the path."""


LAST_WORDS: dict[tuple[str, int], bytes] = {}
"""What came of stages that have ended while this process was closing, by topic and path."""

_LAST_WORDS_S = 25.0
"""How long a process that is told to end waits for its stages. A nanny kills it after 8 s,
Kubernetes after 30 s."""
_LOOK_EVERY_S = 0.01
_LINGER_S = 0.1

_listening: list[str] = []


@contextmanager
def beating(topic: str, path: int) -> Iterator[Pulse]:
    """Let it be known that this thread runs a stage of a path, while the context lasts."""
    PULSES[topic, path] = pulse = Pulse()
    try:
        yield pulse
    finally:
        # The path may be running again, in another thread, after Dask has given this one up.
        if PULSES.get((topic, path)) is pulse:
            del PULSES[topic, path]


def signs_of(topic: str) -> dict[int, Signs]:
    """Return how the stages of a run get on in this process, by path."""
    return {path: pulse.signs() for (of, path), pulse in list(PULSES.items()) if of == topic}


def stacks_of(topic: str) -> str:
    """Return where the stages of a run are in this process."""
    return "\n".join(pulse.stack() for (of, _), pulse in list(PULSES.items()) if of == topic)


async def last_words(topic: str) -> list[tuple[int, bytes]]:
    """Wait until the stages of a run in this process have ended; return what came of each, by path.

    Asked for when the process has lost its line to the scheduler, or the scheduler it.
    """
    _listening.append(topic)
    try:
        await ended(topic)
    finally:
        _listening.remove(topic)
    return [(path, answer) for (of, path), answer in LAST_WORDS.items() if of == topic]


async def ended(topic: str) -> None:
    """Wait until the stages of a run in this process have ended, but not for ever."""
    until_s = monotonic() + _LAST_WORDS_S
    while any(of == topic for of, _ in PULSES) and monotonic() < until_s:
        await asyncio.sleep(_LOOK_EVERY_S)


async def heard(topic: str) -> None:
    """Give who is listening to the last words of this process the time to hear them."""
    while topic in _listening:
        await asyncio.sleep(_LOOK_EVERY_S)
    await asyncio.sleep(_LINGER_S)
