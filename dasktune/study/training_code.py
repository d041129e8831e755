"""Tell training code, while it is set up, by which name its results are kept.

What it keeps in the process beyond one instance (a data set) may serve an equal instance of the
same name, and none of another: that may have read it by other code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAME: ContextVar[str | None] = ContextVar("dasktune_training_code", default=None)


@contextmanager
def training_code(name: str) -> Iterator[None]:
    """Name the training code that is set up inside: the fingerprint that its keys begin with."""
    token = _NAME.set(name)
    try:
        yield
    finally:
        _NAME.reset(token)


def training_code_name() -> str | None:
    """Return the name of the training code that is set up here; None: nobody has said it."""
    return _NAME.get()
