"""Find the code that a module was run from, as far as Python still holds it.

Called by `closure`. Nothing in a module tells what its statements were, and its file may have been
edited since. Two places may: the frame of a script that is still running, and the bytecode that
the import has cached beside the file.
"""

import marshal
import os
import sys
from collections.abc import Mapping
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_HEADER = 16
"""Bytes before the code in cached bytecode: version, flags, and what the source was."""


def executed_code(namespace: Mapping[str, Any]) -> CodeType | None:
    """Give the code that a module was run from; None if nothing tells.

    Args:
        namespace: The globals of a module that Python loaded plainly from a file.
    """
    return _running(namespace) or _cached(namespace)


def _running(namespace: Mapping[str, Any]) -> CodeType | None:
    for newest in sys._current_frames().values():  # the study may be made in another thread
        frame: FrameType | None = newest
        while frame is not None:
            code = frame.f_code
            is_own = frame.f_globals is namespace and code.co_name == "<module>"
            if is_own and code.co_filename == namespace.get("__file__"):  # not that of an exec
                return code
            frame = frame.f_back
    return None


def _cached(namespace: Mapping[str, Any]) -> CodeType | None:
    """Read what the last import has cached; bytecode that imports can't replace may be old."""
    place = getattr(namespace.get("__spec__"), "cached", None)
    if not isinstance(place, str) or sys.dont_write_bytecode:
        return None
    path = Path(place)
    try:
        data = path.read_bytes()
        if data[: len(MAGIC_NUMBER)] != MAGIC_NUMBER or not os.access(path.parent, os.W_OK):
            return None
        code = marshal.loads(data[_HEADER:])
    except (OSError, EOFError, TypeError, ValueError):
        return None
    return code if isinstance(code, CodeType) else None
