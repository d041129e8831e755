"""Turn the first Ctrl-C into a wish to stop at the next step boundary; the second stops at once.

A terminal sends Ctrl-C to all processes in its foreground, workers too: those that we start must
not hear it, or they would be gone before they could commit.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts(ask_to_stop: Callable[[], None]) -> Iterator[None]:
    """Call `ask_to_stop` at the first SIGINT, and raise KeyboardInterrupt at the second.

    Does nothing outside the main thread, where signals cannot be caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask_to_stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Ignore SIGINT, and let processes that are started inside ignore it for good.

    What is ignored stays so in a new process; a mask would not do, since `multiprocessing` takes
    SIGINT out of it. Does nothing outside the main thread, where signals cannot be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
