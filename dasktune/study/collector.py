"""Spare a large core full passes of Python's cyclic collector while events are taken in.

All that a core keeps lives as long as the study, and much of it refers to one another; the
collector would walk through all of it again and again, which makes the last of 10,000 trials cost
up to three times the first. Young garbage, cycles too, is still collected as always.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 1000
"""Collections of the middle generation between two full ones; Python's own number is 10."""


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Let full collections be rare inside; afterwards everything is as it was."""
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, max(old, _RARELY))
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
