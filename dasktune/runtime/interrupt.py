"""Turn the first Ctrl-C into a wish to stop at the next step boundary; the second stops at once."""

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
