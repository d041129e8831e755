"""Import this where training code with torch will soon run: it loads torch, and what torch leaves.

torch imports its compiler at the first optimizer, whether anything is compiled or not, and that
takes as long as torch itself. Workers import this while they start, or before their first stage, so
that it does not wait for all that has to happen before the first step.

What modules make while they are imported stays, and there is so much of it that Python's cyclic
collector, walking through it again and again, would take a sixth of the time.
"""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the cyclic collector off inside, if it was on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


with _uncollected(), suppress(ImportError):  # other versions of torch may do without
    importlib.import_module("torch._dynamo")
